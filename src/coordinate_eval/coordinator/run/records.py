"""The records of a run directory: the run, its rounds, jobs, and their progress."""

import math
import os
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import Job, JobLimits
from coordinate_eval.coordinator.inputs.checkpoints.saved import training_of
from coordinate_eval.coordinator.inputs.settings import JudgeSettings, Settings
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.errors import RecordError
from coordinate_eval.records import (
    Checkpoint,
    FileName,
    Record,
    Shard,
    Span,
    Suite,
    absent,
    even_parts,
    schema,
)

PORTION_SECONDS = 5.0
"""Predicted seconds of a metric, on one core, in one portion of its questions."""

MOST_PORTIONS = 2000
"""Most portions of a run, roughly. Longer metrics have longer portions."""


def portion_seconds(metric_cpu_seconds: float) -> float:
    """Return the seconds of a portion for metrics of these seconds on one core, all together."""
    return max(PORTION_SECONDS, metric_cpu_seconds / MOST_PORTIONS)


class JudgePlace(Record):
    """The needs of the job in which a checkpoint judges: the job runs the checkpoint's engine."""

    gpus: int = Field(default=1, ge=0, description="0 if the judge is a server of others")
    gpu_type: str = absent("")
    weights_gib: float = absent(0.0, "host memory for a copy of the weights", ge=0)


class Planned(Record):
    """`planned.json`: what the plan adds to a run. Until then a run has the values given here."""

    tensor_parallel: int = Field(default=1, description="GPUs of one trial, on each of its nodes")
    nodes_per_trial: int = Field(
        default=1, description="that share one engine, each with consecutive layers of the model"
    )
    node_bytes: int = Field(
        default=0, description="of the weights that a node of such a trial needs; 0 for all"
    )
    context: int = Field(
        default=0, description="tokens of the engines' context; 0 for all of `max_length`"
    )
    gpu_type: str = Field(
        default="", description="the one GPU type of this run; empty if the cluster names none"
    )
    engine_start_seconds: float = Field(
        default=40.0, description="expected of an engine, from weights in memory to first request"
    )
    copy_seconds: float | None = Field(
        default=None, description="expected of a copy of the weights to a node"
    )
    asks: list[str] = Field(default=[], description="datasets whose metric asks questions")
    judged: list[str] = Field(default=[], description="of these, datasets that ask a judge")
    shards: list[Shard] = Field(
        default=[], description="all work, in the order in which trials claim it"
    )
    stages: dict[str, list[int]] = Field(
        default={},
        description="dataset → items that are asked by the end of each stage, if it has several. "
        "Its spans are positions in its `seeded_order` then",
    )
    sampled: dict[str, int] = Field(
        default={},
        description="dataset → items of its sample, with which one of its stages ends. Later "
        "stages are asked with `resume --full`",
    )
    portion_seconds: float = Field(
        default=PORTION_SECONDS, description="of a metric, in one portion of its questions"
    )
    judge_seconds: float = Field(
        default=0.0, description="expected of the judge, from the first question to the last score"
    )
    judge_place: JudgePlace = Field(
        default=JudgePlace(), description="of a judge that is a checkpoint"
    )
    score_seconds: dict[str, float] = Field(
        default={}, description="expected of scoring, on one core, by dataset"
    )


