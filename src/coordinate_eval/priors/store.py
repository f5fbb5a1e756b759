"""The store of observations: a folder with one file per run, shared by any number of users.

A file is `<run>.jsonl`. It is renamed into place whole, and only its own run replaces it: a resumed
run knows more. So any number of runs can end at once without a lock, and nothing counts twice.
Unreadable lines, such as those of a newer version, are skipped. What others leave in the folder
hides no other file: only regular files are read, each within a limit.
"""

import contextlib
import io
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from coordinate_eval import _files, _owner
from coordinate_eval.errors import ForeignError, RecordError
from coordinate_eval.priors.observations import DatasetSeen, Seen, dump, parse

NEWEST_RUNS = 100
"""Number of newest files to read; older observations have little weight."""

MOST_BYTES = 4 << 20
"""Most bytes of a run's file; a run of 63 datasets on 64 nodes leaves some 300 kB."""

MOST_BYTES_IN_ALL = 128 << 20
"""Most bytes of all files together, the newest first: some seconds of reading."""

MOST_UNREADABLE = 1000
"""Lines of one file that cannot be read before the rest of it is left: each takes as long as one
that can, and is shorter."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+=@,-]{0,199}")


class Store:
    """The observations in one folder, which need not exist yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self) -> list[Seen]:
        """Return the observations of the newest runs, without unreadable files and lines.

        Others may write here: `MOST_BYTES_IN_ALL` are read.
        """
        found: list[Seen] = []
        left = MOST_BYTES_IN_ALL
        for path, size in self._newest():
            left -= min(size, MOST_BYTES)
            if left < 0:
                break
            found += _readable(path)
        return found

    def put(self, seen: Iterable[Seen]) -> int:
        """Write the file of each run, unless a fuller one exists; return the number written.

        Raises:
            ValueError: The name of a run cannot be a file name.
        """
        runs: dict[str, dict[str, Seen]] = {}
        for one in seen:
            runs.setdefault(one.run, {})[dump(one)] = one
        written = 0
        for run, lines in sorted(runs.items()):
            if not _NAME.fullmatch(run):
                raise ValueError(f"run {run!r} may have only letters, digits and _ . + = @ , -")
            path = self.folder / f"{run}.jsonl"
            # The observations of a run only grow, so the fuller of two versions is the later one.
            if _fullness(lines.values()) > _fullness(_readable(path)):
                _files.write(path, "".join(lines))
                written += 1
        return written

    def _newest(self) -> list[tuple[Path, int]]:
        """Return the newest files and their sizes."""
        found = [
            (status.st_mtime, path, status.st_size)
            for path in (self.folder / name for name in _files.names(self.folder))
            if path.suffix == ".jsonl" and not path.name.startswith(".")
            if (status := _regular(path)) is not None
        ]
        return [(path, size) for _, path, size in sorted(found, reverse=True)[:NEWEST_RUNS]]


def _regular(path: Path) -> os.stat_result | None:
    """Return the status of a regular file; None of a link, a pipe, or what is gone."""
    with contextlib.suppress(OSError):
        status = path.lstat()
        return status if stat.S_ISREG(status.st_mode) else None
    return None


def _readable(path: Path) -> Iterator[Seen]:
    # A pipe or a link is not opened, and of what has no end little is read.
    with (
        contextlib.suppress(OSError, ForeignError, RecordError),
        os.fdopen(_owner.open_file(path, anybodys=True), "rb") as file,
    ):
        unreadable = 0
        for line in io.BytesIO(_files.read_bounded(file, path, MOST_BYTES)):
            if not line.endswith(b"\n") or unreadable == MOST_UNREADABLE:
                return
            try:
                yield parse(line)
            except ValueError:
                unreadable += 1


def _fullness(seen: Iterable[Seen]) -> tuple[int, int]:
    """Return the numbers of requests and of lines."""
    counts = [one.requests if isinstance(one, DatasetSeen) else 0 for one in seen]
    return sum(counts), len(counts)
