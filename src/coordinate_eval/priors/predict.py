"""Predict the cost of the next run from what finished runs took.

The seconds of a dataset are those of the roofline, corrected twice. Each correction is a weighted
mean of what was measured, drawn to the prediction without it while there are few measurements:

1. by the model: its measured over its roofline seconds, over all datasets on this engine and GPU;
2. by the dataset: what its own measurements differ from that, on any engine and GPU.

A measurement loses weight with its age and with each condition in which it differs from the
prediction. So a second checkpoint of a training run is predicted from the first, and the first
checkpoint of a new size from the other sizes. Everything here is pure.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import NamedTuple, TypeVar

from coordinate_eval._engines import kind_of
from coordinate_eval.priors import gpus, likeness, roofline, staging
from coordinate_eval.priors.observations import (
    DatasetSeen,
    MetricSeen,
    ScoreSeen,
    Seen,
    StageSeen,
    Subject,
    TrialSeen,
)
from coordinate_eval.priors.roofline import Conditions, Work
from coordinate_eval.priors.staging import Link

NOTHING_LEARNED = 0.01
"""Weight of the prediction that a mean of measurements is drawn to; a new measurement of equal
conditions has 1."""

LEAST_WEIGHT = 1e-3
"""Least total weight of a dataset's measurements for its tokens to be taken from them."""

SHIPPED_SPREAD = 0.5
"""Standard deviation of the log of measured over predicted seconds before any run: seven datasets
in ten take 0.6 to 1.65 times the roofline."""

UNKNOWN_SPREAD = 0.7
"""Standard deviation before any run on a GPU type that is not in the table."""

RUN_SPREAD = 0.1
"""Standard deviation of log seconds between equal runs, assumed before there were two."""

LEAST_SPREAD = 0.05
"""Least standard deviation of a prediction."""

SPREAD_PER_E_FOLD = 0.15
"""Standard deviation added for each factor of e between the model's size and the nearest seen."""

RECENT_STARTS = 50
"""Newest engine starts that count."""

RECENT_COPIES = 500
"""Newest copies of weights that count."""


class Prediction(NamedTuple):
    """The predicted cost of a dataset on one trial, in seconds."""

    gpu_seconds: float
    spread: float
    """Standard deviation of the logarithm of `gpu_seconds`."""
    floor_seconds: float
    metric_cpu_seconds: float
    score_seconds: float
    """Seconds of scoring all items on one core."""
    observations: int
    """Measurements of this dataset, under any conditions."""


_Cpu = TypeVar("_Cpu", MetricSeen, ScoreSeen)


class _Residual(NamedTuple):
    seen: DatasetSeen
    age: float
    """Weight by age."""
    residual: float
    """Log of measured over roofline seconds."""