class Run(Planned):
    """Everything that a job of this run must know; see `read_run`.

    `run.json` has what is fixed at submission, `planned.json` the rest.
    """

    schema_: Literal["coordinate-eval/run@1"] = schema("coordinate-eval/run@1")

    id: FileName
    nonce: FileName = Field(description="random part of the names of the run's jobs")
    created: float
    cluster: str = Field(description="name of the scheduler")
    python: str = Field(description="interpreter that jobs use")
    folder: str = Field(
        description="working directory of the command: tasks may name data relative to it; empty "
        "where the checkpoint or other users could have put something there"
    )
    checkpoint: Checkpoint
    step: int | None = Field(default=None, description="training step, if the user told it")
    suite: Suite
    settings: Settings
    max_length: int
    staged_bytes: int = Field(description="of the weights in a node's memory")
    exclusive: bool = Field(description="jobs of the GPU partition take whole nodes")
    limits: JobLimits = Field(default=JobLimits(), description="of jobs, when it was created")
    left_out: dict[str, str] = Field(
        default={}, description="datasets of the suite that cannot be run, and why"
    )
    strict: bool = Field(
        default=True, description="no dataset is run if the requests of some cannot be built"
    )
    against: str = Field(
        default="", description="the directory of the run with which it is compared until decided"
    )
    rescores: str = Field(
        default="", description="the directory of the run whose responses it scores again"
    )

    @model_validator(mode="after")
    def _of_one_suite(self) -> "Run":
        names = {dataset.name for dataset in self.suite.datasets}
        for shard in self.shards:
            if shard.dataset not in names:  # it becomes the name of a folder
                raise ValueError("a shard is of a dataset that the suite lacks")
        return self

    @property
    def lease(self) -> Path:
        """Return the folder of the run's lease on its checkpoint: see `lease.py`.

        It is in the folder that training fills, and not in one that training deletes with a step.
        That of a store is no folder of a file system.
        """
        folder = Path("/", training_of(self.checkpoint.path), f".coordinate-eval-{os.geteuid()}")
        return folder / f"{self.id}-{self.nonce}"

    @property
    def engine_context(self) -> int:
        """Return the tokens of context that engines are started with."""
        return self.context or self.max_length

    @property
    def gpus_per_trial(self) -> int:
        """Return the GPUs of one trial, on all of its nodes."""
        return self.tensor_parallel * self.nodes_per_trial

    @property
    def planned(self) -> bool:
        """Return whether the run has its plan: every plan has shards."""
        return bool(self.shards)

    def shards_with_questions(self, *, judged: bool | None = None) -> list[Shard]:
        """Return the shards whose metric asks questions: all, or only those to a judge or not."""
        asking = [shard for shard in self.shards if shard.dataset in self.asks]
        return [s for s in asking if judged in (None, s.dataset in self.judged)]

    def portion_count(self, shard: Shard) -> int:
        """Return the number of portions of a shard's questions."""
        wanted = math.ceil(shard.metric_cpu_seconds / self.portion_seconds)
        return max(1, min(shard.stop - shard.start, wanted))

    def portions(self, shard: Shard) -> list[Span]:
        """Split a shard into portions, small enough that all cores find some to answer."""
        parts = even_parts(shard.start, shard.stop, self.portion_count(shard))
        return [Span(shard.dataset, start, stop) for start, stop in parts]


def write_run(run_dir: RunDir, run: Run) -> None:
    """Write `run.json`: what is known of a run at its submission."""
    known = run.model_dump_json(by_alias=True, exclude=set(Planned.model_fields), indent=1)
    _files.write(run_dir.run, known + "\n")


def write_planned(run_dir: RunDir, planned: Planned) -> None:
    """Write `planned.json`, once: a plan that another process wrote first stays."""
    found = planned.model_dump_json(include=set(Planned.model_fields), indent=1)
    _files.create(run_dir.planned, found + "\n")


def read_run(run_dir: RunDir) -> Run:
    """Return the run of a directory, with its plan if there is one."""
    run = read_run_if_there(run_dir)
    if run is None:
        raise RecordError(f"{run_dir.run} is missing")
    return run


def read_run_if_there(run_dir: RunDir) -> Run | None:
    """Return the run of a directory, with its plan if there is one; None if there is no run.

    Its judge may have moved since it was created: see `resume`.
    """
    run = _files.read_record_if_there(run_dir.run, Run)
    judge = _files.read_record_if_there(run_dir.judge_settings, JudgeSettings)
    if run is not None and judge is not None:
        settings = run.settings.model_copy(update={"judge": judge})
        run = run.model_copy(update={"settings": settings})
    planned = _files.read_record_if_there(run_dir.planned, Planned)
    if run is None or planned is None:
        return run
    try:
        return Run.model_validate({**dict(run), **dict(planned)})
    except ValueError as error:
        raise RecordError(f"{run_dir.planned} is not of this run: {error}") from error


ANY_NODE = "queued"
"""Name in plans and rounds that stands for nodes that are not known yet."""


class RoundNode(Record):
    """One node of a round, and the number of trials on it; or trials on any nodes."""

    name: str
    gpu_type: str
    trials: int
    keeper_cpus: int = Field(default=1, description="cores of the node's keeper")
    others: list[str] = Field(default=[], description="nodes that share its one trial")

    @property
    def names(self) -> list[str]:
        """Return the names of all nodes of the trials, the first of which names them."""
        return [self.name, *self.others]

    @property
    def anywhere(self) -> bool:
        """Return whether the trials run where the scheduler starts them."""
        return self.name == ANY_NODE


class Round(Record):
    """Nodes asked for together.

    Later rounds replace lost trials beside it, or do what is left when all its trials have ended.
    """

    number: int
    created: float
    nodes: list[RoundNode]
    minutes: int = Field(description="time limit of trials")
    most_minutes: int | None = Field(
        default=None, description="longest time limit of its jobs that was allowed"
    )
    most_trials: int = absent(
        0, "trials of the run at a time, if more than round 0 has: few GPUs were free"
    )

    @property
    def node_names(self) -> list[str]:
        """Return the names of all of its nodes, each of which has a keeper."""
        return [name for node in self.nodes for name in node.names]


class Waiting(Record):
    """`waiting.json`: why a run gets no nodes now."""

    why: str
    since: float = Field(description="in seconds since the epoch")


HOOKS = ("after_run", "on_alarm")
"""The calls when a run has ended: the user's own command, and the one that tells of alarms."""


