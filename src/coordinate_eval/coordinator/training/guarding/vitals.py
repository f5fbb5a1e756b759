"""Is a training alive and well? Its steps, its silence, its losses and its pace."""

import glob
import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

from pydantic import Field

from coordinate_eval import _files
from coordinate_eval._format import duration
from coordinate_eval.coordinator.supervisor.polls import MOST_BETWEEN_SECONDS
from coordinate_eval.coordinator.training.guarding.attempts import OfAttempt, What
from coordinate_eval.coordinator.training.guarding.policy import Policy
from coordinate_eval.coordinator.training.points import Point

STEPLESS = 10.0
"""A training that writes lines and no step hangs after so many times the silence of a mute one."""

NOT_FINITE_POINTS = 3
"""Points in a row whose loss is NaN or infinite. A single one may be a step that is left out."""

SLOW_SHARE = 2 / 3
"""Share of the usual throughput below which a training is slow: it fell by a third."""

_PACES = 32
"""Looks of which the usual time of a step is the median."""

_MOST_FILES = 4096
"""Logs that are looked at."""


class Vitals(OfAttempt):
    """`attempts/N.vitals.json`: what was seen of an attempt so far."""

    FILE: ClassVar[str] = "vitals"

    first_step: int | None = None
    last_step: int | None = None
    loss: float | None = None
    stepped: float | None = Field(default=None, description="when the first step was seen")
    seen: float | None = Field(default=None, description="when the last step was seen")
    looked: float | None = Field(default=None, description="when this was written")
    silent: float = Field(default=0.0, description="seconds without a line or a step")
    stepless: float = Field(default=0.0, description="seconds without a step")
    signs: int = Field(default=-1, description="a number that each line and each save changes")
    paces: tuple[float, ...] = Field(default=(), description="seconds of a step, the last ones")
    usual: float = Field(default=0.0, description="seconds of a step, of attempts before")
    best: float = Field(default=0.0, description="the least usual time of a step so far")
    slow: float = Field(default=0.0, description="seconds for which it has been slow")
    not_finite: int = Field(default=0, description="points in a row whose loss is not finite")
    onset: int | None = Field(default=None, description="the step of the first of them")
    total: int = Field(default=0, description="steps that it goes to, by its log; 0: unknown")
    apart: int = Field(default=0, description="most steps between two reports in a row")

    @property
    def step_seconds(self) -> float:
        """Return the usual seconds of a step; 0 while they are not known."""
        return statistics.median(self.paces) if self.paces else self.usual


def look(before: Vitals, points: Sequence[Point], signs: int, now: float, total: int = 0) -> Vitals:
    """Return what is known after a look at a training that runs.

    Args:
        before: what was known.
        points: what it has reported since.
        signs: of its logs and saves.
        now: the guard's own time, so that the clocks of nodes do not matter.
        total: steps that it goes to, as it says itself; 0 if it does not say it.
    """
    gone = 0.0 if before.looked is None else min(MOST_BETWEEN_SECONDS, now - before.looked)
    gone = max(0.0, gone)
    steps = [point.step for point in points]
    newest = max(steps, default=-1)
    is_new = bool(steps) and (before.last_step is None or newest > before.last_step)
    found = before.model_copy(update={"looked": now, "signs": signs})
    quiet = not points and signs == before.signs
    row = steps if before.last_step is None else [before.last_step, *steps]
    changes: dict[str, object] = {
        "total": total or before.total,
        "apart": max([before.apart, *(b - a for a, b in itertools.pairwise(row))]),
        "silent": before.silent + gone if quiet else 0.0,
        "stepless": 0.0 if steps else before.stepless + gone,
        **_finite(before, points),
    }
    if is_new:
        changes |= {"last_step": newest, "seen": now}
        if before.last_step is None or before.seen is None:
            changes |= {"first_step": min(steps), "stepped": now}
        elif now > before.seen:
            pace = (now - before.seen) / (newest - before.last_step)
            changes["paces"] = (*before.paces, pace)[-_PACES:]
    elif steps:
        # A step before was too high, as where two ranks wrote into one line.
        changes |= {"last_step": newest, "seen": now}
    return _paced(found.model_copy(update=changes), gone)


def _finite(before: Vitals, points: Iterable[Point]) -> dict[str, object]:
    """Return what the losses of points change."""
    count, onset, loss = before.not_finite, before.onset, before.loss
    for point in points:
        if point.loss is None:
            continue
        loss = point.loss
        if math.isfinite(point.loss):
            count, onset = 0, None
        else:
            count, onset = count + 1, point.step if onset is None else onset
    return {"not_finite": count, "onset": onset, "loss": loss}


def _paced(found: Vitals, gone: float) -> Vitals:
    """Return what is known with the seconds for which the training has been slow."""
    if len(found.paces) < _PACES:
        return found
    usual = found.step_seconds
    best = min(filter(None, (found.best, usual)))
    slow = found.slow + gone if usual * SLOW_SHARE > best else 0.0
    return found.model_copy(update={"best": best, "slow": slow})


class Wrong(NamedTuple):
    """A fault of a training that runs."""

    what: What
    why: str


def wrong(vitals: Vitals, policy: Policy) -> Wrong | None:
    """Return what is wrong with a training, if anything is."""
    if vitals.not_finite >= NOT_FINITE_POINTS:
        return Wrong(What.NOT_FINITE, f"the loss is {vitals.loss} since step {vitals.onset}")
    limit, key = policy.first_step_seconds, "first_step_seconds"
    if vitals.last_step is not None:
        key = "silent_seconds"
        limit = max(policy.silent_seconds, policy.silent_steps * vitals.step_seconds)
    since = f"since step {vitals.last_step}" if vitals.last_step is not None else "since its start"
    if vitals.silent > limit:
        silent = f"no line and no step for {duration(vitals.silent)} {since} (`{key}`)"
        return Wrong(What.HUNG, silent)
    if vitals.last_step is not None and vitals.stepless > STEPLESS * limit:
        return Wrong(What.HUNG, f"no step for {duration(vitals.stepless)} {since}")
    if vitals.slow > policy.slow_seconds:
        return Wrong(
            What.SLOW,
            f"a step takes {duration(vitals.step_seconds)}; it took {duration(vitals.best)}",
        )
    return None


def files_of(patterns: Iterable[str], folder: str, own: Iterable[str]) -> list[Path]:
    """Return the logs of a training: of its job, and those that the policy names.

    Args:
        patterns: of the policy, from `folder`.
        folder: where the script was submitted.
        own: the output of the job.
    """
    found = [Path(folder, log) for log in own]
    for pattern in patterns:
        if glob.has_magic(pattern):
            path = Path(folder, pattern)
            some = Path(path.anchor).glob(str(path.relative_to(path.anchor)))
            found += itertools.islice(some, _MOST_FILES)
        else:
            found.append(Path(folder, pattern))
    return list(dict.fromkeys(found))[:_MOST_FILES]


def size_of(files: Iterable[Path]) -> int:
    """Return the bytes of logs, which change with each line; of a folder, those of its files."""
    total = 0
    for file in files:
        if file.is_dir():
            total += sum(max(0, _files.size(each)) for each in sorted(file.iterdir()))
        else:
            total += max(0, _files.size(file))
    return total


def saved_at(folder: Path) -> int:
    """Return the time at which a checkpoint was added to a folder; 0 if it cannot be seen."""
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return 0
