"""Checkpoints in a folder that a training job fills: their steps, and which are finished.

Names also hold sizes, versions, counts of tokens, epochs and dates. A wrong step puts scores into
the wrong place of a curve, and `--step` gives a step that no name tells. When in doubt, there is
none.
"""

import contextlib
import dataclasses
import os
import re
import stat
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Final

from coordinate_eval.coordinator.inputs.checkpoints import checkpoint_files, remote
from coordinate_eval.coordinator.inputs.checkpoints.formats import dcp
from coordinate_eval.errors import UserError

NUMBER: Final = r"[0-9]+(?:\.[0-9]+)?[kKmM]?"
"""The forms of a step after a word such as `step`: 1000, 50K, 2.5k, 1M."""

# Not in a longer number, nor before the unit of tokens and parameters: 105b, 3T.
_END = r"(?![0-9]|[.,][0-9]|e[0-9]|[bt](?![a-z]))"
_JOINT = r"[-_=.]?"
_UPDATES = r"(?:step|iter(?:ation)?|update)s?"
_NUMBER = rf"({NUMBER}(?![a-z])|[0-9]+(?![km.](?![a-z]))){_END}"
_DATE = (
    r"(?:(?:19|20)[0-9]{2}[-_.]?(?:0[1-9]|1[0-2])[-_.]?(?:0[1-9]|[12][0-9]|3[01]))"  # 2025-01-31
)

# The first that is found counts, and of several such numbers the last.
_TOLD = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # step-1000, global_step1000, iter_0001000, step=1000; Composer's ep0-ba1000, of batches
        rf"(?:{_UPDATES}|(?<![a-z])(?:ba|it)){_JOINT}{_NUMBER}",
        # 1000-steps, 10k_iterations
        rf"(?<![0-9.,a-z])({NUMBER})[-_]?(?:steps|iters|iterations|updates)(?![a-z])",
        # fairseq's checkpoint_3_1000.pt, of epoch and updates
        rf"checkpoint_[0-9]+_([0-9]+){_END}",
        rf"(?:ckpt|checkpoint){_JOINT}(?!{_DATE}){_NUMBER}",
    )
)
_FORMS = (
    r"(?:[-_.](?:hf|bf16|fp16|fp32|fp8|pt|pth|bin|ckpt|safetensors|unsharded|merged|ema|final))*"
)
_LONE = re.compile(rf"(?:^|(?<=[-_]))([0-9]+){_FORMS}$", re.IGNORECASE)
_NO_STEP_BEFORE = re.compile(
    r"(?:epoch|ep|seed|run|job|exp|trial|version|ver|rev|rank|node|stage|phase|part|fold|lr|bs|batch|"
    r"len|length|ctx|context|seq|vocab|dim|loss|acc|size|port|tokens?)[-_]?$",
    re.IGNORECASE,
)
_SHARD = re.compile(r"[0-9]-of-[0-9]")
_MOST = 10**12
_LEAST_LONE = 100  # beside other words: below are versions, seeds and experiments
_MAYBE_DATE = re.compile(  # of releases: 250131, 2501, 0324, 2025
    r"[0-9]{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01])"
    r"|2[0-9](?:0[1-9]|1[0-2])|0[0-9]{3}|(?:19|20)[0-9]{2}"
)


def step_of(checkpoint: str) -> int | None:
    """Return the training step that a checkpoint's name tells, or None.

    The number after `step`, `iter`, `update`, `ba`, `ckpt` or `checkpoint`, in thousands after a
    `k`: 1000 for `step-1000` and `step1000-tokens4B`, 50,000 for `step-50K-105b`. Else a number at
    the end, if it is the whole name or unlikely to be anything else: 1000 for `llama-7b-1000-hf`.
    Without one, the folder above counts, 1000 for `step-1000/hf` and `1000/model.pt`; and the
    one above that if neither name has a digit, as in `global_step_1000/actor/huggingface`.
    """
    return _step_and_folder(checkpoint)[0]


def training_of(checkpoint: str) -> str:
    """Return the folder that a training fills: above the part of a path that tells the step.

    It is `/ckpts` for `/ckpts/step-1000` and for `/ckpts/iter_100/hf`. Where no part tells a step,
    it is the folder above the checkpoint.
    """
    return str(_step_and_folder(checkpoint)[1])


