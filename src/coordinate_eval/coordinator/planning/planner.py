"""The plan on a given number of GPUs: values in, `Plan` out.

`dealing` deals the shards, `simulate` finds the makespan of the result, and `lower_bound` the
makespan that no plan beats.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from coordinate_eval.coordinator.planning.dealing import packing, signal_slices
from coordinate_eval.coordinator.planning.dealing.packing import Piece, cut, seconds, shard_of
from coordinate_eval.coordinator.planning.judging import judged
from coordinate_eval.coordinator.planning.lower_bound import lower_bound
from coordinate_eval.coordinator.planning.plan import (
    Capacity,
    Cost,
    Estimate,
    JudgeWork,
    MetricJob,
    NodeCapacity,
    Plan,
    PlanCheckpoint,
    PlanEngine,
    PlanJudge,
    PlanNode,
    PlanSuite,
    PlanTrial,
    ScoreJob,
    Stage,
)
from coordinate_eval.coordinator.planning.simulate import simulate
from coordinate_eval.errors import UserError
from coordinate_eval.priors.staging import Link
from coordinate_eval.records import Checkpoint, Shard

GOOD_ENOUGH = 1.01
"""Multiple of the lower bound below which no more cores are kept for scoring."""

METRIC_SHARE = 0.002
"""Share of the lower bound that one metric job takes on all cores, where shards are that small."""

SCORING_ROOM = 2.0
"""Cores to keep for scoring, as a multiple of its seconds over those of the lower bound."""

LONG_METRIC_SHARE = 0.01
"""Share of the lower bound above which the metric of one item gets more than one core."""

SIGNAL_PRICE = 1.02
"""Longest makespan with a first signal, as a multiple of the makespan without one."""

CANNOT_WAIT = 0.9
"""Longest item, as a share of the plan's time, above which a trial begins with it."""

SIGNAL_SCALES = (1.0, 0.5, 0.25)
"""Sizes of a first signal to try in turn, until one stays within `SIGNAL_PRICE`."""


class _Dealt(NamedTuple):
    """The result of dealing in one way."""

    trials: list[PlanTrial]
    metric_jobs: list[MetricJob]
    score_jobs: list[ScoreJob]
    outcome: Estimate
    judge: PlanJudge | None

    @property
    def last_score(self) -> float:
        """The second of the last score, the judge's included."""
        judged = self.judge.end_seconds if self.judge else 0.0
        return max(self.outcome.makespan_seconds, judged)


def plan_on_capacity(
    checkpoint: Checkpoint,
    suite: PlanSuite,
    engine: PlanEngine,
    costs: Sequence[Cost],
    capacity: Capacity,
    *,
    first_signal: bool = False,
    judge: JudgeWork | None = None,
    spare_gpus: int = 0,
    latest: float = math.inf,
) -> Plan:
    """Plan the evaluation of one checkpoint on this capacity.

    With `first_signal`, trials begin with a slice of every dataset (see `signal_slices`), where
    that keeps the makespan within `SIGNAL_PRICE`. What a `judge` is asked about comes as early as
    the last score wants it; the job of a checkpoint that judges may use `spare_gpus` too. Neither
    makes the makespan longer than `latest`, in seconds, if it could be shorter.

    Raises:
        UserError: There is nothing to run, or no node to run it on.
    """
    if not costs:
        raise UserError("the suite has no datasets")
    if not capacity.nodes:
        raise UserError("no node can start a trial")
    staged = stage_seconds(checkpoint, capacity)
    slots = _slots(capacity)
    bound = least_seconds(checkpoint, costs, capacity)
    dealer = _Dealer(costs, capacity, slots, staged, bound, judge, spare_gpus, latest)
    best = dealer.best([[] for _ in slots])
    if first_signal and not any(cost.stages for cost in costs):  # the first stage is one
        best = dealer.with_signal(best)
    outcome = best.outcome
    # A plan may reach the bound exactly, and sums of floats differ with their order.
    least = min(bound, outcome.makespan_seconds)
    outcome = outcome.model_copy(update={"lower_bound_seconds": least})
    used = {trial.node for trial in best.trials}
    nodes = [
        PlanNode(name=name, gpus=n.gpus, gpu_type=n.gpu_type)
        for n in capacity.nodes
        if n.name in used
        for name in (n.name, *n.others)
    ]
    copied = (capacity.node_bytes or checkpoint.bytes) if capacity.gpus_per_trial else 0
    return Plan(
        checkpoint=PlanCheckpoint.model_validate(checkpoint.model_dump()),
        suite=suite,
        engine=engine,
        gpus_per_trial=capacity.gpus_per_trial,
        nodes_per_trial=capacity.nodes_per_trial,
        datasets=list(costs),
        nodes=nodes,
        stages=[Stage(node=n.name, bytes=copied, seconds=staged) for n in nodes],
        trials=best.trials,
        metric_jobs=best.metric_jobs,
        score_jobs=best.score_jobs,
        judge=best.judge,
        estimate=outcome,
        metric_cpus=capacity.metric_cpus,
    )


