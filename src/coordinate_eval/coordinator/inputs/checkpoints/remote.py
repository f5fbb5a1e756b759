"""Files of a checkpoint in an object store, such as `s3://bucket/run/step-1000`, through fsspec.

A `RemotePath` stands where a path of a local file stands: it has a name and a size, lies in a
folder that can be listed, and opens as a `RemoteFile`, which is read at offsets. Nothing else knows
of stores. The bytes come from `fsspec`, whatever its protocol, and so do credentials: from the
environment and the configuration files of whoever runs this process. They are never in a path.

What is listed stays known until `forget`, so that a folder is listed once for all questions. The
first question about a folder's content is about one name, and does not list it: the folders above
a checkpoint may hold anything.
"""

import contextlib
import io
import os
import stat
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path, PosixPath
from typing import Any, Final, NamedTuple

from coordinate_eval import _urls
from coordinate_eval._format import brief
from coordinate_eval.coordinator.inputs.checkpoints import store
from coordinate_eval.errors import UserError

_TAGS: Final = ("ETag", "etag", "generation", "blob_id", "checksum")
_TIMES: Final = ("LastModified", "last_modified", "updated", "mtime", "modified", "created")
"""The names in fsspec's file systems of an object's version, and of the time of its last change."""

HEAD_BYTES: Final = 256 << 10
"""First bytes of a safetensors file, read in one request: the header of 2,000 tensors fits."""

_FIRST_BYTES: Final = 4 << 10  # of other files, whose headers are at their ends or elsewhere

_SMALL_AHEAD: Final = 32 << 20  # files beside the weights, in one request each
REQUESTS: Final = 16
"""Requests at once."""

MOST_NAMES: Final = 50_000
"""Most names directly in a folder that is listed, a thousand with each request: three times those
of a checkpoint of 16,384 ranks."""


class _Entry(NamedTuple):
    """An object or a folder of a store."""

    is_folder: bool
    size: int
    version: str
    changed: float
    """Time of its last change; 0 of a folder, and where the store does not tell it."""


def located(path: Path | str) -> Path:
    """Return the path that a text names: one of a store if it is a URL of fsspec's protocols.

    Raises:
        UserError: It is a URL with credentials, of a protocol that has no folders, or of several.
    """
    if isinstance(path, RemotePath):
        return path
    url = _urls.of_store(str(path))
    return Path(path) if url is None else RemotePath(url.replace("://", ":/", 1))


def is_below(path: str, folder: str) -> bool:
    """Return whether a path is that of a folder, or in it."""
    return located(path).is_relative_to(located(folder))


def joined(folder: Path, text: str) -> Path:
    """Return the path that a file in `folder` names: a URL, or a path relative to the folder."""
    path = located(text)
    if isinstance(path, RemotePath) or not isinstance(folder, RemotePath):
        return path if isinstance(path, RemotePath) else folder / path
    path = located(os.path.normpath(os.path.join(folder, path)))  # noqa: PTH118 - keeps ..
    if not isinstance(path, RemotePath):
        raise UserError(
            f"a file in {folder} names {brief(text)}: what is in a store names no local files. "
            "Give a path relative to its own folder, or a URL"
        )
    return path


