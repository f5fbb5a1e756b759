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
    from typing import BinaryIO, Literal

    Commands = Sequence[Sequence[str]]

_MOST_SECONDS = 900
"""Time for the submission, which usually takes a second: a scheduler may be silent for long."""

_PAUSE_SECONDS = 30.0
"""Time until the next try where the scheduler is silent, or takes no more jobs for now."""

_not_taken: dict[tuple[str, ...], Commands] = {}
"""Commands of this process that were not taken, by their checkpoint and the first of them: a
checkpoint may be asked for with several suites."""

_UNATTENDED = ("--queue", "--no-strict")
"""Options of a run that nobody waits for: it waits for GPUs, and for no missing task."""

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

REQUESTED = 4
"""Exit status of the command where it has requested the run in place of submitting it."""

_MOST_WORDS = 4000
"""Characters of the command's output that are logged."""


def after_save(
    path: str | os.PathLike[str],
    *,
    step: int | None = None,
    suite: str | os.PathLike[str] | None = None,
    options: Sequence[str] = (),
    rank: int | None = None,
    keep: bool = True,
    average: str | None = None,
) -> Literal["submitting", "requesting"] | None:
    """Submit the evaluation of a checkpoint that training has just saved, and return at once.

    Call it on all ranks or on one, when the checkpoint is saved, or its folder is there and other
    ranks or a thread still write into it. It acts on rank 0 and never raises. A process of its own
    calls `coordinate-eval PATH --queue`, again for a while where the checkpoint is not whole yet,
    or the scheduler is silent or takes no more jobs, and writes what it says to
    `PATH.evaluation.log`, of a checkpoint in a store only to the logger below. Without `sbatch`, as
    in most containers, it writes a request, which `coordinate-eval watch` or a supervisor of yours
    submits. What was refused is asked for once
    more after a later save is taken. What came of it, or why nothing was done, goes to the logger
    `coordinate_eval`: warnings for what went wrong.

    Args:
        path: the checkpoint: the folder or file that training has saved, or its URL, such as
            "s3://bucket/run/step-1000", once something of it is there.
        step: the training step, for the tables of scores; by default the name of the checkpoint
            tells it.
        suite: a shipped suite's name, or a suite file; by default that of the settings.
        options: further options of `coordinate-eval run`, such as `["--limit", "100"]`. Without
            `--cluster`, nothing is started where there is no Slurm, because this machine's GPUs
            are busy.
        rank: number of this process; by default torch.distributed or the launcher's variables tell
            it, and a process that no launcher started is rank 0.
        keep: the run holds the checkpoint's files by hard links until it needs them no more, so
            that training may delete the checkpoint. Their space is free only then.
        average: "last:5" also asks for the evaluation of the average of the last five checkpoints
            of this training that are there, this one among them. No copy is written.

    Returns:
        what the process does: "submitting" or "requesting". None if nothing is done.
    """
    import logging

    log = logging.getLogger("coordinate_eval")
    try:
        number = _rank() if rank is None else rank
        if number != 0:
            log.debug("rank %d leaves the evaluation of %s to rank 0", number, path)
            return None
        if (place := _place(os.fspath(path), log)) is None:
            return None
        given = [*map(str, options), *(() if keep else ("--no-keep",))]
        return _submit(place, step, suite, given, log, average=average)
    except Exception as error:
        log.warning("no evaluation of %s: %s: %s", path, type(error).__name__, error)
        return None


def _place(path: str, log: logging.Logger) -> str | None:
    """Return the absolute path of a checkpoint, or its URL; None if the URL is refused."""
    from coordinate_eval import _urls
    from coordinate_eval.errors import UserError

    try:
        return _urls.of_store(path) or os.path.abspath(path)  # noqa: PTH100 - keeps links
    except UserError as error:  # without the password that the URL may have
        log.warning("no evaluation: %s", error)
        return None


def _is_url(place: str) -> bool:
    return not place.startswith("/")


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
    *,
    average: str | None,
) -> Literal["submitting", "requesting"] | None:
    """Start the command, and a thread that tells what comes of it. Return what it does."""
    import atexit
    import shutil
    import threading

    if not (_is_url(path) or os.path.isdir(os.path.dirname(path))):  # noqa: PTH112, PTH120
        log.warning("no evaluation of %s: there is no such file or folder", path)
        return None
    given = [*options]
    if step is not None:
        given.append(f"--step={step}")
    if suite is not None:
        given.append(f"--suite={os.fspath(suite)}")
    on_slurm = not any(option.split("=")[0] == "--cluster" for option in given)
    if on_slurm:
        given.append("--cluster=slurm")
    # It must end also if the training has ended before.
    limited = ["timeout", "-k", "10", str(_MOST_SECONDS)]
    repeated = ["sh", "-c", _UNTIL_TAKEN.format(pause=_PAUSE_SECONDS), "sh"]
    program = [sys.executable, "-P", "-m", "coordinate_eval"]
    of_average = [[average, path, "--average"]] if average else []
    commands = [
        [*limited, *repeated, *program, "run", *what, *_UNATTENDED, *given]
        for what in ([path], *of_average)
    ]
    started = _start(path, commands[0], log)
    thread = threading.Thread(
        target=_follow, args=(path, commands, started, log), name="after_save", daemon=True
    )
    thread.start()
    atexit.register(_await, thread, path, log)
    return "requesting" if on_slurm and not shutil.which("sbatch") else "submitting"


