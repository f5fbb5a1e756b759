"""The records of a plan (plan@1) and of its inputs. `planner` makes a plan, `simulate` plays it."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from pydantic import Field

from coordinate_eval.coordinator.run.records import JudgePlace, RoundNode
from coordinate_eval.records import (
    CheckpointFormat,
    Made,
    ModelCosts,
    Record,
    Shard,
    absent,
    schema,
)


class Cost(Record):
    """The cost of a whole dataset: GPU seconds on one trial, metric and score seconds on a core."""

    name: str
    items: int = Field(gt=0, le=10**12)
    gpu_seconds: float = Field(ge=1e-6, le=1e9)
    metric_cpu_seconds: float = Field(default=0.0, ge=0, le=1e12)
    chunk_overhead_seconds: float = Field(default=0.0, ge=0, le=1e6)
    floor_seconds: float = Field(default=0.0, ge=0, le=1e9)
    # Left out of a plan where it is 0, like `Plan.score_jobs`.
    score_seconds: float = absent(
        0.0,
        "of scoring, after all responses and metrics; splitting does not shorten it",
        ge=0,
        le=1e9,
    )
    judge_seconds: float = absent(
        0.0, "of a judge, after the responses that it rates; no makespan counts them", ge=0, le=1e9
    )
    splittable: bool = True
    stages: list[int] = absent(
        [], "items that are asked by the end of each stage, if there are several"
    )
    spread: float = Field(
        default=0.0,
        ge=0,
        allow_inf_nan=False,
        description="standard deviation of the logarithm of the true gpu_seconds over these",
    )


class NodeCapacity(RoundNode):
    """A node to plan on, and the number of trials that can start on it."""

    gpus: int


class ChosenNodes(NamedTuple):
    """Nodes with GPUs of one type, and the GPUs of each trial on them."""

    nodes: list[NodeCapacity]
    gpus_per_trial: int
    nodes_per_trial: int = 1


class Capacity(Record):
    """The nodes to plan on, and their rates."""

    nodes: list[NodeCapacity]
    gpus_per_trial: int
    nodes_per_trial: int = 1
    node_bytes: int | None = Field(
        default=None, description="of the weights that a node of such a trial needs, at most"
    )
    engine_start_seconds: float
    storage_gigabits_per_node: float = Field(gt=0, description="of one node that copies alone")
    storage_shared: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="share of the copy time that grows with the number of nodes; see `Link`",
    )
    metric_cpus: int
    exclusive: bool = Field(
        default=False, description="jobs take whole nodes, also those that use a part of one"
    )
    longest_shard_seconds: float | None = Field(
        default=None, description="above which shards are cut: a trial's job has a time limit"
    )

    @property
    def trials(self) -> int:
        """Return how many trials can start on all nodes together."""
        return sum(node.trials for node in self.nodes)


class PlanCheckpoint(ModelCosts, Made):
    """The checkpoint of a plan, and what its model costs."""

    format: CheckpointFormat = Field(
        default=CheckpointFormat.SAFETENSORS,
        description="absent if it is not made of others",
        exclude_if=lambda kind: kind not in (CheckpointFormat.ADAPTER, CheckpointFormat.AVERAGE),
    )
    parts: Sequence["PlanCheckpoint"] = absent([])
    quantization: str = absent("", "as vLLM names it")
    doubt: str = absent("", "why these figures are less sure than usual")


class PlanSuite(Record):
    """The suite of a plan."""

    name: str
    digest: str


class PlanEngine(Record):
    """The engine of a plan."""

    name: str
    args: dict[str, Any]


class PlanNode(Record):
    """A node of a plan."""

    name: str
    gpus: int
    gpu_type: str


class Stage(Record):
    """The copy of the weights to one node, from time 0."""

    node: str
    bytes: int
    seconds: float


class PlanTrial(Record):
    """A trial of a plan: one engine, and the shards that it runs first, in this order."""

    id: str
    node: str
    nodes: list[str] = absent([], "all nodes of a trial on several, the first of which is `node`")
    gpus: int
    start_seconds: float
    setup_seconds: float
    shards: list[Shard]


class MetricJob(Record):
    """A span of items whose questions are answered together."""

    dataset: str
    start: int
    stop: int
    cpus: int
    seconds: float


class ScoreJob(Record):
    """The scoring of a whole dataset, by one process."""

    dataset: str
    cpus: Literal[1] = 1
    seconds: float


class Estimate(Record):
    """The makespan and GPU use of a plan; see `simulate`."""

    makespan_seconds: float
    lower_bound_seconds: float
    gpu_idle_fraction: float
    gpu_hours: float


class JudgeWork(JudgePlace):
    """The questions to a judge about a plan's responses, and what the job of a checkpoint needs."""

    questions: int = Field(ge=0, description="at most")


