"""The memory of all processes of a program together, and who is killed when there is no more."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.sandboxes import (
    CAN_BE_ORDINARY,
    CONFINING,
    EVERY,
    STRONG,
    Ordinary,
    Runner,
    as_ordinary_user,
    ask,
    opened,
    ordinary_python,
    works,
)

from coordinate_eval.evaluators.sandbox import memory
from coordinate_eval.evaluators.sandbox.memory import OverMemory, Watch, members, used_bytes
from coordinate_eval.evaluators.sandbox.sandbox import Level

pytestmark = pytest.mark.hostile

MIB = 1 << 20
LIMIT = 256 * MIB
TOO_MUCH = "failed: it used more than 0.25 GiB of memory in all"

SPAWN = """
import ctypes, mmap, os, socket, threading, time
def spawn(count, work, stay=True):
    for _ in range(count):
        if os.fork() == 0:
            kept = work()
            time.sleep(1000 if stay else 0)
            os._exit(0)
def eat(mib):
    return bytes([1]) * (mib << 20)
"""

HOGS = {
    "forks": "spawn(40, lambda: eat(20))",
    "forks of forks": "for _ in range(30):\n  spawn(1, lambda: eat(20)); kept = eat(10)",
    "daemons": "spawn(20, lambda: [os.setsid(), spawn(1, lambda: eat(40))], stay=False)",
    "threads": "kept = []\nfor _ in range(20):\n"
    "  threading.Thread(target=lambda: kept.append(eat(30))).start()",
    "forks that hide": "ctypes.CDLL(None).prctl(4, 0)\nspawn(40, lambda: eat(20))",
    "copies on write": "kept = bytearray(eat(30))\n"
    "spawn(40, lambda: [kept.__setitem__(n, 2) for n in range(0, len(kept), 4096)])",
    "shared memory": "kept = [mmap.mmap(-1, 10 << 20) for _ in range(60)]\n"
    "spawn(1, lambda: [area.write(eat(10)) for area in kept], stay=False)",
    "shared memory out of sight": "kept = []\nwhile len(kept) < 60:\n"
    "  kept.append(mmap.mmap(-1, 10 << 20))\n"
    "  kept[-1].write(eat(10))\n  kept[-1].madvise(mmap.MADV_DONTNEED)",
    "shared memory that is let go": "libc = ctypes.CDLL(None)\n"
    "libc.mmap.restype = ctypes.c_void_p\n"
    "for _ in range(60):\n"
    "  at = libc.mmap(None, 10 << 20, 3, 0x21, -1, 0)\n"
    "  ctypes.memset(at, 1, 10 << 20)\n"
    "  libc.munmap(ctypes.c_void_p(at + 4096), (10 << 20) - 4096)",
    "page tables": "libc = ctypes.CDLL(None)\n"
    "libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + "
    "[ctypes.c_long]\n"
    "def sparse():\n"
    "  for n in range(1, 20000):\n"
    "    at = (1 << 40) + (n << 30)\n"
    "    libc.mmap(at, 4096, 3, 0x32, -1, 0)\n"
    "    ctypes.c_char.from_address(at).value = 1\n"
    "spawn(20, sparse)",
    "mappings": "libc = ctypes.CDLL(None)\n"
    "libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + "
    "[ctypes.c_long]\n"
    "def scattered():\n"
    "  for n in range(1, 60000):\n"
    "    libc.mmap((1 << 40) + (n << 13), 4096, 3, 0x32, -1, 0)\n"
    "spawn(40, scattered)",
    "sockets": "kept = []\n"
    "def fill():\n"
    "  while True:\n"
    "    try: a, b = socket.socketpair()\n"
    "    except OSError: return\n"
    "    a.setblocking(False); kept.append((a, b))\n"
    "    try:\n"
    "      while a.send(bytes(1 << 16)): pass\n"
    "    except BlockingIOError: pass\n"
    "spawn(20, fill)",
}
"""Programs that take several times the limit, in processes that are each within theirs."""


@pytest.fixture(scope="module", params=EVERY)
def sandbox(request: pytest.FixtureRequest) -> Iterator[Runner]:
    with opened(request.param, LIMIT) as runner:
        yield runner


@pytest.mark.parametrize("hog", HOGS.values(), ids=HOGS.keys())
def test_a_program_is_ended_at_its_limit(sandbox: Runner, hog: str) -> None:
    answer = sandbox.run(ask(f"{SPAWN}\n{hog}\ntime.sleep(1000)", timeout=600.0))
    assert answer.result == TOO_MUCH


OUT_OF_SIGHT = {
    "connections that nobody accepts": """
