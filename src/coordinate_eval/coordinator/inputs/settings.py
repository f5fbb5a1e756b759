"""The settings, as sections of a TOML file have them: names, limits, defaults, meanings."""

from pathlib import Path
from typing import Any

import platformdirs
from pydantic import ConfigDict, Field, field_validator

from coordinate_eval.clusters.containers import ContainerSettings
from coordinate_eval.clusters.local import LocalSettings
from coordinate_eval.clusters.protocol import MOST_CPUS, MOST_GPUS
from coordinate_eval.clusters.ray.cluster import RaySettings
from coordinate_eval.records import EngineSettings, Record, judge_name
from coordinate_eval.slurm.settings import SlurmSettings

MOST_GIB = 1e6
"""Limit for the memory of one job: more than any node has."""

MOST_MINUTES, MOST_SECONDS = 1_000_000, 1e6
"""Limits for times: two years, and twelve days."""

MOST_RESTRAINT = 100.0
"""Restraint of a run that takes the fewest GPU hours."""

# A key itself, given here by mistake, would stand in files.
_VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]{0,99}$"

FOLDERS = ("runs_dir", "cache_dir", "priors_dir")
"""Settings that are folders, which all nodes share."""


class _Section(Record):
    """A section of the settings. No number in it may be infinite."""

    model_config = ConfigDict(allow_inf_nan=False)


class StageSettings(_Section):
    """The staging of weights on nodes."""

    where: str = Field(
        default="shm",
        description="where engines find the weights: shm, in each node's memory; local DIR, in a "
        "folder on each node's own disk, such as local /local/scratch; none, at the "
        "checkpoint's own place",
    )
    root: str = Field(
        default="/dev/shm",  # noqa: S108
        description="folder of a memory file system on each node: for the weights with shm, for "
        "links to them with none",
    )
    keep: bool = Field(
        default=True,
        description="hold the checkpoint's files by hard links beside it until all responses are "
        "there, so that training may delete it meanwhile",
    )

    @field_validator("where")
    @classmethod
    def _is_known(cls, given: str) -> str:
        if given not in ("shm", "none") and not given.startswith("local /"):
            raise ValueError("must be shm, none, or local DIR with the absolute path of a folder")
        return given

    @property
    def folder(self) -> str:
        """Return the folder on each node for weights or links to them, and what engines compile."""
        return self.where.removeprefix("local ") if self.in_files else self.root

    @property
    def in_files(self) -> bool:
        """Return whether the weights are copied to a disk."""
        return self.where.startswith("local ")

    @property
    def in_memory(self) -> bool:
        """Return whether the weights are copied into memory, which counts as the keeper's."""
        return self.where == "shm"


class TrialSettings(_Section):
    """The resources of one trial without its GPUs, and its time limit."""

    cpus: int = Field(
        default=4, ge=1, le=MOST_CPUS, description="cores of one trial, for each of its GPUs"
    )
    memory_gib: float = Field(
        default=16.0,
        gt=0,
        le=MOST_GIB,
        description="host memory of one trial for each of its GPUs, without the weights",
    )
    max_length: int | None = Field(
        default=None,
        ge=8,
        le=10**9,
        description="tokens to which prompts are cut, the context; if not set, the model's",
    )
    tensor_parallel: int | None = Field(
        default=None,
        ge=1,
        le=MOST_GPUS,
        description="GPUs of one engine; if not set, as many as make a node fastest",
    )
    max_minutes: int = Field(
        default=720, ge=1, le=MOST_MINUTES, description="longest time limit of any job"
    )
    hang_minutes: float = Field(
        default=15.0,
        gt=0,
        le=MOST_MINUTES,
        description="a job without a sign of life for this time is ended: twice as long while it "
        "starts, and a trial has at least 5 times what its longest shard is predicted to take; "
        "scoring one dataset may take twice as long, and is tried 3 times",
    )


class MetricSettings(_Section):
    """The jobs that answer questions of metrics."""

    cpus: int = Field(
        default=64, ge=1, le=MOST_CPUS, description="cores of all metric jobs together"
    )
    allow_unsafe_code: bool = Field(
        default=False,
        description="run programs that a model wrote without isolation, if no sandbox works",
    )


class JudgeSettings(_Section):
    """The model that rates the answers of judged datasets."""

    base_url: str | None = Field(
        default=None,
        description="address of an OpenAI-compatible server, such as http://host:8000/v1",
    )
    checkpoint: str | None = Field(
        default=None,
        description="a checkpoint that is the judge, in place of a server: jobs of this program "
        "run it",
    )
    engine_args: dict[str, Any] = Field(
        default={}, description="arguments of the engine that runs that checkpoint"
    )
    model: str | None = Field(default=None, description="the judge's name on that server")
    revision: str = Field(
        default="", description="tells judges of one name apart; it is part of the results"
    )
    api_key_env: str | None = Field(
        default=None,
        pattern=_VARIABLE,
        description="name of the environment variable that has the server's key",
    )
    concurrency: int = Field(
        default=32, ge=1, le=4096, description="questions to the judge at the same time"
    )
    max_requests: int | None = Field(default=None, ge=1, description="questions of a run, at most")
    baseline: str | None = Field(
        default=None,
        description="answers to compare with: a file of them, or a run directory",
    )

    @field_validator("base_url")
    @classmethod
    def _has_no_secret(cls, given: str | None) -> str | None:
        if given and set("@?#") & set(given):
            raise ValueError(
                "must have no password and no query, which would stand in files of the run: put a "
                "key into an environment variable, and its name into judge.api_key_env"
            )
        return given

    @property
    def name(self) -> str:
        """Return the judge's name in questions, with its revision; empty if there is no judge."""
        return judge_name(self.model, self.revision) if self.model else ""


