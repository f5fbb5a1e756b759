"""Checkpoints in a folder that a training job fills: which are there, and which are finished."""

import contextlib
import dataclasses
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coordinate_eval.coordinator.inputs.checkpoints import checkpoint_files, steps
from coordinate_eval.coordinator.inputs.checkpoints.steps import step_of
from coordinate_eval.errors import UserError

_STEP = "{step}"
_PARTIAL = re.compile(
    r"(?:^|[-_.])(?:te?mp|part|partial|incomplete|backup|bak|old|corrupt(?:ed)?)(?:$|[-_.\d])",
    re.IGNORECASE,
)
_DAY = 86400.0
_MOST_TRACKER_BYTES = 4096

MARKERS: Final = ("STABLE", "_SUCCESS")
"""Files that trainers write into a checkpoint after all others: prime-rl, SpecForge and whoever
follows Hadoop. Once one is seen, a checkpoint of the same folder without it is not finished."""


@dataclass(frozen=True)
class Saved:
    """A checkpoint's folder or file, finished or not."""

    path: Path
    step: int | None
    """The training step that its name tells."""
    changed: float
    """Time at which it, or something directly in it, was changed last."""
    state: str
    """Names, sizes and times of what is in it, as text."""
    lacks: str | None = None
    """The marker that finished checkpoints of this folder have, and this one lacks."""
    marked: bool = False
    """It has the marker that the trainer writes last."""

    def quiet(self, seconds: float) -> bool:
        """Return whether nothing has changed for this many seconds, by this machine's clock.

        A time in the future is that of a storage's clock which is ahead, if it is by less than a
        day.
        """
        age = time.time() - self.changed
        return age >= seconds or age < -_DAY


class Pattern:
    """The names of checkpoints below a folder, such as `step-{step}` or `run-*/iter_{step}/hf`."""

    def __init__(self, text: str | None) -> None:
        """Read a pattern. None stands for every folder whose name tells a step.

        Raises:
            UserError: the text is no such pattern.
        """
        self.depth, self.text = 1, text
        self._names: re.Pattern[str] | None = None
        if text is None:
            return
        parts = text.split("/")
        if any(part in ("", ".", "..") for part in parts) or text.count(_STEP) > 1:
            raise UserError(
                f"--pattern {text!r}: give names below the folder, such as 'step-{_STEP}' or "
                f"'run-*/iter_{_STEP}', with {_STEP} at most once"
            )
        self.depth = len(parts)
        escaped = re.escape(text).replace(re.escape(_STEP), rf"(?P<step>{steps.NUMBER})")
        self._names = re.compile(escaped.replace(r"\*", "[^/]*"))

    def step(self, name: str) -> tuple[int | None] | None:
        """Return a name's step, which may be unknown, in a tuple; None if it does not match."""
        if self._names is None:
            step = None if _PARTIAL.search(name) else step_of(name)
            return None if step is None else (step,)
        found = self._names.fullmatch(name)
        if found is None:
            return None
        told = found.groupdict().get("step")
        step = steps.number(told) if told else None
        return None if told and step is None else (step,)

    def hint(self, folder: Path) -> str:
        """Return what to do where no checkpoint is found in a folder that should have some."""
        wanted = f"has the form --pattern {self.text!r}" if self.text else "tells a step"
        return (
            f"no name {'below' if self.depth > 1 else 'directly in'} {folder} {wanted}; for "
            f"others, or deeper ones, give a --pattern such as 'run-*/iter_{_STEP}/hf'"
        )

    @property
    def takes_files(self) -> bool:
        """Return whether files may be meant: a pattern says so by their suffix."""
        return self._names is not None and self._names.pattern.endswith((r"\.pt", r"\.pth"))


