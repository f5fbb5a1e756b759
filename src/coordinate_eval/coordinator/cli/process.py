"""Surround every command, a person's or a job's: set its environment, and end it.

Exit status: 0 success; where scores are asked for, all of them exist. 1 the run ended without all
results, or asking for it again was refused after repeated failures. 2 bad input or a refusal,
nothing was submitted. 3 try again later: the scheduler or an object store did not answer, or a
checkpoint that is to wait in the queue may still be being written. 130 interrupted, 143 terminated,
129 hung up.
"""

import os
import signal
import sys
from collections.abc import Callable

from coordinate_eval import _gpus, _launchers, _search_paths
from coordinate_eval._no_telemetry import switch_off_telemetry
from coordinate_eval.coordinator.cli.streams import complaint, whole_output
from coordinate_eval.errors import CoordinateError, UserError

QUIET_VARIABLES = ("TQDM_DISABLE", "HF_DATASETS_DISABLE_PROGRESS_BARS")
"""Switch off other people's progress bars; set to 0 to see them."""

_CALLERS: dict[str, str] = {}


def callers_environment() -> dict[str, str]:
    """Return the variables with which a person called, for programs that are not ours."""
    return dict(_CALLERS or os.environ)


def run(call: Callable[[list[str]], None], *, job: bool = False) -> None:
    """Call with the arguments of this process, and turn errors into messages."""
    # What is written is never another user's to change, whatever the umask.
    os.umask(os.umask(0o077) | 0o022)
    _CALLERS.update(os.environ)
    _search_paths.make_absolute(os.environ, sys.path)
    _search_paths.keep_modules_private(os.environ)
    switch_off_telemetry()
    if job:
        _gpus.name_once(os.environ)
    else:
        end_orderly()
        _launchers.leave_job(os.environ)  # jobs are told by their site
        _launchers.leave_job(_CALLERS)
    for variable in QUIET_VARIABLES:
        os.environ.setdefault(variable, "1")
    try:
        with whole_output():
            _in_a_folder(call)
    except CoordinateError as error:
        sys.stderr.write(f"coordinate-eval: {complaint(error)}\n")
        sys.exit(error.exit_status)
    except KeyboardInterrupt:  # before or after a command; typer ends one of itself, with 130
        sys.exit(130)


def end_orderly() -> None:
    """Have TERM, and a connection that ends, end a command like an error: it cleans up."""
    for each in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(each) is signal.SIG_DFL:  # `nohup` has it ignored
            signal.signal(each, lambda number, _: sys.exit(128 + number))


def _in_a_folder(call: Callable[[list[str]], None]) -> None:
    try:
        call(sys.argv[1:])
    except FileNotFoundError as error:
        if error.filename is not None:
            raise
        # Only asking for the working directory fails so without naming a file.
        raise UserError("the working directory is gone: change to one that is there") from error
