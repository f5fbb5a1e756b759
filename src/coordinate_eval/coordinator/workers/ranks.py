"""The processes of a trial on several nodes: they find each other, begin together and end together.

There is one on each node. The first leads: it answers requests, and starts the engine. The others
follow: each has a part of the engine. Every follower holds a TCP connection to the leader. That
closes when either process ends, however it ends, and is given up when the other node is gone for
some seconds. Then the process that is left ends, too, whatever its engine waits for.

The leader writes where it listens to `ranks/<trial>.json`, with a token that followers show.
"""

import contextlib
import fcntl
import hmac
import json
import os
import random
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, Self

from coordinate_eval import _files
from coordinate_eval.coordinator.incidents.causes import Failure
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import TrialProgress
from coordinate_eval.coordinator.workers.signals import (
    StopRequested,
    ignore_signals,
    is_ending,
)
from coordinate_eval.evaluators.engines.base import Across
from coordinate_eval.records import Record

JOIN_SECONDS = 600.0
"""Longest time for which processes of a trial wait for each other to be there."""

END_SECONDS = 20.0
"""Time that a process gets to end by itself after another one has, before it is ended."""

_KEPT_ALIVE = {
    socket.TCP_KEEPIDLE: 5,
    socket.TCP_KEEPINTVL: 3,
    socket.TCP_KEEPCNT: 3,
    socket.TCP_USER_TIMEOUT: 15_000,
}
"""Seconds of silence, between probes, and probes; and milliseconds for an acknowledgement."""

_HELLO_SECONDS = 5.0
_LOOK_SECONDS = 0.5
_MOST_LINE_BYTES = 1 << 16
_PORTS = range(15_000, 32_000)  # below those that systems give to outgoing connections
_SIOCGIFADDR = 0x8915


class Leader(Record):
    """`ranks/<trial>.json`: where the first process of a trial on several nodes listens."""

    task: str
    addresses: list[str]
    port: int
    token: str


class RankLost(BaseException):
    """Another process of this trial has failed or ended.

    No `except Exception` of an engine keeps it.

    Args:
        node: that it was on.
        said: what it said last, if anything.
        why: why it failed, as far as it could say. Without a word, an item may have killed it.
    """

    def __init__(self, node: str, said: str = "", why: Failure | None = None) -> None:
        super().__init__(f"the part of the engine on {node} {said or 'has ended without a word'}")
        self.node, self.why = node, why or Failure("node", in_doubt=not said)


class Finished(BaseException):
    """The leader has ended, as it should."""


class _Line:
    """A connection to another process of the trial, with a JSON object in each line."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEPT_ALIVE.items():
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        self._connection = connection
        self._file = connection.makefile("rb")
        self.address: str = connection.getsockname()[0]
        """This machine's address, which the other one reaches."""

    def send(self, **message: object) -> None:
        with contextlib.suppress(OSError):  # whoever reads notices that the other has gone
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any] | None:
        """Return the next message; None if the other process has gone, or speaks another way."""
        try:
            line = self._file.readline(_MOST_LINE_BYTES)
            message = json.loads(line) if line.endswith(b"\n") else None
        except (OSError, ValueError, RecursionError):
            return None
        return message if isinstance(message, dict) else None

    def timeout(self, seconds: float | None) -> None:
        self._connection.settimeout(seconds)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


class _Interrupts:
    """Raises an error in the main thread, and ends the process if that does not help."""

    def __init__(self) -> None:
        self._error: BaseException | None = None
        self._armed = False
        self._over = threading.Event()

    @contextlib.contextmanager
    def armed(self) -> Iterator[None]:
        """Raise errors while the block runs, one at most."""
        signal.signal(signal.SIGUSR2, self._raise)
        self._armed = True
        try:
            if self._error is not None:
                self._raise(signal.SIGUSR2, None)
            yield
        finally:
            self._armed = False
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)

    def over(self) -> None:
        """Let the process take its time: nothing that others wait for is left of it."""
        self._over.set()

    def __call__(self, error: BaseException, tell: Callable[[], None] = lambda: None) -> None:
        """Raise an error in the main thread, from another one, which tells of it meanwhile.

        A process that was asked to stop goes on with stopping: the others were asked as well.
        """
        if self._error is not None or self._over.is_set() or is_ending():
            return
        self._error = error
        # From now on the main thread ignores the signals with which the scheduler ends the others.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR2)
        with contextlib.suppress(Exception):  # the main thread tries it again
            tell()
        if not self._over.wait(END_SECONDS):
            print(f"{error}; this process does not end by itself and is ended", flush=True)
            os._exit(1)

    def _raise(self, number: int, frame: FrameType | None) -> None:
        if self._armed and self._error is not None and not self._over.is_set() and not is_ending():
            self._armed = False
            ignore_signals()  # the scheduler ends what is left when one process has failed
            raise self._error


