"""The local files that hold a task's data. Requests built from them expire when they change."""

from collections.abc import Iterator, Mapping
from glob import glob
from pathlib import Path
from typing import Any


def data_sources(
    dataset_path: str | None, dataset_kwargs: Mapping[str, Any] | None
) -> dict[str, str]:
    """Return '<size> <mtime_ns>' by path for the local data files in a task's configuration.

    Relative paths are resolved in the same way as in the harness: against `data_dir`, against a
    folder given as `dataset_path`, or against the working folder. A name on a hub that is also a
    local file counts as one. Its requests may then be built once more than needed.
    """
    kwargs = dataset_kwargs or {}
    data_dir = str(kwargs.get("data_dir") or "")
    is_folder = bool(dataset_path) and Path(str(dataset_path)).is_dir()
    base = Path(str(dataset_path) if is_folder else "") / data_dir
    patterns = list(_strings(kwargs.get("data_files")))
    if not patterns and (is_folder or data_dir):
        patterns = ["**"]
    found = {str(path.absolute()): path for pattern in patterns for path in _matches(base, pattern)}
    return {name: _state(path) for name, path in sorted(found.items())}


def _strings(value: object) -> Iterator[str]:
    """Yield every string in `data_files`: a string, a list, or a mapping of either by split."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from _strings(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _strings(entry)


def _matches(base: Path, pattern: str) -> list[Path]:
    literal = base / pattern
    if literal.is_file():  # its name may contain characters that are special in a pattern
        return [literal]
    # Path.glob refuses absolute patterns.
    found = (base / name for name in glob(pattern, root_dir=base, recursive=True))  # noqa: PTH207
    return [path for path in found if path.is_file()]


def _state(path: Path) -> str:
    status = path.stat()
    return f"{status.st_size} {status.st_mtime_ns}"
