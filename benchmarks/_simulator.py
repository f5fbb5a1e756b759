"""An event simulator of schedules, independent of the planner and its own simulator.

Both are judged by it. Its rules, with time 0 at the submission:

- A node has room for a number of engines, and one storage link. All engines that load weights at
  once through a link share it evenly, so n of them take n × `load_seconds` each.
- An engine answers `start_seconds` after its weights are loaded, and runs spans of items one after
  another. A span takes its share of the dataset's `gpu_seconds`, and also `chunk_overhead_seconds`
  unless it begins the dataset. It is complete at its end or `floor_seconds` after its start,
  whichever is later; the engine is at the next span by then.
- Metrics run on `metric_cpus` cores. The first metric in the order given that is due and fits
  starts. It uses at most one core per item, and holds all cores that it was given.
- The scoring of a dataset follows its last response and its last metric, on one of these cores.
  Scorings start after the metrics that are due, the longest first.
"""

import heapq
import itertools
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from coordinate_eval.coordinator.planning.plan import Capacity, Cost, Plan
from coordinate_eval.records import Span

CORES_PER_METRIC = 16
"""Cores for the metric of a dataset without a plan."""

When = Literal["held", "overlapped", "after"]
"""The time at which the metrics of jobs run; see `play_jobs`."""


class Cluster(NamedTuple):
    """The cluster of a simulation: engines that fit on each node, seconds, and cores."""

    nodes: dict[str, int]
    load_seconds: float
    start_seconds: float
    metric_cpus: int

    @property
    def engines(self) -> int:
        """Count the engines that run at once."""
        return sum(self.nodes.values())


class Metric(NamedTuple):
    """Items that are scored together on a number of cores."""

    span: Span
    cores: int


def cluster(capacity: Capacity, checkpoint_bytes: int) -> Cluster:
    """Return the cluster of a capacity, for weights of `checkpoint_bytes`."""
    return Cluster(
        {node.name: node.trials for node in capacity.nodes},
        checkpoint_bytes * 8 / (capacity.storage_gigabits_per_node * 1e9),
        capacity.engine_start_seconds,
        capacity.metric_cpus,
    )


def bound(costs: Iterable[Cost], where: Cluster) -> float:
    """Return the makespan in seconds that no schedule beats.

    It is the largest of three: all GPU time spread evenly over all engines; each dataset alone, cut
    into as many pieces as there are engines and items, followed by the metric of one item (or of
    all, if the dataset cannot be cut) and by its scoring; and the metrics, of each dataset with its
    scoring and of all on all cores, from the first possible answer on.
    """
    costs = list(costs)
    ready = where.load_seconds + where.start_seconds
    work = sum(cost.gpu_seconds for cost in costs) / where.engines
    alone = answered = 0.0
    first = []
    for cost in costs:
        pieces = min(where.engines, cost.items) if cost.splittable else 1
        grain = cost.items if cost.splittable else 1
        whole = max(cost.gpu_seconds / pieces, cost.floor_seconds)
        least = max(cost.gpu_seconds / grain, cost.floor_seconds)
        scoring = cost.metric_cpu_seconds / min(cost.items, where.metric_cpus)
        last = cost.metric_cpu_seconds / cost.items if cost.splittable else scoring
        alone = max(alone, whole + last + cost.score_seconds)
        if scoring:
            answered = max(answered, least + scoring + cost.score_seconds)
            first.append(least)
    if first:
        metrics = sum(cost.metric_cpu_seconds for cost in costs) / where.metric_cpus
        answered = max(answered, min(first) + metrics)
    return ready + max(work, alone, answered)


def play_plan(
    plan: Plan,
    truth: Mapping[str, Cost],
    where: Cluster,
    *,
    pulling: bool,
) -> float:
    """Return the makespan of a plan, with weights staged once per node.

    With `pulling`, trials claim shards as in a real run: first their own, then the longest by the
    plan that no trial has begun. Metrics run as shards are complete, in the plan's order, on the
    cores that the plan gives each.
    """
    ready = where.load_seconds + where.start_seconds
    own = {trial.id: deque(shard.span for shard in trial.shards) for trial in plan.trials}
    everything = sorted(
        (shard for trial in plan.trials for shard in trial.shards), key=lambda s: -s.gpu_seconds
    )
    free = deque(shard.span for shard in everything)
    begun: set[Span] = set()
    complete: list[tuple[float, Span]] = []
    engines = [(ready, number, trial.id) for number, trial in enumerate(plan.trials)]
    while engines:
        now, number, trial_id = engines[0]
        queue = own[trial_id]
        while queue and queue[0] in begun:
            queue.popleft()
        while pulling and not queue and free and free[0] in begun:
            free.popleft()
        source = queue or (free if pulling else queue)
        if not source:
            heapq.heappop(engines)
            continue
        span = source.popleft()
        begun.add(span)
        ends, done = _run(span, truth[span.dataset], now)
        complete.append((done, span))
        heapq.heapreplace(engines, (ends, number, trial_id))
    metrics = [Metric(Span(job.dataset, job.start, job.stop), job.cpus) for job in plan.metric_jobs]
    last = max((when for when, _ in complete), default=ready)
    return max(last, scored(metrics, complete, truth, where.metric_cpus))


