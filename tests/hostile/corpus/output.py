"""Programs that say too much, crash, or look around."""

from tests.hostile.program import EVERYWHERE, Must, Program


def _crashes(name: str, tries: str, text: str) -> Program:
    return Program(name, tries, text, Must.FAIL, EVERYWHERE, seconds=20.0)


PROGRAMS = [
    Program(
        "says-gigabytes",
        "fill logs and pipes by its output and its errors",
        """
        block = "x" * (1 << 20)
        for _ in range(1000):
            sys.stdout.write(block)
            sys.stderr.write(block)
        """,
        levels=EVERYWHERE,
        seconds=30.0,
    ),
    Program(
        "says-bytes",
        "write bytes, zeros and escape sequences to each file, by each way",
        """
        for text in (bytes(range(256)), bytes(4096), b"\\x1b]0;owned\\x07\\x1b[2J\\x9b"):
            for descriptor in (1, 2):
                os.write(descriptor, text)
        os.system("head -c 1000000 /dev/zero; printf '\\\\033c' >&2")
        """,
        levels=EVERYWHERE,
    ),
    Program(
        "floods-its-channel",
        "write without end to each open file",
        """
        while True:
            for descriptor in range(3, 32):
                try:
                    os.write(descriptor, b"x" * 65536)
                except OSError:
                    pass
        """,
        Must.FAIL,
        EVERYWHERE,
        seconds=3.0,
    ),
    Program(
        "drips-into-its-channel",
        "write a byte at a time, so that whoever reads never waits long",
        """
        while True:
            for descriptor in range(3, 32):
                try:
                    os.write(descriptor, b"x")
                except OSError:
                    pass
            time.sleep(0.01)
        """,
        Must.FAIL,
        EVERYWHERE,
        seconds=1.0,
    ),
    _crashes(
        "fails-with-escape-sequences",
        "reach the reader's terminal through the words of its failure",
        'raise ValueError("\\x1b]0;x\\x07\\x1b[2J\\0\\r\\n\\u202e" + "\\ud800" * 600)',
    ),
    _crashes("crashes", "read the address 0", "ctypes.string_at(0)"),
    _crashes("aborts", "abort", "os.abort()"),
    _crashes(
        "crashes-at-an-instruction",
        "run what is no instruction",
        "os.kill(os.getpid(), signal.SIGILL)",
    ),
    _crashes(
        "crashes-at-a-hole",
        "read a mapped file beyond its end",
        """
        import mmap
        with open("short", "wb+") as file:
            file.truncate(4096)
            pages = mmap.mmap(file.fileno(), 4096)
            file.truncate(0)
            pages[0]
        """,
    ),
    _crashes(
        "overflows-the-stack",
        "recurse without end in the interpreter and in C",
        """
        sys.setrecursionlimit(10**9)
        nested = []
        for _ in range(10**6):
            nested = [nested]
        repr(nested)
        def deeper(): deeper()
        deeper()
        """,
    ),
    _crashes(
        "is-too-deep-to-read",
        "crash the parser",
        """
        for opening, closing in ("()", "[]", "{}"):
            for middle in ("", "1", "1,"):
                try:
                    compile(opening * 90 + middle + closing * 90, "x", "eval")
                    compile("-" * 10**6 + "1", "x", "eval")
                except (SyntaxError, MemoryError, RecursionError):
                    pass
        raise AssertionError
        """,
    ),
    _crashes(
        "frees-what-is-used",
        "corrupt the interpreter's objects",
        """
        for value in (None, True, "x", (), type):
            ctypes.c_ssize_t.from_address(id(value)).value = 0
        ctypes.memset(id(type), 0, 400)
        raise AssertionError
        """,
    ),
    Program(
        "looks-at-its-environment",
        "find variables, arguments, a folder or settings of the submitter",
        """
        known = {"PATH", "HOME", "LANG", "PWD", "SHLVL", "_", "OLDPWD", "LC_CTYPE", "TMPDIR"}
        more = {name for name in os.environ if name not in known and "THREADS" not in name}
        if more:
            raise Broke(f"variables {sorted(more)}")
        if sys.argv not in ([""], [], ["-c"]):
            raise Broke(f"arguments {sys.argv}")
        if os.listdir("."):
            raise Broke(f"files in {os.getcwd()}")
        umask = os.umask(0o77)
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        if blocked:
            raise Broke(f"blocked signals {blocked}")
        """,
        levels=EVERYWHERE,
    ),
    Program(
        "reads-its-input",
        "read what was given to the sandbox on its input",
        """
        for read in (lambda: os.read(0, 100), lambda: open("/dev/stdin").read(),
                     lambda: open("/proc/self/fd/0").read()):
            try:
                found = read()
            except OSError:
                continue
            if found:
                raise Broke(repr(found[:50]))
        """,
        levels=EVERYWHERE,
    ),
    Program(
        "dumps-core",
        "leave its memory in a file",
        """
        import resource
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, 1 << 20))
        except (OSError, ValueError):
            pass
        if os.fork() == 0:
            os.abort()
        os.wait()
        left = [name for name in os.listdir(".") if "core" in name]
        if left:
            raise Broke(left)
        """,
        levels=EVERYWHERE,
    ),
]
