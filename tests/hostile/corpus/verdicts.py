"""Programs that fail, and say that they have passed."""

from tests.hostile.program import EVERYWHERE, Must, Program


def _forges(name: str, tries: str, text: str, seconds: float = 10.0) -> Program:
    return Program(name, tries, text, Must.FAIL, EVERYWHERE, seconds)


def _knows_the_guest(name: str, tries: str, text: str) -> Program:
    """Return a program written against the process that judges, which it shares.

    docs/security.md promises no honest verdict then: a text that is run with its own checks has no
    warden outside. Such a program must still end, and leave nothing.
    """
    return Program(name, tries, text, Must.END, EVERYWHERE)


PROGRAMS = [
    _forges("leaves-at-once", "end with success before its checks", "os._exit(0)"),
    _forges("exits", "end as a script does that is content", "sys.exit(0)"),
    _forges(
        "exits-by-a-signal",
        "end by a signal whose handler ends with success",
        """
        signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        time.sleep(5)
        raise AssertionError
        """,
    ),
    _forges(
        "exits-by-a-thread",
        "end in a thread while the checks fail",
        """
        threading.Thread(target=lambda: os._exit(0)).start()
        time.sleep(5)
        raise AssertionError
        """,
    ),
    _forges(
        "becomes-another-program",
        "replace itself by a program that ends well",
        'os.execv("/bin/true", ["true"])',
    ),
    _forges(
        "becomes-another-interpreter",
        "replace itself by an interpreter that says what the warden would like",
        """
        os.execv(sys.executable, ["x", "-c", "print('passed', end=chr(0))"])
        """,
    ),
    _forges(
        "says-so-everywhere",
        "write all words of the warden to all open files",
        """
        for descriptor in range(256):
            for text in (b"passed", b"passed\\n", b"passed\\0", b'{"passed": true}\\n', b"\\1"):
                try:
                    os.write(descriptor, text)
                except OSError:
                    pass
        os._exit(0)
        """,
    ),
    _forges(
        "says-so-in-files-of-others",
        "write the words of the warden to all files of all processes, opened anew",
        """
        for pid in [*others(), "self"]:
            try:
                names = os.listdir(f"/proc/{pid}/fd")
            except OSError:
                continue
            for name in names:
                descriptor = opens(f"/proc/{pid}/fd/{name}", os.O_WRONLY)
                if descriptor is not None:
                    os.write(descriptor, b"passed\\0")
        raise AssertionError
        """,
    ),
    _forges(
        "echoes-what-it-finds",
        "write to the channel all that open files and arguments contain",
        """
        found = [open("/proc/self/cmdline", "rb").read(), open("/proc/self/environ", "rb").read()]
        for name in os.listdir("/proc/self/fd"):
            descriptor = opens(f"/proc/self/fd/{name}")
            if descriptor is not None:
                try:
                    found.append(os.pread(descriptor, 1 << 16, 0))
                except OSError:
                    pass
        for descriptor in range(3, 64):
            for text in found:
                try:
                    os.write(descriptor, text + b"passed\\0")
                except OSError:
                    pass
        os._exit(0)
        """,
    ),
    _forges(
        "reports-from-a-child",
        "pass in a child while the first process fails",
        """
        if os.fork():
            os.wait()
            raise AssertionError
        """,
    ),
    _forges(
        "reports-from-a-child-of-the-same-number",
        "pass in a child that has the number of the first process, in a namespace of its own",
        """
        own = os.getpid()
        if call("unshare", NEW_USER | NAMESPACES["processes"])[0] == 0:
            for _ in range(own):
                child = os.fork()
                if child == 0:
                    if os.getpid() == own:
                        raise SystemExit
                    time.sleep(1)
                    os._exit(0)
                time.sleep(0.05)
        if os.getpid() != own or own > 60:
            raise AssertionError
        time.sleep(0.5)
        raise AssertionError
        """,
    ),
    _forges(
        "reports-from-a-thread",
        "pass in a thread that goes on after the checks failed",
        """
        threading.Thread(target=exec, args=("pass", {})).start()
        raise AssertionError
        """,
    ),
    _forges(
        "lies-in-its-message",
        "fail with an exception whose words and type are those of success",
        """
        class passed(Exception):
            def __str__(self):
                return chr(0) + "passed" + chr(0)
        passed.__name__ = passed.__qualname__ = "passed" + chr(10)
        raise passed
        """,
    ),
    _forges(
        "lies-by-its-class",
        "fail with an exception that overrides all that is asked of it",
        """
        class Meta(type):
            __name__ = property(lambda cls: "passed")
        class Text(str):
            def __format__(self, how): return "passed"
            def __getitem__(self, how): return b"passed"
        class Liar(Exception, metaclass=Meta):
            def with_traceback(self, _): return b"passed"
            def __str__(self): return Text("passed")
            __class__ = property(lambda self: SystemExit)
        raise Liar
        """,
    ),
    _forges(
        "replaces-builtins",
        "fail when nothing is left of what the warden may call",
        """
        import builtins
        for name in list(vars(builtins)):
            if name not in ("AssertionError", "setattr", "object"):
                setattr(builtins, name, lambda *_, **__: b"passed")
        raise AssertionError
        """,
    ),
    _forges(
        "replaces-modules",
        "fail when the modules of the warden are others",
        """
        class Fake:
            def __getattr__(self, name): return lambda *_: None
        for name in list(sys.modules):
            if name not in ("sys", "builtins"):
                sys.modules[name] = Fake()
        os.write = os._exit = os.getpid = lambda *_: 0
        raise AssertionError
        """,
    ),
    _forges(
        "closes-all",
        "take the channel from the warden, and give it another",
        """
        for descriptor in range(3, 256):
            try:
                os.close(descriptor)
            except OSError:
                pass
        ends = os.pipe()
        for descriptor in range(5, 32):
            os.dup2(ends[1], descriptor)
        raise AssertionError
        """,
    ),
    _forges(
        "changes-the-end",
        "register hooks that are called when the interpreter ends or audits",
        """
        import atexit, gc
        atexit.register(os._exit, 0)
        gc.callbacks.append(lambda *_: None)
        sys.excepthook = sys.unraisablehook = threading.excepthook = lambda *_: os._exit(0)
        sys.addaudithook(lambda name, _: os._exit(0) if name in ("os._exit",) else None)
        raise AssertionError
        """,
    ),
    Program(
        "traces-the-warden",
        "search the memory of each other process for what it expects, and change it",
        """
        import re
        for pid in others():
            descriptor = opens(f"/proc/{pid}/mem", os.O_RDWR)
            if descriptor is None:
                continue
            for line in open(f"/proc/{pid}/maps"):
                start, end = (int(n, 16) for n in line.split()[0].split("-"))
                try:
                    text = os.pread(descriptor, min(end - start, 1 << 24), start)
                except (OSError, OverflowError):
                    continue
                for match in re.finditer(rb"failed", text):
                    try:
                        os.pwrite(descriptor, b"passed", start + match.start())
                    except OSError:
                        pass
        raise AssertionError
        """,
        Must.FAIL,
        EVERYWHERE,
    ),
    _forges(
        "dumps-to-the-channel",
        "let the interpreter write to the channel: faults, warnings, and profiles",
        """
        import faulthandler, warnings
        for descriptor in range(3, 32):
            try:
                faulthandler.enable(descriptor, all_threads=True)
                faulthandler.dump_traceback(descriptor)
            except (OSError, ValueError, RuntimeError):
                pass
        os._exit(0)
        """,
    ),
    _forges(
        "fails-after-its-checks",
        "raise when its last object is forgotten, or leave",
        """
        class Last:
            def __del__(self, leave=os._exit): leave(0)
        last = Last()
        raise AssertionError
        """,
    ),
    _forges(
        "inspects-frames",
        "take the channel and the secret from the frame that runs it",
        """
        frame = sys._getframe()
        texts, numbers, writes = [], [], []
        while frame:
            for value in list(frame.f_locals.values()):
                texts += [value] if isinstance(value, bytes) else []
                numbers += [value] if isinstance(value, int) else []
            frame = frame.f_back
        for text in texts:
            for number in numbers:
                for claim in (text[::-1] + b"passed\\0", text + b"passed\\0"):
                    try:
                        os.write(number, claim)
                    except (OSError, OverflowError):
                        pass
        os._exit(0)
        """,
    ),
    _forges(
        "inspects-frames-by-a-traceback",
        "take them through an exception, a generator and the other threads",
        """
        import gc
        try:
            raise ValueError
        except ValueError as error:
            frame = error.__traceback__.tb_frame
        frames = [frame, *sys._current_frames().values()]
        frames += [found for found in gc.get_objects() if type(found) is type(frame)]
        for frame in frames:
            while frame:
                values = list(frame.f_locals.values())
                for text in (value for value in values if type(value) is bytes):
                    for number in (value for value in values if type(value) is int and value < 256):
                        try:
                            os.write(number, text[::-1] + b"passed\\0")
                        except OSError:
                            pass
                frame = frame.f_back
        os._exit(0)
        """,
    ),
    _forges(
        "searches-its-memory",
        "find the secret in its own memory, and write it to all files in both directions",
        """
        import re
        secrets = set()
        with open("/proc/self/mem", "rb", 0) as memory:
            for line in open("/proc/self/maps"):
                start, end = (int(n, 16) for n in line.split()[0].split("-"))
                if "rw" in line and end - start < 1 << 26:
                    try:
                        memory.seek(start)
                        secrets |= set(re.findall(rb"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])",
                                                  memory.read(end - start)))
                    except (OSError, OverflowError, ValueError):
                        pass
        for secret in list(secrets)[:100]:
            for descriptor in range(3, 16):
                try:
                    os.write(descriptor, secret[::-1] + b"passed\\0")
                except OSError:
                    pass
        os._exit(0)
        """,
    ),
    _forges(
        "replaces-the-words-of-the-warden",
        "replace each function that may say how it failed, in the module that runs it",
        """
        for names in (vars(sys.modules["__main__"]), sys._getframe(1).f_globals):
            for name, value in list(names.items()):
                if callable(value) and name.startswith("_") and name != "__loader__":
                    names[name] = lambda *_: b"passed"
        raise AssertionError
        """,
    ),
    _forges(
        "replaces-the-code-of-the-warden",
        "give all functions of the interpreter a code that returns a word of the warden",
        """
        import gc, types
        for found in gc.get_objects():
            if isinstance(found, types.FunctionType) and not found.__closure__:
                found.__code__ = (lambda *_, **__: b"passed").__code__
        raise AssertionError
        """,
    ),
    _forges(
        "rewrites-the-words-of-the-warden",
        "overwrite each failure in its memory by a success of other words",
        """
        memory = os.open("/proc/self/mem", os.O_RDWR)
        for line in list(open("/proc/self/maps")):
            start, end = (int(n, 16) for n in line.split()[0].split("-"))
            if "rw" not in line or end - start > 1 << 26:
                continue
            try:
                at = (text := os.pread(memory, end - start, start)).find(b"failed: ")
                while at >= 0:
                    os.pwrite(memory, b"passed\\0:", start + at)
                    at = text.find(b"failed: ", at + 1)
            except (OSError, OverflowError):
                pass
        raise AssertionError
        """,
    ),
    _knows_the_guest(
        "jumps-in-the-warden",
        "trace the frame that runs it, and jump over its failure",
        """
        frame = sys._getframe(1)
        line, jumped = frame.f_lineno, []
        def jump(frame, event, _):
            if event == "line" and frame.f_lineno > line + 1 and not jumped:
                jumped.append(line)
                frame.f_lineno = line + 1
            return jump
        frame.f_trace = jump
        sys.settrace(lambda *_: jump)
        raise AssertionError
        """,
    ),
    _forges(
        "stands-between",
        "put a pipe of its own before the channel, and change what the warden says",
        """
        for descriptor in range(3, 32):
            try:
                target = os.readlink(f"/proc/self/fd/{descriptor}")
            except OSError:
                continue
            if not target.startswith("pipe:"):
                continue
            kept = os.dup(descriptor)
            ours, theirs = os.pipe()
            if os.fork() == 0:
                os.close(theirs)
                os.close(descriptor)
                said = os.read(ours, 4096)
                secret = said.partition(b"failed")[0]
                os.write(kept, secret + b"passed\\0")
                time.sleep(1)
                os._exit(0)
            os.dup2(theirs, descriptor)
            break
        raise AssertionError
        """,
    ),
    _knows_the_guest(
        "declares-its-end",
        "hold with the warden the talk that the end of the program begins",
        """
        for descriptor in range(3, 64):
            try:
                channel = socket.socket(fileno=descriptor)
                channel.send(b"end")
                channel.send(channel.recv(16) + b"passed")
            except OSError:
                pass
        os._exit(0)
        """,
    ),
]