class Ranks:
    """The connections of the process that leads to all others, or of one of those to it.

    Enter it as a context manager around all that depends on the others. What is lost is raised in
    the main thread within the block. A leader learns the names of `nodes` from its followers.
    """

    def __init__(self, run_dir: RunDir, trial: str, task: str, nodes: list[str]) -> None:
        self._dir, self._trial, self._task, self._nodes = run_dir, trial, task, nodes
        self._interrupts = _Interrupts()
        self._lines: dict[int, _Line] = {}
        self._staged: set[int] = set()
        self._changed = threading.Condition()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self._interrupts.armed())
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()
        self._interrupts.over()
        for line in list(self._lines.values()):
            line.close()

    # The leader.

    def lead(self, tell: Callable[[RankLost], None]) -> None:
        """Listen for the followers, in threads. The first that is lost is told of at once.

        The scheduler may end this process before its engine has been closed.
        """
        server = socket.create_server(("", 0), backlog=len(self._nodes))
        self._stack.callback(server.close)
        token = _files.token()
        record = Leader(
            task=self._task, addresses=_addresses(), port=server.getsockname()[1], token=token
        )
        path = self._dir.ranks(self._trial)
        _files.make_folder(path.parent)
        _files.write_private(path, record.model_dump_json(indent=1) + "\n")

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:  # it is closed
                    return
                threading.Thread(
                    target=self._follow_up, args=(connection, token, tell), daemon=True
                ).start()

        threading.Thread(target=accept, name="followers", daemon=True).start()

    def begin(self, layers: Sequence[int], **more: object) -> Across:
        """Wait until all followers have their weights, and have them start their parts.

        Each gets `more`, too. Return this process's own part.

        Raises:
            RankLost: One does not come.
        """
        followers = len(self._nodes) - 1
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._lines) == followers, JOIN_SECONDS):
                missing = [n for rank, n in enumerate(self._nodes) if rank not in {0, *self._lines}]
                raise RankLost(missing[0], "has not begun")
            self._changed.wait_for(lambda: len(self._staged) == followers)
        address = self._lines[1].address
        port = _free_port(address)
        for line in self._lines.values():
            line.send(begin={"address": address, "port": port, "layers": list(layers), **more})
        _use_interface(address)
        return Across(len(self._nodes), 0, address, port, tuple(layers))

    def end(self) -> None:
        """Tell the followers that nothing is left to do."""
        self._interrupts.over()
        for line in list(self._lines.values()):
            line.send(end=True)

    def _follow_up(
        self, connection: socket.socket, token: str, tell: Callable[[RankLost], None]
    ) -> None:
        """Hear a follower until it ends."""
        line = _Line(connection)
        line.timeout(_HELLO_SECONDS)
        hello = line.receive() or {}
        rank = hello.get("rank")
        known = hmac.compare_digest(str(hello.get("token")).encode(), token.encode())
        if not known or type(rank) is not int or not 0 < rank < len(self._nodes):
            line.close()
            return
        line.timeout(None)
        line.send(welcome=True)
        node = self._nodes[rank] = str(hello.get("node"))
        with self._changed:
            self._lines[rank] = line
            self._changed.notify_all()
        while (message := line.receive()) is not None:
            if message.get("staged"):
                with self._changed:
                    self._staged.add(rank)
                    self._changed.notify_all()
            if message.get("stopped"):
                self._interrupts(StopRequested(f"a signal on {node}"))
                return
            if "failed" in message:
                break
        lost = RankLost(node) if message is None else _lost(node, message)
        self._interrupts(lost, lambda: tell(lost))

    # A follower.

    def join(self, rank: int, node: str) -> None:
        """Connect to the leader.

        Raises:
            Finished: It has ended already.
            RankLost: It is not found.
        """
        give_up = time.monotonic() + JOIN_SECONDS
        path = self._dir.ranks(self._trial)
        _files.make_folder(path.parent)
        while time.monotonic() < give_up:
            _files.touch(path.parent)  # so that a network file system looks again
            found = _files.read_record_if_there(path, Leader)
            line = None
            if found is not None and found.task == self._task:
                line = _greet(found, rank, node)
            if line is not None:
                self._lines[0] = line
                threading.Thread(target=self._hear_leader, args=(line,), daemon=True).start()
                return
            progress = _files.read_record_if_there(self._dir.trial(self._trial), TrialProgress)
            if progress is not None and progress.task == self._task and progress.state == "ended":
                raise Finished
            time.sleep(_LOOK_SECONDS)
        raise RankLost(self._nodes[0], "is not found from here")

    def wait_to_begin(self, rank: int) -> tuple[Across, dict[str, Any]]:
        """Say that the weights are here, and wait. Return this part, and what the leader adds."""
        line = self._lines[0]
        line.send(staged=True)
        with self._changed:
            while not (begin := self._begin):
                self._changed.wait(1.0)
        _use_interface(line.address)
        place = begin.pop("address"), begin.pop("port"), tuple(begin.pop("layers"))
        return Across(len(self._nodes), rank, *place), begin

    def fail(self, message: str, why: Failure) -> None:
        """Tell the leader why this process ends."""
        self.over()
        for line in self._lines.values():
            line.send(failed=message, **why._asdict())

    def stop(self) -> None:
        """Tell the leader that a signal has asked this process to stop."""
        for line in self._lines.values():
            line.send(stopped=True)

    def over(self) -> None:
        """Let this process take its time: its part of the engine has ended."""
        self._interrupts.over()

    _begin: dict[str, Any] | None = None

    def _hear_leader(self, line: _Line) -> None:
        while (message := line.receive()) is not None:
            if "begin" in message:
                with self._changed:
                    self._begin = dict(message["begin"])
                    self._changed.notify_all()
            if message.get("end"):
                self._interrupts(Finished())
                return
        self._interrupts(RankLost(self._nodes[0]))


