"""What the next run will take, from what finished runs took.

A prediction has three layers, each shrunk to the one before where there is little to go by:

1. the roofline, with the coefficients of this engine on this type of GPU (`fit`);
2. how this model does against it, over all datasets;
3. how this dataset does against both: the weighted mean of its log residuals.

An observation counts by its likeness to what is asked, model, GPU, engine, settings of the
dataset, and by its age. So a second checkpoint of a training run is predicted from the first,
and the first one of a new size from the other sizes. Everything here is pure.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from coordinate_eval.priors import fit as fits
from coordinate_eval.priors import gpus, roofline, staging
from coordinate_eval.priors.fit import Fit
from coordinate_eval.priors.observations import (
    BuildSeen,
    DatasetSeen,
    MetricSeen,
    Seen,
    StageSeen,
    Subject,
    TrialSeen,
)
from coordinate_eval.priors.roofline import Conditions, Model, Work
from coordinate_eval.priors.staging import Link

HALF_LIFE_DAYS = 60.0
"""After so long an observation counts half: engines, drivers and clusters change."""

OLD = 0.02
"""What an observation counts however old it is: more than none, where there is no other."""

OTHER_MODEL = 0.1
"""What an observation of another model of the same size counts; of another size less."""

SIZE_RATIO = 4.0
"""A model so many times larger or smaller counts 1/e of that."""

OTHER_DEGREE = 0.5
OTHER_VERSION = 0.7
OTHER_PROCESSOR = 0.5
OTHER_GPU = 0.1
OTHER_ENGINE = 0.05
OTHER_SETTINGS = 0.2
OTHER_STORAGE = 0.1
OTHER_FORMAT = 0.2
"""What an observation counts that differs in this, or half of a CPU's name."""

NOTHING_LEARNED = 0.01
"""What the guess of the layer before counts beside a dataset's observations."""

LEAST_WEIGHT = 1e-3
"""What observations of a dataset must count together to say how much is asked and answered."""

NO_OFFSET = 1.0
"""Observations that count for a model doing as the fit says."""

RUN_SPREAD = 0.1
"""Standard deviation of log seconds between two runs of the same, before there were two."""

LEAST_SPREAD = 0.05

SPREAD_PER_E_FOLD = 0.15
"""Standard deviation added for each factor of e between the model's size and the nearest seen."""

RECENT_STARTS = 50

RECENT_COPIES = 500


class Prediction(NamedTuple):
    """What a dataset is expected to take on one trial."""

    gpu_seconds: float
    spread: float
    """Standard deviation of the logarithm of `gpu_seconds`."""
    floor_seconds: float
    metric_cpu_seconds: float
    observations: int
    """Of this dataset, under whatever conditions."""


class _Row(NamedTuple):
    seen: DatasetSeen
    age: float
    residual: float