class Priors:
    """Observations, prepared for predictions.

    Args:
        seen: All observations. Without any, predictions are the shipped roofline's.
    """

    def __init__(self, seen: Iterable[Seen] = (), now: float = 0.0) -> None:
        self._now = now
        every = list(seen)
        self._metrics = _by_task(one for one in every if isinstance(one, MetricSeen))
        self._scores = _by_task(one for one in every if isinstance(one, ScoreSeen))
        self._starts = [one for one in every if isinstance(one, TrialSeen)]
        self._copies = [one for one in every if isinstance(one, StageSeen)]
        self._residuals: defaultdict[str, list[_Residual]] = defaultdict(list)
        self._sums: dict[Conditions, tuple[float, float]] = {}
        for one in every:
            if not isinstance(one, DatasetSeen):
                continue
            found = _Residual(one, self._age(one), _residual(one))
            self._residuals[one.subject.task].append(found)
            weight, total = self._sums.get(one.conditions, (0.0, 0.0))
            self._sums[one.conditions] = (weight + found.age, total + found.age * found.residual)
        self._offset = cache(self._model_offset)

    def predict(
        self, subject: Subject, work: Work, on: Conditions, *, built: bool = True
    ) -> Prediction:
        """Predict the cost of a dataset; `built` says that `work` counts its real prompts."""
        work = self._learned_work(subject, work, on, built=built)
        if not kind_of(on.engine).shares_prefixes:
            work = work.model_copy(update={"cached_tokens": 0.0})
        gpu = gpus.lookup(on.gpu)
        base = roofline.gpu_seconds(work, on.model, gpu, on.sequences)
        correction, spread = self._correction(subject, on)
        floor = roofline.floor_seconds(work, on.model, gpu)
        return Prediction(
            # Within the limits of `Cost`.
            gpu_seconds=min(max(base * math.exp(self._offset(on) + correction), 1e-6), 1e9),
            spread=spread,
            floor_seconds=min(floor * math.exp(self._offset(on)), 1e9),
            metric_cpu_seconds=self._metric_seconds(subject, work, on),
            score_seconds=self._score_seconds(subject, work),
            observations=len(self._of(subject)),
        )

    def has_seen(self, subject: Subject, engine: str) -> bool:
        """Return whether a run has measured this dataset, with any model on any GPU."""
        return any(
            likeness.same_kind(one.seen.conditions.engine, engine) for one in self._of(subject)
        )

    def seconds_seen(self, subject: Subject, on: Conditions) -> list[float]:
        """Return measured GPU seconds per item with the same model, engine and type of GPU."""
        return [
            one.seen.gpu_seconds / one.seen.items
            for one in self._of(subject)
            if likeness.same_engine(one.seen.conditions, on)
            and likeness.of_model(one.seen.conditions.model, on.model) == 1.0
        ]

    def start_seconds(self, on: Conditions) -> float | None:
        """Return the median seconds of recent starts of this engine on this type of GPU.

        Starts with this model count alone where there are any. Return None without any start.
        """
        same = [t for t in self._starts if likeness.same_engine(t.conditions, on)]
        starts = [t for t in same if likeness.of_model(t.conditions.model, on.model) == 1.0] or same
        if not starts:
            return None
        starts.sort(key=lambda t: -t.time)
        return statistics.median(t.start_seconds for t in starts[:RECENT_STARTS])

    def link(self, on: Conditions, storage: str, *, converted: bool, gigabits: float) -> Link:
        """Return the rate at which a checkpoint on this storage reaches nodes with this GPU.

        Without any copy seen it is `gigabits` (10⁹ bits per second). Copies of another size count
        less.
        """
        recent = sorted(self._copies, key=lambda s: -s.time)[:RECENT_COPIES]
        weights = [
            self._age(one)
            * likeness.of_size(one.bytes, on.model.bytes)
            * likeness.unlike(
                one.storage != storage,
                one.converted != converted,
                gpus.name(one.conditions.gpu) != gpus.name(on.gpu),
            )
            for one in recent
        ]
        return staging.fit(recent, weights, gigabits)

    def _of(self, subject: Subject) -> list[_Residual]:
        return self._residuals.get(subject.task, [])

    def _age(self, seen: Seen) -> float:
        return likeness.of_age(seen.time, self._now)

    def _of_settings(self, seen: MetricSeen | ScoreSeen, of: Subject) -> float:
        """Return the weight of a measurement by its age and by the settings of its task."""
        return self._age(seen) * likeness.unlike(seen.subject.settings != of.settings)

    def _model_offset(self, on: Conditions) -> float:
        """Return the log of a model's measured over roofline seconds, over all datasets."""
        weight, total = NOTHING_LEARNED, 0.0
        for seen, (counts, residuals) in self._sums.items():
            if likeness.same_engine(seen, on):
                like = likeness.of_conditions(seen, on)
                weight, total = weight + like * counts, total + like * residuals
        return total / weight

    def _correction(self, subject: Subject, on: Conditions) -> tuple[float, float]:
        """Return the log of a dataset's own factor, and the standard deviation of its seconds."""
        pairs = [
            (
                one.age
                * likeness.of_conditions(one.seen.conditions, on)
                * likeness.unlike(one.seen.subject.settings != subject.settings),
                one.residual - self._offset(one.seen.conditions),
            )
            for one in self._of(subject)
        ]
        total = sum(w for w, _ in pairs)
        mean = sum(w * r for w, r in pairs) / (total + NOTHING_LEARNED)
        learned = total / (total + NOTHING_LEARNED)
        if not any(likeness.same_engine(seen, on) for seen in self._sums):
            learned = 0.0  # measurements elsewhere say little about this GPU or engine
        before = SHIPPED_SPREAD if gpus.known(on.gpu) else UNKNOWN_SPREAD
        variance = learned * _variance(pairs, mean) + (1 - learned) * before**2
        sizes = (one.seen.conditions.model.parameters for one in self._of(subject))
        far = min((abs(math.log(size / on.model.parameters)) for size in sizes), default=0.0)
        return mean, max(LEAST_SPREAD, math.sqrt(variance + (SPREAD_PER_E_FOLD * far) ** 2))

    def _learned_work(self, subject: Subject, work: Work, on: Conditions, *, built: bool) -> Work:
        """Return the work with the tokens that models really wrote.

        Unless `built`, its requests and prompt tokens are learned too.
        """
        weighted = [
            (
                one.age
                * likeness.of_answers(one.seen.conditions, on)
                * likeness.unlike(one.seen.subject.settings != subject.settings),
                one.seen,
            )
            for one in self._of(subject)
        ]
        total = sum(weight for weight, _ in weighted)
        if total < LEAST_WEIGHT:
            return work

        def mean(of: Callable[[DatasetSeen], float]) -> float:
            return sum(weight * of(one) for weight, one in weighted) / total

        requests, prompts, cached = work.requests, work.prompt_tokens, work.cached_tokens
        if not built:
            cached = work.items * mean(lambda s: s.cached_tokens / s.items)
            requests = work.items * mean(lambda s: s.requests / s.items)
            prompts = work.items * mean(lambda s: s.prompt_tokens / s.items)
        changed = {
            "requests": requests,
            "prompt_tokens": prompts,
            "cached_tokens": cached,
            "output_tokens": requests * mean(lambda s: s.output_tokens / s.requests),
            "longest_output_tokens": mean(lambda s: s.longest_output_tokens),
        }
        return work.model_copy(update=changed)

    def _metric_seconds(self, subject: Subject, work: Work, on: Conditions) -> float:
        """Return the CPU seconds of the metric: the shipped ones, then as they were measured."""
        each = (
            (
                likeness.of_answers(one.conditions, on) * self._of_settings(one, subject),
                one.cpu_seconds / one.items,
            )
            for one in self._metrics[subject.task]
        )
        return work.items * _mean(each, work.metric_cpu_seconds / max(1, work.items))

    def _score_seconds(self, subject: Subject, work: Work) -> float:
        """Return the shipped seconds of scoring, times what scoring took of them before."""
        ratios = (
            (
                self._of_settings(one, subject),
                one.seconds / roofline.score_seconds(one.items, one.requests),
            )
            for one in self._scores[subject.task]
        )
        return roofline.score_seconds(work.items, work.requests) * _mean(ratios, 1.0)


