"""From a prepared plan to the records of a run: run.json and its first round."""

import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from coordinate_eval import _files
from coordinate_eval.coordinator.inputs.checkpoint import staged_bytes
from coordinate_eval.coordinator.planning.prepare import Prepared
from coordinate_eval.coordinator.run.records import Round, RoundNode, Run, portion_seconds
from coordinate_eval.coordinator.run.rounds import make_round


def frozen(identity: str, prepared: Prepared, cluster: str, *, exclusive: bool) -> Run:
    """The record of a run that is about to be."""
    shards = sorted(
        (shard for trial in prepared.plan.trials for shard in trial.shards),
        key=lambda s: (not s.signal, -s.gpu_seconds),
    )
    asks = [name for name, built in prepared.built.items() if built.index.asks]
    run = Run(
        id=identity,
        nonce=_files.token()[:6],
        created=time.time(),
        cluster=cluster,
        python=sys.executable,
        folder=str(Path.cwd()),
        checkpoint=prepared.checkpoint,
        suite=prepared.suite,
        settings=prepared.settings,
        tensor_parallel=prepared.choice.tensor_parallel,
        gpu_type=prepared.choice.gpu_type,
        max_length=prepared.max_length,
        staged_bytes=staged_bytes(prepared.checkpoint),
        exclusive=exclusive,
        asks=[],
        left_out=prepared.left_out,
        shards=shards,
    )
    return with_asks(run, asks)


def with_asks(run: Run, asks: Sequence[str]) -> Run:
    """The record where the metrics of these datasets ask questions, in portions to match."""
    seconds = sum(s.metric_cpu_seconds for s in run.shards if s.dataset in asks)
    update = {"asks": list(asks), "portion_seconds": portion_seconds(seconds)}
    return run.model_copy(update=update)


def first_round(prepared: Prepared, run: Run) -> Round:
    """The nodes of the plan."""
    plan = prepared.plan
    trials = Counter(t.node for t in plan.trials)
    return make_round(
        run,
        0,
        time.time(),
        [RoundNode(name=n.name, gpu_type=n.gpu_type, trials=trials[n.name]) for n in plan.nodes],
        run.shards,
        ready_seconds=plan.ready_seconds,
        floor_seconds=plan.floor_seconds,
        planned_seconds=plan.estimate.makespan_seconds,
    )
