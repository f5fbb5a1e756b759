"""Sandboxes for tests: at each level that works here, of this user and of an ordinary one."""

import atexit
import importlib.util
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Protocol

import pytest

from coordinate_eval.evaluators.sandbox.confinement import Level, interpreter
from coordinate_eval.evaluators.sandbox.sandbox import MEMORY_BYTES, Sandbox
from coordinate_eval.records import Answer, Question, QuestionKind
from tests.random_examples import LONG

SOURCE = Path(__file__).parents[1] / "src"
ORDINARY = 12_345
"""The id of a user that nobody has heard of."""

_BECOME = ["setpriv", f"--reuid={ORDINARY}", f"--regid={ORDINARY}", "--clear-groups"]
# What setpriv starts itself it finds with root's rights.
_BECOME += ["env", "-i", "PATH=/usr/bin:/bin", "HOME=/nonexistent"]

# A mount of its own: the machine's stays as it is.
_HIDING = ["unshare", "--mount", "sh", "-c"]
_HIDING += ['mount -t proc -o hidepid=2 proc /proc && exec "$@"', "sh"]

_NEEDED = (
    "pydantic",
    "pydantic_core",
    "annotated_types",
    "typing_extensions",
    "typing_inspection",
)
"""Packages that may be imported together with the sandbox."""

_SERVER = """
import pickle, sys
from coordinate_eval.evaluators.sandbox.sandbox import Level, Sandbox
sandbox = Sandbox(Level({level!r}), {memory_bytes})
while True:
    try:
        question = pickle.load(sys.stdin.buffer)
    except EOFError:
        break
    try:
        said = sandbox.run(question)
    except Exception as error:
        said = f"{{type(error).__name__}}: {{error}}"
    pickle.dump(said, sys.stdout.buffer)
    sys.stdout.flush()
"""


class Runner(Protocol):
    """What runs programs at a level."""

    @property
    def level(self) -> Level: ...

    def run(self, question: Question) -> Answer: ...


class Ordinary:
    """A sandbox of an ordinary user, whom root starts a process for."""

    def __init__(
        self, level: Level, memory_bytes: int = MEMORY_BYTES, *, hidden: bool = False
    ) -> None:
        """Start the process. With `hidden`, it sees a /proc that hides others' processes."""
        self.level = level
        script = _SERVER.format(level=str(level), memory_bytes=memory_bytes)
        self._server = subprocess.Popen(
            [*(_HIDING if hidden else []), *as_ordinary_user(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd="/",
        )

    def run(self, question: Question) -> Answer:
        """Run one program; a failure of the sandbox fails the test."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        pickle.dump(question, self._server.stdin)
        self._server.stdin.flush()
        answer = pickle.load(self._server.stdout)
        assert isinstance(answer, Answer), answer
        return answer

    def close(self) -> None:
        """End the process."""
        self._server.communicate()


def ask(program: str, timeout: float = 600.0, id: str = "q") -> Question:
    return Question(id=id, kind=QuestionKind.PROGRAM, content=program, timeout_seconds=timeout)


@cache
def works(level: Level) -> bool:
    try:
        return Sandbox(level).run(ask("pass")).passed
    except Exception:
        return False


@contextmanager
def opened(of: tuple[Level, bool], memory_bytes: int = MEMORY_BYTES) -> Iterator[Runner]:
    """Run programs at a level: as this user, or as an ordinary one."""
    level, ordinary = of
    if not ordinary:
        yield Sandbox(level, memory_bytes)
        return
    server = Ordinary(level, memory_bytes)
    try:
        yield server
    finally:
        server.close()


def as_ordinary_user(script: str, source: Path = SOURCE) -> list[str]:
    """A command that runs a Python script, which can import the sandbox, without any rights."""
    return [*_BECOME, f"PYTHONPATH={readable(source)}", ordinary_python(), "-B", "-c", script]


@cache
def ordinary_python() -> str:
    """A Python that every user can run and that can import what this one imports, or nothing."""
    for python in (interpreter(), "/usr/bin/python3"):
        asked = [*_BECOME, python, "-c", "import sys; print(sys.implementation.cache_tag)"]
        told = subprocess.run(asked, capture_output=True, text=True, check=False)
        if told.stdout.strip() == sys.implementation.cache_tag:
            return python
    return ""


@cache
def readable(source: Path = SOURCE) -> Path:
    """This program and what it needs, where every user can read it: the checkout may be private."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    shutil.copytree(source / "coordinate_eval", folder / "coordinate_eval")
    for module in _NEEDED:
        spec = importlib.util.find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        origin = Path(spec.origin)
        if origin.name == "__init__.py":
            shutil.copytree(origin.parent, folder / module)
        else:
            shutil.copy(origin, folder)
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755)
    return folder


def named(name: str) -> list[int]:
    """Processes with a thread of this name that lives, even if their first one has ended."""
    found = []
    for task in Path("/proc").glob("[0-9]*/task/[0-9]*"):
        try:
            alive = "State:\tZ" not in (task / "status").read_text()
            if alive and (task / "comm").read_text() == f"{name}\n":
                found.append(int(task.parts[2]))
        except OSError:
            pass
    return found


CAN_BE_ORDINARY = os.geteuid() == 0 and ordinary_python() != ""
"""Whether programs of an ordinary user can be tried here, too."""

STRONG = [
    pytest.param(level, marks=pytest.mark.skipif(not works(level), reason="not on this machine"))
    for level in (Level.BUBBLEWRAP, Level.NAMESPACES)
]
"""The levels that confine programs, for this user."""

_OWN = [(level, False) for level in Level if level is not Level.LIMITS or os.geteuid() != 0]
_OTHERS = [(level, True) for level in Level] if CAN_BE_ORDINARY else []
if CAN_BE_ORDINARY and not LONG:  # each level and each user, not all pairs of them
    _OWN.remove((Level.NAMESPACES, False))
    _OTHERS.remove((Level.BUBBLEWRAP, True))


def _name(of: tuple[Level, bool]) -> str:
    return f"{of[0]} of an ordinary user" if of[1] else str(of[0])


EVERY = [
    pytest.param(
        of,
        id=_name(of),
        marks=pytest.mark.skipif(
            of[0] is not Level.LIMITS and not works(of[0]), reason="not on this machine"
        ),
    )
    for of in [*_OWN, *_OTHERS]
]
"""Every level and every user that there is, for `opened`; in a long run all pairs of them."""

CONFINING = [param for param in EVERY if "limits" not in str(param.id)]
"""Those that confine programs."""