def _lost(node: str, message: dict[str, Any]) -> RankLost:
    """Return the error for what a follower says of its end."""
    why = Failure(message.get("cause", "other"), in_doubt=bool(message.get("in_doubt")))
    return RankLost(node, f"failed: {message['failed']}", why)


def _greet(leader: Leader, rank: int, node: str) -> _Line | None:
    """Return a connection to the leader at one of its addresses; None if no address leads to it."""
    for address in leader.addresses:
        try:
            connection = socket.create_connection((address, leader.port), _HELLO_SECONDS)
        except OSError:
            continue
        line = _Line(connection)
        line.send(token=leader.token, rank=rank, node=node)
        if (line.receive() or {}).get("welcome"):
            line.timeout(None)
            return line
        line.close()
    return None


def _addresses() -> list[str]:
    """Return where this machine may be reached: by its name, then at its other addresses."""
    named: list[str] = []
    with contextlib.suppress(OSError):
        found = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
        named = [str(each[4][0]) for each in found]
    every = dict.fromkeys([*named, *(address for _, address in _interfaces())])
    outside = [address for address in every if not address.startswith("127.")]
    return outside or ["127.0.0.1"]


def _interfaces() -> Iterator[tuple[str, str]]:
    """Yield this machine's network interfaces, with the IPv4 address of each."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has no address
                request = struct.pack("256s", name.encode()[:15])
                answer = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, request)
                yield name, socket.inet_ntoa(answer[20:24])


def _use_interface(address: str) -> None:
    """Have libraries use the network that connects the nodes, unless users say which."""
    os.environ.setdefault("VLLM_HOST_IP", address)
    name = next((name for name, each in _interfaces() if each == address), None)
    if name is not None:
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(variable, name)


def _free_port(address: str) -> int:
    """Return a port that nothing listens on. Another trial here would choose the same by chance."""
    while True:
        port = random.SystemRandom().choice(_PORTS)
        with contextlib.suppress(OSError), socket.create_server((address, port)):
            return port
