"""Incidents as a run writes them, and a scheduler all of whose trials fail."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import Job, State, TaskStatus
from coordinate_eval.coordinator.incidents.bad_nodes import Avoided
from coordinate_eval.coordinator.incidents.causes import Causes
from coordinate_eval.coordinator.incidents.incident import (
    How,
    Incident,
    batch_of_round,
    read_incidents,
    write_incident,
)
from coordinate_eval.coordinator.incidents.observe import (
    dead_keepers,
    dead_pullers,
    failed_jobs,
    recorded,
)
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import StageProgress, TrialProgress, read_run
from coordinate_eval.diagnosis.cause import Cause
from tests.reviewer import FakeCluster

ECC = "NVRM: Xid (PCI:0000:9c:00): 48, pid=9, Double Bit ECC Error\n"

_OF_CAUSE = {"reason": "Import Error", "category": "script", "cure": "install it", "then": "stop"}


def incident(job: str, node: str = "n1", **fields: Any) -> Incident:
    """A job died: of something that every other job would meet, if not said otherwise."""
    cause = {name: fields.pop(name, value) for name, value in _OF_CAUSE.items()}
    known: dict[str, Any] = {"job": job, "node": node, "time": 0.0, "message": "it failed"}
    known |= {
        "how": "error",
        "before_work": True,
        "cause": Cause.model_validate(cause, extra="forbid"),
    }
    if job.startswith("keeper"):
        known |= {"kind": "keeper", "batch": batch_of_round(int(job.split("-")[1]))}
    elif "_" in job:
        known |= {"kind": job.rstrip("_0123456789"), "batch": job.rpartition("_")[0]}
    else:
        number = int(job.partition("-r")[2] or "0")
        known |= {"kind": "trial", "batch": batch_of_round(number)}
    return Incident.model_validate(known | fields, extra="forbid")


def judge(
    run_dir: RunDir,
    tasks: Sequence[TaskStatus] = (),
    settings: Settings | None = None,
    tell: Callable[[str], None] = lambda event: None,
) -> list[Incident]:
    """Have it judged and written what jobs say, and how these tasks ended; return all."""
    run, known = read_run(run_dir), recorded(run_dir)
    now = time.time()
    seen = [
        *failed_jobs(run_dir, now, known),
        *dead_pullers(run_dir, run, tasks, now, known),
        *dead_keepers(run_dir, run, tasks, now, known),
    ]
    Causes(run_dir, settings or run.settings, tell).record(seen)
    return read_incidents(run_dir)


def trial(name: str, node: str, state: str = "failed", **fields: Any) -> TrialProgress:
    """What a trial says of itself: that it failed, unless the arguments say otherwise."""
    known = {"trial": name, "task": "1.0", "node": node, "started": 0, "updated": 0}
    return TrialProgress.model_validate(
        known | {"state": state, "cause": "other"} | fields, extra="forbid"
    )


def tell(run_dir: RunDir, name: str, responses: int, **fields: Any) -> None:
    """Write what a trial on the node of its name says: it runs, if `fields` do not say otherwise.

    Where it failed, its incident is written, too, of an unknown cause.
    """
    known: dict[str, Any] = {"node": name[:2], "state": "running", "cause": None}
    said = trial(name, **known | {"responses": responses} | fields)
    _files.write_record(run_dir.trial(name), said)
    run_dir.incident(name).unlink(missing_ok=True)
    if said.state == "failed":
        unknown = {"reason": "Unknown", "category": "unknown", "then": "node"}
        died = incident(name, said.node, said=said.cause, time=time.time(), **unknown)
        write_incident(run_dir, died)


def ended(run_dir: RunDir, trial: str, how: How, **fields: Any) -> None:
    """Note that a trial ended so, of an unknown cause."""
    unknown = {"reason": "Unknown", "category": "unknown", "then": "node", "before_work": False}
    known: dict[str, Any] = {"node": trial[:2], "time": time.time(), "how": how}
    write_incident(run_dir, incident(trial, **known | unknown | fields))


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