def name_before_step(checkpoint: str, training: str, step: int | None) -> str:
    """Return what a checkpoint's name below its training's folder has before its step.

    It is `7b-step-` for `7b-step-100`, `epoch=*-step=` for `epoch=1-step=100.ckpt`, and empty where
    the name does not tell the step.
    """
    if step is None:
        return ""
    below = checkpoint.removeprefix(training).strip("/")
    places = (found.start() for found in re.finditer(NUMBER, below) if step == number(found[0]))
    before = below[: next(places, 0)]
    return re.sub(r"(ep(?:och)?[-_=]?)[0-9]+", r"\1*", before, flags=re.IGNORECASE)


def _step_and_folder(checkpoint: str) -> tuple[int | None, Path]:
    """Return the step that a path tells, and the folder above the part that tells it."""
    path = remote.located(checkpoint)
    places = [path, path.parent]
    if not any(map(str.isdecimal, path.name + path.parent.name)):
        places.append(path.parent.parent)
    for place in places:
        step = _told(place.name)
        if step is None and (place is path or place.name.isdecimal()):
            step = _lone(place.name)
        if step is not None:
            return (step, place.parent) if step <= _MOST else (None, path.parent)
    return None, path.parent


def number(text: str) -> int | None:
    """Return the step that a `NUMBER` is: 2500 for 2.5k. None if it is no whole number."""
    factor = {"k": 10**3, "m": 10**6}.get(text[-1].lower(), 1)
    value = Decimal(text.rstrip("kKmM")) * factor
    whole = value == value.to_integral_value() and (factor > 1 or "." not in text)
    return int(value) if whole else None


def _told(name: str) -> int | None:
    for pattern in _TOLD:
        if found := pattern.findall(name):
            return number(found[-1])
    return None


def _lone(name: str) -> int | None:
    found = _LONE.search(name)
    if found is None or re.search(_DATE, name) or _SHARD.search(name):
        return None
    value, before = int(found[1]), name[: found.start()]
    if found[1].startswith("00"):  # padded, so that names sort
        return value
    # A power of two is the length of a context, or a size.
    unlikely = value < _LEAST_LONE or value & (value - 1) == 0 or _MAYBE_DATE.fullmatch(found[1])
    return None if before and (unlikely or _NO_STEP_BEFORE.search(before)) else value


_STEP = "{step}"
_FILES = (r"\.pt", r"\.pth", r"\.ckpt", r"\.bin", r"\.safetensors")
_PARTIAL = re.compile(
    r"(?:^|[-_.])(?:te?mp|part|partial|incomplete|backup|bak|old|corrupt(?:ed)?)(?:$|[-_.\d])",
    re.IGNORECASE,
)
_DAY = 86400.0
QUIET_SECONDS: Final = 60.0
"""Time without a change after which a checkpoint is no more being written."""

_MOST_TRACKER_BYTES = 4096

MARKERS: Final = ("STABLE", "_SUCCESS")
"""Files that trainers write into a checkpoint after all others: prime-rl, SpecForge and whoever
follows Hadoop. Once one is seen, a checkpoint of the same folder without it is not finished."""


TRACKERS: Final = ("latest_checkpointed_iteration.txt", "latest")
"""Files in which Megatron and DeepSpeed name the last checkpoint that is finished."""


