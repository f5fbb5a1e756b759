"""The round that follows when all trials of a run have ended and shards are left."""

from collections.abc import Sequence

from coordinate_eval.cluster import Busy, Node
from coordinate_eval.coordinator.planning.nodes import choose
from coordinate_eval.coordinator.planning.plan import Plan
from coordinate_eval.coordinator.run.jobs import keeper_gib
from coordinate_eval.coordinator.run.records import Round, RoundNode, Run
from coordinate_eval.coordinator.run.rounds import make_round
from coordinate_eval.records import Shard


def next_round(
    run: Run,
    plan: Plan,
    rounds: Sequence[Round],
    left: Sequence[Shard],
    available: tuple[Sequence[Node], Sequence[Busy]],
    now: float,
    short_rounds: int = 0,
) -> Round:
    """Return a round for the shards that are `left`, on nodes that are `available` now.

    A run stays with one GPU type. It takes no more nodes than its plan, and no more than shards.

    Args:
        run: the run's record.
        plan: the run's plan.
        rounds: all earlier ones.
        left: shards without published responses.
        available: what `Cluster.nodes` returned.
        now: seconds since the epoch.
        short_rounds: last rounds in a row that perhaps were too short for a response.

    Raises:
        UserError: no trial can start now; waiting may help.
    """
    nodes, busy = available
    usable = [node for node in nodes if run.gpu_type in ("", node.gpu_type)]
    chosen = choose(usable, busy, run.settings, run.tensor_parallel, keeper_gib(run))
    most = min(len(left), len(plan.nodes))
    return make_round(
        run,
        len(rounds),
        now,
        [RoundNode(**node.model_dump(exclude={"gpus"})) for node in chosen[: max(1, most)]],
        left,
        ready_seconds=plan.ready_seconds,
        floor_seconds=plan.floor_seconds,
        short_rounds=short_rounds,
    )