class Priors:
    """Observations, made ready to be asked.

    Args:
        seen: everything observed; nothing makes this the shipped roofline.
        now: seconds since the epoch, for the age of observations.
    """

    def __init__(self, seen: Iterable[Seen] = (), now: float = 0.0) -> None:
        self._now = now
        datasets: list[DatasetSeen] = []
        self._metrics: defaultdict[str, list[MetricSeen]] = defaultdict(list)
        self._starts: list[TrialSeen] = []
        self._copies: list[StageSeen] = []
        self._builds: dict[tuple[Subject, float], BuildSeen] = {}
        for one in seen:
            if isinstance(one, DatasetSeen):
                datasets.append(one)
            elif isinstance(one, MetricSeen):
                self._metrics[one.subject.task].append(one)
            elif isinstance(one, StageSeen):
                self._copies.append(one)
            elif isinstance(one, BuildSeen):
                # Every run that found these requests in the cache tells of the same.
                self._builds[one.subject, one.time] = one
            else:
                self._starts.append(one)
        self.fits = self._fit(datasets)
        self._rows: defaultdict[str, list[_Row]] = defaultdict(list)
        self._sums: dict[Conditions, tuple[float, float]] = {}
        for one in datasets:
            row = _Row(one, self._age(one), fits.residual(one, self.fit(one.conditions)))
            self._rows[one.subject.task].append(row)
            weight, total = self._sums.get(one.conditions, (0.0, 0.0))
            self._sums[one.conditions] = (weight + row.age, total + row.age * row.residual)
        self._offset = lru_cache(maxsize=None)(self._model_offset)

    def fit(self, conditions: Conditions) -> Fit:
        """Coefficients of an engine on a type of GPU; the roofline where nothing was run."""
        return self.fits.get(fits.of_conditions(conditions)) or fits.shipped(conditions.gpu)

    def predict(
        self, asked: Subject, work: Work, on: Conditions, *, built: bool = True
    ) -> Prediction:
        """What the work of a dataset will take; `built` says that its prompts were counted."""
        work = self._learned_work(asked, work, on, built=built)
        found, gpu = self.fit(on), gpus.lookup(on.gpu)
        base = roofline.gpu_seconds(work, on.model, gpu, on.sequences, found.coefficients)
        correction, spread = self._correction(asked, on, found)
        return Prediction(
            # Within what a plan takes as a cost.
            gpu_seconds=min(max(base * math.exp(correction), 1e-6), 1e9),
            spread=spread,
            floor_seconds=roofline.floor_seconds(work, on.model, gpu, found.coefficients),
            metric_cpu_seconds=self._metric_seconds(asked, work, on),
            observations=len(self._of(asked)),
        )

    def seconds_seen(self, asked: Subject, on: Conditions) -> list[float]:
        """Measured seconds an item of this dataset, under conditions just like these."""
        return [
            row.seen.gpu_seconds / row.seen.items
            for row in self._of(asked)
            if likeness(row.seen.conditions, on) > OTHER_MODEL
        ]

    def start_seconds(self, on: Conditions) -> float | None:
        """The median of recent starts of this engine on this type of GPU, of this model if it
        was started there; None when nothing was.
        """
        same = [
            t for t in self._starts if fits.of_conditions(t.conditions) == fits.of_conditions(on)
        ]
        starts = [t for t in same if _alike(t.conditions.model, on.model) == 1.0] or same
        if not starts:
            return None
        starts.sort(key=lambda t: -t.time)
        return statistics.median(t.start_seconds for t in starts[:RECENT_STARTS])

    def link(self, on: Conditions, storage: str, *, converted: bool, gigabits: float) -> Link:
        """What a checkpoint on this storage reaches nodes of this type of GPU at; `gigabits` a
        second where no copy was seen. Those of another size count less.
        """
        recent = sorted(self._copies, key=lambda s: -s.time)[:RECENT_COPIES]
        weights = [
            self._age(one)
            * _size_alike(one.bytes, on.model.bytes)
            * (1.0 if one.storage == storage else OTHER_STORAGE)
            * (1.0 if one.converted == converted else OTHER_FORMAT)
            * (1.0 if gpus.name(one.conditions.gpu) == gpus.name(on.gpu) else OTHER_GPU)
            for one in recent
        ]
        return staging.fit(recent, weights, gigabits)

    def build_seconds(self, asked: Subject, items: int) -> float | None:
        """CPU seconds to build the requests of so many items of a dataset; None where that was
        not seen of a similar number, since much of a small build is loading.
        """
        weight, total = 0.0, 0.0
        for seen in self._builds.values():
            alike = max(items, seen.items) <= SIZE_RATIO * min(items, seen.items)
            if seen.subject.task == asked.task and alike:
                counts = self._age(seen) * _settings(seen.subject, asked)
                weight, total = weight + counts, total + counts * seen.cpu_seconds / seen.items
        return items * total / weight if weight else None

    def _fit(self, datasets: Sequence[DatasetSeen]) -> dict[tuple[str, str], Fit]:
        groups: defaultdict[tuple[str, str], list[DatasetSeen]] = defaultdict(list)
        for one in datasets:
            groups[fits.of_conditions(one.conditions)].append(one)
        return {key: fits.fit(group, list(map(self._age, group))) for key, group in groups.items()}

    def _of(self, asked: Subject) -> list[_Row]:
        return self._rows.get(asked.task, [])

    def _age(self, seen: Seen) -> float:
        days = max(0.0, self._now - seen.time) / 86_400
        return max(OLD, math.exp2(-days / HALF_LIFE_DAYS))

    def _model_offset(self, on: Conditions) -> float:
        """How a model does against the fit, over all datasets: a log of seconds."""
        weight, total = NO_OFFSET, 0.0
        for seen, (counts, residuals) in self._sums.items():
            like = likeness(seen, on)
            weight, total = weight + like * counts, total + like * residuals
        return total / weight

    def _correction(self, asked: Subject, on: Conditions, found: Fit) -> tuple[float, float]:
        """The log of what base seconds are to be multiplied by, and its standard deviation."""
        offset = self._offset(on)
        pairs = [
            (
                row.age * likeness(row.seen.conditions, on) * _settings(row.seen.subject, asked),
                row.residual - self._offset(row.seen.conditions),
            )
            for row in self._of(asked)
        ]
        total = sum(w for w, _ in pairs)
        mean = sum(w * r for w, r in pairs) / (total + NOTHING_LEARNED)
        variance = _variance(pairs, mean)
        learned = total / (total + NOTHING_LEARNED)
        if not found.observations:
            # Whatever was seen elsewhere, what this GPU or engine does is a guess.
            learned = 0.0
        variance = learned * variance + (1 - learned) * found.spread**2
        variance += (SPREAD_PER_E_FOLD * self._distance(asked, on)) ** 2
        return offset + mean, max(LEAST_SPREAD, math.sqrt(variance))

    def _distance(self, asked: Subject, on: Conditions) -> float:
        """Log of the ratio of sizes of this model and the nearest on which the dataset ran."""
        sizes = (row.seen.conditions.model.parameters for row in self._of(asked))
        return min((abs(math.log(size / on.model.parameters)) for size in sizes), default=0.0)

    def _learned_work(self, asked: Subject, work: Work, on: Conditions, *, built: bool) -> Work:
        """The work with what models really wrote, and with real prompts unless those are known."""
        weights = [
            row.age * _answers_alike(row.seen.conditions, on) * _settings(row.seen.subject, asked)
            for row in self._of(asked)
        ]
        if sum(weights) < LEAST_WEIGHT:
            return work
        seen = [row.seen for row in self._of(asked)]

        def mean(of: Callable[[DatasetSeen], float]) -> float:
            return sum(w * of(one) for w, one in zip(weights, seen, strict=True)) / sum(weights)

        requests, prompts = work.requests, work.prompt_tokens
        if not built:
            requests = work.items * mean(lambda s: s.requests / s.items)
            prompts = work.items * mean(lambda s: s.prompt_tokens / s.items)
        changed = {
            "requests": requests,
            "prompt_tokens": prompts,
            "output_tokens": requests * mean(lambda s: s.output_tokens / s.requests),
            "longest_output_tokens": mean(lambda s: s.longest_output_tokens),
        }
        return work.model_copy(update=changed)

    def _metric_seconds(self, asked: Subject, work: Work, on: Conditions) -> float:
        guess = work.metric_cpu_seconds / max(1, work.items)
        weight, total = NOTHING_LEARNED, NOTHING_LEARNED * guess
        for seen in self._metrics.get(asked.task, ()):
            like = _answers_alike(seen.conditions, on) * _settings(seen.subject, asked)
            like *= self._age(seen)
            weight, total = weight + like, total + like * seen.cpu_seconds / seen.items
        return work.items * total / weight


