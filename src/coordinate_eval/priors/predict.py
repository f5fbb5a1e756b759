"""Predict the cost of the next run from what finished runs took.

A prediction has three layers. Each is shrunk to the one before it while there are few observations:

1. the roofline, with coefficients fitted to this engine on this type of GPU (`fit`);
2. the offset of this model from the fit, over all datasets;
3. the offset of this dataset from both: the weighted mean of its log residuals.

An observation loses weight with its age and with each condition in which it differs from the
prediction. So a second checkpoint of a training run is predicted from the first, and the first
checkpoint of a new size from the other sizes. Everything here is pure.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from coordinate_eval._engines import kind_of
from coordinate_eval.priors import fit as fits
from coordinate_eval.priors import gpus, judges, likeness, roofline, staging
from coordinate_eval.priors.fit import Fit
from coordinate_eval.priors.judges import PerQuestion
from coordinate_eval.priors.observations import (
    BuildSeen,
    DatasetSeen,
    JudgeSeen,
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
"""Weight of the previous layer's prediction beside a dataset's observations."""

LEAST_WEIGHT = 1e-3
"""Least total weight of a dataset's observations for its tokens to be taken from them."""

NO_OFFSET = 1.0
"""Weight of a model's offset being 0, in observations."""

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
    """Observations of this dataset, under any conditions."""


class _Residual(NamedTuple):
    seen: DatasetSeen
    age: float
    """Weight by age."""
    residual: float
    """Log of measured over fitted seconds."""