def play_jobs(
    jobs: Sequence[Sequence[Span]],
    truth: Mapping[str, Cost],
    where: Cluster,
    metrics: When,
) -> float:
    """Return the makespan of jobs that start in this order as GPUs become free.

    Each job loads the weights on the node with the fewest loads among those with room, and starts
    an engine. With `held`, a job keeps its GPUs while it scores its datasets one after another, on
    its share of the metric cores. Otherwise the metrics of whole datasets run on `CORES_PER_METRIC`
    cores each, the costliest first: `overlapped` as soon as a dataset is complete, `after` when the
    last job has ended.
    """
    complete, last = _Jobs(truth, where, held=metrics == "held").play(jobs)
    if metrics == "held":
        return last
    wanted = sorted(
        (cost for cost in truth.values() if cost.metric_cpu_seconds > 0),
        key=lambda cost: -cost.metric_cpu_seconds,
    )
    whole = [
        Metric(Span(c.name, 0, c.items), min(CORES_PER_METRIC, c.items, where.metric_cpus))
        for c in wanted
    ]
    if metrics == "after":
        complete = [(last, span) for _, span in complete]
    return max(last, scored(whole, complete, truth, where.metric_cpus))


def scored(
    metrics: Sequence[Metric],
    complete: Iterable[tuple[float, Span]],
    truth: Mapping[str, Cost],
    cores: int,
) -> float:
    """Return the second at which the last metric or scoring ends, or 0 without any.

    A metric is due when all spans that it overlaps are complete, a scoring when all spans and
    metrics of its dataset are.
    """
    landed: dict[str, list[tuple[int, int, float]]] = defaultdict(list)
    for when, span in complete:
        landed[span.dataset].append((span.start, span.stop, when))
    for spans in landed.values():
        spans.sort()
    longest = sorted((c for c in truth.values() if c.score_seconds), key=lambda c: -c.score_seconds)
    scorings = {cost.name: len(metrics) + n for n, cost in enumerate(longest)}
    widths = [*(metric.cores for metric in metrics), *(1 for _ in longest)]
    unfinished = Counter(metric.span.dataset for metric in metrics)
    coming = [
        (max(w for a, b, w in _overlapping(landed[metric.span.dataset], metric.span)), order)
        for order, metric in enumerate(metrics)
    ]
    coming += [
        (max(when for _, _, when in landed[name]), order)
        for name, order in scorings.items()
        if not unfinished[name]
    ]
    heapq.heapify(coming)
    # What is due, by width: the next to start is the first of one of these queues.
    waiting: dict[int, list[int]] = defaultdict(list)
    running: list[tuple[float, int, str]] = []
    last = 0.0
    while coming or running:
        now = min(queue[0][0] for queue in (coming, running) if queue)
        while running and running[0][0] <= now:
            _, width, dataset = heapq.heappop(running)
            cores += width
            unfinished[dataset] -= 1
            if unfinished[dataset] == 0 and dataset in scorings:
                complete_at = max(when for _, _, when in landed[dataset])
                heapq.heappush(coming, (max(now, complete_at), scorings[dataset]))
        while coming and coming[0][0] <= now:
            order = heapq.heappop(coming)[1]
            heapq.heappush(waiting[widths[order]], order)
        while fitting := [queue for width, queue in waiting.items() if queue and width <= cores]:
            order = heapq.heappop(min(fitting))
            dataset, seconds = (
                _metric_seconds(metrics[order], truth)
                if order < len(metrics)
                else (
                    longest[order - len(metrics)].name,
                    longest[order - len(metrics)].score_seconds,
                )
            )
            cores -= widths[order]
            heapq.heappush(running, (now + seconds, widths[order], dataset))
            last = max(last, now + seconds)
    assert not any(waiting.values()), "a metric asks for more cores than there are"
    return last


