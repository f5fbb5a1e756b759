"""`coordinate_eval.after_save`: training code asks for a checkpoint's evaluation, and goes on.

Nothing is imported here that `import coordinate_eval` would have to wait for.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging
    import subprocess
    import threading
    from collections.abc import Sequence
    from pathlib import Path

_MOST_SECONDS = 900
"""Time for the submission, which usually takes a second: a scheduler may be silent for long."""

_PAUSE_SECONDS = 30.0
"""Time until the next try where the scheduler is silent, or takes no more jobs for now."""

_UNTIL_TAKEN = """\
while :; do
    "$@"
    status=$?
    [ "$status" -eq 3 ] || exit "$status"
    sleep {pause}
done
"""
"""A shell script that repeats a command as long as it ends with 3: try again later."""

_SECONDS_AT_EXIT = 60
"""Time that a training job which ends gives to the submission of its last checkpoint."""

_MOST_WORDS = 4000
"""Characters of the command's output that are logged."""


def after_save(
    path: str | os.PathLike[str],
    *,
    step: int | None = None,
    suite: str | os.PathLike[str] | None = None,
    options: Sequence[str] = (),
    rank: int | None = None,
) -> None:
    """Submit the evaluation of a checkpoint that training has just saved, and return at once.

    Call it on all ranks or on one, when all files of the checkpoint are in place. It acts on rank 0
    and never raises. A process of its own calls `coordinate-eval PATH --queue`, again for a while
    where the scheduler is silent or takes no more jobs, and writes what it says to
    `PATH.evaluation.log`. What came of it, or why nothing was done, goes to the logger
    `coordinate_eval`: warnings for what went wrong.

    Args:
        path: the checkpoint: a Hugging Face model directory, or a .pt file.
        step: the training step, for the tables of scores; by default the name of the checkpoint
            tells it.
        suite: a shipped suite's name, or a suite file; by default that of the settings.
        options: further options of `coordinate-eval run`, such as `["--limit", "100"]`. Without
            `--cluster`, nothing is started where there is no Slurm, because this machine's GPUs
            are busy.
        rank: number of this process; by default torch.distributed or the launcher's variables tell
            it, and a process that no launcher started is rank 0.
    """
    import logging

    log = logging.getLogger("coordinate_eval")
    try:
        number = _rank() if rank is None else rank
        if number != 0:
            log.debug("rank %d leaves the evaluation of %s to rank 0", number, path)
            return
        _submit(os.path.abspath(path), step, suite, options, log)  # noqa: PTH100 - keeps links
    except Exception as error:
        log.warning("no evaluation of %s: %s: %s", path, type(error).__name__, error)


def _rank() -> int:
    # To import torch here could change what the training imports later.
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    from coordinate_eval import _launchers

    return _launchers.rank(os.environ) or 0


def _submit(
    path: str,
    step: int | None,
    suite: str | os.PathLike[str] | None,
    options: Sequence[str],
    log: logging.Logger,
) -> None:
    """Start the command, and a thread that tells what comes of it."""
    import atexit
    import stat
    import subprocess
    import threading
    from pathlib import Path

    if not os.path.isdir(os.path.dirname(path)):  # noqa: PTH112, PTH120
        log.warning("no evaluation of %s: there is no such file or folder", path)
        return
    given = list(map(str, options))
    if step is not None:
        given.append(f"--step={step}")
    if suite is not None:
        given.append(f"--suite={os.fspath(suite)}")
    if not any(option.split("=")[0] == "--cluster" for option in given):
        given.append("--cluster=slurm")
    # It must end also if the training has ended before.
    limited = ["timeout", "-k", "10", str(_MOST_SECONDS)]
    repeated = ["sh", "-c", _UNTIL_TAKEN.format(pause=_PAUSE_SECONDS), "sh"]
    command = [sys.executable, "-P", "-m", "coordinate_eval", "run", path, "--queue", *given]
    output = Path(f"{path}.evaluation.log")
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    flags |= os.O_NONBLOCK  # a FIFO that others have put there would hold up the training
    with os.fdopen(os.open(output, flags, 0o644), "ab") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{output} is not a regular file")
        began = file.seek(0, os.SEEK_END)
        child = subprocess.Popen(
            [*limited, *repeated, *command],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # what ends the training's process group does not end it
        )
    log.debug("asking for the evaluation of %s: process %d", path, child.pid)
    thread = threading.Thread(
        target=_tell, args=(child, path, output, began, log), name="after_save", daemon=True
    )
    thread.start()
    atexit.register(_await, thread, path, log)


def _await(thread: threading.Thread, path: str, log: logging.Logger) -> None:
    """Wait for a submission when the training ends: a scheduler ends what a job leaves behind."""
    thread.join(_SECONDS_AT_EXIT)
    if thread.is_alive():
        log.warning("training ends while the evaluation of %s is still being submitted", path)


def _tell(
    child: subprocess.Popen[bytes], path: str, output: Path, began: int, log: logging.Logger
) -> None:
    """Log what the command has said when it has ended."""
    status = child.wait()
    try:
        with output.open("rb") as file:
            file.seek(began)
            said = file.read().decode(errors="replace").strip()[-_MOST_WORDS:]
    except OSError as error:
        said = f"{output} cannot be read: {error.strerror}"
    if status == 0:
        log.info("evaluation of %s: %s", path, said)
    elif status in (124, 137):  # those of timeout(1)
        log.warning("no evaluation of %s: no answer in %d s: %s", path, _MOST_SECONDS, said)
    else:
        log.warning("no evaluation of %s (exit status %d): %s", path, status, said)
