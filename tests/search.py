"""The best of all schedules of a small instance, from the words of plan@1 alone.

Items of a dataset are alike but for the first shard, which pays no overhead, so a way to cut a
dataset is the length of its first shard and the lengths of the others, in any order. For every way
to cut all datasets, every way to hand shards to trials, and every order on each, is tried; what
cannot become better than the best so far is left.

Metrics: a job speeds up with cores without limit, so for given responses nothing beats a job for
each shard's items, on all cores, as soon as they are there: all cores are busy whenever there is
anything to answer. `every_metric_plan` does not take this for granted. (A job over parts of a
shard begins no sooner, one over several shards only when the last of them is answered.)
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Dataset(NamedTuple):
    """The costs of a dataset, in seconds."""

    items: int
    gpu: float
    metric: float = 0.0
    overhead: float = 0.0
    floor: float = 0.0
    splittable: bool = True
    score: float = 0.0


class Shard(NamedTuple):
    """Items of a dataset that run together: GPU seconds, seconds to its last response, metric."""

    seconds: float
    answered: float
    metric: float
    dataset: int = 0


class Answered(NamedTuple):
    """A shard's last response, in seconds, and the metric that follows."""

    when: float
    metric: float
    dataset: int = 0


def least_makespan(datasets: Sequence[Dataset], ready: Sequence[float], cpus: int) -> float:
    """Of all schedules on trials that can begin at these moments, with so many metric cores."""
    search = _Search(cpus, [dataset.score for dataset in datasets])
    for cut in itertools.product(*(list(cuts(dataset)) for dataset in datasets)):
        shards = [
            shard._replace(dataset=number) for number, mine in enumerate(cut) for shard in mine
        ]
        search.try_all(tuple(sorted(ready)), sorted(shards, reverse=True), [])
    return search.best


def cuts(dataset: Dataset) -> Iterator[list[Shard]]:
    """Every way to cut a dataset."""
    if not dataset.splittable:
        yield [_shard(dataset, dataset.items, first=True)]
        return
    for first in range(1, dataset.items + 1):
        for others in _partitions(dataset.items - first, dataset.items):
            yield [
                _shard(dataset, first, first=True),
                *(_shard(dataset, items, first=False) for items in others),
            ]


def _shard(dataset: Dataset, items: int, *, first: bool) -> Shard:
    share = items / dataset.items
    seconds = dataset.gpu * share + (0.0 if first else dataset.overhead)
    return Shard(seconds, max(seconds, dataset.floor), dataset.metric * share)


def _partitions(items: int, most: int) -> Iterator[tuple[int, ...]]:
    """Whole numbers of this sum, none above `most`, the largest first."""
    if not items:
        yield ()
    for part in range(min(items, most), 0, -1):
        for rest in _partitions(items - part, part):
            yield (part, *rest)


@dataclass
class _Search:
    """The best so far."""

    cpus: int
    scores: Sequence[float]
    best: float = math.inf

    def try_all(self, free: tuple[float, ...], left: list[Shard], done: list[Answered]) -> None:
        """The trial that is free first, of `free`, takes any of the shards left, or none any more.

        Every schedule in which no trial waits is met once: in the order in which shards begin.
        """
        end = max((each.when for each in done), default=0.0)
        if not left:
            self.best = min(self.best, max(end, scores_end(done, self.scores, self.cpus)))
            return
        if not free or self._hopeless(free, left, done, end):
            return
        now, others = free[0], free[1:]
        for shard in dict.fromkeys(left):
            rest = list(left)
            rest.remove(shard)
            answered = Answered(now + shard.answered, shard.metric, shard.dataset)
            after = tuple(sorted((*others, now + shard.seconds)))
            self.try_all(after, rest, [*done, answered])
        self.try_all(others, left, done)

    def _hopeless(
        self, free: tuple[float, ...], left: list[Shard], done: list[Answered], end: float
    ) -> bool:
        """Return whether the shards left, even spread evenly, would end no sooner than the best."""
        even = (sum(free) + sum(shard.seconds for shard in left)) / len(free)
        alone = free[0] + max(shard.answered + shard.metric / self.cpus for shard in left)
        coming = [Answered(free[0] + shard.answered, shard.metric) for shard in left]
        metrics = metrics_end([*done, *coming], self.cpus)
        return max(end, even, alone, metrics) >= self.best * (1 - 1e-12)


def metrics_end(done: Sequence[Answered], cpus: int) -> float:
    """Return the end of all metrics, each on all cores once its responses are there."""
    now = 0.0
    for when, metric, _ in sorted(done):
        if metric:
            now = max(now, when) + metric / cpus
    return now


def scores_end(done: Sequence[Answered], scores: Sequence[float], cpus: int) -> float:
    """Return the end of all metrics and scorings: the best of many ways where there are scorings.

    Datasets go first in any order, each dataset's metrics on all cores or on one, and its scoring
    follows on one core.
    """
    if not any(scores):
        return metrics_end(done, cpus)
    return min(
        _in_turn(done, order, scores, cpus, width)
        for order in itertools.permutations(range(len(scores)))
        for width in {1, cpus}
    )


def _in_turn(
    done: Sequence[Answered], order: Sequence[int], scores: Sequence[float], cpus: int, width: int
) -> float:
    """Return the end of the last scoring where datasets take free cores in this order."""
    free = [0.0] * cpus
    last = 0.0
    for dataset in order:
        mine = sorted(each for each in done if each.dataset == dataset)
        scored = max(each.when for each in mine)
        for each in mine:
            if each.metric:
                free.sort()
                ends = max(each.when, free[width - 1]) + each.metric / width
                free[:width] = [ends] * width
                scored = max(scored, ends)
        if scores[dataset]:
            # The core that is free last of those that are free in time.
            free.sort()
            core = max((n for n in range(cpus) if free[n] <= scored), default=0)
            free[core] = max(scored, free[core]) + scores[dataset]
            scored = free[core]
        last = max(last, scored)
    return last


def every_metric_plan(done: Sequence[Answered], cpus: int) -> Iterator[float]:
    """Yield the end of all metrics, for each way to run them.

    Each shard's items are one job on any number of cores. Jobs are listed in any order, and the
    first that fits starts.
    """
    asked = [each for each in done if each.metric]
    for order in itertools.permutations(asked):
        for cores in itertools.product(range(1, cpus + 1), repeat=len(order)):
            yield _listed(list(zip(order, cores, strict=True)), cpus)


def _listed(waiting: list[tuple[Answered, int]], cpus: int) -> float:
    """Return the end of the last of these jobs: in the order listed, the first that fits starts."""
    running: list[tuple[float, int]] = []
    now = last = 0.0
    while waiting:
        running = [(ends, cores) for ends, cores in running if ends > now]
        for job in list(waiting):
            (when, metric, _), cores = job
            if when <= now and cores + sum(c for _, c in running) <= cpus:
                waiting.remove(job)
                running.append((now + metric / cores, cores))
                last = max(last, now + metric / cores)
        moments = [ends for ends, _ in running] + [each.when for (each, _) in waiting]
        now = min((moment for moment in moments if moment > now), default=now)
    return last