def _start(
    path: str, command: Sequence[str], log: logging.Logger
) -> tuple[subprocess.Popen[bytes], BinaryIO]:
    """Start the command. Return its process, and what it says from now on as a file to read."""
    import subprocess
    import tempfile
    from pathlib import Path

    from coordinate_eval import _owner
    from coordinate_eval.errors import ForeignError

    said: BinaryIO
    try:
        if _is_url(path):
            raise FileNotFoundError(0, "no log is written into a store")
        output = Path(f"{path}.evaluation.log")
        written = os.fdopen(_owner.open_log(output), "ab")
        said = os.fdopen(_owner.open_file(output), "rb")
        said.seek(0, os.SEEK_END)
    except (OSError, ForeignError) as error:  # a log is no reason to lose an evaluation
        told = log.debug if _is_url(path) else log.warning
        told("evaluation of %s: only this log has its output: %s", path, error)
        said = tempfile.TemporaryFile()  # noqa: SIM115 - it is read when the process has ended
        written = os.fdopen(os.dup(said.fileno()), "ab")
    with written:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # what ends the training's process group does not end it
        )
    log.debug("asking for the evaluation of %s: process %d", path, child.pid)
    return child, said


def _follow(
    path: str,
    commands: Commands,
    started: tuple[subprocess.Popen[bytes], BinaryIO],
    log: logging.Logger,
) -> None:
    """Log what comes of a submission. After one that is taken, ask again for those that were not.

    What was wrong with all of them, such as a setting, has been mended then.
    """
    if not _all_taken(path, commands, started, log):
        return
    for key, the_same in {**_not_taken}.items():
        _not_taken.pop(key, None)
        earlier = key[0]
        try:
            if _is_url(earlier) or os.path.lexists(earlier):
                _all_taken(earlier, the_same, _start(earlier, the_same[0], log), log, again=False)
        except Exception as error:
            log.warning("no evaluation of %s: %s: %s", earlier, type(error).__name__, error)


def _all_taken(
    path: str,
    commands: Commands,
    started: tuple[subprocess.Popen[bytes], BinaryIO],
    log: logging.Logger,
    *,
    again: bool = True,
) -> bool:
    """Run commands one after the other, the first of which is started, until one is not taken.

    Return whether all were; if not, those that are left are kept, to be asked for `again`.
    """
    for number, command in enumerate(commands):
        if not _is_taken(path, _start(path, command, log) if number else started, log):
            if again:
                _not_taken[path, *command] = commands[number:]
            return False
    return True


def _await(thread: threading.Thread, path: str, log: logging.Logger) -> None:
    """Wait for a submission when the training ends: a scheduler ends what a job leaves behind."""
    thread.join(_SECONDS_AT_EXIT)
    if thread.is_alive():
        log.warning("training ends while the evaluation of %s is still being submitted", path)


def _is_taken(
    path: str, started: tuple[subprocess.Popen[bytes], BinaryIO], log: logging.Logger
) -> bool:
    """Log what a command has said when it has ended. Return whether the run will be submitted."""
    child, said = started
    status = child.wait()
    try:
        with said:
            if said.writable():  # the process has moved the place that both share
                said.seek(0)
            words = _last_lines(said.read().decode(errors="replace").strip())
    except OSError as error:
        words = f"its output cannot be read: {error.strerror}"
    if status in (0, REQUESTED):
        log.info("evaluation of %s: %s", path, words)
    elif status in (124, 137):  # those of timeout(1)
        log.warning("no evaluation of %s: no answer in %d s: %s", path, _MOST_SECONDS, words)
    else:
        log.warning("no evaluation of %s (exit status %d): %s", path, status, words)
    return status in (0, REQUESTED)


def _last_lines(words: str) -> str:
    """Return a command's output, or the last of its lines if it is long."""
    if len(words) <= _MOST_WORDS:
        return words
    end = words[-_MOST_WORDS:]
    return "…\n" + (end.partition("\n")[2] or end)
