"""Plans and reviews of them, made up for tests of what people see, and for benchmarks."""

from collections.abc import Sequence
from typing import TypeVar

from coordinate_eval.clusters.protocol import Busy, Node, ShownJob
from coordinate_eval.coordinator.display.summary import Review, review
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.planning import planner
from coordinate_eval.coordinator.planning.offer import Offer
from coordinate_eval.coordinator.planning.plan import (
    Capacity,
    Cost,
    NodeCapacity,
    Plan,
    PlanEngine,
    PlanSuite,
)
from coordinate_eval.coordinator.planning.plan_run import PlannedRun
from coordinate_eval.coordinator.planning.reviewed_plan import sealed
from coordinate_eval.coordinator.run.records import Round, Run
from coordinate_eval.priors.predict import Priors
from coordinate_eval.records import Checkpoint, CheckpointFormat, Dataset, Record, Suite

RecordT = TypeVar("RecordT", bound=Record)

CHECKPOINT = Checkpoint(
    path="/ckpt",
    identity="i",
    format=CheckpointFormat.SAFETENSORS,
    weights=[],
    files=[],
    bytes=14_000_000_000,
    parameters=7_000_000_000,
    dtype="bfloat16",
    max_length=4096,
    attention_heads=32,
    kv_bytes_per_token=32 * 2 * 4096 * 2,  # layers, keys and values, width, bytes
)
"""Of 7B parameters in bfloat16."""


def changed(record: RecordT, **fields: object) -> RecordT:
    """Return the record with other values of these fields, which it must have."""
    return type(record).model_validate({**dict(record), **fields}, extra="forbid")


def costs(count: int, name: str = "big") -> list[Cost]:
    """Datasets of falling cost, some with long items, some with metrics."""
    return [
        Cost(
            name=f"{name}{i}",
            items=10_000,
            gpu_seconds=3000 / (i + 1),
            metric_cpu_seconds=2000.0 if i % 5 == 0 else 0.0,
            chunk_overhead_seconds=0.2,
            floor_seconds=30.0 if i % 7 == 6 else 0.0,
        )
        for i in range(count)
    ]


def capacity(nodes: int, trials: int, name: str = "node") -> Capacity:
    """So many nodes alike."""
    return Capacity(
        nodes=[
            NodeCapacity(name=f"{name}{i + 1}", gpus=8, gpu_type="h200", trials=trials)
            for i in range(nodes)
        ],
        gpus_per_trial=1,
        engine_start_seconds=20,
        storage_gigabits_per_node=25,
        metric_cpus=64,
    )


def offer(
    nodes: Sequence[Node],
    busy: Sequence[Busy] = (),
    metric_cpus: int = 64,
    priors: Priors | None = None,
) -> Offer:
    """A cluster with these nodes."""
    return Offer(0, "slurm", nodes, busy, metric_cpus, priors=priors or Priors())


def unplanned_run(settings: Settings | None = None, datasets: Sequence[Dataset] = ()) -> Run:
    """A run that has no plan yet."""
    return Run(
        id="id",
        nonce="n",
        created=0,
        cluster="slurm",
        python="python",
        folder="/",
        checkpoint=CHECKPOINT,
        suite=Suite(name="s", digest="d", datasets=list(datasets)),
        settings=settings or Settings(),
        tensor_parallel=1,
        gpu_type="h200",
        max_length=CHECKPOINT.max_length,
        staged_bytes=CHECKPOINT.bytes,
        exclusive=False,
        asks=[],
        shards=[],
    )


def planned(
    made: Plan,
    place: Capacity,
    settings: Settings | None = None,
    datasets: Sequence[Dataset] = (),
) -> PlannedRun:
    """A run of a plan, of which nothing is built."""
    run = unplanned_run(settings, datasets)
    printed = sealed(made)
    round_ = Round(number=0, created=0, nodes=[], minutes=15)
    return PlannedRun(printed, place, run, round_)


def reviewed(
    *, nodes: int = 2, trials: int = 8, name: str = "node", dataset: str = "big", datasets: int = 30
) -> Review:
    """A review of a plan of such nodes, all of them free, and of one that is not."""
    place = capacity(nodes, trials, name)
    made = planner.plan_on_capacity(
        CHECKPOINT.model_copy(update={"path": f"/ckpt/{name}"}),
        PlanSuite(name=f"suite {name}", digest="d"),
        PlanEngine(name="vllm", args={}),
        costs(datasets, dataset),
        place,
    )
    live = [
        Node(name=n.name, gpus=8, free_gpus=8, gpu_type="h200", cpus=128, memory_gib=1000)
        for n in place.nodes
    ]
    busy = [Busy(name=f"{name}-busy", why="8 of 8 GPUs in use")]
    shown = [
        ShownJob(f"trial-{n.name}", f"sbatch {n.name}", f"echo {n.name}", f"sbatch {n.name} <<'E'")
        for n in place.nodes
    ]
    return review(planned(made, place), offer(live, busy), shown)