def _variance(pairs: Sequence[tuple[float, float]], mean: float) -> float:
    """Of the next residual, from those seen and their weights: a sample's variance, with one more
    of `RUN_SPREAD`, and that of the mean on top.
    """
    total = sum(w for w, _ in pairs)
    if not total:
        return RUN_SPREAD**2
    count = total**2 / sum(w * w for w, _ in pairs)  # Kish's effective size of a weighted sample
    sample = sum(w * (r - mean) ** 2 for w, r in pairs) / total
    return (sample + RUN_SPREAD**2 / count) * (1 + 1 / count)


def likeness(seen: Conditions, asked: Conditions) -> float:
    """What an observation under these conditions counts for those: 1 when they are the same."""
    like = _answers_alike(seen, asked)
    if seen.engine != asked.engine:
        like *= OTHER_ENGINE
    elif seen.engine_version != asked.engine_version:
        like *= OTHER_VERSION
    if gpus.name(seen.gpu) != gpus.name(asked.gpu):
        like *= OTHER_GPU
    elif gpus.name(seen.gpu) == "cpu" and seen.gpu != asked.gpu:
        like *= OTHER_PROCESSOR
    if seen.sequences != asked.sequences:
        like *= OTHER_VERSION
    return like


def errors_left_out(seen: Sequence[Seen], now: float, most_runs: int) -> dict[str, list[float]]:
    """By dataset, predicted / measured − 1 of each of the newest runs, predicted from all others.

    Only of datasets that others have run as well.
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


@lru_cache(maxsize=4096)
def _alike(seen: Model, asked: Model) -> float:
    """1 for two checkpoints of one training run; less by size for other models."""
    like = 1.0 if seen.tensor_parallel == asked.tensor_parallel else OTHER_DEGREE
    same = (seen.family, seen.parameters, seen.dtype) == (
        asked.family,
        asked.parameters,
        asked.dtype,
    )
    if same:
        return like
    return like * OTHER_MODEL * _size_alike(seen.parameters, asked.parameters)


def _size_alike(seen: float, asked: float) -> float:
    """1 for the same size, 1/e for `SIZE_RATIO` times it."""
    return math.exp(-abs(math.log(seen / asked)) / math.log(SIZE_RATIO))


def _answers_alike(seen: Conditions, asked: Conditions) -> float:
    """What the answers under these conditions count for those: a model's, or made up."""
    if seen.engine != asked.engine and "simulated" in (seen.engine, asked.engine):
        return 0.0
    return _alike(seen.model, asked.model)


def _settings(seen: Subject, asked: Subject) -> float:
    return 1.0 if seen.settings == asked.settings else OTHER_SETTINGS
