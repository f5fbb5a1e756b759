"""The processes inside the sandbox: the warden, which judges a program, and the program's own.

`sandbox.py` hands the code of this module to a bare interpreter and calls `warden`. It must start
fast: importing `typing` would take longer than everything else here.

The warden holds the channel to the process that started it. It ends when that process closes the
channel, and the program's processes end with it: the kernel sees to that where the warden is the
first process of its namespace. The program can neither stop the warden nor trace it or read its
memory, and never has the channel.

A verdict is still the word of the program's own process. The tests of a program are part of its
text, so they share a process, and no check inside a process can tell the two apart. Nothing in
that process is worth stealing: the token that a verdict needs comes from the warden, after the
program's end. But a program that is written against this file can declare its own end, and one
whose objects equal everything passes any test, here as with the metric `code_eval`. It gains
nothing but a wrong score for its own checkpoint.

A program in another language than Python is compiled and run by commands. The process that starts
them executes nothing that the model wrote, and no program can trace it or read its memory. What the
commands print comes to it, and nothing of it but the last command's failure goes on.

On the channel, the warden says `ready` when the program is about to start, with descriptors
(pidfds) of itself and of the program's process if the kernel has them. It starts the program when
it hears `go`. Then it says `passed`, `failed: …`, or `ended N` if the process ended before the
program did, with its exit code or minus the number of the signal that ended it.
"""

import _signal  # type: ignore[import-not-found]  # `signal` takes long to load
import builtins
import io
import os
import resource
import select
import sys
import time
from _collections_abc import Iterator  # what `collections.abc` shows
from _sitebuiltins import Quitter
from _socket import AF_UNIX, SCM_RIGHTS, SOCK_SEQPACKET, SOL_SOCKET, socket, socketpair

from coordinate_eval.evaluators.sandbox.inside import Mounts, confine, show

OPEN_FILES = 256
PENDING_SIGNALS = 1024  # timers among them
RESERVE_BYTES = 4 << 20
TOKEN_BYTES = 16
MOST_SAID_BYTES = 4096

_PAUSE_SECONDS = 0.0005  # for processes that are killed to end
_MOST_PRINTED_BYTES = 16 << 10  # of one command; the rest is read and forgotten
_TOLD_BYTES = 400

Commands = tuple[str, list[list[str]], dict[str, str]]
"""Commands to compile and run a program: the name of its file, argvs, and their environment."""

_FORGED = b"failed: the program wrote where only its result goes"


class _NoInput(io.StringIO):
    """The standard input that the metric `code_eval` gives to programs: reading it is an error."""

    def read(self, size: int | None = -1, /) -> str:
        raise OSError("there is no input")

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]  # None, too, there
        return self.read(size)

    def readlines(self, hint: int = -1, /) -> list[str]:  # type: ignore[override]  # bytes, there
        return [self.read(hint)]

    def readable(self) -> bool:
        return False


def warden(
    channel_descriptor: int,
    program: str,
    limits: tuple[int, int, int, int],
    folders: list[str],
    confinement: tuple[Mounts | None, int | None, bytes, int],
    commands: Commands | None = None,
) -> None:
    """Run a program in a child, tell how it ended, and end with all its processes.

    `limits` are CPU seconds, bytes of address space, bytes of a file, and a number of processes.
    `folders` are added to the program's `sys.path`. `confinement` is what `confine` takes. The
    program is Python if no `commands` are given.
    """
    channel = socket(fileno=channel_descriptor)
    confine(*confinement)
    # A first process gets those signals from its namespace that it has handlers for.
    _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
    _signal.signal(_signal.SIGCHLD, lambda *_: None)
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    _signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    ours, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
    child = os.fork()
    if child == 0:
        _signal.set_wakeup_fd(-1)
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)
        for descriptor in (woken, waker):
            os.close(descriptor)
        channel.close()
        ours.close()
        os.setsid()
        if commands is None:  # else this process stays hidden from those that it starts
            show(True)
            sys.path.extend(folders)
        _run(program, theirs, limits, commands)
    theirs.close()
    if ours.recv(MOST_SAID_BYTES) != b"ready":
        os._exit(1)  # the child has said why
    _close_streams()
    try:
        handles = b"".join(
            os.pidfd_open(process).to_bytes(4, sys.byteorder) for process in (os.getpid(), child)
        )
        channel.sendmsg([b"ready"], [(SOL_SOCKET, SCM_RIGHTS, handles)])
    except OSError:
        channel.send(b"ready")
    said = _await_end(channel, ours, child, woken)
    if os.getpid() != 1:
        _end_descendants()
    if said is not None:
        channel.send(said)
    os._exit(0)


def _close_streams() -> None:
    """Replace the standard streams, which are those of whoever started this."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    os.close(nothing)


def _await_end(channel: socket, report: socket, child: int, woken: int) -> bytes | None:
    """Return what to say about the program's end, or None if nobody wants to know."""
    events = select.poll()
    for descriptor in (channel.fileno(), report.fileno(), woken):
        events.register(descriptor, select.POLLIN)
    token, code = b"", None
    while True:
        # What a process said before its end may be seen after its end.
        ready = [descriptor for descriptor, _ in events.poll(None if code is None else 0)]
        if code is not None and report.fileno() not in ready:
            return b"ended %d" % code
        if report.fileno() in ready:
            said = report.recv(MOST_SAID_BYTES)
            if token and said.startswith(token):
                verdict = said[TOKEN_BYTES:]
                return (
                    verdict if verdict == b"passed" or verdict.startswith(b"failed: ") else _FORGED
                )
            if said and (token or said != b"end"):
                return _FORGED
            if said:
                token = os.urandom(TOKEN_BYTES)
                _send(report, token)
            else:  # the program has closed it
                events.unregister(report)
        if channel.fileno() in ready:
            if not channel.recv(MOST_SAID_BYTES):
                return None
            _send(report, b"go")
        if woken in ready:
            os.read(woken, MOST_SAID_BYTES)
            code = _reap(child)