def least_seconds(checkpoint: Checkpoint, costs: Sequence[Cost], capacity: Capacity) -> float:
    """Return the makespan in seconds that no plan on this capacity beats."""
    ready = stage_seconds(checkpoint, capacity) + capacity.engine_start_seconds
    return lower_bound(costs, ready, capacity.trials, capacity.metric_cpus)


def stage_seconds(checkpoint: Checkpoint, capacity: Capacity) -> float:
    """Return the seconds to copy the weights to one node while all nodes copy at once.

    The lower bound includes them too: it is for plans that stage all of these nodes.
    """
    if not capacity.gpus_per_trial:  # the weights are where the engine is
        return 0.0
    link = Link(capacity.storage_gigabits_per_node, capacity.storage_shared)
    copied = capacity.node_bytes or checkpoint.bytes
    return link.seconds(
        int(copied * checkpoint.reads), len(capacity.nodes) * capacity.nodes_per_trial
    )


def metric_jobs(
    costs: Sequence[Cost], trials: Sequence[PlanTrial], cpus: int, bound: float
) -> list[MetricJob]:
    """Return the metric jobs, each over neighbouring shards of one dataset.

    Jobs that a longer scoring follows come first; among equals, the longest.
    A dataset gets the fewest jobs that each stay below `METRIC_SHARE` of the lower bound (`bound`,
    in seconds), and none if its metric costs nothing.
    """
    shards: dict[str, list[Shard]] = {}
    for trial in trials:
        for shard in trial.shards:
            shards.setdefault(shard.dataset, []).append(shard)
    jobs = []
    for cost in costs:
        if cost.metric_cpu_seconds <= 0:
            continue
        mine = sorted(shards[cost.name], key=lambda s: s.start)
        wanted = math.ceil(cost.metric_cpu_seconds / cpus / (METRIC_SHARE * bound))
        jobs += [
            _metric_job(cost, start, stop, cpus, bound)
            for start, stop in _ranges(mine, min(wanted, len(mine)))
        ]
    scoring = {cost.name: cost.score_seconds for cost in costs}
    return sorted(jobs, key=lambda j: (-scoring[j.dataset], -j.seconds * j.cpus))


def score_jobs(costs: Sequence[Cost]) -> list[ScoreJob]:
    """Return a score job for each dataset whose scoring takes time, longest first."""
    ordered = sorted(costs, key=lambda c: -c.score_seconds)
    return [ScoreJob(dataset=c.name, seconds=c.score_seconds) for c in ordered if c.score_seconds]


def _metric_job(cost: Cost, start: int, stop: int, cpus: int, bound: float) -> MetricJob:
    """Return a job with one core per item, as metrics run.

    It has more cores where the metric of a single item would decide the makespan; plan@1 lets a
    metric speed up with cores without limit.
    """
    work = cost.metric_cpu_seconds * (stop - start) / cost.items
    cores = min(cpus, max(stop - start, math.ceil(work / (LONG_METRIC_SHARE * bound))))
    # Round down so that a whole number of such jobs fills all cores.
    cores = cpus // math.ceil(cpus / cores)
    return MetricJob(dataset=cost.name, start=start, stop=stop, cpus=cores, seconds=work / cores)


def _ranges(shards: Sequence[Shard], count: int) -> Iterator[tuple[int, int]]:
    """Yield `count` ranges with about equally many items, each ending at the end of a shard."""
    first = 0
    items = shards[-1].stop - shards[0].start
    for number in range(1, count + 1):
        edge = shards[0].start + items * number / count
        last = first
        while last + 1 < len(shards) and shards[last].stop < edge:
            last += 1
        yield shards[first].start, shards[last].stop
        first = last + 1
        if first == len(shards):
            return


def _slots(capacity: Capacity) -> list[tuple[NodeCapacity, int]]:
    """Return (node, index of a trial on it): the first trial of each node, then the second, …"""
    most = max(node.trials for node in capacity.nodes)
    every = [(node, index) for index in range(most) for node in capacity.nodes]
    return [(node, index) for node, index in every if index < node.trials]