kept, data = [], bytes(200_000)
while True:
    kept.append(socket.socket(socket.AF_UNIX))
    kept[-1].bind(f"\\0{len(kept)}")
    kept[-1].listen(4096)
    for _ in range(4096):
        with socket.socket(socket.AF_UNIX) as one:
            one.setblocking(False)
            try:
                one.connect(f"\\0{len(kept)}")
                one.send(data)
            except OSError:
                break
""",
    "connections over loopback": """
kept = [socket.create_server(("127.0.0.1", 0), backlog=4096) for _ in range(9)]
for server in kept:
    for _ in range(4096):
        with socket.socket() as one:
            one.setblocking(False)
            one.connect_ex(server.getsockname())  # it is under way
            try:
                while one.send(bytes(1 << 20)):
                    pass
            except OSError:
                pass
""",
    "messages of senders that are gone": """
kept = []
while len(kept) < 200:
    kept.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    kept[-1].bind(f"\\0{len(kept)}")
    for _ in range(20):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
            one.setblocking(False)
            try:
                one.sendto(bytes(190_000), f"\\0{len(kept)}")
            except OSError:
                break
""",
    "files that epoll watches": """
import select
files, watches = [[of() for _ in range(110)] for of in (lambda: os.eventfd(0), select.epoll)]
add = ctypes.CDLL(None).epoll_ctl
for file in files:
    for number in range(240, 256):
        os.dup2(file, number)
        for watch in watches:
            add(watch.fileno(), 1, number, bytes(12))
        os.close(number)
""",
    "open files of processes that hide": """
import shutil, sys
shutil.copy(os.path.realpath(sys.executable), "/tmp/python")
os.chmod("/tmp/python", 0o111)
os.environ["PYTHONHOME"] = sys.base_prefix
opens = "import socket, time\\nkept = [socket.socketpair() for _ in range(100)]\\ntime.sleep(1000)"
for _ in range(8):
    if os.fork() == 0:
        os.execv("/tmp/python", ["python", "-I", "-S", "-c", opens])
""",
    "links to the mappings of ancestors": """
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
at = libc.mmap(None, 20_000 << 12, 3, 0x22, -1, 0)
ctypes.memset(at, 1, 1)
for n in range(0, 20_000, 2):
    libc.mprotect(ctypes.c_void_p(at + (n << 12)), 4096, 1)
for n in range(1, 60):
    if os.fork():
        time.sleep(1000)
    ctypes.memset(at + 4096, n, 1)