def _send(report: socket, text: bytes) -> None:
    """Say something to the program's process, unless it has ended."""
    try:
        report.send(text)
    except OSError:
        pass


def _reap(child: int) -> int | None:
    """Take note of all processes that have ended. Return the exit code of `child` if it has."""
    code = None
    try:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                code = os.waitstatus_to_exitcode(ended[1])
    except ChildProcessError:
        pass
    return code


def _end_descendants() -> None:
    """Kill all descendants of this process, which is the parent of all orphans among them."""
    stopped: set[int] = set()
    while not _childless():
        found = set(_descendants(os.getpid()))
        # Those that are stopped cannot start others meanwhile.
        number = _signal.SIGKILL if found <= stopped else _signal.SIGSTOP
        for process in found:
            try:
                os.kill(process, number)
            except ProcessLookupError:
                pass
        stopped = found
        time.sleep(_PAUSE_SECONDS)


def _childless() -> bool:
    """Take note of all children that have ended. Return whether there are no others."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


def _descendants(process: int) -> Iterator[int]:
    """Yield the processes below one."""
    try:
        for thread in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{thread}/children") as file:
                children = [int(child) for child in file.read().split()]
            for child in children:
                yield child
                yield from _descendants(child)
    except OSError:
        pass  # it has ended


def _run(
    program: str,
    report: socket,
    limits: tuple[int, int, int, int],
    commands: Commands | None,
) -> None:
    """Run the program in this process when it may start, and report how it ended.

    Every name that the program could replace is bound to a local name first.
    """
    own_process, process, leave = os.getpid(), os.getpid, os._exit
    send, receive = report.send, report.recv
    sys.stdin = _NoInput()
    sys.argv[:] = [""]
    builtins.exit = Quitter("exit", "Ctrl-D")  # as `site` would add, which is not loaded
    builtins.quit = Quitter("quit", "Ctrl-D")
    if os.getcwd() == "/tmp":  # noqa: S108  # the program's own
        # An interpreter installed below /tmp is visible there; this folder is empty.
        os.mkdir("/tmp/program")  # noqa: S108
        os.chdir("/tmp/program")  # noqa: S108
    _limit(*limits)
    # Reporting a MemoryError needs memory.
    reserve = bytearray(RESERVE_BYTES)
    send(b"ready")
    _close_streams()
    if receive(MOST_SAID_BYTES) != b"go":
        leave(1)
    try:
        if commands is None:
            exec(program, {})  # noqa: S102  # the purpose of this process, which is confined
            verdict = b"passed"
        else:
            verdict = _compile_and_run(program, *commands)
    except BaseException as error:
        del reserve
        # The prefix comes from no function that the program could have exchanged.
        verdict = b"failed: %b" % _describe(error.with_traceback(None))
    # A fork of the program may get here too, and must not report.
    if process() == own_process:
        try:
            send(b"end")
            send(receive(TOKEN_BYTES) + verdict)
        except BaseException:
            leave(1)  # the program has closed it
    leave(0)


def _compile_and_run(
    program: str, file: str, argvs: list[list[str]], environment: dict[str, str]
) -> bytes:
    """Write the program into a file, and run the commands until one fails. Return the verdict."""
    with open(file, "w", encoding="utf-8", errors="replace", newline="") as written:
        written.write(program)
    for argv in argvs:
        code, printed = _execute(argv, environment)
        if code != 0:
            kind = b"" if argv is argvs[-1] else b"it does not compile: "
            end = b"signal %d" % -code if code < 0 else b"exit status %d" % code
            told = printed.strip().replace(b"\0", b"\\0")[:_TOLD_BYTES]
            return b"failed: " + kind + end + (b": " + told if told else b"")
    return b"passed"


def _execute(argv: list[str], environment: dict[str, str]) -> tuple[int, bytes]:
    """Run a command. Return its exit code or minus its signal, and the start of what it prints.

    It is over when all processes that it started have ended or closed their standard output.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for standard in (1, 2):
                os.dup2(writer, standard)
            os.execve(argv[0], argv, environment)  # noqa: S606  # the purpose of this process
        finally:
            os._exit(127)
    os.close(writer)
    printed = b""
    while piece := os.read(reader, _MOST_PRINTED_BYTES):
        printed += piece[: _MOST_PRINTED_BYTES - len(printed)]
    os.close(reader)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), printed


def _limit(cpu_seconds: int, address_space: int, file_size: int, processes: int) -> None:
    """Set the limits of this process, hard and soft. Exceeding the hard CPU limit kills it."""
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
    for kind, limit in (
        (resource.RLIMIT_AS, address_space),
        (resource.RLIMIT_FSIZE, file_size),
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        # At 0, a system's program for dumps is started at each crash; at 1 none is (core(5),
        # do_coredump in Linux's fs/coredump.c).
        (resource.RLIMIT_CORE, 1),
        # All processes of a user share a number of these.
        (resource.RLIMIT_SIGPENDING, PENDING_SIGNALS),
        (resource.RLIMIT_RTPRIO, 0),
        (resource.RLIMIT_NICE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        allowed = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (allowed, allowed))


def _describe(error: BaseException) -> bytes:
    """Return `type: message`, even if the exception's own `__str__` fails."""
    try:
        kind, message = type(error).__name__, str(error)
        text = f"{kind}: {message}" if message else f"{kind}"
        return text[:500].replace("\0", "\\0").encode("utf-8", "backslashreplace")
    except BaseException:
        return b"an exception that has no text"
