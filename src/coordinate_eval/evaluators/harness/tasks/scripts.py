"""Scripts that `datasets` and `evaluate` would find by a name and run: refused.

A task names a data set and a metric. `datasets` before version 4 runs a script of that name beside
the data, and `evaluate` one in the working folder, before either looks at a hub. Whoever can put a
file there would be trusted like a task. Metrics of a hub stay: a task asks for them by name.
"""

import functools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from coordinate_eval.errors import UserError
from coordinate_eval.evaluators import own_code
from coordinate_eval.evaluators.around_import import around_import, hidden

_FORMATS = "datasets.packaged_modules."
"""Prefix of the modules of formats that `datasets` reads itself."""


@functools.cache
def refuse_scripts() -> None:
    """Refuse, from now on in this process, scripts beside data and code of checkpoints."""
    import datasets.load

    own_code.refuse()
    datasets.load.import_main_class = _only_formats(datasets.load.import_main_class)
    # It takes a while, and few tasks need it.
    around_import("evaluate", _importing_evaluate)


@contextmanager
def _importing_evaluate() -> Iterator[None]:
    """Let the import of `evaluate` draw no random numbers, and have it run no metric by its name.

    Else what a task draws would depend on which tasks this process has met before. Of transformers
    it has a use for pipelines of models, which take four CPU seconds to import. Metrics have none.
    """
    python_state, numpy_state = random.getstate(), np.random.get_state()
    try:
        with hidden("transformers"):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
    import evaluate.loading

    factory = evaluate.loading.LocalEvaluationModuleFactory
    evaluate.loading.LocalEvaluationModuleFactory = _only_given(factory)


def _only_formats(load: Any) -> Any:  # noqa: ANN401  datasets has no types here
    @functools.wraps(load)
    def guarded(module_path: str, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        if not module_path.startswith(_FORMATS):
            raise UserError(
                f"the data set's loading script {module_path} is not run: give its data in files, "
                "such as JSON lines or Parquet"
            )
        return load(module_path, *args, **kwargs)

    return guarded


def _only_given(factory: Any) -> Any:  # noqa: ANN401  evaluate has no types
    @functools.wraps(factory)
    def guarded(path: str, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        if not Path(path).is_absolute():
            raise UserError(
                f"{Path(path).absolute()} is not run as a metric, for it may be anybody's: rename "
                "it, or give the metric to the task with !function"
            )
        return factory(path, *args, **kwargs)

    return guarded