class HarnessSettings(_Section):
    """The jobs that run the evaluation harness: they build prompts, and score datasets."""

    jobs: int = Field(
        default=8,
        ge=1,
        le=MOST_CPUS,
        description="jobs that build at the same time, and jobs that score; each has one core",
    )
    memory_gib: float = Field(
        default=8.0,
        gt=0,
        le=MOST_GIB,
        description="memory of such a job; a process that scores may use 9/10 of it",
    )


class LimitSettings(_Section):
    """The limit of all runs of a user together, in addition to the scheduler's."""

    gpus: int | None = Field(
        default=None, ge=1, description="GPUs of all runs of this user together, at most"
    )


class SupervisorSettings(_Section):
    """The supervisor of a run."""

    poll_seconds: float = Field(
        default=5.0, gt=0, le=MOST_SECONDS, description="time between two looks at the queue"
    )
    patience_seconds: float = Field(
        default=600.0,
        gt=0,
        le=MOST_SECONDS,
        description="time that a trial or keeper may wait in the queue; with `queue`, only one "
        "that never starts by itself. Also the time that jobs go on without a supervisor, or with "
        "a judge that gives nothing usable",
    )


def _in_home(folder: str) -> str:
    """Return a folder in the user's home; it keeps its `~` if the home is unknown."""
    try:
        return str(Path("~/.coordinate-eval", folder).expanduser())
    except RuntimeError:
        return f"~/.coordinate-eval/{folder}"


class Settings(Record):
    """All settings."""

    suite: str = Field(default="base", description="a shipped suite's name, or a suite file")
    cluster: str = Field(default="auto", description="auto, slurm, local, ray, or a cluster file")
    runs_dir: str = Field(
        default_factory=lambda: _in_home("runs"),
        description="folder of all run directories, on storage that all nodes share",
    )
    cache_dir: str = Field(
        default_factory=lambda: platformdirs.user_cache_dir("coordinate-eval"),
        description="folder of built requests, on storage that all nodes share",
    )
    priors_dir: str = Field(
        default_factory=lambda: _in_home("priors"),
        description="folder of what finished runs measured, on storage that all nodes share",
    )
    trusted_users: list[str] = Field(
        default=[],
        description="users besides root whose suites, tasks and plans are used: names or numbers",
    )
    nodes: str | None = Field(
        default=None, description="the number of nodes to use at most, or their names"
    )
    max_gpus: int | None = Field(
        default=None, ge=1, description="GPUs of all trials of a run together, at most"
    )
    gpu_type: str = Field(
        default="",
        description="the GPU type to use, such as h100; if not set, the one whose free GPUs are "
        "fastest together",
    )
    gpu_memory_gib: float | None = Field(
        default=None,
        gt=0,
        le=MOST_GIB,
        description="memory of a GPU whose type does not tell it; if not set, the smaller one of "
        "that type, and of an unknown type no more than 16",
    )
    restraint: float = Field(
        default=1.0,
        ge=0,
        le=MOST_RESTRAINT,
        description="how much a run saves GPU time: engines and nodes are added while 1 % less "
        "makespan costs at most 1/restraint % more GPU hours; 0 takes all that shorten it, 100 the "
        "fewest GPU hours",
    )
    deadline_seconds: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="refuse a plan whose makespan is longer",
    )
    queue: bool = Field(
        default=False,
        description="if no GPU is free, wait for one; if few are, begin on them and take more as "
        "they become free",
    )
    first_signal: bool = Field(
        default=False, description="run a slice of every dataset first, for rough scores early"
    )
    after_run: list[str] = Field(
        default=[],
        description="command to call when a run has ended, such as a script that logs its scores: "
        "a list of words, to which the run directory is added",
    )
    on_alarm: list[str] = Field(
        default=[],
        description="command that is told of new alarms when a run has ended: a list of words; it "
        "gets them as JSON on its stdin",
    )
    alarm_webhook_env: str | None = Field(
        default=None,
        pattern=_VARIABLE,
        description="name of the environment variable that has the address of a webhook, which "
        "gets the same JSON",
    )
    engine: EngineSettings = EngineSettings()
    stage: StageSettings = StageSettings()
    trial: TrialSettings = TrialSettings()
    metrics: MetricSettings = MetricSettings()
    judge: JudgeSettings = JudgeSettings()
    harness: HarnessSettings = HarnessSettings()
    limits: LimitSettings = LimitSettings()
    supervisor: SupervisorSettings = SupervisorSettings()
    container: ContainerSettings = ContainerSettings()
    slurm: SlurmSettings = SlurmSettings()
    local: LocalSettings = LocalSettings()
    ray: RaySettings = RaySettings()
