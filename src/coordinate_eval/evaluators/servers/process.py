"""A server that this process starts, and that ends with it."""

import asyncio
import contextlib
import io
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from coordinate_eval import _guard
from coordinate_eval._format import brief
from coordinate_eval.errors import EngineError

T = TypeVar("T")

END_SECONDS: Final = 10.0
"""Time that a server gets to end by itself: less than a job has that is told to end."""

LOOK_SECONDS: Final = 0.2
"""Time between two looks whether a server has ended."""

_PORTS: Final = range(20_000, 30_000)
"""Ports that a system gives to no client by itself."""

_LAST_LINES, _MOST_LINE = 5, 300
"""Lines of its output that a message repeats, and characters of each."""

_LISTENS = "0A"
"""The state of a listening socket in `/proc/net/tcp`."""


class ServerEnded(EngineError):
    """The server has ended, or does not answer. Another one may do better."""


class Process:
    """A server as a child process, with all that it starts. Its output goes to this one's.

    Args:
        name: what messages call it.
        argv: its program and arguments.
    """

    def __init__(self, name: str, argv: Sequence[str], env: Mapping[str, str]) -> None:
        self._name = name
        self._guard = _guard.start(
            argv,
            env=env,
            end_seconds=END_SECONDS,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._last: deque[str] = deque(maxlen=_LAST_LINES)
        self._reader = threading.Thread(target=self._pass_on, daemon=True)
        self._reader.start()

    @property
    def ended(self) -> int | None:
        """Return its exit status, above 128 for a signal; None while it runs."""
        status = self._guard.poll()
        return None if status is None else 128 - status if status < 0 else status

    def check(self) -> None:
        """Check that it has not ended."""
        if (status := self.ended) is not None:
            raise ServerEnded(f"{self._name} ended (exit status {status}){self.last_words}")

    async def while_it_runs(self, work: Coroutine[Any, Any, T]) -> T:
        """Do some work and return what it returns, unless the server ends meanwhile.

        Raises:
            ServerEnded: it has ended.
        """
        doing = asyncio.create_task(work)
        try:
            while not doing.done():
                self.check()
                await asyncio.wait([doing], timeout=LOOK_SECONDS)
            if doing.exception():
                self.check()
            return await doing
        finally:
            doing.cancel()
            await asyncio.gather(doing, return_exceptions=True)

    @property
    def last_words(self) -> str:
        """Return the last lines of its output, as the end of a message."""
        if self.ended is not None:
            self._reader.join(END_SECONDS)
        said = " | ".join(self._last)
        return f"; the last lines of its output: {said}" if said else "; it has said nothing"

    def end(self) -> None:
        """End it with all of its processes. A second call does nothing."""
        if self._guard.stdin is None or self._guard.stdin.closed:
            return
        self._guard.stdin.close()
        try:
            self._guard.wait(2 * END_SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError):
                os.kill(self._guard.pid, signal.SIGKILL)
            self._guard.wait()
        self._reader.join(END_SECONDS)

    def _pass_on(self) -> None:
        assert self._guard.stdout is not None
        with io.BufferedReader(self._guard.stdout) as lines:  # type: ignore[type-var]
            while line := lines.readline(1 << 16):
                text = line.decode(errors="replace")
                if words := brief(text, _MOST_LINE):
                    self._last.append(words)
                with contextlib.suppress(OSError, ValueError):
                    sys.stderr.write(text)
                    sys.stderr.flush()


class Port:
    """A port of this machine that no other server of this program takes until it is closed."""

    def __init__(self) -> None:
        for number in random.sample(_PORTS, 200):
            self._held = socket.socket(socket.AF_UNIX)
            try:
                # The name is in the network namespace, as ports are, and gone with this process.
                self._held.bind(f"\0coordinate-eval-port-{number}")
                with socket.socket() as tried:
                    tried.bind(("127.0.0.1", number))
            except OSError:
                self._held.close()
            else:
                self.number = number
                return
        raise OSError("no port is free")

    @property
    def is_foreign(self) -> bool:
        """Return whether a user listens there who is neither this one nor root."""
        uids = set()
        for name in ("tcp", "tcp6"):
            with contextlib.suppress(OSError):
                for line in Path("/proc/net", name).read_text().splitlines()[1:]:
                    place, state, uid = (line.split()[at] for at in (1, 3, 7))
                    if state == _LISTENS and int(place.rpartition(":")[2], 16) == self.number:
                        uids.add(int(uid))
        return bool(uids - {0, os.getuid()})

    def close(self) -> None:
        """Give the port back."""
        self._held.close()
