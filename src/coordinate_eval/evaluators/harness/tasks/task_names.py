"""The index of the harness's own tasks, kept in the user's cache. This module imports no harness.

The harness reads fourteen thousand files to learn the names of its tasks, which takes about eight
CPU seconds. Whoever has done so keeps what was found. It holds for one version of the harness in
one folder, as long as no file there has changed.
"""

import contextlib
import difflib
import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from pydantic import Field

from coordinate_eval import _files
from coordinate_eval.errors import CoordinateError
from coordinate_eval.records import Record, schema

NO_HUB = "it needs a hub that cannot be reached from here"
"""A part of the message for a task whose data cannot be downloaded."""

_NAMED = re.compile(rb"^ *(?:task|group|tag): *[\"']?([\w.-]+)", re.MULTILINE)
"""A name in a task file, where it stands on the line of its key."""

_MOST_NEAR = 5
_LEAST_ALIKE = 0.7
"""Least likeness of names, as `difflib` counts, to suggest one for the other."""


class KeptTasks(Record):
    """The tasks, groups and tags that the harness has."""

    schema_: Literal["coordinate-eval/tasks@1"] = schema("coordinate-eval/tasks@1")

    state: str = Field(description="hash of names, sizes and times of the harness's task files")
    entries: list[tuple[str, str, str, list[str]]] = Field(
        description="name; kind, as the harness calls it; file below the harness's folder of "
        "tasks, empty for a tag; the tags of a task or the tasks of a tag, sorted"
    )


def kept_file(cache: Path) -> Path | None:
    """Return where the installed harness's index is kept, there or not; None without a harness."""
    folder = _tasks_folder()
    if folder is None:
        return None
    try:
        version = metadata.version("lm_eval")
    except metadata.PackageNotFoundError:  # a copy that nobody installed
        return None
    place = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    # Others may share the cache's folder. What they found is not taken for true.
    return cache / f"harness-{os.geteuid()}" / f"tasks-{version}-{place}.json"


def read(file: Path, folder: Path) -> KeptTasks | None:
    """Return the kept index; None if it is missing or the harness's folder of tasks has changed."""
    kept = _read(file)
    return kept if kept is not None and kept.state == state_of(folder) else None


def keep(file: Path, kept: KeptTasks) -> None:
    """Keep an index, unless it cannot be written: it only saves time."""
    with contextlib.suppress(OSError, CoordinateError):
        _files.own_folder(file.parent)
        _files.write(file, kept.model_dump_json(by_alias=True))


def state_of(folder: Path) -> str:
    """Return a hash of names, sizes and modification times of the files below a folder."""
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            path = os.path.join(place, name)  # noqa: PTH118 - fifteen thousand of them
            with contextlib.suppress(OSError):  # a link that leads nowhere
                status = os.stat(path)  # noqa: PTH116
                found.append(f"{path}\0{status.st_size}\0{status.st_mtime_ns}")
    return hashlib.sha256(os.fsencode("\n".join(sorted(found)))).hexdigest()


def unknown(names: Iterable[str], cache: Path) -> tuple[list[str], list[str]]:
    """Return those of the names that the harness does not have, and all that it has.

    Where nothing is kept that is true, they are the names that none of its files has. What of the
    others is no task, loading them will tell.
    """
    file, folder = kept_file(cache), _tasks_folder()
    wanted = list(dict.fromkeys(names))
    if file is None or folder is None or not wanted:
        return [], []
    kept = _read(file)
    if kept is not None:
        known = {name for name, *_ in kept.entries}
        missing = [name for name in wanted if name not in known]
        # To look at every file takes longer than all else here, and is needed for bad news only.
        if not missing or kept.state == state_of(folder):
            return missing, sorted(known)
    return _in_no_file(wanted, folder)


def _in_no_file(names: list[str], folder: Path) -> tuple[list[str], list[str]]:
    """Return those of the names that no task file below a folder has, and names that some have.

    Files are read as text, which takes a tenth of the time that the harness takes for its index,
    and no further than needed. Both are empty where a file cannot be read.
    """
    left, seen = set(names), set[bytes]()
    for place, _, files in os.walk(folder):
        for name in files:
            # Those that others include have any suffix, or none.
            if not name.endswith((".py", ".md")):
                try:
                    text = Path(place, name).read_bytes()
                except OSError:
                    return [], []
                left = {each for each in left if each.encode() not in text}
                if not left:
                    return [], []
                seen.update(_NAMED.findall(text))
    known = sorted(name.decode(errors="replace") for name in seen)
    return [name for name in names if name in left], known


def no_such_task(dataset: str, name: str, known: Iterable[str], include_path: Sequence[str]) -> str:
    """Return the message for a name that is no task, with those that are nearly the same."""
    message = f"dataset {dataset!r}: there is no task, group or tag named {name!r}"
    near = difflib.get_close_matches(name, known, n=_MOST_NEAR, cutoff=_LEAST_ALIKE)
    if near:
        message += f"; did you mean {' or '.join(map(repr, near))}?"
    return message + "\nlooked in: " + ", ".join([*include_path, "the harness's own tasks"])


def no_chat_template(dataset: str, why: str = "has no chat template") -> str:
    """Return the message for a dataset that asks for a chat template which cannot be used."""
    return (
        f"dataset {dataset!r}: it has `chat_template: true`, and the checkpoint {why}: set it to "
        "false, or put chat_template.jinja beside the tokenizer"
    )


def _read(file: Path) -> KeptTasks | None:
    with contextlib.suppress(OSError, CoordinateError):
        return _files.read_record_if_there(file, KeptTasks)
    return None


def _tasks_folder() -> Path | None:
    """Return the folder of the harness's tasks, without importing it."""
    found = find_spec("lm_eval")
    return Path(found.origin).parent / "tasks" if found and found.origin else None
