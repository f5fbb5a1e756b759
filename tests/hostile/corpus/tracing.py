"""Programs that reach into the processes around them."""

from tests.hostile.program import EVERYWHERE, Must, Program

_INJECT = '''
class Registers(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in (
        "r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax "
        "rip cs eflags rsp ss fs_base gs_base ds es fs gs").split()]

call("prctl", 1, 0, 0, 0, 0)  # the death of a parent is nothing to it

def inject(pid, *calls):
    """Let another process make calls, of a number and two arguments each."""
    if platform.machine() != "x86_64" or call("ptrace", 16, pid, 0, 0)[0]:
        return
    saved, wanted = Registers(), Registers()
    libc.waitpid(pid, None, 0x40000000)
    call("ptrace", 12, pid, 0, ctypes.byref(saved))
    for number, first, second in calls:
        ctypes.memmove(ctypes.byref(wanted), ctypes.byref(saved), ctypes.sizeof(saved))
        wanted.rip, wanted.rax, wanted.orig_rax = saved.rip - 2, number, 2**64 - 1
        wanted.rdi, wanted.rsi, wanted.rdx, wanted.r10, wanted.r8 = first, second, 0, 0, 0
        call("ptrace", 13, pid, 0, ctypes.byref(wanted))
        call("ptrace", 9, pid, 0, 0)
        libc.waitpid(pid, None, 0x40000000)
    call("ptrace", 13, pid, 0, ctypes.byref(saved))
    call("ptrace", 17, pid, 0, 0)

def stay():
    if os.fork() == 0:
        os.setsid()
        linger()
    time.sleep(0.2)
'''

PROGRAMS = [
    Program(
        "traces-process-1",
        "attach to every process to be seen, by all the ways of ptrace",
        """
        for pid in others():
            for request in (16, 0x4206):
                result, error = call("ptrace", request, pid, 0, 0)
                if result == 0:
                    raise Broke(f"traces {pid} by {request:#x}")
        """,
    ),
    Program(
        "frees-process-1",
        "trace process 1, let it forget its parent by injected calls, and stay",
        _INJECT
        + """
for pid in sorted(others()):
    inject(pid, (157, 1, 0))  # prctl(PR_SET_PDEATHSIG, 0)
stay()
""",
    ),
    Program(
        "splits-process-1",
        "let process 1 go on in a second thread, and end the first: a zombie that lives",
        _INJECT
        + """
for pid in sorted(others()):
    inject(pid, (157, 1, 0), (56, 0x50F00, 0), (60, 0, 0))
stay()
""",
    ),
    Program(
        "patches-process-1",
        "write code into the memory of process 1 by its file, and stay",
        """
        for pid in others():
            try:
                mapped = [line.split() for line in open(f"/proc/{pid}/maps")]
                memory = os.open(f"/proc/{pid}/mem", os.O_RDWR)
            except OSError:
                continue
            for start, end in (row[0].split("-") for row in mapped if "x" in row[1]):
                try:
                    os.pwrite(memory, os.pread(memory, 1, int(start, 16)), int(start, 16))
                except (OSError, OverflowError):
                    continue
                raise Broke(f"the code of {pid}")
        """,
    ),
    Program(
        "frees-process-1-and-kills-it-all",
        "as above, then kill what stands between process 1 and the outside, and stay",
        """
        for pid in sorted(others()):
            if call("ptrace", 0x4206, pid, 0, 0x100000)[0] == 0:
                call("ptrace", 0x4207, pid, 0, 0)
        if os.fork() == 0:
            os.setsid()
            linger()
        for pid in others():
            if pid != 1:
                try:
                    os.kill(pid, signal.SIGSTOP)
                except OSError:
                    pass
        """,
        Must.END,
        seconds=3.0,
    ),
    Program(
        "is-traced-by-its-parent",
        "ask its parent to trace it, which stops it at each signal",
        """
        call("ptrace", 0, 0, 0, 0)
        if os.fork() == 0:
            linger()
        os.kill(os.getpid(), signal.SIGUSR1)
        """,
        Must.FAIL,
        EVERYWHERE,
        seconds=2.0,
    ),
    Program(
        "holds-its-children-in-a-trace",
        "end while it holds its own children stopped in a trace",
        """
        pid = os.fork()
        if pid == 0:
            call("ptrace", 0, 0, 0, 0)
            os.kill(os.getpid(), signal.SIGSTOP)
            linger()
        time.sleep(0.2)
        """,
        levels=EVERYWHERE,
    ),
    Program(
        "steals-descriptors",
        "take files of process 1 by pidfd_getfd",
        """
        for pid in others():
            descriptor, _ = call("pidfd_open", pid, 0)
            if descriptor < 0:
                continue
            for number in range(64):
                result, error = call("pidfd_getfd", descriptor, number, 0)
                if result >= 0:
                    raise Broke(f"descriptor {number} of {pid}")
        refused("pidfd_getfd", os.pidfd_open(os.getpid()), 0, 0)
        """,
    ),
    Program(
        "reads-memory-of-processes",
        "read and write the memory of process 1 by calls",
        """
        buffer = ctypes.create_string_buffer(8)
        for pid in others():
            try:
                start = int(open(f"/proc/{pid}/maps").readline().partition("-")[0] or "0", 16)
            except (OSError, ValueError):
                continue
            here = struct.pack("QQ", ctypes.addressof(buffer), 8)
            there = struct.pack("QQ", start, 8)
            for name in ("process_vm_readv", "process_vm_writev"):
                result, _ = call(name, pid, here, 1, there, 1, 0)
                if result > 0:
                    raise Broke(f"{name} of {pid}")
        """,
    ),
]