@dataclass(frozen=True)
class Saved:
    """A checkpoint's folder or file, finished or not."""

    path: Path
    step: int | None
    """The training step that its name tells."""
    changed: float
    """Time at which it, or something in it or in its folders, was changed last."""
    state: str
    """Names, sizes and times of what is in it, as text."""
    lacks: str | None = None
    """The marker that finished checkpoints of this folder or format have, and this one lacks."""
    marked: bool = False
    """It has the marker that the trainer writes last."""
    written: float = 0.0
    """Time at which the last of what is in it was written. Other changes leave it as it is, such as
    of a mode or a name."""
    members: tuple[Path, ...] = ()
    """The members of an average, which is in no folder; empty for a checkpoint."""

    @property
    def last(self) -> Path:
        """Return its path, of an average that of its last member."""
        return self.members[-1] if self.members else self.path

    def there(self) -> bool:
        """Return whether it has not been deleted."""
        return all(path.exists() for path in self.members or (self.path,))

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
        escaped = re.escape(text).replace(re.escape(_STEP), rf"(?P<step>{NUMBER})")
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
        step = number(told) if told else None
        return None if told and step is None else (step,)

    def hint(self, folder: Path) -> str:
        """Return what to do where no checkpoint is found in a folder that should have some."""
        if self.text is None:
            nothing = f"no folder directly in {folder} has a name that tells a step"
        else:
            where = "below" if self.depth > 1 else "directly in"
            nothing = f"no name {where} {folder} has the form --pattern {self.text!r}"
        return (
            f"{nothing}; for files and deeper folders give a --pattern such as "
            f"'*step={_STEP}.ckpt' or 'run-*/iter_{_STEP}/hf'"
        )

    @property
    def takes_files(self) -> bool:
        """Return whether files may be meant: a pattern says so by their suffix."""
        return self._names is not None and self._names.pattern.endswith(_FILES)


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
    folder = remote.located(folder)
    remote.forget()
    try:
        if not any(folder.iterdir()) and not folder.exists():
            raise FileNotFoundError(0, "the store has nothing under that name yet")
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error.strerror}") from error

    def seen(path: Path) -> Saved | None:
        step = pattern.step(str(path.relative_to(folder)))
        with contextlib.suppress(OSError):
            if step is not None and (path.is_dir() or (pattern.takes_files and path.is_file())):
                return _saved(path, step[0])
        return None

    with ThreadPoolExecutor(remote.REQUESTS) as pool:  # each listing waits for a server
        found = list(filter(None, pool.map(seen, _below(folder, pattern.depth))))
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
    use = {(trainer_of(folder, path), name) for name, paths in having.items() for path in paths}
    marked = []
    for saved in found:
        used = [m for m in markers if marker or (trainer_of(folder, saved.path), m) in use]
        has = any(saved.path in having[name] for name in used)
        tracker, last = ("", None) if marker or used else _tracker(folder, saved.path)
        if last is not None and saved.step is not None:
            used, has = [tracker], saved.step <= last
        lacks = used[0] if used and not has else dcp.lacking(saved.path)
        marked.append(dataclasses.replace(saved, marked=has, lacks=lacks))
    return marked


def _tracker(folder: Path, checkpoint: Path) -> tuple[str, int | None]:
    """Return the name of the trainer's tracker above a checkpoint, and the step that it names.

    A link that is named so may be anybody's.
    """
    for above in checkpoint.parents:
        for name in TRACKERS:
            if not (above / name).is_symlink() and (last := _last_finished(above / name)):
                return name, last
        if above == folder.absolute():
            break
    return "", None


def trainer_of(folder: Path, checkpoint: Path) -> str:
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
    places = (beside, *(each / marker for each in above))
    if any(place.exists() or place.is_symlink() for place in places):
        return True
    last = _last_finished(folder / marker)
    return last is not None and saved.step is not None and saved.step <= last


def _last_finished(tracker: Path) -> int | None:
    """Return the step that a link or a short text names, None if it names no step."""
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


def _inside(folder: Path) -> Iterator[Path]:
    """Yield what is in a folder, and in the folders in it: of ranks, or of the model alone."""
    for entry in sorted(folder.iterdir()):
        yield entry
        with contextlib.suppress(OSError):
            if entry.is_dir() and not entry.is_symlink():
                yield from sorted(entry.iterdir())


def is_young(path: Path) -> bool:
    """Return whether a checkpoint is there, and something in it was changed a moment ago."""
    try:
        return not _saved(remote.located(path), None).quiet(QUIET_SECONDS)
    except OSError:
        return False


def _saved(path: Path, step: int | None) -> Saved:
    """Look at a checkpoint.

    Raises:
        OSError: the checkpoint is gone.
    """
    status = path.stat()
    changed, written = _changed(status), status.st_mtime
    state = [f"{status.st_size}" if path.is_file() else ""]
    if path.is_dir():
        for entry in _inside(path):
            with contextlib.suppress(OSError):  # a file that has just been renamed
                status = entry.stat()
                changed, written = max(changed, _changed(status)), max(written, status.st_mtime)
                name = entry.relative_to(path)
                state.append(f"{name}\0{status.st_size}\0{checkpoint_files.version(entry, status)}")
    return Saved(path.absolute(), step, changed, "\n".join(state), written=written)


def _changed(status: os.stat_result) -> float:
    """Return the time at which a file or folder was changed last.

    That of its inode, because a copy can set a file's own time into the past. A file with several
    names has its own: each name that is made, such as that of a lease, changes the inode.
    """
    linked = stat.S_ISREG(status.st_mode) and status.st_nlink > 1
    return status.st_mtime if linked else status.st_ctime
