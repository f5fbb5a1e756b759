"""Keep the warnings of other libraries off the screen while requests are built."""

import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Iterator

QUIET_VARIABLES = {
    "TRANSFORMERS_VERBOSITY": "error",
    "DATASETS_VERBOSITY": "error",
    "HF_HUB_VERBOSITY": "error",
}
"""Read by these libraries when they are imported; one that the user has set stays as it is."""


@contextlib.contextmanager
def quiet_libraries(*, verbose: bool) -> Iterator[None]:
    """Hide the warnings of libraries in a block, unless `verbose`. Errors are shown.

    The evaluation harness warns of each task that leaves a default to it. These warnings say
    nothing about the run, and every command that builds requests would repeat them. The
    environment is restored after the block, so that the logs of jobs have all warnings.
    """
    if verbose:
        yield
        return
    added = {name: value for name, value in QUIET_VARIABLES.items() if name not in os.environ}
    os.environ.update(added)
    # What is logged without any handler goes to the last resort, which prints warnings.
    last = logging.lastResort
    level = last.level if last is not None else logging.WARNING
    harness = logging.getLogger("lm_eval")
    harness_level = harness.level
    try:
        if last is not None:
            last.setLevel(logging.ERROR)
        harness.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            if not sys.warnoptions:
                warnings.simplefilter("ignore")
            yield
    finally:
        harness.setLevel(harness_level)
        if last is not None:
            last.setLevel(level)
        for name in added:
            os.environ.pop(name, None)
