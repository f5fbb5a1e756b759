"""A store of objects in this process, for tests of what reads `shelf://…` through fsspec."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fsspec import register_implementation
from fsspec.implementations.memory import MemoryFileSystem


class Shelf(MemoryFileSystem):  # type: ignore[misc]  # it has no types
    """Objects with ETags. What is read and listed is noted. `before` is called before each read."""

    protocol = ("shelf",)
    store: dict[str, Any] = {}  # noqa: RUF012  # as the class it is made from has one
    pseudo_dirs: list[str] = [""]  # noqa: RUF012
    read: list[tuple[str, int, int]] = []  # noqa: RUF012
    listed: list[str] = []  # noqa: RUF012
    before: Callable[[str, int], None] | None = None
    tagging = True
    crowded = ""
    """A folder with more names than are read."""

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("shelf://").strip("/")

    def _tagged(self, told: dict[str, Any]) -> dict[str, Any]:
        told.pop("created", None)
        if told["type"] == "file" and self.tagging:
            told["ETag"] = hashlib.md5(self.store[told["name"]].getvalue()).hexdigest()
        return told

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        Shelf.listed.append(path)
        if path == Shelf.crowded:
            return [{"name": f"{path}/{n}", "size": 1, "type": "file"} for n in range(60_000)]
        return [self._tagged(each) for each in super().ls(path, detail=True, **kwargs)]

    def info(self, path: str, **kwargs: Any) -> Any:
        return self._tagged(super().info(path, **kwargs))

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any
    ) -> bytes:
        if end is None or start is None:
            whole: bytes = super().cat_file(path)
            return whole
        if Shelf.before is not None:
            Shelf.before(path, start)
        Shelf.read.append((path, start, end))
        found: bytes = super().cat_file(path, start=start, end=end)
        return found


def new_shelf() -> type[Shelf]:
    """Return the store, empty."""
    register_implementation("shelf", Shelf, clobber=True)
    Shelf.store.clear()
    Shelf.pseudo_dirs[:] = [""]
    Shelf.read.clear()
    Shelf.listed.clear()
    Shelf.before, Shelf.tagging, Shelf.crowded = None, True, ""
    return Shelf


def put(folder: Path, url: str) -> Path:
    """Put the files of a folder into the store; their URL as commands get it."""
    for file in folder.rglob("*"):
        if file.is_file():
            Shelf().pipe(f"{url}/{file.relative_to(folder)}", file.read_bytes())
    return Path(url)