class RemotePath(PosixPath):
    """The path of an object, or of a folder of objects. Its text is its URL."""

    def __str__(self) -> str:
        return super().__str__().replace(":/", "://", 1)

    def is_absolute(self) -> bool:
        """Return whether it is in a bucket."""
        return "://" in str(self)

    def absolute(self) -> "RemotePath":  # noqa: D102
        return self

    def resolve(self, strict: bool = False) -> "RemotePath":
        """Return itself: a store has no links."""
        if strict and _entry(self) is None:
            raise FileNotFoundError(str(self))
        return self

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return size, kind and time of the last change. The owner is not known."""
        if (entry := _entry(self)) is None:
            raise FileNotFoundError(2, "no such object", str(self))
        mode = stat.S_IFDIR if entry.is_folder else stat.S_IFREG
        times = (0, *[int(entry.changed)] * 2, 0.0, *[entry.changed] * 2)
        return os.stat_result((mode, 0, 0, 1, 0, 0, entry.size, *times))

    def lstat(self) -> os.stat_result:  # noqa: D102
        return self.stat()

    def exists(self, *, follow_symlinks: bool = True) -> bool:  # noqa: D102
        return _entry(self) is not None

    def is_file(self, *, follow_symlinks: bool = True) -> bool:  # noqa: D102
        return (entry := _entry(self)) is not None and not entry.is_folder

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:  # noqa: D102
        return (entry := _entry(self)) is not None and entry.is_folder

    def is_symlink(self) -> bool:  # noqa: D102
        return False

    def iterdir(self) -> "Generator[RemotePath, None, None]":
        """Yield what is in the folder."""
        for name in _listed(str(self)):
            yield self / name

    def open(self, *_: object, **__: object) -> "RemoteFile":  # type: ignore[override]
        """Open the object for reading bytes."""
        return opened(self, weights=False)

    def version(self) -> str:
        """Return what changes whenever the object does: its ETag, else its time."""
        return entry.version if (entry := _entry(self)) else ""


class RemoteFile(io.RawIOBase):
    """An object, read at offsets. It reads `ahead` bytes at least with each request."""

    def __init__(self, path: RemotePath, ahead: int) -> None:
        super().__init__()
        self.path, self.ahead = path, ahead
        self.size = path.stat().st_size
        self._at = self._begin = 0
        self._held = _heads.get(str(path), b"")

    def readable(self) -> bool:  # noqa: D102
        return True

    def seekable(self) -> bool:  # noqa: D102
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:  # noqa: D102
        self._at = offset + {os.SEEK_CUR: self._at, os.SEEK_END: self.size}.get(whence, 0)
        return self._at

    def read(self, count: int = -1) -> bytes:  # noqa: D102
        found = self.pread(self.size if count < 0 else count, self._at)
        self._at += len(found)
        return found

    def pread(self, count: int, at: int) -> bytes:
        """Return bytes from `at` on, fewer only at the end."""
        stop = min(self.size, at + count)
        if at >= stop:
            return b""
        if at < self._begin or stop > self._begin + len(self._held):
            if not self.ahead:
                return fetch(self.path, at, stop)
            self._held = fetch(self.path, at, min(self.size, max(stop, at + self.ahead)))
            self._begin = at
            if len(self._held) == self.size:  # whoever opens it again reads it from here
                _heads[str(self.path)] = self._held
        return self._held[at - self._begin : stop - self._begin]

    def pread_all(self, count: int, begins: Sequence[int]) -> list[bytes]:
        """Return bytes from each of these places on, asked for at once."""
        with ThreadPoolExecutor(REQUESTS) as pool:
            return list(pool.map(lambda at: self.pread(count, at), begins))


def opened(path: RemotePath, *, weights: bool) -> RemoteFile:
    """Open an object. Of `weights`, no more is read than is asked for."""
    return RemoteFile(path, 0 if weights else _SMALL_AHEAD)


def read_heads(paths: Iterable[Path]) -> None:
    """Read the first bytes of objects, many at once."""
    files = [each for each in paths if isinstance(each, RemotePath) and each.stat().st_size]

    def head(path: RemotePath) -> bytes:
        most = HEAD_BYTES if path.suffix == ".safetensors" else _FIRST_BYTES
        return fetch(path, 0, min(most, path.stat().st_size))

    if files:
        with ThreadPoolExecutor(REQUESTS) as pool:
            _heads.update(zip(map(str, files), pool.map(head, files), strict=True))


def forget() -> None:
    """Forget what is listed: whoever asks again wants to know what is there now."""
    _entries.clear()
    _asked.clear()
    _listings.clear()
    _heads.clear()
    store.forget()


def fetch(path: RemotePath, start: int, stop: int) -> bytes:
    """Return the bytes of an object from `start` up to `stop`, as `store.fetch` does."""
    return store.fetch(str(path), start, stop)


_FOLDER: Final = _Entry(is_folder=True, size=0, version="", changed=0.0)

_entries: dict[str, _Entry | None] = {}
_asked: set[str] = set()  # folders about which a question was asked
_listings: dict[str, dict[str, _Entry]] = {}
_heads: dict[str, bytes] = {}


def _entry(path: RemotePath) -> _Entry | None:
    """Return an object or folder; None if there is none."""
    url, above = str(path), str(path.parent)
    if url in _entries:
        return _entries[url]
    if above in _listings or above in _asked:
        return _listed(above).get(path.name)
    # A folder is listed soon, so to list it at once saves requests.
    if not path.suffix and _listed(url):
        _entries[url] = _FOLDER
        return _FOLDER
    if path.parent.is_absolute():  # buckets are in no folder
        _asked.add(above)
    try:
        _entries[url] = _of(store.info(url))
    except FileNotFoundError:
        _entries[url] = None
    return _entries[url]


def _listed(url: str) -> dict[str, _Entry]:
    """Return what is in a folder, by name; nothing if it is not there.

    Raises:
        UserError: It has more names than any checkpoint, or the store cannot be read.
    """
    if url not in _listings:
        names: dict[str, _Entry] = {}
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            own = store.name_of(url).rstrip("/")
            for told, each in enumerate(store.listed(url)):
                # A store may have an object of the folder's own name, for an empty folder.
                if (name := each["name"].rstrip("/")) != own:
                    names[name.rpartition("/")[2]] = _of(each)
                if told > MOST_NAMES:
                    raise _too_many(url)
        _listings[url] = names
    return _listings[url]


def _too_many(url: str) -> UserError:
    return UserError(
        f"{url} has more than {MOST_NAMES:,} names directly in it, which no checkpoint has. Give "
        "the folder of the checkpoint; to watch, one whose checkpoints are folders of their own"
    )


def _of(told: dict[str, Any]) -> _Entry:
    versions = [str(told[key]) for key in (*_TAGS, *_TIMES) if told.get(key)]
    times = [told[key] for key in _TIMES if told.get(key)]
    is_folder = told.get("type") == "directory"
    version, changed = (versions or [""])[0], _seconds(times[0]) if times else 0.0
    return _Entry(is_folder, int(told.get("size") or 0), version, changed)


def _seconds(found: object) -> float:
    """Return a time that a store tells: of one of Python's types, or a text."""
    with contextlib.suppress(ValueError):
        found = datetime.fromisoformat(found) if isinstance(found, str) else found
    if isinstance(found, datetime):
        return found.timestamp()
    return float(found) if isinstance(found, int | float) else 0.0
