"""The mother of all scoring processes: it has imported the harness, and forks a child per dataset.

It never sees what a model wrote. A child gets its dataset's responses as open files, scores them,
and is ended with all that it started before the next one is forked. So nothing of one dataset
reaches another. In its namespaces the mother is the first process: the filter of system calls
denies signals to it, and nobody can trace it or open its files. Between two children it empties
the file systems in memory, and looks whether all that others have mounted there is in its place. If
it cannot, it ends, and whoever needs the next child starts another mother.
"""

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from coordinate_eval.evaluators.sandbox.inside import end_with_parent, show

BEGIN, END = b"begin", b"end"
"""The messages to the mother, and hers when a child has ended."""

MOST_BYTES = 100_000
"""Longest list of modules that the mother imports for later children."""

FILES = 4
"""Open files that a child gets: commands, replies, responses and answers."""

_LOOK_SECONDS = 0.2
_PAUSE_SECONDS = 0.001
_IN_MEMORY = ("/tmp", "/dev/shm")  # noqa: S108  # of its own namespace


def fork_for_each(control: socket.socket, score: Callable[[list[int]], None]) -> None:
    """Fork a child that calls `score` with its files, whenever `control` says so.

    When it ends, the mother is told what it imported to load its dataset, before it read what the
    model wrote, and imports that before it forks the next child.
    """
    alone = os.getpid() == 1
    mounted = _mounted() if alone else []
    mother = os.getpid()
    modules: list[str] = []
    while True:
        said, files, _, _ = socket.recv_fds(control, len(BEGIN), FILES, socket.MSG_CMSG_CLOEXEC)
        if not said:
            return
        for name in modules:
            with contextlib.suppress(Exception):  # as of one that only a child can import
                importlib.import_module(name)
        gc.freeze()
        child = os.fork()
        if child == 0:
            _be_a_child(control, score, files, mother)
        for file in files:
            os.close(file)
        _end(control, child)
        if alone:
            _end_all_others()
            if _mounted() != mounted:
                sys.exit("a scoring process has moved what is mounted in /tmp or /dev/shm")
        modules = control.recv(len(END) + MOST_BYTES).removeprefix(END).decode().splitlines()
        control.send(END)


def _be_a_child(
    control: socket.socket, score: Callable[[list[int]], None], files: list[int], mother: int
) -> None:
    """Score, and end. The kernel ends a child whose mother was killed."""
    status = 1
    try:
        end_with_parent()
        if os.getppid() != mother:
            return
        control.close()
        os.setpgid(0, 0)
        show(True)  # whoever watches has to see what it uses
        score(files)
        status = 0
    except Exception as error:
        sys.stderr.write(f"{error}\n")
    finally:
        os._exit(status)


def _end(control: socket.socket, child: int) -> None:
    """Wait until a child is to end or has ended, and end it with its group.

    Where nothing confines it, a process that has left the group lives on.
    """
    poll = select.poll()
    poll.register(control, select.POLLIN)
    ended = None
    while ended is None and not poll.poll(1000 * _LOOK_SECONDS):
        ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is not None and ended.si_status:
        sys.stderr.write(f"a scoring process ended with status {ended.si_status}\n")
    for end in (os.kill, os.killpg):
        with contextlib.suppress(ProcessLookupError):
            end(child, signal.SIGKILL)
    os.waitpid(child, 0)


def _end_all_others() -> None:
    """End all other processes of this namespace. Its orphans are children of this one."""
    while others := _others():
        for other in others:
            with contextlib.suppress(ProcessLookupError):
                os.kill(other, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(_PAUSE_SECONDS)


def _others() -> list[int]:
    found = {int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()}
    return sorted(found - {os.getpid()})


def _mounted() -> list[tuple[str, int, int, int]]:
    """Empty the file systems in memory. Return what is mounted there, and the folders around."""
    left = []
    for folder in map(Path, _IN_MEMORY):
        folder.chmod(0o1777)
        left += sorted(_not_removed(folder, folder.lstat().st_dev))
    return left


def _not_removed(folder: Path, device: int) -> Iterator[tuple[str, int, int, int]]:
    """Remove all in a folder that is on this device. Yield what is mounted, and what holds it."""
    for path in list(folder.iterdir()):
        status = path.lstat()
        left = []
        if status.st_dev == device:
            if not stat.S_ISDIR(status.st_mode):
                path.unlink()
                continue
            left = list(_not_removed(path, device))
            if not left:
                path.rmdir()
                continue
        yield str(path), status.st_dev, status.st_ino, status.st_mode
        yield from left