def _by_task(seen: Iterable[_Cpu]) -> defaultdict[str, list[_Cpu]]:
    found: defaultdict[str, list[_Cpu]] = defaultdict(list)
    for one in seen:
        found[one.subject.task].append(one)
    return found


def _residual(seen: DatasetSeen) -> float:
    """Return the log of measured over roofline seconds."""
    on = seen.conditions
    base = roofline.gpu_seconds(seen.work(), on.model, gpus.lookup(on.gpu), on.sequences)
    return math.log(seen.gpu_seconds / base)


def _mean(pairs: Iterable[tuple[float, float]], guess: float) -> float:
    """Return the mean of (weight, value) pairs, drawn to a guess while they are few."""
    weight, total = NOTHING_LEARNED, NOTHING_LEARNED * guess
    for counts, value in pairs:
        weight, total = weight + counts, total + counts * value
    return total / weight


def _variance(pairs: Sequence[tuple[float, float]], mean: float) -> float:
    """Return the variance of the next residual, from (weight, residual) pairs.

    It is the sample's variance with one more residual of `RUN_SPREAD`, plus the variance of the
    mean.
    """
    total = sum(w for w, _ in pairs)
    if not total:
        return RUN_SPREAD**2
    count = total**2 / sum(w * w for w, _ in pairs)  # Kish's effective size of a weighted sample
    sample = sum(w * (r - mean) ** 2 for w, r in pairs) / total
    return (sample + RUN_SPREAD**2 / count) * (1 + 1 / count)


def errors_left_out(seen: Sequence[Seen], now: float, most_runs: int) -> dict[str, list[float]]:
    """Predict each of the newest runs from all others; return predicted / measured − 1 by dataset.

    Datasets that no other run has are left out.
    """
    newest: dict[str, float] = {}
    for one in seen:
        newest[one.run] = max(one.time, newest.get(one.run, 0.0))
    errors: defaultdict[str, list[float]] = defaultdict(list)
    for run in sorted(newest, key=lambda r: -newest[r])[:most_runs]:
        priors = Priors((one for one in seen if one.run != run), now)
        for one in seen:
            if one.run == run and isinstance(one, DatasetSeen):
                predicted = priors.predict(one.subject, one.work(), one.conditions)
                if predicted.observations:
                    errors[one.dataset].append(predicted.gpu_seconds / one.gpu_seconds - 1)
    return dict(errors)