def look(folder: Path, pattern: Pattern, marker: str | None = None) -> list[Saved]:
    """Return what is in a folder, the latest step first. Hidden names are passed over.

    What vanishes meanwhile is left out.

    Args:
        folder: what a training job fills.
        pattern: the names of checkpoints below it.
        marker: a file that each finished checkpoint has; `MARKERS` are recognized without it.

    Raises:
        UserError: the folder cannot be read.
    """
    try:
        os.listdir(folder)  # noqa: PTH208
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error.strerror}") from error
    found = []
    for path in _below(folder, pattern.depth):
        step = pattern.step(str(path.relative_to(folder)))
        with contextlib.suppress(OSError):
            if step is not None and (path.is_dir() or (pattern.takes_files and path.is_file())):
                found.append(_saved(path, step[0]))
    found = _marked(folder, found, marker)
    latest = [(-1 if saved.step is None else saved.step, saved.changed) for saved in found]
    order = sorted(range(len(found)), key=lambda i: latest[i], reverse=True)
    return [found[i] for i in order]


def _marked(folder: Path, found: list[Saved], marker: str | None) -> list[Saved]:
    """Say of each checkpoint whether it has the marker: the given one, or one that others have."""
    markers = (marker,) if marker else MARKERS
    having = {
        name: {saved.path for saved in found if _has(folder, saved, name)} for name in markers
    }
    # Several trainers may save below one folder.
    use = {(_trainer(folder, path), name) for name, paths in having.items() for path in paths}
    marked = []
    for saved in found:
        used = [m for m in markers if marker or (_trainer(folder, saved.path), m) in use]
        has = any(saved.path in having[name] for name in used)
        lacks = used[0] if used and not has else None
        marked.append(dataclasses.replace(saved, marked=has, lacks=lacks))
    return marked


def _trainer(folder: Path, checkpoint: Path) -> str:
    """Return the name of the folder, directly in `folder`, that one trainer fills."""
    parts = checkpoint.relative_to(folder.absolute()).parts
    return parts[0] if len(parts) > 1 else ""


def _has(folder: Path, saved: Saved, marker: str) -> bool:
    """Return whether a checkpoint has a marker.

    It may lie in its folder or in one above, below `folder`; or beside it, after its name. Or it is
    one for all, in `folder`, that names the last finished checkpoint, as DeepSpeed's `latest` does.
    """
    above = (
        each for each in (saved.path, *saved.path.parents) if folder.absolute() in each.parents
    )
    beside = saved.path.with_name(f"{saved.path.name}{marker}")
    if any(os.path.lexists(place) for place in (beside, *(each / marker for each in above))):
        return True
    last = _last_finished(folder / marker)
    return last is not None and saved.step is not None and saved.step <= last


def _last_finished(tracker: Path) -> int | None:
    """Return the step that a link or a short text names, None if there is none."""
    try:
        if tracker.is_symlink():
            text = os.readlink(tracker)  # noqa: PTH115
        else:
            text = checkpoint_files.read(tracker, _MOST_TRACKER_BYTES).decode()
    except (OSError, UserError, ValueError):
        return None
    return step_of(text.strip().rstrip("/"))


def _below(folder: Path, depth: int) -> Iterator[Path]:
    with contextlib.suppress(OSError):  # it is closed, or gone
        for path in folder.iterdir():
            if path.name.startswith("."):
                continue
            if depth == 1:
                yield path
            else:
                yield from _below(path, depth - 1)


def _saved(path: Path, step: int | None) -> Saved:
    """Look at a checkpoint.

    Raises:
        OSError: the checkpoint is gone.
    """
    status = path.stat()
    # The time of a change of the inode: a copy can set its files' own times into the past.
    changed, state = status.st_ctime, [f"{status.st_size}" if path.is_file() else ""]
    if path.is_dir():
        for entry in sorted(path.iterdir()):
            with contextlib.suppress(OSError):  # a file that has just been renamed
                status = entry.stat()
                changed = max(changed, status.st_ctime)
                state.append(f"{entry.name}\0{status.st_size}\0{status.st_mtime_ns}")
    return Saved(path.absolute(), step, changed, "\n".join(state))
