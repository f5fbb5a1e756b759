"""Programs that attack: none outlives its run, reaches its warden, keys or the kernel's depths.

Levels and users are those of `tests/sandboxes.py`. Numbers of system calls are those of x86_64 and
aarch64.
"""

import os
import platform
import select
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator

import pytest
from tests.runs import PATIENCE_SECONDS
from tests.sandboxes import EVERY, Runner, as_ordinary_user, ask, named, opened

from coordinate_eval.evaluators.sandbox.processes import own_user
from coordinate_eval.evaluators.sandbox.sandbox import Level, Sandbox

pytestmark = pytest.mark.hostile


@pytest.fixture(scope="module", params=EVERY)
def sandbox(request: pytest.FixtureRequest) -> Iterator[Runner]:
    with opened(request.param) as runner:
        yield runner


HELP = """
import contextlib, ctypes, errno, os, platform, signal, socket, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
warden = os.getppid()
ARM = platform.machine() == "aarch64"
def syscall(number, *arguments):
    given = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return libc.syscall(ctypes.c_long(number[ARM]), *given)
def denied(number, *arguments, by=(errno.EPERM, errno.ENOSYS)):
    ctypes.set_errno(0)
    result = syscall(number, *arguments)
    assert result == -1 and ctypes.get_errno() in by, (number, result, ctypes.get_errno())
def linger():
    # A process that stays, whatever is done to the rest.
    if os.fork() == 0:
        os.setsid()
        open("/proc/self/comm", "w").write(NAME)
        for stop in set(signal.Signals) - {9, 19}:
            signal.signal(stop, signal.SIG_IGN)
        os.closerange(0, 256)
        while True: time.sleep(1000)
    time.sleep(0.1)
"""

STAYING = {
    "two forks": """
if os.fork() == 0:
    linger()
    os._exit(0)
""",
    "a bare environment": """
linger()
if os.fork() == 0:
    os.setsid()
    os.execve("/bin/sleep", [NAME, "1000"], {})
time.sleep(0.2)
""",
    "vfork": """
if syscall((58, 220), *((0x4111, 0, 0, 0, 0) if ARM else ())) == 0:
    os._exit(0)
linger()
""",
    "a clone with its warden's parent": """
if syscall((56, 220), 0x8000 | 17, 0, 0, 0, 0) == 0:
    linger()
    os._exit(0)
linger()
""",
    "no signal of a parent's death": """
linger()
libc.prctl(1, 0)
os._exit(0)
""",
    "a parent of orphans": """
libc.prctl(36, 1)
linger()
os._exit(0)
""",
    "stopped": """
linger()
os.kill(os.getpid(), signal.SIGSTOP)
""",
    "all stopped": """
linger()
for number in range(2, 400):
    with contextlib.suppress(OSError):
        if number != os.getpid() and warden == 1:
            os.kill(number, signal.SIGSTOP)
os.kill(os.getpid(), signal.SIGSTOP)
""",
    "killed": """
linger()
os.kill(os.getpid(), signal.SIGKILL)
""",
    "a warden that is killed": """
linger()
for target in (warden, -warden, -1):
    for number in (9, 19, 15, 2, 17, 11):
        with contextlib.suppress(PermissionError):
            os.kill(target, number)
            raise AssertionError(target)
denied((200, 130), warden, 9)
denied((234, 131), warden, warden, 9)
denied((129, 138), warden, 9, bytes(128))
denied((297, 240), warden, warden, 9, bytes(128))
denied((434, 434), warden, 0)
denied((424, 424), os.open(f"/proc/{warden}", 0), 9, 0, 0)
denied((302, 261), warden, 0, struct.pack("QQ", 0, 0), None)
reader, writer = os.pipe()
for command in (8, 10, 15):
    denied((72, 25), reader, command, warden)
for command in (0x8901, 0x8902):
    denied((16, 29), reader, command, struct.pack("i", warden))
""",
    "a full table": """
linger()
with contextlib.suppress(OSError):
    while os.fork():
        pass
    time.sleep(1000)
os._exit(0)
""",
    "nothing but threads": """
import threading
linger()
open("/proc/self/comm", "w").write(NAME)
threading.Thread(target=time.sleep, args=(1000,)).start()
syscall((60, 93), 0)
""",
    "fork after fork": """
linger()
end = time.time() + 30
for _ in range(20):
    if os.fork() == 0:
        while time.time() < end:
            with contextlib.suppress(OSError):
                if os.fork():
                    os._exit(0)
""",
}


