"""A process that runs a program and ends with whoever asked for it.

The guard reads the program's argv from its standard input, as a line of JSON with a character for
each byte, and keeps reading. When its standard input closes, the guard ends the program, and all
that the program has started. That happens when the caller closes it, and when the caller ends, even
by SIGKILL. So no job of `clusters/local.py` outlives its supervisor, and no server its trial.

This file is run as a program and imports only the standard library: a guard takes 10 MiB, and
starts in a few hundredths of a second.
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

END_SECONDS = 20.0
"""Time for a job to clean up before it is killed, in seconds, for example to remove weights."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def start(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    end_seconds: float = END_SECONDS,
    **where: Any,  # noqa: ANN401 - arguments of Popen
) -> subprocess.Popen[bytes]:
    """Start a program under a guard, and return the guard. Close its standard input to end both.

    Raises:
        OSError: it cannot be started.
    """
    guard = subprocess.Popen(
        (sys.executable, "-I", "-S", __file__, str(end_seconds)),
        bufsize=0,
        env=env,
        stdin=subprocess.PIPE,
        # What ends the caller's group must not end the guard before its program.
        process_group=0,
        **where,
    )
    assert guard.stdin is not None
    words = [os.fsencode(word).decode("latin-1") for word in argv]
    guard.stdin.write(json.dumps(words).encode() + b"\n")
    return guard


def run(end_seconds: float) -> int:
    """Run the program until it ends. Return its exit status, or 128 and the signal of its end."""
    words = json.loads(sys.stdin.buffer.readline())
    argv = [word.encode("latin-1") for word in words]
    call = ctypes.CDLL(None).prctl
    call(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        job = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            process_group=0,
            preexec_fn=lambda: call(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
        )
    except OSError as error:
        sys.stderr.write(f"cannot start {os.fsdecode(argv[0])}: {error.strerror}\n")
        return 127
    threading.Thread(target=_end_when_told, args=(job, end_seconds), daemon=True).start()
    status = job.wait()
    _kill_group(job)
    _kill_others()
    return status if status >= 0 else 128 - status


def _end_when_told(job: subprocess.Popen[bytes], end_seconds: float) -> None:
    """Send SIGTERM when standard input closes, and SIGKILL if the job does not end in time."""
    while os.read(sys.stdin.fileno(), 1024):  # no lock that this thread would hold at the exit
        pass
    job.terminate()
    try:
        job.wait(end_seconds)
    except subprocess.TimeoutExpired:
        _kill_group(job)


def _kill_group(job: subprocess.Popen[bytes]) -> None:
    """Kill a job and what it has started: an engine's processes would keep GPUs and locks."""
    with contextlib.suppress(OSError):  # nothing of it is left
        os.killpg(job.pid, signal.SIGKILL)


def _kill_others() -> None:
    """Kill what left the job's group. The kernel gives such processes to the guard as children."""
    with contextlib.suppress(OSError):  # no children are left, or the kernel lists none
        while True:
            with open(f"/proc/self/task/{os.getpid()}/children") as listed:
                for child in listed.read().split():
                    os.kill(int(child), signal.SIGKILL)
            os.wait()


if __name__ == "__main__":
    sys.exit(run(float(sys.argv[1])))
