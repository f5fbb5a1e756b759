"""Programs of a model: judged as the code_eval metric judges them, and kept from everything."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.runs import PATIENCE_SECONDS
from tests.sandboxes import EVERY, STRONG, Runner, as_ordinary_user, ask, named, opened, works

from coordinate_eval.errors import UserError
from coordinate_eval.evaluators.sandbox import confinement
from coordinate_eval.evaluators.sandbox import sandbox as module
from coordinate_eval.evaluators.sandbox.processes import own_user
from coordinate_eval.evaluators.sandbox.sandbox import Level, Sandbox, SandboxError
from coordinate_eval.records import Answer, Question

pytestmark = pytest.mark.hostile


@pytest.fixture(scope="module", params=EVERY)
def sandbox(request: pytest.FixtureRequest) -> Iterator[Runner]:
    with opened(request.param) as runner:
        yield runner


@pytest.mark.parametrize(
    "program",
    [
        "",
        "assert 1 + 1 == 2",
        "assert __name__ == 'builtins'",
        "if __name__ == '__main__':\n    raise ValueError",
        "print('x' * 10_000_000)",
        "import sys; sys.stdout.write('passed'); sys.stdout.flush()",
        "open('mine', 'w').write('x'); assert open('mine').read() == 'x'",
        "assert '🙂' == chr(0x1f642)",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,)).start()",
        "import os\nif os.fork() == 0:\n    os.setsid()\n    import time; time.sleep(1000)",
        "import multiprocessing\nmultiprocessing.Lock()",
        "import os; assert os.listdir('.') == []",
        "x = 1\n" * 100_000,
        "def f(n):\n    return n and 1 + f(n - 1)\nassert f(900) == 900",
    ],
    ids=lambda program: program[:30],
)
def test_passes_when_it_ends_without_an_exception(sandbox: Runner, program: str) -> None:
    answer = sandbox.run(ask(program))
    assert (answer.passed, answer.result) == (True, "passed")
    assert answer.id == "q"
    assert answer.seconds > 0


@pytest.mark.parametrize(
    ("program", "result"),
    [
        ("assert 1 == 2", "failed: AssertionError"),
        ("raise ValueError('no\\0pe\\n')", "failed: ValueError: no\\0pe\n"),
        ("def f(:", "failed: SyntaxError: "),
        ("exit()", "failed: SystemExit"),
        ("quit(0)", "failed: SystemExit: 0"),
        ("raise SystemExit", "failed: SystemExit"),
        ("raise KeyboardInterrupt", "failed: KeyboardInterrupt"),
        ("input()", "failed: OSError"),
        ("import sys\nfor line in sys.stdin: pass", "failed: OSError"),
        ("import sys; sys.stdin.read()", "failed: OSError"),
        ("def f(): f()\nf()", "failed: RecursionError"),
        ("x = bytearray(1 << 40)", "failed: MemoryError"),
        ("x = 1\0", "failed: "),
        ("x = '\ud800'", "failed: UnicodeEncodeError"),
        ("raise ValueError(chr(0xd800))", "failed: ValueError: \\ud800"),
        ("class E(Exception):\n    def __str__(self): raise E\nraise E", "failed: "),
        ("raise type('E\\n\"', (Exception,), {})('x' * 10**6)", 'failed: E\n": xxx'),
        ("open('big', 'wb').write(b'x' * (17 << 20))", "failed: OSError"),
        ("import sys; sys.stdout.close(); print('x')", "failed: ValueError"),
        # A verdict that the program writes, not the guest.
        ("import os; os._exit(0)", "failed: "),
        ("import os; os.kill(os.getpid(), 9)", "failed: "),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "failed: "),
        ("import os\nfor fd in range(3, 256):\n  try: os.write(fd, b'passed\\0')\n"
         "  except OSError: pass\nos._exit(0)", "failed: "),
        ("import os, sys\nfor value in list(sys._getframe(1).f_locals.values()):\n"
         " for fd in range(3, 99):\n"
         "  try: os.write(fd, (value if type(value) is bytes else b'') + b'passed\\0')\n"
         "  except OSError: pass\nos._exit(0)", "failed: "),
        ("import os\nwhile True:\n os.write(3, b'x' * 65536)", "failed: "),
        ("import os; os.closerange(0, 256)", "failed: "),
        # Only the first process speaks for the program.
        ("import os\nif os.fork():\n    os.wait()\n    raise ValueError", "failed: ValueError"),
        ("import builtins, os\nbuiltins.exec = builtins.BaseException = os.write = os._exit = None"
         "\nraise ValueError", "failed: "),
    ],
    ids=lambda text: text[:30],
)  # fmt: skip
def test_fails_with_a_short_reason(sandbox: Runner, program: str, result: str) -> None:
    answer = sandbox.run(ask(program))
    assert not answer.passed
    assert answer.result.startswith(result)
    assert len(answer.result) <= 500
    assert Answer.model_validate_json(answer.line()) == answer
    assert json.loads(answer.line())["result"] == answer.result


@pytest.mark.parametrize(
    "program",
    [
        "while True: pass",
        "while True: print('x' * 10_000)",
        "import signal, time\nfor s in set(signal.Signals) - {9, 19}:\n"
        "  signal.signal(s, signal.SIG_IGN)\ntime.sleep(1000)",
        "while True:\n  try:\n    while True: pass\n  except BaseException: pass",
        "class E(Exception):\n  def __str__(self):\n    while True: pass\nraise E",
    ],
    ids=lambda program: program[:30],
)
def test_times_out(sandbox: Runner, program: str) -> None:
    answer = sandbox.run(ask(program, timeout=0.5))
    assert (answer.passed, answer.result) == (False, "timed out")
    assert answer.seconds >= 0.5


def test_answers_come_as_they_are_found() -> None:
    sandbox = Sandbox.probe()
    questions = [ask("import time; time.sleep(10_000)", timeout=10_000, id="slow")]
    questions += [ask(f"assert {n} % 2", id=str(n)) for n in range(10)]
    answers = sandbox.run_many(questions, workers=2)
    quick = {answer.id: answer.passed for _, answer in zip(range(10), answers, strict=False)}
    assert quick == {str(n): n % 2 == 1 for n in range(10)}
    answers.close()  # type: ignore[attr-defined]  # it is a generator


def test_closing_ends_the_programs_and_pulls_no_more() -> None:
    sandbox = Sandbox.probe()
    name = f"ce{os.getpid()}c"
    pulled = []

    def questions() -> Iterator[Question]:
        for n in range(100):
            pulled.append(n)
            slow = f"open('/proc/self/comm', 'w').write({name!r})\nimport time; time.sleep(1000)"
            yield ask("pass" if n == 0 else slow, timeout=1000)

    answers = sandbox.run_many(questions(), workers=3)
    assert next(answers).passed
    answers.close()  # type: ignore[attr-defined]  # it is a generator
    assert len(pulled) == 3
    assert named(name) == []
    assert [t for t in threading.enumerate() if "ThreadPool" in t.name] == []


def test_no_questions_no_answers() -> None:
    assert list(Sandbox.probe().run_many([], workers=4)) == []


@pytest.fixture
def no_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without bubblewrap, and where users may not create namespaces."""

    def only_limits(level: Level, view: confinement.View, user: int | None) -> object:
        if level is Level.LIMITS:
            return confinement.confined(level, view, user)
        raise OSError("not on this machine")

    monkeypatch.setattr(module, "confined", only_limits)


