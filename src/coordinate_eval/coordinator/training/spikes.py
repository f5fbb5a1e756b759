"""Find where a loss goes wrong for good: online, robust, at any scale and logging interval.

A loss is compared with the lowest level of its newest healthy reports. Their scatter about a line
is the noise. A sum of what is too high (CUSUM) opens an episode. The onset is where the rise began,
and the level before it is kept while the episode is open. Single outliers open none.

An episode closes when the loss is back. It is decided when the loss stays where it is for 50 steps,
or at least does not fall for 100, with five reports, and with a slope too flat for coming back
within 1,000 steps. Losses that are no finite numbers are decided by the second report in a row;
norms of the gradients after 50 steps, since those of a loss scale that is looked for come back.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Literal

from pydantic import ConfigDict

from coordinate_eval.coordinator.training.points import Point
from coordinate_eval.records import Record

_WINDOW = 128  # healthy reports that tell level and noise
_BLOCK = 16  # reports whose median is a level
_LEAST = 12  # reports before anything but NaN can be told
_SPREAD = 1.4826  # of a normal distribution, over its median absolute deviation
_DRIFT = 1.25  # of noise, by which a loss may be too high without being counted
_CLIP = 4.0  # of noise, which any one report counts for at most
_OPENS = 12.0  # sum that opens an episode
_LEAST_RISE = 0.02  # of the level: less is no reason to go back
_CLEAR = 5.0  # of noise: a rise that opens an episode by two reports in a row
_LONG, _DECIDE_REPORTS = 50, 5  # steps and reports of an episode before it is decided
_MOVED = 0.1  # of a rise: less is no sign that it goes on or falls
_COMES_BACK = 1000  # steps in which a loss that falls has to be back
_SURE = 2.0  # standard errors of the slope, by which it has to be too flat for that
_PATIENCE = 2000  # steps after which no loss recovers
_MOST_EPISODE = 500  # reports of an episode that are kept
_MOST_FOUND = 50
_FAR = 50  # steps between two reports, beyond which an onset is put between them
_STRONG_GRADIENT = 6.0  # of the noise of the norm's logarithm

Kind = Literal["spike", "divergence", "plateau", "not a number", "no gradient"]


class Spike(Record):
    """A loss that went up, and what became of it."""

    onset: int
    """The first step that went wrong."""
    before: int
    """The last report that was as before."""
    last: int
    """The newest step that it is true of."""
    kind: Kind = "spike"
    level: float
    """The loss before."""
    slope: float = 0.0
    """The gain of the loss in a step before; usually below zero."""
    peak: float
    noise: float
    decided: int | None = None
    """The step at which it was clear that the loss does not come back."""
    recovered: int | None = None
    gradient: float | None = None
    """The largest norm of the gradients, if it says the same."""


class Detector(Record):
    """A follower of the reports of a training, small enough for a file."""

    model_config = ConfigDict(frozen=False)

    healthy: tuple[tuple[int, float], ...] = ()
    norms: tuple[float, ...] = ()
    total: float = 0.0
    began: int | None = None
    """The last report before the sum began."""
    last: int | None = None
    open: Spike | None = None
    """The spike that goes on; decided if the training has to go back."""
    episode: tuple[tuple[int, float], ...] = ()
    bad: int = 0
    """Reports in a row whose loss is no finite number."""
    lost: tuple[int, int, int] | None = None
    """Of reports in a row without a finite gradient: the step before, the first, how many."""
    found: tuple[Spike, ...] = ()
    """Those that are over, the newest last."""

    def take(self, points: Iterable[Point]) -> None:
        """Follow these reports, which come after those of before."""
        for point in points:
            if point.loss is not None:
                self._take(point, point.loss)

    def _take(self, point: Point, loss: float) -> None:
        if self.last is not None and point.step <= self.last:
            self._go_back(point.step)
            self.last = self.healthy[-1][0] if self.healthy else point.step - 1
        before = self.last
        self.last = point.step
        strong = self._is_strong(point.gradient_norm)
        if self._has_lost_gradients(point, loss, before):
            return
        if not math.isfinite(loss):
            self._take_bad(point.step, before)
        else:
            self.bad = 0
            if self.open is None:
                self._compare(point.step, loss, before, strong=strong)
            else:
                self._go_on(point.step, loss)
        if strong and self.open is not None and point.gradient_norm is not None:
            most = max(self.open.gradient or 0.0, point.gradient_norm)
            self.open = self.open.model_copy(update={"gradient": most})
        elif self.open is None and point.gradient_norm and math.isfinite(point.gradient_norm):
            norm = math.log(max(point.gradient_norm, 1e-300))
            self.norms = (*self.norms, norm)[-_WINDOW:]

    def _add(self, *reports: tuple[int, float]) -> None:
        """Add healthy reports, of which the newest are kept."""
        self.healthy = (*self.healthy, *reports)[-_WINDOW:]

    def _has_lost_gradients(self, point: Point, loss: float, before: int | None) -> bool:
        """Return whether no gradient is finite any more, so that a loss that is teaches nothing."""
        norm = point.gradient_norm
        if norm is None or math.isfinite(norm) or not math.isfinite(loss):
            self.lost = None
            if self.open is not None and self.open.kind == "no gradient":
                self._close(point.step)
            return False
        last = point.step - 1 if before is None else before
        since, first, reports = self.lost or (last, point.step, 0)
        self.lost = since, first, reports + 1
        if point.step - since <= _LONG or reports < _DECIDE_REPORTS or not self.norms:
            return False  # soon, or from a trainer that has never told one
        if self.open is not None and self.open.kind != "no gradient":
            return False
        found = self.open or Spike(
            onset=_between(since, first),
            before=since,
            last=point.step,
            kind="no gradient",
            level=loss,
            peak=loss,
            noise=0.0,
            decided=point.step,
            gradient=norm,
        )
        self.open = found.model_copy(update={"last": point.step})
        return True

    def _go_back(self, step: int) -> None:
        """Forget what came after a step to which the training went back."""
        if self.open is not None:
            self._close(None)
        self.healthy = tuple(each for each in self.healthy if each[0] < step)
        self.total, self.began, self.bad, self.lost = 0.0, None, 0, None

    def _is_strong(self, norm: float | None) -> bool:
        if norm is None or len(self.norms) < _LEAST:
            return False
        if not math.isfinite(norm):
            return True
        middle = median(self.norms)
        noise = _SPREAD * median(abs(each - middle) for each in self.norms)
        return math.log(max(norm, 1e-300)) - middle > _STRONG_GRADIENT * max(noise, 0.05)

    def _compare(self, step: int, loss: float, before: int | None, *, strong: bool) -> None:
        """Compare a report with the healthy ones, and open an episode if it is due."""
        if len(self.healthy) < _LEAST:
            self._add((step, loss))
            return
        level, noise = _level_and_noise([value for _, value in self.healthy])
        rise = (loss - level) / noise if noise else math.copysign(_CLIP, loss - level)
        total = self.total + min(rise, _CLIP) - _DRIFT + (1.0 if strong and rise > _DRIFT else 0.0)
        if total <= 0:
            self.total, self.began = 0.0, None
            self._add((step, loss))
            return
        if self.began is None:
            self.began = before
        self.total = total
        self._add((step, loss))
        began = step - 1 if self.began is None else self.began
        since = [each for each in self.healthy if each[0] > began]
        clear = [value for _, value in since[-2:] if value - level > _CLEAR * noise]
        high = median(value for _, value in since[-3:]) - level >= _LEAST_RISE * abs(level)
        if not high or (total < _OPENS and len(clear) < 2):
            return
        onset = _onset(since, level, noise, began)
        since = [each for each in since if each[0] >= onset[2]]
        self.open = Spike(
            onset=onset[0],
            before=onset[1],
            last=step,
            level=level,
            noise=noise,
            peak=max(value for _, value in since),
        )
        self.episode = tuple(since)
        self.healthy = self.healthy[: -len(since)]
        if len(self.healthy) >= _LEAST:
            slope = _trend(self.healthy, noise)[2]
            self.open = self.open.model_copy(update={"slope": slope})
        self.total, self.began = 0.0, None
        self._decide()

    def _take_bad(self, step: int, before: int | None) -> None:
        self.bad += 1
        if self.open is None:
            level = median(v for _, v in self.healthy[-_BLOCK:]) if self.healthy else 0.0
            last = step - 1 if before is None else before
            self.open = Spike(
                onset=_between(last, step),
                before=last,
                last=step,
                kind="not a number",
                level=level,
                peak=math.inf,
                noise=0.0,
            )
            self.episode = ()
        changed: dict[str, object] = {"last": step, "peak": math.inf, "kind": "not a number"}
        if self.bad >= 2 and self.open.decided is None:
            changed["decided"] = step
        self.open = self.open.model_copy(update=changed)

    def _go_on(self, step: int, loss: float) -> None:
        """Add a report to the open episode: close it, decide it or wait."""
        spike = self.open
        assert spike is not None
        self.episode = (*self.episode, (step, loss))
        if len(self.episode) > _MOST_EPISODE:
            self.episode = self.episode[::2]
        newest = [value for _, value in self.episode[-3:]]
        back = spike.level + max(2 * spike.noise, _LEAST_RISE / 2 * abs(spike.level))
        if median(newest) <= back and (len(newest) > 2 or spike.kind == "not a number"):
            self._close(step)
            return
        self.open = spike.model_copy(update={"last": step, "peak": max(spike.peak, loss)})
        self._decide()

    def _close(self, recovered: int | None) -> None:
        assert self.open is not None
        closed = self.open.model_copy(update={"recovered": recovered})
        self.found = (*self.found, closed)[-_MOST_FOUND:]
        if recovered is not None:
            self._add(*self.episode[-3:])
        self.open, self.episode = None, ()

    def _decide(self) -> None:
        """Decide whether the loss of the open episode stays up."""
        spike = self.open
        if spike is None or spike.decided is not None:
            return
        for reports, least in zip(_lasting(self.episode, spike), (_LONG, 2 * _LONG), strict=True):
            if len(reports) < _DECIDE_REPORTS:
                continue
            began = spike.before if len(reports) == len(self.episode) else reports[0][0]
            first, last, slope, error = _trend(reports, spike.noise)
            rise = last - spike.level
            comes_back = spike.slope - slope + _SURE * error >= rise / _COMES_BACK
            lasted = spike.last - max(began, reports[0][0] - _FAR)
            if rise < max(_LEAST_RISE * abs(spike.level), _DRIFT * spike.noise):
                continue
            if spike.last - spike.onset >= _PATIENCE or (lasted >= least and not comes_back):
                break
        else:
            return
        kind: Kind = "divergence" if rise > 1.2 * (first - spike.level) else "plateau"
        if spike.kind != "not a number":
            self.open = spike.model_copy(update={"kind": kind, "decided": spike.last})
        else:
            self.open = spike.model_copy(update={"decided": spike.last})


def _trend(given: Iterable[tuple[int, float]], noise: float) -> tuple[float, float, float, float]:
    """Return the medians of the first and last third, and the slope between with its error.

    The slope is the loss gained in a step. The standard error of a median is 1.25 times that of a
    mean, if the noise is normal.
    """
    reports = list(given)
    third = len(reports) // 3
    (a, first), (b, last) = (
        (median(step for step, _ in part), median(value for _, value in part))
        for part in (reports[:third], reports[-third:])
    )
    slope = (last - first) / (b - a)
    off = [abs(value - first - slope * (step - a)) for step, value in reports]
    noise = max(noise, _SPREAD * median(off))
    return first, last, slope, 1.25 * noise * math.sqrt(2 / third) / (b - a)


def _lasting(
    episode: Sequence[tuple[int, float]], spike: Spike
) -> tuple[Sequence[tuple[int, float]], Sequence[tuple[int, float]]]:
    """Return the newest reports of an episode that stay, and those that at least don't fall.

    A loss has moved when the median of three reports has, by a tenth of its rise and more than
    noise.
    """
    values = [value for _, value in episode]
    smooth = [median(values[max(0, end - 3) : end]) for end in range(1, len(values) + 1)]
    noise = spike.noise
    if len(values) >= _LEAST:
        moves = [abs(b - a) for a, b in itertools.pairwise(values[-_BLOCK:])]
        noise = max(noise, _SPREAD * median(moves) / math.sqrt(2))
    stays = unfallen = 0
    low = high = top = smooth[0]
    for n, value in enumerate(smooth):
        moved = max(_MOVED * (value - spike.level), _CLEAR * noise)
        low, high, top = min(low, value), max(high, value), max(top, value)
        if high - low > moved:
            stays, low, high = n, value, value
        if top - value > moved:
            unfallen, top = n, value
    return episode[stays:], episode[unfallen:]


def _level_and_noise(values: Sequence[float]) -> tuple[float, float]:
    """Return the lowest median of a block of reports, and the scatter of all about a line."""
    blocks = [values[max(0, end - _BLOCK) : end] for end in range(len(values), 0, -_BLOCK)]
    level = min(median(block) for block in blocks if len(block) >= _BLOCK // 2)
    third = len(values) // 3
    first, last = median(values[:third]), median(values[-third:])
    slope = (last - first) / (len(values) - third)
    middle = median(values)
    off = [abs(v - middle - slope * (n - len(values) / 2)) for n, v in enumerate(values)]
    steps = [abs(b - a) for a, b in itertools.pairwise(values)]
    return level, _SPREAD * max(median(off), median(steps) / math.sqrt(2))


def _onset(
    since: Sequence[tuple[int, float]], level: float, noise: float, began: int
) -> tuple[int, int, int]:
    """Return the onset, the last report before it, and the first that is too high for good."""
    top = median(value for _, value in since[-3:]) - level
    least = min(level + _DRIFT * noise + 0.1 * top, level + top)
    first = len(since) - 1
    while first > 0 and (
        since[first - 1][1] > least or (first > 1 and since[first - 2][1] > least)
    ):
        first -= 1
    while first < len(since) - 1 and since[first][1] <= least:
        first += 1
    before = since[first - 1][0] if first else began
    return _between(before, since[first][0]), before, since[first][0]


def _between(before: int, first: int) -> int:
    """Return the step at which something began that a report shows and the one before does not."""
    return max(before + 1, first - _FAR)
