"""How many GPUs to take: the plan of each size that is worth a look, and which of them to run.

More nodes end sooner, and each costs the copy of the weights and its engines' starts. Sizes are
1, 2, 4, … trials of the first node, then 1, 2, 4, … nodes, then all of them.
"""

import math
from collections.abc import Callable, Iterator

from coordinate_eval.coordinator.plan import Capacity, Plan, Size
from coordinate_eval.errors import UserError

Draft = Callable[[Capacity], Plan]
"""The plan for a capacity."""

SAME = 1.01
"""Times the shortest makespan up to which a plan on fewer GPUs is as good."""


WORTH_GPU_HOURS = 1.0
"""GPU-hours for which fewer nodes are taken than there are."""


def best(draft: Draft, capacity: Capacity, deadline_seconds: float | None = None) -> Plan:
    """The plan that ends first; on half the nodes, and half of these, while that ends as soon,
    within the deadline, and saves anything worth the risk of a wrong prediction. Where nodes
    share a storage, half of them may also end sooner: they have their weights earlier.
    """
    chosen = draft(capacity)
    shortest = chosen.estimate.makespan_seconds
    for smaller in _halves(capacity):
        plan = draft(smaller)
        seconds = plan.estimate.makespan_seconds
        saved = chosen.estimate.gpu_hours - plan.estimate.gpu_hours
        as_soon = seconds <= min(SAME * shortest, deadline_seconds or math.inf)
        if not (as_soon and saved >= WORTH_GPU_HOURS) and seconds * SAME >= shortest:
            break
        chosen, shortest = plan, min(shortest, seconds)
    return chosen


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


def choose(draft: Draft, capacity: Capacity, objective: str, deadline: float | None) -> Plan:
    """The plan to run, by the objective `makespan` or `gpu-hours`; `deadline` in seconds.

    Raises:
        UserError: nothing ends by the deadline; says what is possible.
    """
    if objective == "gpu-hours":
        return cheapest(draft, capacity, deadline)
    plan = best(draft, capacity, deadline)
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
        yield capacity.model_copy(update={"nodes": nodes[:count]})
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
    nodes = sorted(capacity.nodes, key=lambda n: -n.trials)
    low, high = len(chosen.nodes) // 2, len(chosen.nodes)
    while high - low > 1:
        count = (low + high) // 2
        plan = draft(capacity.model_copy(update={"nodes": nodes[:count]}))
        if not _in_time(plan, deadline_seconds):
            low = count
            continue
        high = count
        if plan.estimate.gpu_hours < chosen.estimate.gpu_hours:
            chosen = plan
    return chosen


def _halves(capacity: Capacity) -> Iterator[Capacity]:
    nodes = sorted(capacity.nodes, key=lambda n: -n.trials)
    count = len(nodes) // 2
    while count:
        yield capacity.model_copy(update={"nodes": nodes[:count]})
        count //= 2


def _in_time(plan: Plan, deadline_seconds: float | None) -> bool:
    return deadline_seconds is None or plan.estimate.makespan_seconds <= deadline_seconds