@pytest.mark.parametrize("way", STAYING.values(), ids=STAYING)
def test_no_way_to_stay(sandbox: Runner, way: str) -> None:
    name = f"ce{os.getpid()}s"
    sandbox.run(ask(f"NAME = {name!r}\n{HELP}\n{way}", timeout=3.0))
    assert named(name) == []


def test_its_judge_is_out_of_reach(sandbox: Runner) -> None:
    program = """
        for target in (warden, 1):
            for request in (16, 0x4206):  # PTRACE_ATTACH, PTRACE_SEIZE
                denied((101, 117), request, target, 0, 0)
            buffer = ctypes.create_string_buffer(64)
            area = struct.pack("PN", ctypes.addressof(buffer), 64)
            denied((310, 270), target, area, 1, area, 1, 0)
            denied((311, 271), target, area, 1, area, 1, 0)
            denied((312, 272), target, os.getpid(), 0, 0, 0)
            for name in ("mem", "environ", "maps", "fd", "fdinfo", "auxv", "cwd", "syscall"):
                for path in (f"/proc/{target}/{name}", f"/proc/{target}/task/{target}/{name}"):
                    try:
                        os.listdir(path) if "fd" in name else open(path, "rb").read(1)
                    except OSError:
                        continue
                    raise AssertionError(path)
            for name in ("mem", "oom_score_adj", "comm"):
                try:
                    open(f"/proc/{target}/{name}", "r+")
                except OSError:
                    continue
                raise AssertionError(name)
        denied((438, 438), 3, 3, 0)
        denied((101, 117), 0, 0, 0, 0)
    """
    answer = sandbox.run(ask(HELP + textwrap.dedent(program)))
    assert answer.result == "passed"


FORGERIES = {
    "frames": """
frame, found = sys._getframe(), []
while frame:
    found += list(frame.f_locals.values()) + list(frame.f_globals.values())
    frame = frame.f_back
""",
    "all objects": """
import gc
found = [value for item in gc.get_objects() for value in gc.get_referents(item)]
""",
    "memory": """
import re
found = []
for line in open("/proc/self/maps"):
    start, end = (int(number, 16) for number in line.split()[0].split("-"))
    if "heap" in line or line.endswith(" 0 \\n"):
        with contextlib.suppress(OSError), open("/proc/self/mem", "rb") as memory:
            memory.seek(start)
            found += re.findall(rb"[0-9a-f]{32}", memory.read(end - start))[:50]
""",
}


@pytest.mark.parametrize("search", FORGERIES.values(), ids=FORGERIES)
def test_nothing_that_it_finds_is_a_verdict(sandbox: Runner, search: str) -> None:
    use = """
        secrets = {v if type(v) is bytes else v.encode("utf-8", "replace") for v in found
                   if type(v) in (bytes, str) and 4 <= len(v) <= 64} | {b""}
        writable = []
        for fd in range(3, 32):
            with contextlib.suppress(OSError):
                os.set_blocking(fd, False)
                writable.append(fd)
        for secret in secrets:
            for text in (secret, secret[::-1]):
                for fd in writable:
                    with contextlib.suppress(OSError):
                        os.write(fd, text + b"passed")
                        os.write(fd, text + b"passed\\0")
        os._exit(0)
    """
    answer = sandbox.run(ask(HELP + search + textwrap.dedent(use)))
    assert answer.result.startswith("failed: ")