@pytest.mark.parametrize("level", STRONG)
def test_a_python_that_needs_a_variable_finds_its_own_libraries(
    level: Level, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of an environment module does that was built with no path to its libpython."""
    own = f"{sys.base_prefix}/lib"
    monkeypatch.setenv("LD_LIBRARY_PATH", f":lib:/home:{own}/../..:{own}")
    program = f"import os\nassert os.environ['LD_LIBRARY_PATH'] == {own!r}"
    answer = Sandbox(level).run(ask(program))
    assert answer.passed, answer.result


@pytest.mark.usefixtures("no_namespaces")
def test_without_confinement_says_what_to_do() -> None:
    with pytest.raises(UserError) as caught:
        Sandbox.probe()
    for hint in ("bubblewrap", "allow_unsafe_code = true", "[metrics]", "namespaces", "apparmor"):
        assert hint in str(caught.value)


@pytest.mark.usefixtures("no_namespaces")
@pytest.mark.skipif(os.geteuid() != 0, reason="for root")
def test_root_runs_nothing_without_confinement() -> None:
    with pytest.raises(SandboxError, match="ordinary user"):
        Sandbox(Level.LIMITS).run(ask("pass"))
    with pytest.raises(UserError, match=r"limits: .* ordinary user"):
        Sandbox.probe(allow_unsafe=True)


def test_the_strongest_level_is_chosen() -> None:
    expected = next(level for level in Level if works(level))
    assert Sandbox.probe(allow_unsafe=True).level is expected


def test_does_not_disturb_signals_and_descriptors() -> None:
    before = (signal.getsignal(signal.SIGCHLD), len(os.listdir("/proc/self/fd")))  # noqa: PTH208
    list(Sandbox.probe().run_many([ask("pass")] * 4, workers=2))
    assert before == (signal.getsignal(signal.SIGCHLD), len(os.listdir("/proc/self/fd")))  # noqa: PTH208


@pytest.mark.parametrize("knows_sizes", [True, False])
def test_a_bubblewrap_that_cannot_do_all_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, knows_sizes: bool
) -> None:
    old = tmp_path / "bwrap"
    old.write_text(f"#!/bin/sh\necho '--as-pid-1 {'--size' * knows_sizes}'\nexit 1\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    confinement._bubblewrap_program.cache_clear()
    try:
        with pytest.raises((OSError, SandboxError), match="as-pid-1" if knows_sizes else "too old"):
            Sandbox(Level.BUBBLEWRAP).run(ask("pass"))
    finally:
        confinement._bubblewrap_program.cache_clear()


LINGER = """
import os, signal, time
if os.fork() == 0:  # a process that stays, whatever is done to the rest
    os.setsid()
    open("/proc/self/comm", "w").write(NAME)
    for stop in set(signal.Signals) - {9, 19}:
        signal.signal(stop, signal.SIG_IGN)
    os.closerange(0, 256)
    while True: time.sleep(1000)
time.sleep(0.1)
"""


@pytest.mark.parametrize("of", EVERY)
def test_all_ends_with_the_process_that_runs_it(of: tuple[Level, bool]) -> None:
    level, ordinary = of
    name = f"ce{os.getpid()}e"
    program = f"NAME = {name!r}\n{LINGER}\nos.execve('/bin/sleep', ['sleep', '1000'], {{}})"
    source = (
        "from coordinate_eval.evaluators.sandbox.sandbox import *\n"
        "from coordinate_eval.records import *\n"
        f"Sandbox(Level({str(level)!r})).run(Question(id='q', kind='program', "
        f"content={program!r}, timeout_seconds=1000))"
    )
    command = as_ordinary_user(source) if ordinary else [sys.executable, "-c", source]
    host = subprocess.Popen(command)
    while not (running := named(name)):
        assert host.poll() is None
        time.sleep(0.01)
    died = [os.pidfd_open(process) for process in running]
    host.kill()
    host.wait()
    for descriptor in died:
        with os.fdopen(descriptor):
            assert select.select([descriptor], [], [], PATIENCE_SECONDS)[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="others keep their own id")
def test_no_two_programs_of_root_have_one_user() -> None:
    with own_user() as one, own_user() as two:
        assert one is not None
        assert two is not None
        assert one != two
        with socket.socket(socket.AF_UNIX) as other, pytest.raises(OSError, match="in use"):
            other.bind(f"\0coordinate-eval-user-{one}")
    program = "import os; raise ValueError(os.getuid())"
    asked = [ask(program, id=str(n)) for n in range(6)]
    users = {answer.result for answer in Sandbox.probe().run_many(asked, workers=3)}
    assert len(users) == 6
