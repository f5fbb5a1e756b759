"""A process that runs one job of `local.py` and ends with it.

The guard reads the job's argv from its standard input, as a line of JSON with a character for each
byte, and keeps reading. When its standard input closes, the guard ends the job. That happens when
the job is cancelled, and when the process that started the guard ends, even by SIGKILL. So no job
outlives its supervisor.

This file is run as a program and imports only the standard library: a guard takes 10 MiB, and
starts in a few hundredths of a second.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading

END_SECONDS = 20.0
"""Time for a job to clean up before it is killed, in seconds, for example to remove weights."""


def run() -> int:
    """Run the job until it ends. Return its exit status; 128 and the signal if one killed it."""
    words = json.loads(sys.stdin.buffer.readline())
    argv = [word.encode("latin-1") for word in words]
    job = subprocess.Popen(argv, stdin=subprocess.DEVNULL, process_group=0)
    threading.Thread(target=_end_when_told, args=(job,), daemon=True).start()
    status = job.wait()
    _kill_group(job)
    return status if status >= 0 else 128 - status


def _end_when_told(job: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM when standard input closes, and SIGKILL if the job does not end in time."""
    while os.read(sys.stdin.fileno(), 1024):  # no lock that this thread would hold at the exit
        pass
    job.terminate()
    try:
        job.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        _kill_group(job)


def _kill_group(job: subprocess.Popen[bytes]) -> None:
    """Kill a job and what it has started: an engine's processes would keep GPUs and locks."""
    with contextlib.suppress(OSError):  # nothing of it is left
        os.killpg(job.pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(run())