def test_the_kernel_offers_only_what_programs_need(sandbox: Runner) -> None:
    program = """
        for flag in (17, 25, 26, 27, 28, 29, 30, 7):
            denied((272, 97), 1 << flag)
            if flag != 7:
                denied((56, 220), 1 << flag | 17, 0, 0, 0, 0)
        denied((435, 435), struct.pack("11Q", 1 << 28, *[0] * 10), 88)
        denied((308, 268), os.open("/proc/self/ns/net", 0), 0)
        for number in (165, 40), (166, 39), (155, 41), (161, 51), (428, 428), (430, 430):
            denied(number, b"/tmp", b"/tmp", 0, 0, 0)
        for number in (425, 425), (321, 280), (298, 241), (323, 282), (206, 0), (317, 277):
            denied(number, 1, bytes(128), 128, 0, 0)
        denied((319, 279), b"x", 0)
        denied((447, 447), 0)
        denied((29, 194), 0, 4096, 0o1600)
        denied((68, 186), 0, 0o1600)
        denied((64, 190), 0, 1, 0o1600)
        denied((240, 180), b"/x", 0o102, 0o600, 0)
        denied((135, 92), 0x0040000)
        denied((451, 451))
        denied((470, 470))
        for family in set(range(1, 46)) - {1, 2, 10}:
            try:
                socket.socket(family, socket.SOCK_DGRAM)
            except OSError:
                continue
            raise AssertionError(family)
        raw, icmp, sctp, packets = (2, 3, 1), (2, 2, 1), (2, 1, 132), (2, 5, 132)
        for kind in (raw, icmp, sctp, packets, (16, 3, 0), (17, 3, 3), (40, 1, 0), (38, 5, 0)):
            try:
                socket.socket(*kind)
            except OSError:
                continue
            raise AssertionError(kind)
        if platform.machine() == "x86_64":
            denied((0x40000000 + 39, 0))  # getpid of x32
            import mmap
            # mov eax, 20 (getpid of i386); int 0x80; cdqe; ret
            code = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE, 7)
            code.write(b"\\xb8\\x14\\0\\0\\0\\xcd\\x80\\x48\\x98\\xc3")
            address = ctypes.addressof(ctypes.c_char.from_buffer(code))
            assert ctypes.CFUNCTYPE(ctypes.c_long)(address)() == -errno.ENOSYS
    """
    assert sandbox.run(ask(HELP + textwrap.dedent(program))).result == "passed"


KEYS = """
import ctypes, struct, sys
from coordinate_eval.evaluators.sandbox.sandbox import Level, Sandbox
from coordinate_eval.records import Question
libc = ctypes.CDLL(None)
libc.syscall.restype = ctypes.c_long
def keyctl(*arguments):
    return libc.syscall(250, *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
assert keyctl(1, None) > 0
key = libc.syscall(248, b"user", b"secret", b"kept", ctypes.c_long(4), ctypes.c_long(-3))
assert key > 0 and keyctl(5, key, 0x3F3F3F3F) == 0
program = '''
import contextlib, ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def call(number, *arguments):
    return libc.syscall(number, *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
out = ctypes.create_string_buffer(64)
said = [
    call(250, 11, {key}, out, 64), call(250, 7, -3), call(250, 9, {key}, -3),
    call(250, 1, None), call(250, 10, -3, b"user", b"secret", 0), call(250, 0, -3, 1),
    call(250, 5, {key}, 0), call(248, b"user", b"mine", b"x", 1, -3),
    call(249, b"user", b"secret", None, -3),
]
assert set(said) == {{-1}}, said
with contextlib.suppress(PermissionError):
    assert {visible} or "secret" not in open("/proc/keys").read()
'''
level = Level(sys.argv[1])
program = program.format(key=key, visible=level is Level.LIMITS)
question = Question(id="q", kind="program", content=program, timeout_seconds=600)
print(Sandbox(level).run(question).result)
out = ctypes.create_string_buffer(64)
print(keyctl(11, key, out, 64), out.value.decode())
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="its system calls are of x86_64")
@pytest.mark.parametrize("of", EVERY)
def test_no_key_of_the_user_is_within_reach(of: tuple[Level, bool]) -> None:
    level, ordinary = of
    command = as_ordinary_user(KEYS) if ordinary else [sys.executable, "-c", KEYS]
    done = subprocess.run([*command, str(level)], capture_output=True, text=True, check=False)
    if "assert keyctl" in done.stderr:
        pytest.skip("this kernel or container has no keys")
    assert done.stdout == "passed\n4 kept\n", done.stderr


@pytest.mark.parametrize("of", EVERY)
def test_all_ends_with_the_process_that_runs_it(of: tuple[Level, bool]) -> None:
    level, ordinary = of
    name = f"ce{os.getpid()}e"
    program = f"NAME = {name!r}\n{HELP}\nlinger()\nos.execve('/bin/sleep', ['sleep', '1000'], {{}})"
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