""",
}
"""Programs that take much more than the limit, or a share of what the machine has few of, where no
process seems to have it."""


@pytest.fixture(scope="module", params=CONFINING)
def confined(request: pytest.FixtureRequest) -> Iterator[Runner]:
    """A sandbox with a network and file systems of its own."""
    with opened(request.param, LIMIT) as runner:
        yield runner


@pytest.mark.parametrize("hog", OUT_OF_SIGHT.values(), ids=OUT_OF_SIGHT.keys())
def test_what_no_process_seems_to_have_counts(confined: Runner, hog: str) -> None:
    answer = confined.run(ask(f"{SPAWN}\n{hog}\ntime.sleep(1000)", timeout=600.0))
    assert answer.result == TOO_MUCH


NAMES = {
    "files": "os.close(os.open(name, os.O_CREAT))",
    "long names": "os.close(os.open(name.zfill(250), os.O_CREAT))",
    "links": "os.symlink('x' * 100, name)",
    "folders": "os.mkdir(name)",
    "pipes": "os.mkfifo(name)",
    "hard links": "os.path.exists('file') or open('file', 'w').close()\n  os.link('file', name)",
    "files elsewhere": "os.close(os.open(f'/dev/shm/{name}', os.O_CREAT))",
    "files without a name": "kept = os.open(name, os.O_CREAT); os.close(kept)\n"
    "  n % 9 or os.unlink(name)",
}


@pytest.mark.parametrize("makes", NAMES.values(), ids=NAMES.keys())
def test_empty_files_in_memory_count(confined: Runner, makes: str) -> None:
    program = f"import os\nn = 0\nwhile n < 1_000_000:\n  name = str(n)\n  {makes}\n  n += 1"
    assert confined.run(ask(program, timeout=600.0)).result == TOO_MUCH


@pytest.mark.parametrize("level", [Level.BUBBLEWRAP, Level.NAMESPACES])
@pytest.mark.parametrize("hog", ["forks", "forks of forks", "daemons"])
def test_a_program_is_seen_where_processes_are_hidden(level: Level, hog: str) -> None:
    if not CAN_BE_ORDINARY or not works(level):
        pytest.skip("needs root, to become an ordinary user, and this level")
    with contextlib.closing(Ordinary(level, LIMIT, hidden=True)) as runner:
        answer = runner.run(ask(f"{SPAWN}\n{HOGS[hog]}\ntime.sleep(1000)", timeout=600.0))
        assert answer.result == TOO_MUCH
        assert runner.run(ask("pass")).passed


@pytest.mark.parametrize(
    "program",
    [
        "kept = eat(200)",
        "kept = eat(100)\nspawn(20, lambda: sum(kept[::4096]))",
        "kept = [mmap.mmap(-1, 1 << 20) for _ in range(4)]\nspawn(10, lambda: kept[0].write(b'x'))",
        "kept = [threading.Thread(target=time.sleep, args=(0.5,)) for _ in range(50)]\n"
        "for thread in kept: thread.start()",
        "kept = socket.create_server(('127.0.0.1', 0))",
        "kept = [socket.create_server(('127.0.0.1', 0))]\n"
        "for _ in range(8):\n"
        "  kept += [socket.create_connection(kept[0].getsockname()), kept[0].accept()[0]]",
        "spawn(20, lambda: mmap.mmap(-1, 1 << 30, mmap.MAP_PRIVATE))",
    ],
)
def test_what_processes_share_counts_once(sandbox: Runner, program: str) -> None:
    assert sandbox.run(ask(f"{SPAWN}\n{program}\ntime.sleep(0.5)")).result == "passed"


ENDING = """
import os, signal, time
from coordinate_eval.evaluators.sandbox.memory import used_bytes
most = looks = 0
while looks < 20:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        kept = b"x" * (200 << 20)
        os.write(writer, b"x")
        time.sleep(1000)
    os.read(reader, 1)
    os.kill(child, signal.SIGKILL)
    while "State:\\tZ" not in (status := open(f"/proc/{child}/status").read()):
        if "VmSize" not in status:  # its memory is being given back
            looks += 1
            most = max(most, used_bytes([child]))
    os.waitpid(child, 0)
print(most >> 20)
"""


def test_a_process_that_is_ending_holds_no_files() -> None:
    """To its own user the kernel hides them then, as those of a process that hides."""
    ordinary = os.geteuid() == 0 and ordinary_python()
    command = as_ordinary_user(ENDING) if ordinary else [sys.executable, "-c", ENDING]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    assert int(done.stdout) < 16


def test_a_sum_over_processes_that_end_meanwhile_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sums = iter([LIMIT + 1, LIMIT + 1, LIMIT, *[LIMIT + 1] * 3])
    monkeypatch.setattr(memory, "used_bytes", lambda *_: next(sums))
    monkeypatch.setattr(memory, "LOOK_SECONDS", 0.0)
    with subprocess.Popen(["sleep", "100"]) as process:
        try:
            watch = Watch(process.pid, LIMIT)
            watch.look()
            assert len(list(sums)) == 3
            sums = iter([LIMIT + 1] * 3)
            time.sleep(watch.seconds_left())
            with pytest.raises(OverMemory):
                watch.look()
        finally:
            process.kill()


def test_a_program_is_the_first_that_the_kernel_ends(sandbox: Runner) -> None:
    program = """
def score():
    return open("/proc/self/oom_score_adj").read()
