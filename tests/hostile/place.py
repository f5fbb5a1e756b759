"""A place where hostile programs run: a user, a level, and what this user owns around them.

The process of the tests becomes the reaper of all orphans below it while a place is open. So each
process that a program leaves behind, however it hides, is a descendant of it and is found.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import pty
import secrets
import select
import signal
import socket
import subprocess
import tempfile
import termios
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from coordinate_eval.evaluators.sandbox.sandbox import Level
from tests.hostile.home import FIRST_USER, beside, made_home, old_bubblewrap, python_for_all
from tests.hostile.program import Program

GRACE_SECONDS = 600.0
"""Time that a program's run may take beyond its timeout, on a busy machine."""

_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Setting:
    """Who runs programs, and how: with the machine's bubblewrap, or another version."""

    user: str
    level: Level
    bubblewrap: str = ""

    def __str__(self) -> str:
        version = f"-{self.bubblewrap}" if self.bubblewrap else ""
        return f"{self.user}-{self.level}{version}"

    @property
    def before(self) -> list[str]:
        """What makes an ordinary user root in a namespace of its own, as in some containers."""
        return ["unshare", "--user", "--map-root-user"] if self.user == "fakeroot" else []

    @property
    def number(self) -> int:
        """The user's id; no other process of this machine has the one of an ordinary user."""
        if self.user == "root" or os.geteuid() != 0:
            return os.geteuid()
        return FIRST_USER + os.getpid() % 1000


def processes_below(root: int) -> dict[int, str]:
    """Return the descendants of a process with their names, less those that have ended."""
    parents, names = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                start, _, rest = (entry / "stat").read_text("utf-8", "replace").rpartition(")")
                state, parent, *fields = rest.split()
                parents[int(entry.name)] = int(parent)
                # With other threads, a process lives on as a zombie.
                ended = state in "ZX" and int(fields[15]) < 2
                names[int(entry.name)] = "" if ended else f"{state} {start.partition('(')[2]}"
    found: set[int] = set()
    more = {root}
    while more:
        more = {pid for pid, parent in parents.items() if parent in more} - found
        found |= more
    return {pid: names[pid] for pid in sorted(found) if names[pid]}


def end_all(keep: set[int]) -> None:
    """Kill all descendants of this process but some, and those that they become meanwhile."""
    while left := set(processes_below(os.getpid())) - keep:
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        for pid in left:
            with contextlib.suppress(ChildProcessError):  # it is not an orphan
                os.waitpid(pid, os.WNOHANG)


