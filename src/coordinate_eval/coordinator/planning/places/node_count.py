"""The number of nodes and trials to use: plan for several, and choose one of the plans.

More trials end sooner, up to a limit set by the suite's longest work. Each costs the start of its
engine, each node a copy of the weights, and more GPUs are idle near the end. So a run may give up a
little time for much GPU time: see `restrained`. The sizes tried are 1, 2, 4, … trials on the first
node, then 1, 2, 4, … nodes, then all nodes. Where jobs take whole nodes, a trial that is left out
saves nothing, and only numbers of nodes are tried.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from coordinate_eval.coordinator.planning.plan import Capacity, NodeCapacity, Plan, Size
from coordinate_eval.errors import UserError

Draft = Callable[[Capacity], Plan]
"""A function that plans for a capacity."""

Bounds = Callable[[Capacity], Iterable[float]]
"""A function that returns lower bounds in seconds, as predicted first, then if predictions are
wrong."""

SAME = 1.001
"""Multiple of the shortest makespan up to which a plan on fewer nodes is as good."""

NEARLY_ALL = 0.95
"""Share of the nodes above which all are used: leaving a few out is not worth the risk."""


HALVINGS = 2
"""Times that the steps around the best number of trials are halved: to an eighth of it or so."""


def best(
    draft: Draft, bounds: Bounds, capacity: Capacity, deadline_seconds: float | None = None
) -> Plan:
    """Return the plan with the shortest makespan, on the fewest nodes that reach it.

    Nodes are left out only if the run ends as soon without them even when predictions are wrong
    (`bounds`). Otherwise they stay, to take over the work of others.
    """
    latest = math.inf if deadline_seconds is None else deadline_seconds
    capacity = _soonest(bounds, capacity)
    least = list(bounds(capacity))
    count = _fewest(capacity, lambda part: _same(bounds(part), least))
    if count >= NEARLY_ALL * len(capacity.nodes):
        count = len(capacity.nodes)
    plan = draft(_first(capacity, count))
    if plan.estimate.makespan_seconds <= min(SAME * least[0], latest):
        return plan  # no plan on all nodes beats it
    everything = plan if count == len(capacity.nodes) else draft(capacity)
    enough = min(SAME * everything.estimate.makespan_seconds, latest)
    while count < len(capacity.nodes):
        if plan.estimate.makespan_seconds <= enough:
            return plan
        count = min(2 * count, len(capacity.nodes))
        plan = draft(_first(capacity, count))
    return everything


def restrained(
    draft: Draft, capacity: Capacity, plan: Plan, restraint: float, deadline: float | None = None
) -> Plan:
    """Return the plan that is worth its GPU time, with as many trials as `plan` or fewer.

    That is the one with the least product of makespan and GPU-hours, the latter to the power of
    `restraint`: trials are added while each per cent of makespan that they save costs no more than
    1/`restraint` per cent of GPU-hours, the start of their engines included. With 0 it is the
    shortest plan. After `sizes`, the numbers halfway from the best one to its neighbours are tried,
    `HALVINGS` times. No plan is taken that misses the deadline, in seconds, which `plan` meets.
    """

    def price(each: Plan) -> float:
        if not _in_time(each, deadline):
            return math.inf
        seconds, hours = each.estimate.makespan_seconds, each.estimate.gpu_hours
        return math.log(max(seconds, 1e-9)) + restraint * math.log(max(hours, 1e-9))

    if restraint <= 0:
        return plan
    used = {node.name for node in plan.nodes}
    nodes = [node for node in capacity.nodes if node.name in used]
    most = capacity.model_copy(update={"nodes": nodes})
    found = {size.trials: draft(size) for size in sizes(most) if size.trials < most.trials}
    found[most.trials] = plan
    for _ in range(HALVINGS):
        counts = sorted(found)
        place = counts.index(min(counts, key=lambda count: price(found[count])))
        for low, high in itertools.pairwise(counts[max(0, place - 1) : place + 2]):
            half = _trials(most, (low + high) // 2)
            if half.trials not in found:
                found[half.trials] = draft(half)
    return min(found.values(), key=price)


def cheapest(draft: Draft, capacity: Capacity, deadline_seconds: float | None) -> Plan:
    """Return the plan with the fewest GPU-hours that ends by the deadline.

    Raises:
        UserError: No plan ends by the deadline; the message says what is possible.
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
    restraint: float = 0.0,
    named: bool = False,
) -> Plan:
    """Return the plan to run.

    Args:
        draft: Plans for a capacity.
        bounds: Lower bounds for a capacity.
        capacity: All nodes that can be used.
        objective: `makespan` or `gpu-hours`.
        deadline: The longest makespan allowed, in seconds.
        restraint: See `restrained`; of the objective `makespan`.
        named: The user named the nodes; with the objective `makespan` all of them are used.

    Raises:
        UserError: No plan ends by the deadline; the message says what is possible.
    """
    if objective == "gpu-hours":
        return cheapest(draft, capacity, deadline)
    plan = draft(capacity) if named else best(draft, bounds, capacity, deadline)
    if not _in_time(plan, deadline):
        assert deadline is not None
        raise late(plan, deadline)
    if named:
        return plan
    return restrained(draft, capacity, plan, restraint, deadline)