assert score() == "1000\\n", score()
reader, writer = os.pipe()
spawn(1, lambda: os.write(writer, score().encode()), stay=False)
assert os.read(reader, 10) == b"1000\\n"
"""
    before = Path("/proc/self/oom_score_adj").read_text()
    assert sandbox.run(ask(SPAWN + program)).result == "passed"
    assert Path("/proc/self/oom_score_adj").read_text() == before


@pytest.mark.parametrize(
    "trick",
    [
        "mmap.mmap(-1, 17 << 20)",
        "mmap.mmap(-1, 5 << 30)",
        "os.memfd_create('x')",
        "check(libc.vmsplice(os.pipe()[1], 0, 0, 0))",
        "check(libc.prctl(4, 0))",
        "check(libc.prctl(4, 0, 0, 0, 0))",
    ],
)
def test_what_cannot_be_watched_is_refused(sandbox: Runner, trick: str) -> None:
    program = f"""
libc = ctypes.CDLL(None, use_errno=True)
def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
try:
    {trick}
except OSError as error:
    assert error.errno in (1, 12), error
else:
    raise AssertionError("it worked")
assert libc.prctl(3) == 1
kept = mmap.mmap(-1, 16 << 20)
"""
    assert sandbox.run(ask(SPAWN + program)).result == "passed"


def test_a_program_does_not_leave_the_line(sandbox: Runner) -> None:
    program = """
def score():
    return open("/proc/self/oom_score_adj").read()
with open("/proc/self/oom_score_adj", "w") as file:
    file.write("0")
while score() != "1000\\n":
    time.sleep(0.01)
"""
    assert sandbox.run(ask(SPAWN + program)).result == "passed"


def test_time_on_a_core_is_told(sandbox: Runner) -> None:
    asleep = sandbox.run(ask("import time; time.sleep(1000)", timeout=0.5))
    assert asleep.result == "timed out"
    assert asleep.cpu_seconds < 0.4
    busy = "import os\nos.fork()\nwhile True: pass"
    assert sandbox.run(ask(busy, timeout=3.0)).cpu_seconds > asleep.cpu_seconds


def test_counts_what_a_tree_of_processes_uses() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SPAWN + "kept = eat(50)\n"
         "spawn(3, lambda: (eat(20), print(flush=True)))\ntime.sleep(1000)"],
        stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        for _ in range(3):
            assert process.stdout.readline()
        used = used_bytes(list(members(process.pid)))
        bound = used_bytes(list(members(process.pid)), enough=1 << 40)
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            os.kill(int(child), 9)
        process.kill()
    assert 110 * MIB < used < 150 * MIB
    assert bound > used
    assert used_bytes(list(members(process.pid))) == 0


def test_a_watch_of_what_has_ended_sees_nothing() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    watch = Watch(process.pid, 0)
    time.sleep(watch.seconds_left())
    watch.look()
    assert watch.cpu_seconds() == 0


CGROUP = Path("/sys/fs/cgroup/memory")


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """A control group of 600 MiB."""
    folder = CGROUP / f"coordinate-eval-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    try:
        (folder / "memory.limit_in_bytes").write_text(str(600 * MIB))
        yield folder
    finally:
        while (folder / "cgroup.procs").read_text():
            time.sleep(0.05)
        folder.rmdir()


@pytest.mark.parametrize("level", STRONG)
@pytest.mark.parametrize("watched", [True, False])
def test_the_job_survives_a_program_that_takes_all_its_memory(
    small_cgroup: Path, level: Level, watched: bool
) -> None:
    """Also if the watch sees nothing: then the kernel ends the program."""
    # What the watch is to see goes over the program's limit, and stays below that of the kernel.
    hog = SPAWN + (
        "spawn(15, lambda: eat(20))\ntime.sleep(1000)"
        if watched
        else "spawn(40, lambda: eat(20))\nos.wait()"  # until the first one is killed
    )
    script = (
        f"open({str(small_cgroup / 'cgroup.procs')!r}, 'w').write('0')\n"
        "from coordinate_eval.evaluators.sandbox.sandbox import *\n"
        "from coordinate_eval.records import *\n"
        "kept = bytearray(100 << 20)\n"  # more than any single process of the program
        f"sandbox = Sandbox(Level({str(level)!r}), {LIMIT if watched else 1 << 40})\n"
        f"print(sandbox.run(Question(id='q', kind='program', content={hog!r}, "
        "timeout_seconds=600)).result)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    if watched:
        assert done.stdout == TOO_MUCH + "\n"
    else:
        assert "oom_kill 0" not in (small_cgroup / "memory.oom_control").read_text()
