"""How shared files come to be: whole or not at all, and where it matters only once.

Everything here works on a shared file system without locks. It relies on rename(2) and link(2)
being atomic, and on nothing that a client may cache: who created a file is read from the file.
"""

import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from coordinate_eval.errors import RecordError
from coordinate_eval.records import Record

RecordT = TypeVar("RecordT", bound=Record)


def write(path: Path, text: str) -> None:
    """Put `text` at `path`, replacing what was there, in one step that survives a crash."""
    temporary = _beside(path, text)
    temporary.replace(path)
    _sync_folder(path.parent)


def write_record(path: Path, record: Record) -> None:
    """Put a record at `path` as indented JSON, in one step."""
    write(path, record.model_dump_json(by_alias=True, indent=1) + "\n")


def create(path: Path, text: str) -> bool:
    """Put `text` at `path` unless something is there; whether it was put there by this call.

    `text` must be unique to the caller: when the answer to link(2) was lost, finding one's own
    text at `path` is what tells that it succeeded.
    """
    temporary = _beside(path, text)
    try:
        os.link(temporary, path)
        _sync_folder(path.parent)
        return True
    except FileExistsError:
        return _reads(path, text)
    finally:
        temporary.unlink(missing_ok=True)


def publish(part: Path, path: Path) -> bool:
    """Make the complete file `part` known as `path`; the first to do so wins for good."""
    try:
        os.link(part, path)
        won = True
    except FileExistsError:
        won = _inode(part) == _inode(path)
    except FileNotFoundError:
        # Whoever won has taken the parts of all others away.
        if not path.exists():
            raise
        won = False
    part.unlink(missing_ok=True)
    _sync_folder(path.parent)
    return won


def _inode(path: Path) -> int:
    """0 where there is none: whoever won takes the parts of all others away, at any moment."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return 0


def read_record(path: Path, kind: type[RecordT]) -> RecordT:
    """The record at `path`.

    Raises:
        RecordError: it is missing, torn, or of a version that this program does not read.
    """
    record = read_record_if_there(path, kind)
    if record is None:
        raise RecordError(f"{path} is missing")
    return record


def read_record_if_there(path: Path, kind: type[RecordT]) -> RecordT | None:
    """The record at `path`, None where there is no such file."""
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        what = f"{where}: {first['msg']}" if where else first["msg"]
        raise RecordError(
            f"{path} is no {kind.__name__} that can be read: {what}. It is torn, or of another "
            "version: put back a whole copy, or start another run with --run-dir"
        ) from error


def read_json(path: Path) -> Any:  # noqa: ANN401 - any JSON value
    """The JSON value of a file.

    Raises:
        RecordError: it is missing or torn.
    """
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise RecordError(f"{path} cannot be read: {error}") from error


def whole_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file that may end in a torn one, which is left out."""
    try:
        with path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield line
    except FileNotFoundError:
        return


def lines(path: Path) -> Iterator[bytes]:
    """The lines of a file that was written whole.

    Raises:
        OSError: it is not there.
    """
    with path.open("rb") as file:
        yield from file


def names(folder: Path) -> set[str]:
    """Names in a folder; none when it is not there yet. A missing name proves nothing."""
    try:
        return {entry.name for entry in folder.iterdir()}
    except FileNotFoundError:
        return set()


def records_in(folder: Path) -> list[Path]:
    """Return the paths of a folder's whole JSON files, by name; none if it is not there yet."""
    found = sorted(names(folder))
    return [folder / n for n in found if n.endswith(".json") and not n.startswith(".")]


def modified(path: Path) -> float:
    """When a file was last written, seconds since the epoch; 0 when it is not there."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def size(path: Path) -> int:
    """Bytes of a file; -1 when it is not there."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1


def touch(folder: Path) -> None:
    """Change a folder and change it back."""
    mark = folder / f".{token()}.tmp"
    try:
        mark.touch()
    except FileNotFoundError:
        return
    mark.unlink()


def token() -> str:
    """A text that nobody else has."""
    return secrets.token_hex(8)


def pretty(value: object) -> str:
    """JSON for people and programs alike, with a final newline."""
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def _beside(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name[:100]}.{token()}.tmp"
    try:
        with temporary.open("x") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:  # a full disk, or a signal
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def _reads(path: Path, text: str) -> bool:
    try:
        return path.read_text() == text
    except FileNotFoundError:
        return False


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