class Priors:
    """Observations, prepared for predictions.

    Args:
        seen: All observations. Without any, predictions are the shipped roofline's.
        now: Seconds since the epoch, for the age of observations.
    """

    def __init__(self, seen: Iterable[Seen] = (), now: float = 0.0) -> None:
        self._now = now
        datasets: list[DatasetSeen] = []
        self._metrics: defaultdict[str, list[MetricSeen]] = defaultdict(list)
        self._scores: defaultdict[str, list[ScoreSeen]] = defaultdict(list)
        self._starts: list[TrialSeen] = []
        self._copies: list[StageSeen] = []
        self._builds: dict[tuple[Subject, float], BuildSeen] = {}
        self._judged: list[JudgeSeen] = []
        for one in seen:
            if isinstance(one, DatasetSeen):
                datasets.append(one)
            elif isinstance(one, MetricSeen):
                self._metrics[one.subject.task].append(one)
            elif isinstance(one, ScoreSeen):
                self._scores[one.subject.task].append(one)
            elif isinstance(one, StageSeen):
                self._copies.append(one)
            elif isinstance(one, BuildSeen):
                # Every run that finds these requests in the cache reports the same build.
                self._builds[one.subject, one.time] = one
            elif isinstance(one, JudgeSeen):
                self._judged.append(one)
            else:
                self._starts.append(one)
        self.fits = self._fit(datasets)
        self._residuals: defaultdict[str, list[_Residual]] = defaultdict(list)
        self._sums: dict[Conditions, tuple[float, float]] = {}
        for one in datasets:
            found = _Residual(one, self._age(one), fits.residual(one, self.fit(one.conditions)))
            self._residuals[one.subject.task].append(found)
            weight, total = self._sums.get(one.conditions, (0.0, 0.0))
            self._sums[one.conditions] = (weight + found.age, total + found.age * found.residual)
        self._offset = lru_cache(maxsize=None)(self._model_offset)

    def fit(self, conditions: Conditions) -> Fit:
        """Return the fit of an engine on a type of GPU, or the roofline if it never ran there."""
        return self.fits.get(fits.of_conditions(conditions)) or fits.shipped(conditions.gpu)

    def predict(
        self, subject: Subject, work: Work, on: Conditions, *, built: bool = True
    ) -> Prediction:
        """Predict the cost of a dataset; `built` says that `work` counts its real prompts."""
        work = self._learned_work(subject, work, on, built=built)
        if not kind_of(on.engine).shares_prefixes:
            work = work.model_copy(update={"cached_tokens": 0.0})
        found, gpu = self.fit(on), gpus.lookup(on.gpu)
        base = roofline.gpu_seconds(work, on.model, gpu, on.sequences, found.coefficients)
        correction, spread = self._correction(subject, on, found)
        return Prediction(
            # Within the limits of `Cost`.
            gpu_seconds=min(max(base * math.exp(correction), 1e-6), 1e9),
            spread=spread,
            floor_seconds=roofline.floor_seconds(work, on.model, gpu, found.coefficients),
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
            self._age(one) * likeness.of_copy(one, on, storage, converted=converted)
            for one in recent
        ]
        return staging.fit(recent, weights, gigabits)

    def build_seconds(self, subject: Subject, items: int) -> float | None:
        """Return the CPU seconds to build the requests of `items` items of a dataset.

        Return None without a build of a similar number of items: much of a small build is loading.
        """
        weight, total = 0.0, 0.0
        for seen in self._builds.values():
            alike = max(items, seen.items) <= likeness.SIZE_RATIO * min(items, seen.items)
            if seen.subject.task == subject.task and alike:
                counts = self._age(seen) * likeness.of_settings(seen.subject, subject)
                weight, total = weight + counts, total + counts * seen.cpu_seconds / seen.items
        return items * total / weight if weight else None

    def judged(self, engine: str) -> list[JudgeSeen]:
        """Return what judges took to rate responses such as this engine's."""
        return [one for one in self._judged if likeness.same_kind(one.conditions.engine, engine)]

    def per_question(
        self, judge: str, subject: Subject, engine: str, guess: PerQuestion
    ) -> PerQuestion:
        """Return what a judge takes for a question about a dataset.

        It is learned from questions about this dataset, else from the judge's others; without any
        it is `guess`.
        """
        seen = [one for one in self.judged(engine) if one.judge == judge]
        ages = [self._age(one) for one in seen]
        alike = [
            age * likeness.of_settings(one.subject, subject) * (one.subject.task == subject.task)
            for age, one in zip(ages, seen, strict=True)
        ]
        return judges.learned(seen, alike, judges.learned(seen, ages, guess))

    def _fit(self, datasets: Sequence[DatasetSeen]) -> dict[tuple[str, str], Fit]:
        groups: defaultdict[tuple[str, str], list[DatasetSeen]] = defaultdict(list)
        for one in datasets:
            groups[fits.of_conditions(one.conditions)].append(one)
        return {key: fits.fit(group, list(map(self._age, group))) for key, group in groups.items()}

    def _of(self, subject: Subject) -> list[_Residual]:
        return self._residuals.get(subject.task, [])

    def _age(self, seen: Seen) -> float:
        return likeness.of_age(seen, self._now)

    def _model_offset(self, on: Conditions) -> float:
        """Return the log of a model's measured over fitted seconds, over all datasets."""
        weight, total = NO_OFFSET, 0.0
        for seen, (counts, residuals) in self._sums.items():
            like = likeness.of_conditions(seen, on)
            weight, total = weight + like * counts, total + like * residuals
        return total / weight

    def _correction(self, subject: Subject, on: Conditions, found: Fit) -> tuple[float, float]:
        """Return the log of the factor on the fitted seconds, and its standard deviation."""
        offset = self._offset(on)
        pairs = [
            (
                one.age
                * likeness.of_conditions(one.seen.conditions, on)
                * likeness.of_settings(one.seen.subject, subject),
                one.residual - self._offset(one.seen.conditions),
            )
            for one in self._of(subject)
        ]
        total = sum(w for w, _ in pairs)
        mean = sum(w * r for w, r in pairs) / (total + NOTHING_LEARNED)
        variance = _variance(pairs, mean)
        learned = total / (total + NOTHING_LEARNED)
        if not found.observations:
            # Observations elsewhere say little about this GPU or engine.
            learned = 0.0
        variance = learned * variance + (1 - learned) * found.spread**2
        variance += (SPREAD_PER_E_FOLD * self._distance(subject, on)) ** 2
        return offset + mean, max(LEAST_SPREAD, math.sqrt(variance))

    def _distance(self, subject: Subject, on: Conditions) -> float:
        """Return the log of the ratio between this model's size and the nearest one seen."""
        sizes = (one.seen.conditions.model.parameters for one in self._of(subject))
        return min((abs(math.log(size / on.model.parameters)) for size in sizes), default=0.0)

    def _learned_work(self, subject: Subject, work: Work, on: Conditions, *, built: bool) -> Work:
        """Return the work with the tokens that models really wrote.

        Unless `built`, its requests and prompt tokens are learned too.
        """
        weights = [
            one.age
            * likeness.of_answers(one.seen.conditions, on)
            * likeness.of_settings(one.seen.subject, subject)
            for one in self._of(subject)
        ]
        if sum(weights) < LEAST_WEIGHT:
            return work
        seen = [one.seen for one in self._of(subject)]

        def mean(of: Callable[[DatasetSeen], float]) -> float:
            return sum(w * of(one) for w, one in zip(weights, seen, strict=True)) / sum(weights)

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
                likeness.of_answers(seen.conditions, on)
                * likeness.of_settings(seen.subject, subject)
                * self._age(seen),
                seen.cpu_seconds / seen.items,
            )
            for seen in self._metrics.get(subject.task, ())
        )
        return work.items * _learned(each, work.metric_cpu_seconds / max(1, work.items))

    def _score_seconds(self, subject: Subject, work: Work) -> float:
        """Return the shipped seconds of scoring, times what scoring took of them before."""
        ratios = (
            (
                self._age(seen) * likeness.of_settings(seen.subject, subject),
                seen.seconds / roofline.score_seconds(seen.items, seen.requests),
            )
            for seen in self._scores.get(subject.task, ())
        )
        return roofline.score_seconds(work.items, work.requests) * _learned(ratios, 1.0)


def _learned(pairs: Iterable[tuple[float, float]], guess: float) -> float:
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