@dataclass(frozen=True)
class _Dealer:
    """Deals datasets to trials, and keeps the best plan that comes of it."""

    costs: Sequence[Cost]
    capacity: Capacity
    slots: Sequence[tuple[NodeCapacity, int]]
    """The trials that there can be: each node, and the index of a trial on it."""
    staged: float
    """Seconds until the weights are in the nodes' memory."""
    bound: float
    """The makespan that no plan beats, in seconds."""
    judge: JudgeWork | None
    spare_gpus: int
    """GPUs beside the capacity, for the job of a checkpoint that judges."""
    latest: float
    """Longest makespan wanted, in seconds."""

    def best(self, first: list[list[Piece]]) -> _Dealt:
        """Deal, and return the plan with the shortest makespan.

        Sorted datasets in turn are considered too, so that no plan is worse than that simple rule.

        With a judge, the makespan may be longer by no more seconds than the last score comes
        earlier, but not too late where it need not be. Trials run the slices in `first` first.
        Among equal plans the one found first wins.
        """
        costs, cpus = self.costs, self.capacity.metric_cpus
        begin = self.staged + self.capacity.engine_start_seconds
        ready = [begin + sum(seconds(costs[p.cost], p) for p in queue) for queue in first]
        rest = signal_slices.rest(costs, [piece for queue in first for piece in queue])
        pieces = [part for piece in rest for part in packing.in_stages(costs[piece.cost], piece)]
        found: list[_Dealt] = []

        # A judge may need GPUs that are free late, whatever comes first: it may have no say there.
        unjudged = [cost.model_copy(update={"judge_seconds": 0.0}) for cost in costs]
        for each in (costs, unjudged) if self.judge else (costs,):
            found += self._with_jobs(self._trials(first, packing.deal(each, pieces, ready, cpus)))
        in_turn = packing.deal_round_robin(costs, pieces, len(self.slots))
        found += self._with_jobs(self._trials(first, in_turn))

        def rank(dealt: _Dealt) -> tuple[float, float]:
            makespan = dealt.outcome.makespan_seconds
            return max(0.0, makespan - self.latest), makespan + dealt.last_score

        return min(found, key=rank)

    def with_signal(self, without: _Dealt) -> _Dealt:
        """Return the plan with the largest slices that cost no more than `SIGNAL_PRICE`.

        Return `without` where all slices cost more. Trials that begin with an item as long as the
        plan get no slice, because that item cannot wait.
        """
        makespan = without.outcome.makespan_seconds
        most = min(SIGNAL_PRICE * makespan, max(makespan, self.latest))
        window = makespan - self.staged - self.capacity.engine_start_seconds
        floors = {cost.name: cost.floor_seconds for cost in self.costs}
        firsts = [floors[trial.shards[0].dataset] for trial in without.trials]
        busy = sum(floor > CANNOT_WAIT * window for floor in firsts)
        count = len(self.slots) - busy
        for scale in SIGNAL_SCALES if count else ():
            slices = signal_slices.pick(self.costs, count, window, scale)
            first = signal_slices.deal(self.costs, slices, count)
            dealt = self.best([*first, *([] for _ in range(busy))])
            if dealt.outcome.makespan_seconds <= most:
                return dealt
        return without

    def _with_jobs(self, trials: list[PlanTrial]) -> Iterator[_Dealt]:
        """Yield these trials with metric jobs, which leave more and more cores for scoring."""
        cpus, scores = self.capacity.metric_cpus, score_jobs(self.costs)
        unused = (len(self.slots) - len(trials)) * self.capacity.gpus_per_trial
        for kept in _cores_for_scores(self.costs, cpus, self.bound):
            jobs = metric_jobs(self.costs, trials, cpus - kept, self.bound)
            timeline = simulate(self.costs, trials, jobs, scores, cpus)
            outcome, judge = timeline.estimate(self.bound), None
            if self.judge is not None:
                judge = judged(self.judge, self.costs, timeline, self.spare_gpus + unused)
            yield _Dealt(trials, jobs, scores, outcome, judge)
            if outcome.makespan_seconds <= GOOD_ENOUGH * self.bound:
                return

    def _trials(self, first: list[list[Piece]], queues: list[list[Piece]]) -> list[PlanTrial]:
        """Return the trials that have work, each with its slices first."""
        return [
            PlanTrial(
                id=f"{node.name}-{index}",
                node=node.name,
                nodes=[node.name, *node.others] if node.others else [],
                gpus=self.capacity.gpus_per_trial,
                start_seconds=self.staged,
                setup_seconds=self.capacity.engine_start_seconds,
                shards=[
                    *(shard_of(self.costs[p.cost], p, signal=True) for p in slices),
                    *(shard_of(self.costs[p.cost], q) for p in queue for q in self._short(p)),
                ],
            )
            for (node, index), slices, queue in zip(self.slots, first, queues, strict=True)
            if slices or queue
        ]

    def _short(self, piece: Piece) -> Iterator[Piece]:
        """Yield a piece in parts that a trial can complete within its time limit."""
        return cut(self.costs[piece.cost], piece, self.capacity.longest_shard_seconds)


def _cores_for_scores(costs: Sequence[Cost], cpus: int, bound: float) -> list[int]:
    """Return how many cores to keep for scoring beside metric jobs: the numbers to try.

    Metric jobs go first. Where they occupy all cores until the end, long scorings would follow.
    """
    seconds = sum(c.score_seconds for c in costs)
    kept = math.ceil(SCORING_ROOM * seconds / bound)
    metrics = any(c.metric_cpu_seconds for c in costs)
    return [0, kept] if metrics and 0 < kept < cpus else [0]
