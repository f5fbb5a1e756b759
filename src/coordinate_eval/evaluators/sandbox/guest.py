"""What runs inside the sandbox: limits itself, runs the program, says how it ended.

Started by `code.py` as `python -I -S -c <this text> CPU ADDRESS_SPACE FILE_SIZE PROCESSES DIR…`
(seconds, bytes, bytes, a count, folders for `sys.path`), so it must stand alone and start fast
(importing `typing` takes longer than all the rest).
On stdin it gets a nonce, a newline, and the program in UTF-8. On stdout, which the program
never sees, it says the nonce and a NUL when the program is about to start, then the nonce
backwards, `passed` or `failed: …`, and a NUL. Backwards, because a program that echoes what it
finds in open files or in memory must not pass.

Whatever the program may replace is bound to a local name before it starts. A program written
against this very file can still claim to have passed: it shares the process, and no check from
inside a process can tell who speaks. It gains nothing but a wrong score of its own checkpoint.
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
    """The standard input that the code_eval metric gives to programs: reading is an error."""

    def read(self, size: int | None = -1, /) -> str:
        raise OSError("there is no input")

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]  # None, too, there
        return self.read(size)

    def readlines(self, hint: int = -1, /) -> list[str]:  # type: ignore[override]  # bytes, there
        return [self.read(hint)]

    def readable(self) -> bool:
        return False


def _limit(cpu_seconds: int, address_space: int, file_size: int, processes: int) -> None:
    """Give up for good what the program must not use; the hard limit of CPU time kills."""
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
    """`failed: type: message`, whatever the exception does when it is asked for its text."""
    try:
        kind, message = type(error).__name__, str(error)
        text = f"failed: {kind}: {message}" if message else f"failed: {kind}"
        return text[:500].replace("\0", "\\0").encode("utf-8", "backslashreplace")
    except BaseException:
        return b"failed: an exception that has no text"


def _take_over_streams() -> tuple[int, bytes, str]:
    """Keep the channel to ourselves; returns it, the nonce and the program."""
    channel = os.dup(1)
    with open(0, "rb", closefd=False) as stream:
        nonce, _, program = stream.read().partition(b"\n")
    # The wrapper, of the same user, keeps this file open.
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
    builtins.exit = Quitter("exit", "Ctrl-D")  # what `site`, not loaded, would have added
    builtins.quit = Quitter("quit", "Ctrl-D")
    sys.path.extend(sys.argv[5:])
    cpu_seconds, address_space, file_size, processes = map(int, sys.argv[1:5])
    sys.argv[:] = [""]
    _limit(cpu_seconds, address_space, file_size, processes)
    if os.getcwd() == "/tmp":  # noqa: S108, PTH109  # the program's own
        # An interpreter that is installed below /tmp can be seen there; here is nothing.
        os.mkdir("/tmp/program")  # noqa: S108, PTH102  # as above; pathlib takes long to load
        os.chdir("/tmp/program")  # noqa: S108
    # Telling of a MemoryError takes memory.
    reserve = bytearray(RESERVE_BYTES)
    write(channel, nonce + b"\0")
    try:
        exec(program, {})  # noqa: S102  # the whole point, and why this process is confined
        verdict = b"passed"
    except BaseException as error:
        del reserve
        verdict = _describe(error.with_traceback(None))
    # A fork of the program that gets here as well has nothing to say.
    if process() == own_process:
        write(channel, nonce[::-1] + verdict + b"\0")
    leave(0)


if __name__ == "__main__":
    _main()