def curve(draft: Draft, capacity: Capacity, chosen: Plan) -> list[Size]:
    """Plan each size; return what the plans take, the chosen one among them."""
    mine = size_of(chosen)
    others = [size_of(draft(smaller)) for smaller in sizes(capacity)]
    beside = [size for size in others if (size.nodes, size.gpus) != (mine.nodes, mine.gpus)]
    return sorted([*beside, mine], key=lambda size: (size.gpus, size.nodes))


def size_of(plan: Plan) -> Size:
    """Return the estimate of a plan with its numbers of nodes and GPUs."""
    return Size(nodes=len(plan.nodes), gpus=plan.gpus, estimate=plan.estimate)


def sizes(capacity: Capacity) -> Iterator[Capacity]:
    """Yield capacities from one trial to all, nodes with the most trials first."""
    nodes = sorted(capacity.nodes, key=lambda n: -n.trials)
    trials = nodes[0].trials if capacity.whole_nodes else 1
    while trials < nodes[0].trials:
        yield _trials(capacity, trials)
        trials *= 2
    count = 1
    while count < len(nodes):
        yield _first(capacity, count)
        count *= 2
    yield capacity.model_copy(update={"nodes": nodes})


def late(plan: Plan, deadline_seconds: float) -> UserError:
    """Return the error for a deadline that even this plan misses."""
    return UserError(
        f"no plan ends within {deadline_seconds:.0f} s: the shortest takes "
        f"{plan.estimate.makespan_seconds:.0f} s on {plan.gpus} GPUs of "
        f"{len(plan.nodes)} nodes; allow more time, more GPUs or fewer items"
    )


def _fewest_nodes(
    draft: Draft, capacity: Capacity, chosen: Plan, deadline_seconds: float | None
) -> Plan:
    """Return the cheapest plan in time, on as many nodes as `chosen` or down to half as many."""
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
    """Halve the nodes as long as half of them can end sooner.

    Nodes that share a storage get their weights earlier if there are fewer of them.
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
    """Return the smallest number of nodes that is enough, by bisection; all nodes are enough."""
    low, high = 0, len(capacity.nodes)
    while high - low > 1:
        count = (low + high) // 2
        if enough(_first(capacity, count)):
            high = count
        else:
            low = count
    return high


def _first(capacity: Capacity, count: int) -> Capacity:
    """Return the capacity of `count` nodes, those with the most trials first.

    All nodes stay in the order listed.
    """
    if count == len(capacity.nodes):
        return capacity
    nodes = sorted(capacity.nodes, key=lambda n: -n.trials)
    return capacity.model_copy(update={"nodes": nodes[:count]})


def _trials(capacity: Capacity, count: int) -> Capacity:
    """Return the capacity of `count` trials, on the nodes with the most trials first.

    Where jobs take whole nodes, the last node keeps all of its trials.
    """
    nodes: list[NodeCapacity] = []
    for node in sorted(capacity.nodes, key=lambda n: -n.trials):
        if count <= 0:
            break
        trials = node.trials if capacity.whole_nodes else min(count, node.trials)
        nodes.append(node.model_copy(update={"trials": trials}))
        count -= trials
    return capacity.model_copy(update={"nodes": nodes})


def _same(seconds: Iterable[float], least: Sequence[float]) -> bool:
    return all(a <= SAME * b for a, b in zip(seconds, least, strict=True))


def _in_time(plan: Plan, deadline_seconds: float | None) -> bool:
    return deadline_seconds is None or plan.estimate.makespan_seconds <= deadline_seconds
