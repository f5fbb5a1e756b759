"""The process inside the sandbox. It sets its limits, runs the program and reports the result.

`sandbox.py` starts it as `python -I -S -c <this text> CPU ADDRESS_SPACE FILE_SIZE PROCESSES START
DIR…`: seconds, bytes, bytes, a count, a file descriptor, and folders for `sys.path`. So it cannot
import this package. It must start fast: importing `typing` would take longer than everything else
here.

Its standard input is a nonce, a newline and the program in UTF-8. On standard output, which the
program never sees, it writes the nonce and a NUL when it is ready. It starts the program when it
has read a byte from START. Then it writes the reversed nonce, `passed` or `failed: …`, and a NUL.
The nonce is reversed so that a program that echoes the content of open files or memory does not
pass.

Every name that the program could replace is bound to a local name first. A program written against
this file can still report that it passed: it runs in the same process, and no check inside a
process can tell the two apart. It gains nothing but a wrong score for its own checkpoint.
"""

import builtins
import io
import os
import resource
import sys
from _sitebuiltins import Quitter

OPEN_FILES = 256
RESERVE_BYTES = 4 << 20


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


def _limit(cpu_seconds: int, address_space: int, file_size: int, processes: int) -> None:
    """Set the limits of this process, hard and soft. Exceeding the hard CPU limit kills it."""
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
    for kind, limit in (
        (resource.RLIMIT_AS, address_space),
        (resource.RLIMIT_FSIZE, file_size),
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        allowed = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (allowed, allowed))


def _describe(error: BaseException) -> bytes:
    """Return `failed: type: message`, even if the exception's own `__str__` fails."""
    try:
        kind, message = type(error).__name__, str(error)
        text = f"failed: {kind}: {message}" if message else f"failed: {kind}"
        return text[:500].replace("\0", "\\0").encode("utf-8", "backslashreplace")
    except BaseException:
        return b"failed: an exception that has no text"


def _take_over_streams() -> tuple[int, bytes, str]:
    """Hide the standard streams from the program. Return the channel, nonce and program."""
    channel = os.dup(1)
    with open(0, "rb", closefd=False) as stream:
        nonce, _, program = stream.read().partition(b"\n")
    # The wrapper, a process of the same user, keeps this file open.
    os.truncate(0, 0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    os.close(nothing)
    return channel, nonce, program.decode("utf-8", "surrogatepass")


def _main() -> None:
    write, leave, process = os.write, os._exit, os.getpid
    channel, nonce, program = _take_over_streams()
    own_process = process()
    sys.stdin = _NoInput()
    builtins.exit = Quitter("exit", "Ctrl-D")  # as `site` would add, which is not loaded
    builtins.quit = Quitter("quit", "Ctrl-D")
    sys.path.extend(sys.argv[6:])
    cpu_seconds, address_space, file_size, processes, start = map(int, sys.argv[1:6])
    sys.argv[:] = [""]
    _limit(cpu_seconds, address_space, file_size, processes)
    if os.getcwd() == "/tmp":  # noqa: S108, PTH109  # the program's own
        # An interpreter installed below /tmp is visible there; this folder is empty.
        os.mkdir("/tmp/program")  # noqa: S108, PTH102  # as above; pathlib takes long to load
        os.chdir("/tmp/program")  # noqa: S108
    # Reporting a MemoryError needs memory.
    reserve = bytearray(RESERVE_BYTES)
    write(channel, nonce + b"\0")
    if not os.read(start, 1):
        leave(1)
    os.close(start)
    try:
        exec(program, {})  # noqa: S102  # the purpose of this process, which is confined
        verdict = b"passed"
    except BaseException as error:
        del reserve
        verdict = _describe(error.with_traceback(None))
    # A fork of the program may get here too, and must not report.
    if process() == own_process:
        write(channel, nonce[::-1] + verdict + b"\0")
    leave(0)


if __name__ == "__main__":
    _main()