class HookEnd(Record):
    """`after_run.json`, `on_alarm.json`: how what is called after the run ended, the last time."""

    hook: str = "after_run"
    problem: str = Field(default="", description="what went wrong; empty if nothing did")
    exit_status: int | None = Field(
        default=None, description="negative: the signal that ended it; None if it did not end"
    )
    last_line: str = Field(default="", description="of its output, if something went wrong")
    log: str = Field(description="the file of its output")

    @property
    def words(self) -> str:
        """Return what went wrong, for people; empty if nothing did."""
        said = f": {self.last_line}" if self.last_line else ""
        return f"{self.hook} {self.problem}{said}; see {self.log}" if self.problem else ""


def hook_ends(run_dir: RunDir) -> dict[str, HookEnd]:
    """Return how what was called after a run ended, by name."""
    ends = {hook: _files.read_record_if_there(run_dir.hook(hook), HookEnd) for hook in HOOKS}
    return {hook: end for hook, end in ends.items() if end is not None}


class Submitted(Record):
    """`jobs/<name>.json`: a job that the scheduler accepted or refused."""

    job: Job
    job_id: str | None
    refusal: str = ""
    time: float


class HandedOver(Record):
    """`handed-over.json`: a supervisor's job found that it cannot submit from its node."""

    why: str
    time: float


class Refusal(Record):
    """Jobs of one kind that the scheduler refuses now."""

    job: str = Field(description="name of the last one")
    words: str = Field(description="of the scheduler")
    tries: int = Field(description="in a row, that may or that may not pass by themselves")
    passes: bool = Field(default=False, description="whether this may pass by itself")
    since: float
    again: float | None = Field(description="time of the next try; None if there is none")


class Refusals(Record):
    """`refused.json`: the jobs that the scheduler refuses now, the last of each kind."""

    jobs: list[Refusal]


class JudgeProgress(Record):
    """`judge.json`: how far the judge is, as the job says that asks it."""

    state: Literal["asking", "silent", "refuses", "spent"] = Field(
        description="it is asked; it gave nothing usable for a while; it would answer nothing; "
        "its budget is spent"
    )
    said: str = Field(default="", description="what was wrong last, or where the job ended, why")
    answered: int = Field(default=0, description="questions that the judge answered for this run")
    kept: int = Field(default=0, description="questions that it had answered for earlier runs")
    left: int = Field(default=0, description="questions that are written and not answered")
    tokens: int = Field(default=0, description="that the judge read and wrote for this run")
    odd: dict[str, int] = Field(
        default={}, description="kind → answers that are odd: refused, empty, cut and others"
    )
    cpu_seconds: float = Field(default=0.0, description="of all jobs that asked")
    gpu_seconds: float = Field(
        default=0.0, description="of the GPUs of these jobs, where the judge is a checkpoint"
    )
    nodes: list[str] = Field(
        default=[], description="where these jobs have copied weights and not removed them"
    )
    updated: float

    @property
    def asked_no_more(self) -> bool:
        """Return whether asking again needs somebody to change something first."""
        return self.state in ("refuses", "spent")


class StageProgress(Record):
    """`stage/<round>-<node>.json`: how far a keeper's copy of the weights is."""

    state: Literal["copying", "ready", "removed", "failed"]
    done_bytes: int
    total_bytes: int
    started: float
    ready: float | None = Field(default=None, description="the weights were there")
    updated: float
    message: str = Field(default="", description="the error, where it failed")
    refused: bool = Field(default=False, description="it would fail so on every node")
    log: str = Field(default="", description="absolute path of the job's log, if it has one")


TrialError = Literal["input", "engine start", "out of memory", "node", "other"]
"""The reason why a trial failed; "node" is for what its machine or storage does."""


class TrialProgress(Record):
    """`trials/<trial>.json`: how far a trial is."""

    trial: str
    task: str
    node: str = Field(description="of several: where it failed, else the first")
    others: list[str] = Field(default=[], description="other nodes with a part of its engine")
    state: Literal["staging", "starting", "running", "ended", "failed"]
    started: float
    prepared: float | None = Field(default=None, description="the engine's packages were loaded")
    staged: float | None = Field(default=None, description="the weights were there")
    running: float | None = Field(default=None, description="the engine had started")
    ready: float | None = Field(default=None, description="engine answered for the first time")
    last: float | None = Field(default=None, description="engine answered, so far the last time")
    updated: float
    shards: int = Field(default=0, description="published by this trial")
    responses: int = Field(default=0, description="each turn of a conversation is one")
    suspects: int = Field(
        default=0, description="batches that ran alone, of items at which an engine died"
    )
    message: str = Field(default="", description="why it failed, or ended early")
    sequences: int = Field(default=0, description="that its engine may run at once")
    cause: TrialError | None = Field(
        default=None, description="of a failure; bad input fails in every trial"
    )
    log: str = Field(default="", description="absolute path of the job's log, if it has one")
