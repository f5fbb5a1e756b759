"""A later round: for shards that are left, beside trials that go on or when all have ended."""

from collections.abc import Callable, Sequence, Set

from coordinate_eval.clusters.protocol import Busy, Node
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.planning.places.asked_nodes import most_nodes
from coordinate_eval.coordinator.planning.places.nodes import NoFreeGpu, nodes_with_room
from coordinate_eval.coordinator.planning.plan import NodeCapacity, Plan
from coordinate_eval.coordinator.run.jobs import keeper_gib
from coordinate_eval.coordinator.run.records import ANY_NODE, Round, RoundNode, Run
from coordinate_eval.coordinator.run.rounds import make_round
from coordinate_eval.errors import UserError
from coordinate_eval.records import Shard


def next_round(
    run: Run,
    plan: Plan,
    rounds: Sequence[Round],
    left: Sequence[Shard],
    available: tuple[Sequence[Node], Sequence[Busy]],
    now: float,
    short_rounds: int = 0,
    within: Callable[[list[NodeCapacity], int], list[NodeCapacity]] = lambda nodes, gpus: nodes,
    *,
    trials: int,
    beside: int = 0,
    held: Set[str] = frozenset(),
    vain: Set[str] = frozenset(),
    queue: bool = False,
) -> Round:
    """Return a round for the shards that are `left`, on nodes that are `available` now.

    A run stays with one GPU type, and within the limits of its settings. It takes few nodes with
    many trials rather than many with few, and of nodes alike those that it holds already.

    Args:
        run: the run's record.
        plan: the run's plan.
        rounds: all earlier ones.
        left: shards without published responses.
        available: what `Cluster.nodes` returned.
        now: seconds since the epoch.
        short_rounds: last rounds in a row that perhaps were too short for a response.
        within: returns the part of chosen nodes, with trials of so many GPUs, that limits allow.
        trials: to ask for at most.
        beside: trials that go on meanwhile, or will.
        held: nodes of these trials.
        vain: nodes on which no trial began the last time, which are taken if there is no other.
        queue: if no GPU is free elsewhere, trials stand in the scheduler's queue for any node.

    Raises:
        UserError: no trial can start now; waiting may help.
    """
    window = run.limits.gpu_window
    if window is not None and window.start > now and window.minutes_before(now) is None:
        raise UserError(f"{window.why} takes all nodes soon, so the run waits until it is over")
    nodes, busy = available
    usable = [node for node in nodes if node.gpu_type == run.gpu_type]
    trials = min(trials, len(left))
    limits = {"max_gpus": trials * run.tensor_parallel}
    most = most_nodes(run.settings)
    if most is not None and held:
        if len(held) >= most:
            usable = [node for node in usable if node.name in held]
        limits["max_nodes"] = max(1, most - len(held))
    usable.sort(key=lambda node: node.name not in held)
    settings = run.settings.model_copy(update=limits)
    try:
        chosen = _with_room(run, settings, usable, busy, vain, queue=queue)
    except NoFreeGpu:
        if not queue:
            raise
        chosen = [
            NodeCapacity(
                name=ANY_NODE,
                gpus=trials * run.tensor_parallel,
                gpu_type=run.gpu_type,
                trials=trials,
            )
        ]
    chosen = within(chosen, run.tensor_parallel)
    return make_round(
        run,
        len(rounds),
        now,
        [RoundNode(**node.model_dump(exclude={"gpus"})) for node in chosen],
        left,
        ready_seconds=plan.ready_seconds,
        floor_seconds=plan.floor_seconds,
        short_rounds=short_rounds,
        beside=beside,
    )


def _with_room(
    run: Run,
    settings: Settings,
    nodes: Sequence[Node],
    busy: Sequence[Busy],
    vain: Set[str],
    *,
    queue: bool,
) -> list[NodeCapacity]:
    """Return the nodes to ask for, as `nodes_with_room` does.

    Nodes where nothing started are a last resort, and none at all for a run that may `queue`: there
    its trials would lose their place again and again.

    Raises:
        NoFreeGpu: no GPU is free, or the run had better queue.
        UserError: no node has room.
    """
    gpus, gib = run.tensor_parallel, keeper_gib(run)
    others = [node for node in nodes if node.name not in vain]
    if len(others) < len(nodes):
        try:
            return nodes_with_room(others, busy, settings, gpus, gib)
        except NoFreeGpu:
            if queue:
                raise
        except UserError:
            pass
    return nodes_with_room(nodes, busy, settings, gpus, gib)