def _metric_seconds(metric: Metric, truth: Mapping[str, Cost]) -> tuple[str, float]:
    """Return the dataset of a metric, and its seconds on its cores."""
    span, cost = metric.span, truth[metric.span.dataset]
    share = (span.stop - span.start) / cost.items
    used = min(metric.cores, span.stop - span.start)
    return span.dataset, cost.metric_cpu_seconds * share / used


def _overlapping(
    spans: list[tuple[int, int, float]], wanted: Span
) -> Iterator[tuple[int, int, float]]:
    """Yield the spans that share an item with the wanted span; `spans` are sorted and disjoint."""
    low, high = 0, len(spans)
    while low < high:
        middle = (low + high) // 2
        if spans[middle][1] <= wanted.start:
            low = middle + 1
        else:
            high = middle
    return itertools.takewhile(lambda span: span[0] < wanted.stop, spans[low:])


def _run(span: Span, cost: Cost, now: float) -> tuple[float, float]:
    """Return when an engine that begins a span now is free, and when the span is complete."""
    seconds = cost.gpu_seconds * (span.stop - span.start) / cost.items
    if span.start:
        seconds += cost.chunk_overhead_seconds
    return now + seconds, now + max(seconds, cost.floor_seconds)


@dataclass
class _Link:
    """A node's storage link; a load that ran all along has had `done` seconds of it."""

    done: float = 0.0
    since: float = 0.0
    loading: deque[tuple[float, int]] = field(default_factory=deque)  # (done at which, job)
    version: int = 0

    def advance(self, now: float) -> None:
        if self.loading:
            self.done += (now - self.since) / len(self.loading)
        self.since = now

    def next_end(self) -> float:
        return self.since + (self.loading[0][0] - self.done) * len(self.loading)


class _Jobs:
    """Jobs that queue for GPUs, load weights, start an engine, run, and may score."""

    def __init__(self, truth: Mapping[str, Cost], where: Cluster, *, held: bool) -> None:
        self._truth, self._where, self._held = truth, where, held
        self._cores = max(1, where.metric_cpus // where.engines)
        self._nodes = list(where.nodes.values())
        self._links = [_Link() for _ in self._nodes]
        self._places = [(0, node) for node in range(len(self._nodes))]
        self._jobs: Sequence[Sequence[Span]] = ()
        # Ends of loads, valid while the link has their version, and ends of jobs.
        self._events: list[tuple[float, int, int]] = []  # (time, node, version, or -1 for a job)

    def play(self, jobs: Sequence[Sequence[Span]]) -> tuple[list[tuple[float, Span]], float]:
        """Return when each span is complete, and when the last job frees its GPUs."""
        self._jobs = jobs
        complete: list[tuple[float, Span]] = []
        now = 0.0
        begun, free = 0, sum(self._nodes)
        while begun < len(jobs) or self._events:
            while begun < len(jobs) and free:
                self._load(begun, now)
                begun, free = begun + 1, free - 1
            now, node, version = heapq.heappop(self._events)
            link = self._links[node]
            if version < 0:
                self._nodes[node] += 1
                free += 1
                heapq.heappush(self._places, (len(link.loading), node))
            elif version == link.version:
                link.advance(now)
                link.done, job = link.loading.popleft()
                self._expect(node)
                heapq.heappush(self._events, (self._answer(job, now, complete), node, -1))
        return complete, now

    def _load(self, job: int, now: float) -> None:
        while True:  # skip entries of nodes that have changed since
            loading, node = self._places[0]
            if self._nodes[node] and loading == len(self._links[node].loading):
                break
            heapq.heappop(self._places)
        self._nodes[node] -= 1
        link = self._links[node]
        link.advance(now)
        link.loading.append((link.done + self._where.load_seconds, job))
        self._expect(node)

    def _expect(self, node: int) -> None:
        link = self._links[node]
        link.version += 1
        heapq.heappush(self._places, (len(link.loading), node))
        if link.loading:
            heapq.heappush(self._events, (link.next_end(), node, link.version))

    def _answer(self, job: int, now: float, complete: list[tuple[float, Span]]) -> float:
        """Run a job whose weights are loaded; return when it frees its GPUs."""
        now += self._where.start_seconds
        last = now
        scoring = 0.0
        for span in self._jobs[job]:
            cost = self._truth[span.dataset]
            now, done = _run(span, cost, now)
            last = max(last, done)
            complete.append((done, span))
            items = span.stop - span.start
            cores = min(self._cores, items)
            scoring += cost.metric_cpu_seconds * items / cost.items / cores
            scoring += cost.score_seconds * items / cost.items
        return last + scoring if self._held else last
