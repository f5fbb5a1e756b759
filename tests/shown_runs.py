"""A run directory as its jobs leave it, step by step, and what commands show of it."""

import time
from pathlib import Path

import pytest
from typer.testing import Result

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import State, TaskStatus
from coordinate_eval.coordinator.inputs import clusters
from coordinate_eval.coordinator.report import state
from coordinate_eval.coordinator.report.results import collect_results
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, TrialProgress
from coordinate_eval.errors import ClusterSilent
from coordinate_eval.records import DatasetResults
from tests.decisions import RUN, SPANS, make_run
from tests.run_dirs import write_index
from tests.trainings import call

SUPERVISOR = TaskStatus(
    name=jobs.supervisor_name(RUN, 1), job_id="7", state=State.RUNNING, node="n0"
)
REQUESTS = 26
"""Of the run below: two of each item."""


class Scheduler:
    """A cluster that only says which jobs there are."""

    local = False

    def __init__(self, tasks: list[TaskStatus] | None) -> None:
        self.tasks = tasks

    def __enter__(self) -> "Scheduler":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def poll(self, prefix: str) -> list[TaskStatus]:
        if self.tasks is None:
            raise ClusterSilent("no answer")
        return [task for task in self.tasks if task.name.startswith(prefix)]


def submitted_run(runs: Path) -> RunDir:
    """A run of two datasets on two nodes with two trials each, submitted a minute ago."""
    made = RunDir(runs / "r")
    settings = RUN.settings.model_copy(update={"runs_dir": str(runs)})
    _files.write_record(made.run, make_run(created=time.time() - 60, settings=settings))
    for name, items in (("a", 10), ("b", 3)):
        write_index(made, name, items, requests=2 * items)
    return made


def pending(name: str, reason: str = "Resources") -> TaskStatus:
    return TaskStatus(name=name, job_id="8", state=State.PENDING, reason=reason)


def running(name: str, index: int = 0) -> TaskStatus:
    return TaskStatus(name=name, job_id="8", index=index, state=State.RUNNING)


def trial(run_dir: RunDir, node: str, index: int, word: str, responses: int = 0) -> None:
    """Write what a trial says of itself; `word` is its state."""
    now = time.time()
    record = TrialProgress.model_validate(
        {"trial": f"{node}-{index}", "task": f"8_{index}.0", "node": node, "state": word,
         "started": now - 30, "ready": now - 10, "updated": now, "responses": responses}
    )  # fmt: skip
    _files.write_record(run_dir.trial(record.trial), record)


def publish(run_dir: RunDir, count: int) -> None:
    """Publish the responses of the first shards."""
    for span in SPANS[:count]:
        _files.write(run_dir.published("outputs", span), "")


def score(run_dir: RunDir, *names: str) -> None:
    """Write scores of datasets."""
    for name in names:
        results = {name: {"acc,none": 0.5, "acc_stderr,none": 0.1}}
        found = DatasetResults(dataset=name, items=3, results=results)
        _files.write_record(run_dir.dataset_results(name), found)


def finish(run_dir: RunDir, reason: str = "") -> None:
    """Write the results of the run, as its supervisor does at the end."""
    _files.write(run_dir.results, _files.pretty(collect_results(run_dir, RUN, reason)))


def complete(run_dir: RunDir) -> None:
    """Publish, score and write all that the run has."""
    publish(run_dir, len(SPANS))
    score(run_dir, "a", "b")
    finish(run_dir)


def seen(
    run_dir: RunDir, *tasks: TaskStatus, silent: bool = False, run: Run = RUN
) -> state.Progress:
    """How far the run is, seen by someone to whom the scheduler names these tasks, or nothing."""
    known = None if silent else list(tasks)
    return state.progress(run_dir, run, known, silent=silent, requests=REQUESTS)


def ask(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, tasks: list[TaskStatus] | None, *args: str
) -> Result:
    """Call `status`; a scheduler without tasks (None) does not answer."""
    monkeypatch.setattr(clusters, "by_name", lambda *_: Scheduler(tasks))
    return call(run_dir.root.parent, "status", *args)