class PlanJudge(JudgeWork):
    """A judge's times; see `judging`. They are no part of the plan, nor of a makespan."""

    begin_seconds: float = Field(ge=0, description="from the submission")
    end_seconds: float = Field(
        ge=0, description="when its last answer is there, and scored; 0 is the submission"
    )


class Size(Record):
    """The estimate of a plan on another number of GPUs."""

    nodes: int
    gpus: int
    estimate: Estimate


class Plan(Record):
    """plan@1, as `--dry-run --json` prints it."""

    schema_: Literal["coordinate-eval/plan@1"] = schema("coordinate-eval/plan@1")

    checkpoint: PlanCheckpoint
    suite: PlanSuite
    engine: PlanEngine
    gpus_per_trial: int
    nodes_per_trial: int = absent(
        1, "that share its layers, each with equally many of its GPUs; absent if it is 1", ge=1
    )
    datasets: list[Cost]
    nodes: list[PlanNode]
    stages: list[Stage]
    trials: list[PlanTrial]
    metric_jobs: list[MetricJob]
    score_jobs: list[ScoreJob] = absent(
        [], "of datasets whose scoring takes time; absent where none does"
    )
    estimate: Estimate
    judge: PlanJudge | None = absent(None, "what a judge adds; absent where none is asked")
    tensor_degrees: list[int] = absent([], "numbers of a node's GPUs that can share the model")
    expert_parallel: bool = absent(
        False, "the GPUs of a trial hold whole experts, whose parts would not be equal"
    )
    estimated: bool = absent(
        False, "items and tokens of some datasets are the catalogue's: --estimate"
    )
    build_seconds: float = absent(
        0.0, "to build prompts that are not in the cache, before time 0; absent if all are"
    )
    what_if: list[Size] = Field(default=[], description="other numbers of GPUs, when asked for")
    metric_cpus: int = Field(default=1, ge=1, description="cores of all metric jobs together")
    max_length: int = Field(default=1, ge=1, description="tokens to which prompts are cut")
    context: int = absent(
        0, "tokens of the engines' context, which the datasets need; absent: `max_length`", ge=0
    )
    digest: str = Field(default="", description="of all else here: only an unchanged plan is run")

    @property
    def tensor_parallel(self) -> int:
        """Return the GPUs of a trial on each of its nodes."""
        return self.gpus_per_trial // self.nodes_per_trial

    @property
    def gpus(self) -> int:
        """Return the number of GPUs of all trials together."""
        return sum(trial.gpus for trial in self.trials)

    @property
    def ready_seconds(self) -> float:
        """Return the seconds from the submission until the last engine answers."""
        return max((t.start_seconds + t.setup_seconds for t in self.trials), default=0.0)

    @property
    def last_score_seconds(self) -> float:
        """Seconds from the submission to the last score, the judge's included."""
        judged = self.judge.end_seconds if self.judge else 0.0
        return max(self.estimate.makespan_seconds, judged)

    @property
    def floor_seconds(self) -> dict[str, float]:
        """Return the latency of each dataset's longest item, in seconds."""
        return {dataset.name: dataset.floor_seconds for dataset in self.datasets}
