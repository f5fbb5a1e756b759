"""Someone who plans, reviews the plan and submits it, and a scheduler that takes it."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from coordinate_eval._clock import SystemClock
from coordinate_eval.clusters.protocol import (
    Busy,
    Cluster,
    Job,
    JobLimits,
    Node,
    ShownJob,
    State,
    TaskStatus,
)
from coordinate_eval.coordinator.cli.launch import dry_run, run
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.inputs.suites import suite
from coordinate_eval.coordinator.planning import reviewed_plan
from coordinate_eval.coordinator.planning.new_run import Inputs, read_inputs
from coordinate_eval.coordinator.prompts.request_cache import link_found
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, read_run
from coordinate_eval.coordinator.supervisor.placing.other_runs import OtherRuns
from coordinate_eval.coordinator.supervisor.placing.write_plan import write_plan
from coordinate_eval.errors import ClusterSilent, SubmitRefused, UserError
from coordinate_eval.records import EngineSettings
from tests.plans import changed
from tests.runs import TASKS
from tests.tiny import tiny_model

NODES = [
    Node(
        name=f"n{i}", gpus=4, free_gpus=4, gpu_type="h200", gpu_memory_gib=141, cpus=64,
        memory_gib=200,
    )
    for i in (1, 2)
]  # fmt: skip


LONG = f"""\
include_path: ['{TASKS}']
datasets:
- {{name: tiny_choice, task: tiny_choice, prior: {{gpu_seconds: 9000}}}}
- {{name: tiny_code, task: tiny_code, prior: {{gpu_seconds: 3000, cpu_seconds: 60}}}}
"""
"""Work enough for every GPU there is."""


SLICED = f"""\
include_path: ['{TASKS}']
datasets:
- {{name: tiny_choice, task: tiny_choice, prior: {{gpu_seconds: 5}}}}
- {{name: tiny_code, task: tiny_code, prior: {{gpu_seconds: 1, chunk_overhead_seconds: 1}}}}
- {{name: tiny_cloze, task: tiny_cloze, prior: {{gpu_seconds: 100}}}}
"""
"""Two datasets have a slice, short beside the third."""


OnCluster = Callable[[object], None]
"""Has commands take a cluster for that of the settings, and for that of runs."""


class FakeCluster(Cluster):
    """A scheduler that takes what it is given."""

    name = "slurm"

    def __init__(self) -> None:
        self.whole = False
        self.free, self.busy = list(NODES), list[Busy]()
        self.submitted: list[Job] = []
        self.refuses = self.silent = False
        self.limited = JobLimits()
        self.tasks: list[TaskStatus] | None = None
        """What it says of its jobs: if None, that all of them run."""

    def shown(self, job: Job) -> ShownJob:
        return ShownJob(job.name, " ".join(job.argv), None, " ".join(job.argv))

    def about(self) -> Mapping[str, str]:
        return {"scheduler": "takes what it is given"}

    def nodes(self) -> tuple[list[Node], list[Busy]]:
        if self.silent:
            raise ClusterSilent("no answer")
        return self.free, self.busy

    def whole_nodes(self) -> bool:
        return self.whole

    def limits(self) -> JobLimits:
        return self.limited

    def submit(self, job: Job) -> str:
        if self.refuses:
            raise SubmitRefused("no")
        self.submitted.append(job)
        return str(len(self.submitted))

    def poll(self, prefix: str) -> list[TaskStatus]:
        if self.silent:
            raise ClusterSilent("no answer")
        if self.tasks is not None:
            return self.tasks
        return [
            TaskStatus(name=job.name, job_id=str(number), state=State.RUNNING)
            for number, job in enumerate(self.submitted, 1)
            if job.name.startswith(prefix)
        ]

    def cancel(self, job_ids: list[str]) -> None:
        raise AssertionError("nothing is to be cancelled")


class Cancelling(FakeCluster):
    """A scheduler that notes what is cancelled. It goes on all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.cancelled: list[str] = []

    def cancel(self, job_ids: list[str]) -> None:
        self.cancelled += job_ids


def plan_now(run_dir: RunDir, run: Run, cluster: Cluster) -> Run:
    """The run as its supervisor plans it now."""
    others = OtherRuns(run_dir, run, cluster, SystemClock())
    return write_plan(run_dir, run, cluster, time.time(), others)


class Reviewer:
    """Someone who plans, reviews and submits."""

    def __init__(self, cache: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.cluster = FakeCluster()
        self.folder, self.capsys = folder, capsys
        self.file = folder / "plan.json"
        (folder / "long.yaml").write_text(LONG)
        self.settings = Settings(
            suite=str(folder / "long.yaml"),
            cluster="slurm",
            runs_dir=str(folder / "runs"),
            cache_dir=str(cache),
            engine=EngineSettings(name="simulated"),
        )

    def plan(self, checkpoint: Path | None = None) -> dict[str, Any]:
        """A dry run, its document kept in `file`."""
        dry_run.show_plan(self.inputs(checkpoint=checkpoint or tiny_model()), as_json=True)
        self.file.write_text(self.capsys.readouterr().out)
        tree: dict[str, Any] = json.loads(self.file.read_text())
        return tree

    def wants(self, suite: str, **settings: Any) -> None:
        """From now on this suite, with these settings."""
        (self.folder / "other.yaml").write_text(suite)
        changes = {"suite": str(self.folder / "other.yaml"), **settings}
        self.settings = changed(self.settings, **changes)

    def inputs(
        self, checkpoint: Path | None = None, plan: Path | None = None, only: Sequence[str] = ()
    ) -> Inputs:
        """A checkpoint or a plan, with part of the suite."""
        wanted = suite.narrow(suite.load(self.settings.suite), only=only)
        reviewed = reviewed_plan.read(plan) if plan else None
        return read_inputs(self.settings, wanted, checkpoint, reviewed=reviewed)

    def start(self) -> RunDir:
        """A run of no plan as its command leaves it; its requests are in the cache."""
        self.plan()
        assert run.start_run(self.inputs(tiny_model())) == 0
        run_dir = RunDir(Path(self.capsys.readouterr().out.strip()))
        assert not list(run_dir.requests_folder.iterdir())
        return run_dir

    def submit(self, *, run_dir: Path | None = None, **more: Any) -> Path:
        """The run of the plan in `file`, as its supervisor has planned it."""
        assert run.start_run(self.inputs(plan=self.file, **more), run_dir) == 0
        root = self.capsys.readouterr().out.strip()
        if root:
            self.supervise(RunDir(Path(root)))
        return Path(root)

    def supervise(self, run_dir: RunDir) -> None:
        """Do what a supervisor does first where all is in the cache. Its nodes are free again."""
        made = read_run(run_dir)
        link_found(made, run_dir)
        others = OtherRuns(run_dir, made, self.cluster, SystemClock())
        write_plan(run_dir, made, self.cluster, time.time(), others)
        others.leave()

    def refused(self, *words: str, run_dir: Path | None = None, **more: Any) -> None:
        """Nothing is submitted or written, and these words say why."""
        before = len(self.cluster.submitted)
        with pytest.raises(UserError) as caught:
            run.start_run(self.inputs(plan=self.file, **more), run_dir)
        for word in words:
            assert word in str(caught.value)
        assert len(str(caught.value).splitlines()) < 6
        assert len(self.cluster.submitted) == before
        if not before:
            assert not (self.folder / "runs").exists()
