"""Trials and nodes in trouble as a run notes them, and a scheduler all of whose trials fail."""

import time
from typing import Any

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import Job, State, TaskStatus
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import StageProgress, TrialProgress
from coordinate_eval.coordinator.run.troubles.avoided import Avoided
from coordinate_eval.coordinator.run.troubles.causes import JobCause
from coordinate_eval.coordinator.run.troubles.trouble import How, Trouble, write_trouble
from coordinate_eval.diagnosis.reaction import Action
from tests.reviewer import FakeCluster

ECC = "NVRM: Xid (PCI:0000:9c:00): 48, pid=9, Double Bit ECC Error\n"


def cause(job: str, node: str = "n1", **fields: Any) -> JobCause:
    """What a job died of: something that every other job would meet, if not said otherwise."""
    known: dict[str, Any] = {"job": job, "node": node}
    known |= {"reason": "Import Error", "category": "script"}
    known |= {"action": Action.STOP, "cure": "install it", "root": "", "before_work": True}
    return JobCause.model_validate(known | fields, extra="forbid")


def trial(name: str, node: str, state: str = "failed", **fields: Any) -> TrialProgress:
    """What a trial says of itself: that it failed, unless the arguments say otherwise."""
    known = {"trial": name, "task": "1.0", "node": node, "started": 0, "updated": 0}
    return TrialProgress.model_validate(
        known | {"state": state, "cause": "other"} | fields, extra="forbid"
    )


def tell(run_dir: RunDir, name: str, responses: int, **fields: Any) -> None:
    """Write what a trial on the node of its name says; it runs, unless `fields` say otherwise."""
    known: dict[str, Any] = {"node": name[:2], "state": "running", "cause": None}
    _files.write_record(
        run_dir.trial(name), trial(name, **known | {"responses": responses} | fields)
    )


def ended(run_dir: RunDir, trial: str, how: How) -> None:
    """Note that a trial ended so, by its scheduler's words."""
    write_trouble(run_dir, Trouble(trial=trial, node=trial[:2], how=how, time=0, message=""))


def avoided(*names: str) -> dict[str, Avoided]:
    """Nodes that are avoided for another minute."""
    return {name: Avoided(node=name, until=time.time() + 60, why="it hung") for name in names}


class Enough(Exception):
    """The test has seen what it wanted."""


class Failing(FakeCluster):
    """A scheduler whose keepers copy at once, and whose trials all fail with these errors."""

    def __init__(self, run_dir: RunDir, cause: str, message: str) -> None:
        super().__init__()
        self._dir, self._cause, self._message = run_dir, cause, message
        self.trials = 0

    def submit(self, job: Job) -> str:
        if "_score" in job.argv or "_sweep" in job.argv:
            return super().submit(job)
        round_number = job.argv[job.argv.index("--round") + 1]
        node = str(job.node)
        common: dict[str, Any] = {"updated": time.time(), "message": self._message}
        if "_keep" in job.argv:
            stage = {"state": "ready", "done_bytes": 1, "total_bytes": 1, "started": 0}
            found = StageProgress.model_validate(common | stage)
            _files.write_record(self._dir.stage(int(round_number), node), found)
        else:
            for index in range(job.count):
                name = jobs.trial_id(node, index, int(round_number))
                failed = trial(name, node, **common, cause=self._cause)
                _files.write_record(self._dir.trial(name), failed)
            self.trials += job.count
        super().submit(job)
        return job.name

    def poll(self, prefix: str) -> list[TaskStatus]:
        return [
            TaskStatus(name=job.name, job_id=job.name, state=State.RUNNING)
            for job in self.submitted
            if "_keep" in job.argv and not self._released(job)
        ]

    def _released(self, job: Job) -> bool:
        number = int(job.argv[job.argv.index("--round") + 1])
        return self._dir.released(number, str(job.node)).exists()