class Place:
    """An open place. `run` runs one program there and says what it has broken."""

    def __init__(self, setting: Setting, python: Path, folder: Path) -> None:
        self.setting = setting
        self._secret = secrets.token_hex(16)
        self._mark = f"ce-{secrets.token_hex(6)}"
        self._home = made_home(folder, python)
        self._open = contextlib.ExitStack()
        self._sockets: dict[str, socket.socket] = {}
        self._token = f"TOKEN_{secrets.token_hex(4).upper()}"
        path = os.environ["PATH"]
        if setting.bubblewrap:
            path = f"{beside(self._home, old_bubblewrap(setting.bubblewrap))}:{path}"
        self._environment = {
            "PATH": path, "HOME": str(self._home), "TMPDIR": str(self._home / "tmp"),
            self._token: self._secret, "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        self._world = self._made_world(folder)
        self._subreaper(1)
        self._start()

    def _subreaper(self, on: int) -> None:
        if _libc.prctl(_SET_CHILD_SUBREAPER, on, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")

    def _made_world(self, folder: Path) -> dict[str, Any]:
        """Make what the programs try to reach, and return what they are told of it."""
        names = (".ssh/id_ed25519", ".netrc", ".cache/huggingface/token", ".bash_history")
        private = [self._home / name for name in names]
        shared = [Path("/tmp") / self._mark, Path("/dev/shm") / self._mark]
        for path in [*private, *shared]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self._secret)
        for path in shared:
            path.chmod(0o666)
            self._open.callback(path.unlink)
        runs = self._home / "runs" / "predictions.jsonl"
        runs.parent.mkdir()
        runs.write_text(self._secret)
        self._listen()
        self._terminal, self._slave = pty.openpty()
        os.set_blocking(self._terminal, False)
        for path in (folder, self._home, *self._home.rglob("*"), Path(os.ttyname(self._slave))):
            if not path.is_symlink():
                os.chown(path, self.setting.number, -1)
        folder.chmod(0o755)
        self._home.chmod(0o700)
        self._files = self._listed()
        ports = {name: s.getsockname()[1] for name, s in self._sockets.items() if name[0] in "tu"}
        return ports | {
            "mark": self._mark, "home": str(self._home), "python": "venv",
            "secrets": [*map(str, private)], "files": [str(runs), *map(str, shared)],
            "writable": [*map(str, shared)], "token_name": self._token, "key_name": self._mark,
            "abstract": self._mark, "socket": str(self._home / "socket"),
            "tty": os.ttyname(self._slave), "root": self.setting.user == "root",
        }  # fmt: skip

    def _listen(self) -> None:
        """Open the servers that no program may reach."""
        unix = socket.AF_UNIX
        for name, family, kind, address in (
            ("tcp", socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            ("tcp6", socket.AF_INET6, socket.SOCK_STREAM, ("::1", 0)),
            ("udp", socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            ("abstract", unix, socket.SOCK_STREAM, f"\0{self._mark}"),
            ("file", unix, socket.SOCK_STREAM, str(self._home / "socket")),
        ):
            opened = self._open.enter_context(socket.socket(family, kind))
            opened.bind(address)
            if kind == socket.SOCK_STREAM:
                opened.listen(8)
            self._sockets[name] = opened
        (self._home / "socket").chmod(0o777)

    def _start(self) -> None:
        """Start the puller and a bystander, each as the user."""
        number = self.setting.number
        user: dict[str, Any] = {"cwd": str(self._home), "env": self._environment}
        if number != os.geteuid():
            user |= {"user": number, "group": number, "extra_groups": []}
        python = str(self._home / "venv" / "bin" / "python")
        self._bystander = subprocess.Popen(["sleep", "100000"], start_new_session=True, **user)
        level = str(self.setting.level)
        self._puller = subprocess.Popen(
            [*self.setting.before, python, "-P", str(self._home / "puller.py"), self._mark,
             self._secret, level],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(2, termios.TIOCSCTTY, 0), **user,
        )  # fmt: skip
        self._owned = self.ask({}, GRACE_SECONDS)
        first = self.ask({"run": "pass", "seconds": 300.0}, GRACE_SECONDS)
        self.error = str(first.get("error", ""))
        self._known = set(processes_below(os.getpid()))
        self._state = self.ask({"state": True}, GRACE_SECONDS)

    def ask(self, question: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Ask the puller, and wait for its answer; an `error` if there is none in time."""
        assert self._puller.stdin is not None
        assert self._puller.stdout is not None
        try:
            self._puller.stdin.write(json.dumps(question).encode() + b"\n")
            self._puller.stdin.flush()
        except BrokenPipeError:
            return {"error": "the puller has ended"}
        if not select.select([self._puller.stdout], [], [], seconds)[0]:
            return {"error": f"no answer within {seconds} s"}
        line = self._puller.stdout.readline()
        return dict(json.loads(line)) if line else {"error": "the puller has ended"}

    def run(self, program: Program) -> tuple[dict[str, Any], list[str]]:
        """Run a program. Return its answer, and what it has broken outside."""
        source = program.source(self._world | self._owned)
        question = {"run": source, "seconds": program.seconds}
        answer = self.ask(question, program.seconds + GRACE_SECONDS)
        broken = [*self._broken(answer)]
        if broken or "error" in answer:
            self._restart()
        return answer, broken

    def run_in(
        self, language: str, text: str, seconds: float, most_seconds: float
    ) -> tuple[dict[str, Any], list[str]]:
        """Run a program in another language, which names a secret and a server by two words."""
        text = text.replace("SECRET", self._world["secrets"][0])
        text = text.replace("PORT", str(self._world["tcp"])).replace("TOKEN", self._token)
        question = {"run": text, "seconds": seconds, "language": language}
        answer = self.ask(question, most_seconds)
        broken = [*self._broken(answer)]
        if broken or "error" in answer:
            self._restart()
        return answer, broken

    def _broken(self, answer: dict[str, Any]) -> Iterator[str]:
        left = processes_below(os.getpid())
        if alive := {pid: name for pid, name in left.items() if pid not in self._known}:
            yield f"alive: {list(alive.values())[:5]} and {max(len(alive) - 5, 0)} more"
            end_all(self._known)
        if "error" in answer:
            yield str(answer["error"])
            return
        if self._secret in str(answer["result"]):
            yield "the secret is in its answer"
        libraries = "coordinate-eval-libraries-*"  # the puller's own, while it lives
        left_behind = {*(self._home / "tmp").iterdir()} - {*(self._home / "tmp").glob(libraries)}
        if folders := list(left_behind):
            yield f"left in the temporary folder: {len(folders)}"
            for path in folders:
                subprocess.run(["chmod", "-R", "u+rwx", path], check=False)
                subprocess.run(["rm", "-rf", path], check=True)
        state = self.ask({"state": True}, GRACE_SECONDS)
        for name, was in self._state.items():
            if state.get(name) != was:
                yield f"{name}: {was} became {state.get(name)}"
        if self.setting.level is not Level.LIMITS:
            yield from self._touched()

    def _touched(self) -> Iterator[str]:
        """Say what was reached that only namespaces keep from a program."""
        if self._bystander.poll() is not None or self._bystander.pid not in self._known:
            yield "the bystander has ended"
        elif processes_below(os.getpid())[self._bystander.pid].startswith("T"):
            yield "the bystander is stopped"
        numbers = {name: opened.fileno() for name, opened in self._sockets.items()}
        ready, _, _ = select.select([*numbers.values(), self._terminal], [], [], 0)
        for name, number in numbers.items():
            if number in ready:
                yield f"{name} was reached"
        if self._terminal in ready:
            yield f"the terminal shows {os.read(self._terminal, 200)!r}"
        if (now := self._listed()) != self._files:
            yield f"files: {sorted(set(now.items()) ^ set(self._files.items()))}"

    def _listed(self) -> dict[str, str]:
        """Return the files of the home with their content, and those elsewhere by their mark."""
        found = {}
        for path in self._home.rglob("*"):
            if not {"venv", "tmp"} & set(path.parts) and path.is_file():
                found[str(path)] = path.read_text("utf-8", "replace")[:100]
        for folder in ("/tmp", "/var/tmp", "/dev/shm", "/run", "/"):
            for path in Path(folder).glob(f"*{self._mark}*"):
                found[str(path)] = path.read_text("utf-8", "replace")[:100]
        return found

    def _end(self) -> None:
        for process in (self._puller, self._bystander):
            process.kill()
            process.wait()
        _libc.shmctl(self._owned["shm"], 0, None)  # IPC_RMID

    def _restart(self) -> None:
        self._end()
        self._start()

    def close(self) -> None:
        """End everything that belongs to the place."""
        self._end()
        self._subreaper(0)
        self._open.close()
        os.close(self._terminal)
        os.close(self._slave)


class Places:
    """One open place at a time: the tests of a setting follow each other, and share it."""

    def __init__(self) -> None:
        self._open = contextlib.ExitStack()
        self._setting: Setting | None = None
        self._place: Place | None = None
        self._missing = ""

    def at(self, setting: Setting) -> Place:
        """Return the place of a setting, or skip the test if it cannot be opened here."""
        if setting != self._setting:
            self.close()
            self._setting = setting
            try:
                self._place = self._open.enter_context(opened(setting))
            except pytest.skip.Exception as skipped:
                self._missing = str(skipped)
        if self._place is None:
            pytest.skip(self._missing)
        return self._place

    def close(self) -> None:
        """Close the place that is open."""
        self._open.close()
        self._place = None


@contextlib.contextmanager
def opened(setting: Setting) -> Iterator[Place]:
    """Open a place, or skip the test that wants it, with the reason."""
    python = python_for_all()
    if os.geteuid() != 0 and setting.user == "root":
        pytest.skip("only root runs programs as root")
    if python is None:
        pytest.skip("no Python of this version that every user may run")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        place = Place(setting, python, Path(folder))
        try:
            if place.error:
                pytest.skip(f"this level does not work here: {place.error}")
            yield place
        finally:
            place.close()
