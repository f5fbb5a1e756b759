"""How many GPUs to take: the plan of each size that is worth a look, and which of them to run.

More nodes end sooner, up to what the suite itself takes, and each costs the copy of the weights and
its engines' starts. Sizes are 1, 2, 4, … trials of the first node, then 1, 2, 4, … nodes, then all
of them.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from coordinate_eval.coordinator.planning.plan import Capacity, Plan, Size
from coordinate_eval.errors import UserError

Draft = Callable[[Capacity], Plan]
"""The plan for a capacity."""

Bounds = Callable[[Capacity], Iterable[float]]
"""Seconds that no plan on a capacity beats: as predicted first, then if predictions are wrong."""

SAME = 1.001
"""Times the shortest makespan up to which a plan on fewer nodes is as good."""

NEARLY_ALL = 0.95
"""Part of the nodes from which on all are taken: few left out save nothing worth a risk."""


def best(
    draft: Draft, bounds: Bounds, capacity: Capacity, deadline_seconds: float | None = None
) -> Plan:
    """The plan that ends first; of those that end as soon, that on the fewest nodes.

    Fewer nodes are taken only where they end as soon also if predictions are wrong (`bounds`): what
    others could take over is worth its GPUs.
    """
    latest = deadline_seconds or math.inf
    capacity = _soonest(bounds, capacity)
    least = list(bounds(capacity))
    count = _fewest(capacity, lambda part: _same(bounds(part), least))
    if count >= NEARLY_ALL * len(capacity.nodes):
        count = len(capacity.nodes)
    plan = draft(_first(capacity, count))
    if plan.estimate.makespan_seconds <= min(SAME * least[0], latest):
        return plan  # all nodes can't do better
    everything = plan if count == len(capacity.nodes) else draft(capacity)
    enough = min(SAME * everything.estimate.makespan_seconds, latest)
    while count < len(capacity.nodes):
        if plan.estimate.makespan_seconds <= enough:
            return plan
        count = min(2 * count, len(capacity.nodes))
        plan = draft(_first(capacity, count))
    return everything


def cheapest(draft: Draft, capacity: Capacity, deadline_seconds: float | None) -> Plan:
    """The plan of the fewest GPU-hours, of those that end by the deadline.

    Raises:
        UserError: none does; says what is possible.
    """
    plans = [draft(size) for size in sizes(capacity)]
    within = [plan for plan in plans if _in_time(plan, deadline_seconds)]
    if not within:
        assert deadline_seconds is not None
        raise late(min(plans, key=lambda p: p.estimate.makespan_seconds), deadline_seconds)
    chosen = min(within, key=lambda p: p.estimate.gpu_hours)
    return _fewest_nodes(draft, capacity, chosen, deadline_seconds)


def choose(
    draft: Draft,
    bounds: Bounds,
    capacity: Capacity,
    objective: str,
    deadline: float | None,
    *,
    named: bool = False,
) -> Plan:
    """The plan to run, by the objective `makespan` or `gpu-hours`; `deadline` in seconds.

    `named`: the user has named the nodes; for the makespan all of them are taken.

    Raises:
        UserError: nothing ends by the deadline; says what is possible.
    """
    if objective == "gpu-hours":
        return cheapest(draft, capacity, deadline)
    plan = draft(capacity) if named else best(draft, bounds, capacity, deadline)
    if not _in_time(plan, deadline):
        assert deadline is not None
        raise late(plan, deadline)
    return plan


def curve(draft: Draft, capacity: Capacity) -> list[Size]:
    """What each size would come to."""
    return [size_of(draft(smaller)) for smaller in sizes(capacity)]


def size_of(plan: Plan) -> Size:
    """What a plan takes and what it comes to."""
    return Size(
        nodes=len(plan.nodes), gpus=sum(t.gpus for t in plan.trials), estimate=plan.estimate
    )


def sizes(capacity: Capacity) -> Iterator[Capacity]:
    """Capacities from one trial to all, the most spacious nodes first."""
    nodes = sorted(capacity.nodes, key=lambda n: -n.trials)
    trials = 1
    while trials < nodes[0].trials:
        first = nodes[0].model_copy(update={"trials": trials})
        yield capacity.model_copy(update={"nodes": [first]})
        trials *= 2
    count = 1
    while count < len(nodes):
        yield _first(capacity, count)
        count *= 2
    yield capacity.model_copy(update={"nodes": nodes})


def late(plan: Plan, deadline_seconds: float) -> UserError:
    """What to say when even this plan misses the deadline."""
    return UserError(
        f"nothing ends within {deadline_seconds:g} s: the shortest plan takes "
        f"{plan.estimate.makespan_seconds:.0f} s on {sum(t.gpus for t in plan.trials)} GPUs of "
        f"{len(plan.nodes)} nodes; allow more time (--deadline), more GPUs or fewer items"
    )


def _fewest_nodes(
    draft: Draft, capacity: Capacity, chosen: Plan, deadline_seconds: float | None
) -> Plan:
    """The plan on the fewest nodes, of those between half as many and these, that is in time."""
    low, high = len(chosen.nodes) // 2, len(chosen.nodes)
    while high - low > 1:
        count = (low + high) // 2
        plan = draft(_first(capacity, count))
        if not _in_time(plan, deadline_seconds):
            low = count
            continue
        high = count
        if plan.estimate.gpu_hours < chosen.estimate.gpu_hours:
            chosen = plan
    return chosen


def _soonest(bounds: Bounds, capacity: Capacity) -> Capacity:
    """All nodes, or half of them and half of these where that many can end sooner: nodes that
    share a storage have their weights earlier where they are fewer.
    """
    seconds = next(iter(bounds(capacity)))
    while len(capacity.nodes) > 1:
        fewer = _first(capacity, len(capacity.nodes) // 2)
        sooner = next(iter(bounds(fewer)))
        if sooner >= seconds:
            break
        capacity, seconds = fewer, sooner
    return capacity


def _fewest(capacity: Capacity, enough: Callable[[Capacity], bool]) -> int:
    """The smallest number of nodes that is enough, where all are and more never are less so."""
    low, high = 0, len(capacity.nodes)
    while high - low > 1:
        count = (low + high) // 2
        if enough(_first(capacity, count)):
            high = count
        else:
            low = count
    return high


def _first(capacity: Capacity, count: int) -> Capacity:
    """So many of the nodes, the most spacious first; as they are listed where that is all."""
    if count == len(capacity.nodes):
        return capacity
    nodes = sorted(capacity.nodes, key=lambda n: -n.trials)
    return capacity.model_copy(update={"nodes": nodes[:count]})


def _same(seconds: Iterable[float], least: Sequence[float]) -> bool:
    return all(a <= SAME * b for a, b in zip(seconds, least, strict=True))


def _in_time(plan: Plan, deadline_seconds: float | None) -> bool:
    return deadline_seconds is None or plan.estimate.makespan_seconds <= deadline_seconds
