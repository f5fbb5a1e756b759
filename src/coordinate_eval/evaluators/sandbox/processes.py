"""The processes of a program as seen from outside: talk to their warden, and end them all.

A process is held by a descriptor (pidfd_open(2)) from before the program starts. Whatever becomes
of the processes in between, killing and waiting then reach that process and no other.
"""

import contextlib
import os
import secrets
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from functools import cache
from math import ceil
from pathlib import Path
from typing import Final

from coordinate_eval.errors import CoordinateError
from coordinate_eval.evaluators.sandbox.guest import MOST_SAID_BYTES
from coordinate_eval.evaluators.sandbox.memory import Watch

START_SECONDS: Final = 60.0
"""Longest time until a program starts, in seconds. A slow file system may delay it."""

_END_SECONDS = 30.0  # for a warden to end what no namespace holds together
_LONGEST_POLL_SECONDS = 3600.0  # in ms it must fit into 31 bits
_REASON_CHARACTERS = 500

# Ids of nobody: no use of the first range is known (https://systemd.io/UIDS-GIDS). A container that
# has only 65536 ids has the second one, above its system users.
_USERS = (range(0x7000_0000, 0x7100_0000), range(50_000, 60_000))


class SandboxError(CoordinateError):
    """The sandbox itself failed. Nothing is known about the program: try again."""


class Stopped(Exception):  # not an error: the caller closed `run_many`
    """The answer is no longer wanted."""


class Warden:
    """The warden of a program, and all processes that end with it."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", channel: socket.socket, stop: int | None
    ) -> None:
        """Watch a warden that `process` runs. Something to read at `stop` ends all waiting."""
        self.handles: list[int] = []
        """Descriptors of the warden and of the program's process, from `start` on. There are none
        on Linux before 5.3."""
        self._process = process
        self._channel = channel
        self._ready = False
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)
        if stop is not None:
            self._poll.register(stop, select.POLLIN)

    def await_ready(self) -> None:
        """Wait until the program could start.

        Raises:
            SandboxError: the sandbox did not start.
            Stopped: the answer is no longer wanted.
        """
        self._ready = self.hear(START_SECONDS) == b"ready"
        if not self._ready:
            assert self._process.stdout is not None  # a pipe was asked for
            self._process.kill()
            said = self._process.stdout.read().decode("utf-8", "replace").strip()
            # Of a traceback, its last line.
            why = said[-_REASON_CHARACTERS:].rpartition("\n")[2]
            raise SandboxError(f"the sandbox did not start: {why or 'it said nothing'}")

    def start(self) -> None:
        """Let the program start."""
        with contextlib.suppress(OSError):  # the warden has ended, as `hear` will tell
            self._channel.send(b"go")

    def hear(self, seconds: float, watch: Watch | None = None) -> bytes | None:
        """Return what the warden says: nothing if it has ended, None if it is silent for so long.

        Raises:
            Stopped: the answer is no longer wanted.
            OverMemory: the watched processes use too much.
        """
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if watch is not None:
                watch.look()
                left = min(left, watch.seconds_left())
            ready = dict(self._poll.poll(ceil(min(left, _LONGEST_POLL_SECONDS) * 1000)))
            if self._channel.fileno() in ready:
                try:
                    said, handles, _, _ = socket.recv_fds(self._channel, MOST_SAID_BYTES, 2)
                except ConnectionError:
                    return b""
                self.handles += handles
                return said
            if ready:
                raise Stopped
        return None

    def end(self, home: str | None) -> None:
        """End the warden and all processes of its program, and wait until none is left.

        The kernel ends all others of a namespace before its first process, the warden, has ended.
        Without namespaces, `home` is the program's folder, and the warden ends them.
        """
        self._channel.close()  # on this alone, the warden ends all others and itself
        if not self._ready:
            self._process.kill()
        if home is not None:
            try:
                clean = self._process.wait(_END_SECONDS) == 0
            except subprocess.TimeoutExpired:
                self._process.kill()
                clean = False
            if not clean:
                _kill_marked(f"HOME={home}".encode())
        elif self.handles:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                signal.pidfd_send_signal(self.handles[0], signal.SIGKILL)
            ended = select.poll()
            ended.register(self.handles[0], select.POLLIN)
            ended.poll()
        self._process.wait()
        for handle in self.handles:
            os.close(handle)


def tasks_of_user() -> int:
    """Return the number of this user's threads. Before Linux 5.14, RLIMIT_NPROC counts them all."""
    user, tasks = os.geteuid(), 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):  # it has ended
                if entry.stat().st_uid == user:
                    tasks += (entry / "task").stat().st_nlink - 2
    return tasks


@contextlib.contextmanager
def own_user() -> Iterator[int | None]:
    """Hold a user id that no other program on this node has meanwhile; None if this is not root.

    The limit on processes counts all of one user id: a program must not meet another's limit.

    Raises:
        SandboxError: no id is free.
    """
    users = _spare_users() if os.geteuid() == 0 else None
    if users is None:
        yield None
        return
    with socket.socket(socket.AF_UNIX) as claim:
        # A name that one socket of a network namespace can have, and no file. The kernel frees it
        # when the process ends. Containers have names of their own, but their ids, taken at random
        # from millions, do not meet.
        for user in (secrets.choice(users) for _ in range(1000)):
            with contextlib.suppress(OSError):
                claim.bind(f"\0coordinate-eval-user-{user}")
                break
        else:
            raise SandboxError("no user id is free for a program")
        yield user


@cache
def _spare_users() -> range | None:
    """Return user ids of nobody that exist here; None in a namespace with few ids."""
    lines = Path("/proc/self/uid_map").read_text().splitlines()
    known = [
        range(first, first + count) for first, _, count in (map(int, x.split()) for x in lines)
    ]
    for users in _USERS:
        if any(users[0] in ids and users[-1] in ids for ids in known):
            return users
    return None


def _kill_marked(mark: bytes) -> None:
    """Kill every process that has `mark` in its environment, until none is left."""
    found = True
    while found:
        found = False
        # The first thread of a process has no environment any more if it has ended.
        for file in Path("/proc").glob("[0-9]*/task/[0-9]*/environ"):
            with contextlib.suppress(OSError):  # another user's, or just ended
                if mark in file.read_bytes().split(b"\0"):
                    os.kill(int(file.parts[2]), signal.SIGKILL)
                    found = True
