"""Programs that take memory and time."""

from tests.hostile.program import EVERYWHERE, Must, Program

_SHARE = '''
import mmap

MOST = 6 << 30

def takes(grow, processes=6):
    """Let processes take memory by `grow`, which returns bytes, all at once."""
    ready, said = os.pipe()
    for n in range(processes):
        if os.fork() == 0:
            kept = []
            try:
                total = grow(kept, n)
            except (OSError, MemoryError, ValueError) as error:
                os._exit(1)
            os.write(said, struct.pack("Q", total))
            os.close(said)
            time.sleep(1000)
    os.close(said)
    total = 0
    while total < MOST:
        piece = os.read(ready, 8)
        if not piece:
            break
        total += struct.unpack("Q", piece)[0]
        if total >= MOST:
            raise Broke(f"{total >> 20} MiB")

def touch(pages):
    for at in range(0, len(pages), 4096):
        pages[at] = 1
    return len(pages)
'''


def _memory(name: str, tries: str, text: str) -> Program:
    return Program(name, tries, _SHARE + text, levels=EVERYWHERE, seconds=60.0, slow=True)


def _endless(name: str, tries: str, text: str) -> Program:
    return Program(name, tries, text, Must.TIME_OUT, EVERYWHERE, seconds=1.0)


PROGRAMS = [
    _memory(
        "takes-memory-by-forks",
        "take 6 GiB in processes that are each within their limit",
        """
takes(lambda kept, n: (kept.append(bytearray(b"x") * (1 << 30)), 1 << 30)[1])
""",
    ),
    _memory(
        "takes-memory-by-sharing",
        "take 6 GiB in shared pages",
        """
def grow(kept, n):
    kept.append(mmap.mmap(-1, 1 << 30, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS))
    return touch(kept[-1])
takes(grow)
""",
    ),
    _memory(
        "takes-memory-by-files-in-memory",
        "take 6 GiB in files that are mapped nowhere, which no process seems to use",
        """
def grow(kept, n):
    total = 0
    for _ in range(64):
        kept.append(os.memfd_create("x"))
        total += os.write(kept[-1], b"x" * (16 << 20))
    return total
takes(grow)
""",
    ),
    _memory(
        "takes-memory-in-flight",
        "take 6 GiB in files that are only inside sockets, open in no process",
        """
def grow(kept, n):
    kept.append(bytearray(b"x") * (512 << 20))
    total = 512 << 20
    try:
        for _ in range(64):
            file = os.memfd_create("x")
            size = os.write(file, b"x" * (16 << 20))
            kept.append(socket.socketpair())
            socket.send_fds(kept[-1][0], [b"x"], [file])
            os.close(file)
            total += size
    except OSError:
        pass  # so many may be under way
    return total
takes(grow)
""",
    ),
    _memory(
        "takes-memory-of-system-v",
        "take 6 GiB in segments that outlive every process",
        """
def grow(kept, n):
    segment, _ = call("shmget", 0, 1 << 30, 0o1600)
    libc.shmat.restype = ctypes.c_void_p
    address = libc.shmat(segment, None, 0)
    if segment < 0 or address in (None, 2**64 - 1):
        raise OSError
    return touch((ctypes.c_char * (1 << 30)).from_address(address)) if segment >= 0 else 0
takes(grow)
""",
    ),
    _memory(
        "takes-memory-and-lets-go",
        "hold memory in processes that have unmapped it, in pages that are marked as free",
        """
def grow(kept, n):
    pages = mmap.mmap(-1, 1 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    touch(pages)
    pages.madvise(8)  # MADV_FREE: given back only when memory is short
    kept.append(pages)
    touch(pages)
    return 1 << 30
takes(grow)
""",
    ),
    _memory(
        "takes-memory-as-zombies",
        "take 6 GiB in processes whose first thread has ended, whose memory /proc does not show",
        """
def grow(kept, n):
    def say():
        kept.append(bytearray(b"x") * (1 << 30))
        os.write(said_again, struct.pack("Q", 1 << 30))
        time.sleep(1000)
    threading.Thread(target=say).start()
    time.sleep(0.1)
    call("exit", 0)
ready_again, said_again = os.pipe()
for n in range(6):
    if os.fork() == 0:
        grow([], n)
os.close(said_again)
total = 0
while total < MOST and (piece := os.read(ready_again, 8)):
    total += struct.unpack("Q", piece)[0]
if total >= MOST:
    raise Broke(f"{total >> 20} MiB")
""",
    ),
    _memory(
        "takes-memory-unseen",
        "take 6 GiB in processes that hide from their own user",
        """
def grow(kept, n):
    call("prctl", 4, 0, 0, 0, 0)
    kept.append(mmap.mmap(-1, 1 << 30, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS) if n % 2 else
                bytearray(1 << 30))
    return touch(kept[-1])
takes(grow)
""",
    ),
    _memory(
        "takes-memory-quickly",
        "take 6 GiB faster than somebody looks, and end",
        """
def grow(kept, n):
    pages = mmap.mmap(-1, 1 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.madvise(14)  # MADV_HUGEPAGE
    for at in range(0, len(pages), 4096):
        pages[at] = 1
    return 1 << 30
takes(grow)
""",
    ),
    Program(
        "takes-memory-by-empty-files",
        "take 6 GiB in the inodes and names of empty files in memory",
        """
        for n in range(6 << 20):
            os.close(os.open(f"{n:0250}", os.O_CREAT))
        raise Broke(f"{n} files")
        """,
        seconds=600.0,
        slow=True,
    ),
    Program(
        "takes-memory-in-queues",
        "take 6 GiB in connections that nobody accepts, and whose other end is closed",
        """
        kept, total = [], 0
        while total < 6 << 30:
            server = socket.socket(socket.AF_UNIX)
            kept.append(server)
            server.bind(f"\\0{len(kept)}")
            server.listen(4096)
            for _ in range(4096):
                with socket.socket(socket.AF_UNIX) as one:
                    one.setblocking(False)
                    try:
                        one.connect(f"\\0{len(kept)}")
                        total += one.send(bytes(200_000))
                    except OSError:
                        break
        raise Broke(f"{total >> 20} MiB")
        """,
        seconds=600.0,
        slow=True,
    ),
    Program(
        "takes-memory-over-loopback",
        "take 4 GiB of what the machine has for TCP, in connections that nobody has open",
        """
        kept, total = [socket.create_server(("127.0.0.1", 0), backlog=4096) for _ in range(9)], 0
        for server in kept:
            for _ in range(4096):
                with socket.socket() as one:
                    one.setblocking(False)
                    one.connect_ex(server.getsockname())  # it is under way
                    try:
                        while True:
                            total += one.send(bytes(1 << 20))
                    except BlockingIOError:
                        pass
                    except OSError:
                        break
                if total > 4 << 30:
                    raise Broke(f"{total >> 20} MiB")
        """,
        seconds=600.0,
        slow=True,
    ),
    Program(
        "asks-for-a-huge-text",
        "make one object that is larger than the limit",
        """
        kept = []
        while True:
            kept.append("x" * (1 << 28))
        """,
        Must.FAIL,
        EVERYWHERE,
        seconds=20.0,
        slow=True,
    ),
    Program(
        "multiplies-by-recursion",
        "double a list until there is no memory, inside a recursion without end",
        """
        sys.setrecursionlimit(10**9)
        def grow(kept):
            return grow([kept, kept, *range(100000)])
        grow([])
        """,
        Must.FAIL,
        EVERYWHERE,
        seconds=20.0,
        slow=True,
    ),
    _endless("is-busy", "never end", "while True: pass"),
    _endless("sleeps", "wait for ever", "time.sleep(1e9)"),
    _endless(
        "handles-all-signals",
        "go on at the end of its CPU time, and at each other signal",
        """
        for number in range(1, 65):
            try:
                signal.signal(number, lambda *_: None)
            except (OSError, ValueError):
                pass
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        while True:
            try:
                while True: pass
            except BaseException: pass
        """,
    ),
    _endless(
        "blocks-all-signals",
        "block each signal there is",
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
        while True: pass
        """,
    ),
    _endless("is-busy-in-c", "spend its time where no signal handler runs", "9 ** 9 ** 9"),
    _endless(
        "is-busy-in-an-expression",
        "backtrack in a regular expression",
        "import re; re.match('(a*)*b', 'a' * 64)",
    ),
    _endless(
        "is-busy-in-its-message",
        "spend its time where its exception is put into words",
        """
        class Slow(Exception):
            def __str__(self):
                while True: pass
        raise Slow
        """,
    ),
    _endless(
        "is-busy-in-the-message-of-its-type",
        "spend its time in the metaclass of its exception",
        """
        class Meta(type):
            @property
            def __name__(cls):
                while True: pass
        class Slow(Exception, metaclass=Meta):
            pass
        raise Slow
        """,
    ),
    Program(
        "is-busy-when-it-is-forgotten",
        "spend its time when its last object goes",
        """
        class Last:
            def __del__(self, sleep=time.sleep):
                while True: sleep(1)
        last = Last()
        """,
        Must.END,
        EVERYWHERE,
        seconds=1.0,
    ),
    _endless(
        "burns-all-cores",
        "be busy in each process that it may have",
        """
        for _ in range(20):
            try:
                if os.fork() == 0:
                    break
            except OSError:
                break
        while True: pass
        """,
    ),
    Program(
        "ends-late",
        "run code after its end",
        """
        import atexit
        atexit.register(time.sleep, 1000)
        threading.Thread(target=time.sleep, args=(1000,)).start()
        """,
        Must.END,
        EVERYWHERE,
    ),
]
