"""The one munged of this machine, which all clusters on it share. Standard library only."""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from _processes import DevClusterError, command_line, processes, read_pid, stop

_KEY = Path("/etc/munge/munge.key")
_RUN = Path("/run/munge")
_LOG = Path("/var/log/munge")
_LOCK = Path("/run/coordinate-eval-slurm-dev.lock")


@contextlib.contextmanager
def shared() -> Iterator[None]:
    """Let no other cluster come or go: they share munged, which the last one stops."""
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def start() -> bool:
    """Start munged unless one answers. Return whether it was started here."""
    if subprocess.run(["munge", "-n"], capture_output=True, check=False).returncode == 0:
        return False
    if not _KEY.exists():
        _KEY.parent.mkdir(mode=0o700, exist_ok=True)
        _KEY.touch(mode=0o400)
        _KEY.write_bytes(os.urandom(128))
        shutil.chown(_KEY.parent, "munge", "munge")
        shutil.chown(_KEY, "munge", "munge")
    for path, mode in ((_RUN, 0o755), (_LOG, 0o700)):
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(mode)
        shutil.chown(path, "munge", "munge")
    # A socket that nobody serves any more keeps a new munged from starting.
    started = subprocess.run(
        ["munged", "--force"],
        user="munge",
        group="munge",
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
    )
    if started.returncode != 0:
        raise DevClusterError(f"munged does not start: {started.stderr.strip()}")
    return True


def stop_unless_needed() -> None:
    """Stop munged, unless some slurmctld runs on this machine."""
    pid = read_pid(_RUN / "munged.pid")
    needed = any("slurmctld" in command_line(each).split("\0")[0] for each in processes())
    if not needed and pid and "munged" in command_line(pid):
        stop(pid, signal.SIGTERM)
