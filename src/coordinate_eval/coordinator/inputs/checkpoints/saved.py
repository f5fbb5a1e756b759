"""Checkpoints in a folder that a training job fills: which are there, and since when unchanged."""

import contextlib
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from coordinate_eval.errors import UserError

_STEP = "{step}"
_NAMED_STEP = re.compile(r"(?:step|iter(?:ation)?|ckpt|checkpoint)[-_=.]?(\d+)", re.IGNORECASE)
_LONE_NUMBER = re.compile(r"(?<![A-Za-z0-9.])(\d+)(?![A-Za-z0-9])")
_PARTIAL = re.compile(r"(?:^|[-_.])(?:te?mp|part|partial|incomplete)(?:$|[-_.\d])", re.IGNORECASE)
_DAY = 86400.0


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
        escaped = re.escape(text).replace(re.escape(_STEP), r"(?P<step>\d+)")
        self._names = re.compile(escaped.replace(r"\*", "[^/]*"))

    def step(self, name: str) -> tuple[int | None] | None:
        """Return a name's step, which may be unknown, in a tuple; None if it does not match."""
        if self._names is None:
            step = None if _PARTIAL.search(name) else step_of(name)
            return None if step is None else (step,)
        found = self._names.fullmatch(name)
        if found is None:
            return None
        number = found.groupdict().get("step")
        return (int(number) if number else None,)

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


def look(folder: Path, pattern: Pattern) -> list[Saved]:
    """Return what is in a folder, the latest step first. Hidden names are passed over.

    What vanishes meanwhile is left out.

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
    latest = [(-1 if saved.step is None else saved.step, saved.changed) for saved in found]
    order = sorted(range(len(found)), key=lambda i: latest[i], reverse=True)
    return [found[i] for i in order]


def step_of(checkpoint: str) -> int | None:
    """Return the training step that a checkpoint's name tells, or None.

    The number after `step`, `iter`, `ckpt` or `checkpoint`, else the last number that stands
    alone: 1000 for `step-1000`, `step1000-bf16` and `llama-7b-1000`. Without one, the folder's
    name counts if it names a step or is a number: 1000 for `step-1000/hf` and `1000/model.pt`.
    """
    path = Path(checkpoint)
    found = _NAMED_STEP.findall(path.name) or _LONE_NUMBER.findall(path.name)
    found = found or _NAMED_STEP.findall(path.parent.name)
    if not found and path.parent.name.isdecimal():
        found = [path.parent.name]
    return int(found[-1]) if found else None


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
