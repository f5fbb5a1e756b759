"""Which local files a task's data comes from, so that requests built from them can grow old."""

from collections.abc import Iterator, Mapping
from glob import glob
from pathlib import Path
from typing import Any


def data_sources(
    dataset_path: str | None, dataset_kwargs: Mapping[str, Any] | None
) -> dict[str, str]:
    """'<size> <mtime_ns>' of each local data file that a task's configuration names, by path.

    Relative paths are resolved as the harness does, against `data_dir`, a folder given as
    `dataset_path`, or the working folder. A name on a hub that is also a file here counts too:
    requests are then built once more than needed.
    """
    kwargs = dataset_kwargs or {}
    data_dir = str(kwargs.get("data_dir") or "")
    is_folder = bool(dataset_path) and Path(str(dataset_path)).is_dir()
    base = Path(str(dataset_path) if is_folder else "") / data_dir
    patterns = list(_strings(kwargs.get("data_files")))
    if not patterns and (is_folder or data_dir):
        patterns = ["**"]
    found = {str(path.resolve()): path for pattern in patterns for path in _matches(base, pattern)}
    return {name: _state(path) for name, path in sorted(found.items())}


def _strings(value: object) -> Iterator[str]:
    """Every string in `data_files`: one, a list, or either of them by split."""
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
    if literal.is_file():  # its name may hold what means something in a pattern
        return [literal]
    # Path.glob refuses absolute patterns.
    found = (base / name for name in glob(pattern, root_dir=base, recursive=True))  # noqa: PTH207
    return [path for path in found if path.is_file()]


def _state(path: Path) -> str:
    status = path.stat()
    return f"{status.st_size} {status.st_mtime_ns}"
