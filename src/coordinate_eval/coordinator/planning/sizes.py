"""The size of a plan: plan on several numbers of GPUs, and choose one of these plans.

More trials end sooner, up to a limit set by the suite's longest work. Each costs the start of its
engine, each node a copy of the weights, and more GPUs are idle near the end. So a run may give up a
little time for much GPU time. The sizes tried are 1, 2, 4, … trials on the first node, then 1, 2,
4, … nodes, then all nodes, and then those halfway from the best one to its neighbours. Where jobs
take whole nodes, a trial that is left out saves nothing, and only numbers of nodes are tried.
"""

import itertools
import math
from collections.abc import Callable, Iterator

from coordinate_eval.coordinator.inputs.settings import MOST_RESTRAINT
from coordinate_eval.coordinator.planning.plan import Capacity, NodeCapacity, Plan, Size
from coordinate_eval.errors import UserError

PlanOn = Callable[[Capacity], Plan]
"""A function that plans on a capacity."""

LeastSeconds = Callable[[Capacity], float]
"""A function that returns the makespan in seconds that no plan on a capacity beats."""

SAME = 1.001
"""Multiple of the lower bound of more GPUs up to which a plan on fewer is as good."""

LEAST_RESTRAINT = 0.001
"""Restraint at the least: twice the GPU-hours for less than 0.07 % of the makespan are too many."""

HALVINGS = 2
"""Times that the steps around the best number of trials are halved: to an eighth of it or so."""


def plan_best_size(
    plan_on: PlanOn,
    least_seconds: LeastSeconds,
    capacity: Capacity,
    *,
    restraint: float = 0.0,
    latest: float = math.inf,
) -> Plan:
    """Return the plan that is worth its GPU time.

    That is the one with the least product of makespan and GPU-hours, the latter to the power of
    `restraint`: trials are added while each per cent of makespan that they save costs no more than
    1/`restraint` per cent of GPU-hours, the start of their engines included. With 0 it is the
    shortest plan, with `MOST_RESTRAINT` that with the fewest GPU-hours. No plan is taken that is
    longer than `latest`, in seconds.

    Raises:
        UserError: No plan ends in time; the message says what is possible.
    """

    def price(plan: Plan) -> float:
        seconds, hours = plan.estimate.makespan_seconds, plan.estimate.gpu_hours
        if seconds > latest:
            return math.inf
        paid = math.log(max(hours, 1e-9))
        if restraint >= MOST_RESTRAINT:
            return paid
        return math.log(max(seconds, 1e-9)) + max(restraint, LEAST_RESTRAINT) * paid

    found: dict[int, Plan] = {}
    for size in sizes(capacity):
        shortest = min((p.estimate.makespan_seconds for p in found.values()), default=math.inf)
        if shortest <= min(latest, SAME * least_seconds(size)):
            break  # no plan on more GPUs ends sooner
        found[size.trials] = plan_on(size)
    for _ in range(HALVINGS):
        counts = sorted(found)
        place = counts.index(min(counts, key=lambda count: price(found[count])))
        for low, high in itertools.pairwise(counts[max(0, place - 1) : place + 2]):
            half = _with_trials(capacity, (low + high) // 2)
            if half.trials not in found:
                found[half.trials] = plan_on(half)
    chosen = min(found.values(), key=price)
    check_deadline(min(found.values(), key=lambda p: p.estimate.makespan_seconds), latest)
    return chosen


def check_deadline(shortest: Plan, latest: float) -> None:
    """Check that the shortest plan that there is takes `latest` seconds at most.

    Raises:
        UserError: It does not; the message says what is possible.
    """
    if shortest.estimate.makespan_seconds > latest:
        raise UserError(
            f"no plan ends within {latest:.0f} s: the shortest takes "
            f"{shortest.estimate.makespan_seconds:.0f} s on {shortest.gpus} GPUs of "
            f"{len(shortest.nodes)} nodes; allow more time, more GPUs or fewer items"
        )


def curve(plan_on: PlanOn, capacity: Capacity, chosen: Plan) -> list[Size]:
    """Plan each size; return what the plans take, the chosen one among them."""
    mine = _size_of(chosen)
    others = [_size_of(plan_on(smaller)) for smaller in sizes(capacity)]
    beside = [size for size in others if (size.nodes, size.gpus) != (mine.nodes, mine.gpus)]
    return sorted([*beside, mine], key=lambda size: (size.gpus, size.nodes))


def _size_of(plan: Plan) -> Size:
    return Size(nodes=len(plan.nodes), gpus=plan.gpus, estimate=plan.estimate)


def sizes(capacity: Capacity) -> Iterator[Capacity]:
    """Yield capacities from one trial to all, nodes with the most trials first."""
    nodes = sorted(capacity.nodes, key=lambda n: -n.trials)
    counts = set(_powers(nodes[0].trials))
    counts |= {sum(n.trials for n in nodes[:count]) for count in _powers(len(nodes))}
    sizes = [_with_trials(capacity, count) for count in sorted(counts)]
    yield from {size.trials: size for size in sizes}.values()


def _powers(most: int) -> list[int]:
    """Return 1, 2, 4, … and `most`."""
    return [*(2**n for n in range(most.bit_length()) if 2**n < most), most]


def _with_trials(capacity: Capacity, count: int) -> Capacity:
    """Return the capacity of `count` trials, on the nodes with the most trials first.

    Where jobs take whole nodes, the last node keeps all of its trials.
    """
    nodes: list[NodeCapacity] = []
    for node in sorted(capacity.nodes, key=lambda n: -n.trials):
        if count <= 0:
            break
        trials = node.trials if capacity.exclusive else min(count, node.trials)
        nodes.append(node.model_copy(update={"trials": trials}))
        count -= trials
    return capacity.model_copy(update={"nodes": nodes})
