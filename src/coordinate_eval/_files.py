"""Reading and writing of files on shared storage: whole or not at all, and without locks.

All of it relies on rename(2) and link(2) being atomic, and on nothing that a client may cache:
the file itself tells who created it. What is read must be the user's own (see `_owner.py`): what
another user planted raises `ForeignError`.
"""

import contextlib
import json
import os
import secrets
from collections.abc import Callable, Hashable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from pydantic import ValidationError

from coordinate_eval import _owner
from coordinate_eval.errors import ForeignError, RecordError
from coordinate_eval.records import Record

RecordT = TypeVar("RecordT", bound=Record)
T = TypeVar("T")

MOST_BYTES = 64 << 20
"""Most bytes that are read of a record, and of a line of any file. Whoever can write where we read
can leave a file without an end: a sparse one takes no space."""

_seen: ContextVar[dict[Hashable, object] | None] = ContextVar("_seen", default=None)
"""Values read within the current `one_look`, by how and where; None outside of one."""

_PIECE_BYTES = 1 << 20

_never_made: set[Path] = set()


def write(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Write a file in one step that survives a crash. An earlier file is replaced."""
    temporary = _beside(path, content, mode)
    temporary.replace(path)
    sync_folder(path.parent)


def write_private(path: Path, text: str) -> None:
    """Write `text` to `path` in one step, as bytes of the file system, for the user's eyes only."""
    write(path, os.fsencode(text), 0o600)


def replace(complete: Path, path: Path) -> None:
    """Rename a complete file to `path` in one step that survives a crash."""
    with complete.open("rb") as file:
        os.fsync(file.fileno())
    complete.replace(path)
    sync_folder(path.parent)


def write_record(path: Path, record: Record) -> None:
    """Write a record to `path` as indented JSON, in one step."""
    write(path, _text_of(record))


def create(path: Path, text: str) -> bool:
    """Write `text` to `path` unless a file is there. Return whether this call created it.

    `text` must be unique to the caller. If the answer to link(2) is lost, the caller finds its own
    text at `path` and knows that it succeeded.
    """
    temporary = _beside(path, text)
    try:
        os.link(temporary, path)
        sync_folder(path.parent)
        return True
    except FileExistsError:
        return _reads(path, text)
    finally:
        temporary.unlink(missing_ok=True)


def create_record(path: Path, record: Record) -> bool:
    """Write a record to `path` as `create` does: unless a file is there."""
    return create(path, _text_of(record))


def publish(complete: Path, path: Path) -> bool:
    """Link a complete file as `path` and remove it. Return False if `path` was there already.

    The first caller wins for good.
    """
    try:
        os.link(complete, path)
        won = True
    except FileExistsError:
        won = _inode(complete) == _inode(path)
    except FileNotFoundError:
        # The winner has removed the files of all others.
        if not path.exists():
            raise
        won = False
    complete.unlink(missing_ok=True)
    sync_folder(path.parent)
    return won


def _inode(path: Path) -> int:
    """Return a file's inode, or 0 if it is gone: the winner removes the files of all others."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return 0


def read_record(path: Path, kind: type[RecordT]) -> RecordT:
    """Return the record at `path`.

    Raises:
        RecordError: it is missing, torn, or of a version that this program cannot read.
    """
    record = read_record_if_there(path, kind)
    if record is None:
        raise RecordError(f"{path} is missing")
    return record


@contextlib.contextmanager
def one_look() -> Iterator[None]:
    """Read each record and list each folder at most once in the block: as it was at first."""
    token = _seen.set({})
    try:
        yield
    finally:
        _seen.reset(token)


def _once(key: Hashable, read: Callable[[], T]) -> T:
    """Return what `read` returned for this key within the current look, or returns now."""
    seen = _seen.get()
    if seen is None:
        return read()
    if key not in seen:
        seen[key] = read()
    return cast(T, seen[key])


def read_record_if_there(path: Path, kind: type[RecordT]) -> RecordT | None:
    """Return the record at `path`, or None if there is no such file."""
    return _once((path, kind), lambda: _read_record(path, kind))


def _read_record(path: Path, kind: type[RecordT]) -> RecordT | None:
    try:
        content = read(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        what = f"{where}: {first['msg']}" if where else first["msg"]
        raise RecordError(
            f"{path} cannot be read as {kind.__name__}: {what}. It is torn, or of another "
            "version: restore a whole copy, or start another run with --run-dir"
        ) from error


def read(path: Path) -> bytes:
    """Return the content of a file of the user's own.

    Raises:
        ForeignError: the file is another user's, or others can write to it.
        OSError: it cannot be read.
        RecordError: it has more than `MOST_BYTES`.
    """
    with open_to_read(path) as file:
        return read_bounded(file, path)


def read_bounded(file: BinaryIO, path: Path, most: int = MOST_BYTES) -> bytes:
    """Return the content of an open file. `path` names it in the error.

    Raises:
        RecordError: it has more than `most` bytes.
    """
    content = bytearray()
    while piece := file.read(_PIECE_BYTES):
        content += piece
        if len(content) > most:
            raise _too_large(path, f"{most:,} bytes")
    return bytes(content)


def read_end(path: Path, most: int) -> bytes:
    """Return at most the last `most` bytes of a file of the user's own.

    Raises:
        ForeignError: the file is another user's, or others can write to it.
        OSError: it cannot be read.
    """
    with open_to_read(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - most))
        return file.read(most)


def read_json(path: Path) -> Any:  # noqa: ANN401 - any JSON value
    """Return the JSON value of a file.

    Raises:
        RecordError: it is missing or torn.
    """
    try:
        return json.loads(read(path))
    except (OSError, ValueError, RecursionError) as error:
        raise RecordError(f"{path} cannot be read: {error}") from error


def whole_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file but a torn last one; none if it is not there.

    Raises:
        OSError: it cannot be read.
        RecordError: a line has more than `MOST_BYTES`.
    """
    try:
        opened = open_to_read(path)
    except FileNotFoundError:
        return
    with opened as file:
        for line in bounded_lines(file, path):
            if line.endswith(b"\n"):
                yield line


def lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file that was written whole.

    Raises:
        OSError: it is not there.
        RecordError: a line has more than `MOST_BYTES`.
    """
    with open_to_read(path) as file:
        yield from bounded_lines(file, path)


def bounded_lines(file: BinaryIO, path: Path) -> Iterator[bytes]:
    """Yield the lines of an open file. `path` names it in the error.

    Raises:
        RecordError: a line has more than `MOST_BYTES`.
    """
    while line := file.readline(MOST_BYTES + 1):
        if len(line) > MOST_BYTES:
            raise _too_large(path, f"{MOST_BYTES:,} bytes in one line")
        yield line


def open_to_read(path: Path) -> BinaryIO:
    """Open a file of the user's own.

    Raises:
        ForeignError: the file is another user's, or others can write to it.
        OSError: it cannot be read.
    """
    return os.fdopen(_owner.open_file(path), "rb")


def open_to_write(path: Path, *, append: bool = False) -> BinaryIO:
    """Open a file for writing, or to append to it. It is made if it is not there.

    Raises:
        OSError: it cannot be written, or is a link.
    """
    more = os.O_APPEND if append else os.O_TRUNC
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | more
    return os.fdopen(os.open(path, flags, 0o666), "ab" if append else "wb")


def names(folder: Path) -> frozenset[str]:
    """Return the names in a folder; none if it is not there.

    A missing name proves nothing: a network file system may hide a new file for a while.
    """
    return _once(folder, lambda: _list(folder))


def _list(folder: Path) -> frozenset[str]:
    try:
        with os.scandir(folder) as entries:
            return frozenset(entry.name for entry in entries)
    except FileNotFoundError:
        return frozenset()


def records_in(folder: Path) -> list[Path]:
    """Return the paths of a folder's whole JSON files, by name; none if it is not there yet."""
    found = sorted(names(folder))
    return [folder / n for n in found if n.endswith(".json") and not n.startswith(".")]


def modified(path: Path) -> float:
    """Return the time of a file's last change in seconds since the epoch; 0 if it is not there.

    The file server's clock may differ from this machine's. Which of two files is older, only
    their times of change tell, and not what processes write into them.
    """
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def size(path: Path) -> int:
    """Return the bytes of a file; -1 if it is not there."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1


def make_closed(folder: Path) -> None:
    """Make a folder that only the user can enter. What is made in it has the umask's mode.

    Folders of a project often have a default access list, which new folders take over (acl(5)):
    where there is one, the umask counts for nothing, and others could write to every file.

    Raises:
        OSError: it cannot be made.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(OSError):  # it has no such list, or the file system knows none
        os.removexattr(folder, "system.posix_acl_default")


def own_folder(folder: Path) -> Path:
    """Enter a folder of the user's own outside of runs, such as a cache. Make it if it is missing.

    Nobody else can then put a file into it, or another file in the place of one.

    Raises:
        ForeignError: it is another user's, others can write to it, or it is a link.
        OSError: it cannot be made or read.
    """
    if os.path.lexists(folder):
        _owner.check_folder(folder)
    make_closed(folder)
    _owner.check_folder(folder)
    return folder


def never_make(folder: Path) -> None:
    """Make this folder in no call of this process: who removes it removes it for good."""
    _never_made.add(folder)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, where they are missing.

    Raises:
        OSError: it cannot be made, or a folder that is never made is missing.
    """
    try:
        if folder not in _never_made:
            folder.mkdir(exist_ok=True)
    except FileNotFoundError:
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)


def touch(folder: Path) -> None:
    """Create a file in a folder and remove it, so that clients list the folder afresh."""
    mark = folder / f".{token()}.tmp"
    try:
        mark.touch()
    except FileNotFoundError:
        return
    mark.unlink()


def token() -> str:
    """Return a random text that nobody else has."""
    return secrets.token_hex(8)


def pretty(value: object) -> str:
    """Return a value as indented JSON with a final newline."""
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def _text_of(record: Record) -> str:
    return record.model_dump_json(by_alias=True, indent=1) + "\n"


def _too_large(path: Path, what: str) -> RecordError:
    return RecordError(f"{path} is not read: it has more than {what}")


def _beside(path: Path, content: str | bytes, mode: int = 0o666) -> Path:
    make_folder(path.parent)
    temporary = path.parent / f".{path.name[:100]}.{token()}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(temporary, flags, mode), "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:  # a full disk, or a signal
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def _reads(path: Path, text: str) -> bool:
    try:
        return read(path) == text.encode()
    except (FileNotFoundError, ForeignError):
        return False


def sync_folder(folder: Path) -> None:
    """Write the names of a folder to disk, as after every publication."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
