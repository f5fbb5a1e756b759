"""Weights whose last process was killed are removed from each node at a run's end."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.clocks import SetClock
from tests.decisions import make_run
from tests.incidents import incident
from tests.reviewer import Cancelling, FakeCluster

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import End, Job, State, TaskStatus
from coordinate_eval.coordinator.cli import job_commands
from coordinate_eval.coordinator.incidents.incident import write_incident
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import (
    ANY_NODE,
    JudgeProgress,
    Round,
    RoundNode,
    StageProgress,
    TrialProgress,
)
from coordinate_eval.coordinator.supervisor.ending import nodes_to_sweep, sweep
from coordinate_eval.coordinator.workers.on_node import node_memory
from coordinate_eval.errors import SubmitRefused


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    """A run of one trial on each of two nodes, in two rounds."""
    found = RunDir(tmp_path / "run")
    settings = {"stage": {"root": str(tmp_path)}}
    _files.write_record(found.run, make_run(folder=str(tmp_path), settings=settings))
    for number in (0, 1):
        nodes = [RoundNode(name=n, gpu_type="h100", trials=1) for n in ("n", "m")]
        made = Round(number=number, created=0, nodes=nodes, minutes=30)
        _files.write_record(found.round(number), made)
    return found


def keeper(run_dir: RunDir, state: str, updated: float = 100.0, number: int = 0) -> None:
    values = {"state": state, "done_bytes": 1, "total_bytes": 1, "started": 0, "updated": updated}
    _files.write_record(run_dir.stage(number, "n"), StageProgress.model_validate(values))


def trial(
    run_dir: RunDir, state: str, node: str = "n", name: str = "n-0", others: Sequence[str] = ()
) -> None:
    values = {"trial": name, "task": "1.0", "node": node, "state": state, "started": 0}
    values |= {"updated": 90, "others": others, "message": "lost" if others else ""}
    _files.write_record(run_dir.trial(name), TrialProgress.model_validate(values))


def died(run_dir: RunDir, when: float) -> None:
    write_incident(run_dir, incident("n-0", "n", how=End.PREEMPTED, time=when))


@pytest.mark.parametrize("state", ["copying", "ready"])
def test_a_node_whose_keeper_was_killed(run_dir: RunDir, state: str) -> None:
    keeper(run_dir, state)
    trial(run_dir, "ended")
    assert nodes_to_sweep(run_dir) == ["n"]


def test_a_node_whose_judge_was_killed(run_dir: RunDir) -> None:
    for nodes in (["j"], []):
        _files.write_record(run_dir.judge, JudgeProgress(state="asking", nodes=nodes, updated=0))
        assert nodes_to_sweep(run_dir) == nodes


def test_no_node_where_all_ended_by_themselves(run_dir: RunDir) -> None:
    keeper(run_dir, "removed")
    keeper(run_dir, "failed", number=1)
    trial(run_dir, "ended")
    trial(run_dir, "failed", name="n-0-r1")
    assert nodes_to_sweep(run_dir) == []


@pytest.mark.parametrize("state", ["staging", "starting", "running"])
def test_a_node_where_a_trial_was_killed_after_its_keeper_had_ended(
    run_dir: RunDir, state: str
) -> None:
    keeper(run_dir, "removed", updated=100)
    trial(run_dir, state)
    assert nodes_to_sweep(run_dir) == ["n"]  # it is not known when
    died(run_dir, 101)
    assert nodes_to_sweep(run_dir) == ["n"]


@pytest.mark.parametrize("number", [0, 1])
def test_no_node_whose_keeper_outlived_the_killed_trial(run_dir: RunDir, number: int) -> None:
    trial(run_dir, "running")
    died(run_dir, 99)
    assert nodes_to_sweep(run_dir) == ["n"]
    keeper(run_dir, "removed", updated=100, number=number)
    assert nodes_to_sweep(run_dir) == []


def test_the_node_on_which_the_scheduler_had_started_a_trial(run_dir: RunDir) -> None:
    nodes = [RoundNode(name=ANY_NODE, gpu_type="h100", trials=2)]
    _files.write_record(run_dir.round(0), Round(number=0, created=0, nodes=nodes, minutes=30))
    trial(run_dir, "running", node="far", name=jobs.trial_id(ANY_NODE, 1, 0))
    assert nodes_to_sweep(run_dir) == ["far"]


@pytest.mark.parametrize("state", ["failed", "ended"])
def test_the_nodes_of_a_trial_that_may_have_lost_one_of_its_processes(
    run_dir: RunDir, state: str
) -> None:
    trial(run_dir, state, node="m", others=["n"])
    assert nodes_to_sweep(run_dir) == ["m", "n"]
    keeper(run_dir, "removed", updated=100)  # after its end
    assert nodes_to_sweep(run_dir) == ["m"]
    died(run_dir, 101)
    assert nodes_to_sweep(run_dir) == ["m", "n"]


class Cluster(Cancelling):
    """A scheduler that runs each job at once, or leaves it in the queue until it is cancelled."""

    def __init__(self, *, busy: bool = False) -> None:
        super().__init__()
        self._busy = busy

    def poll(self, prefix: str) -> list[TaskStatus]:
        return [
            TaskStatus(name=job.name, job_id=job.name, state=State.PENDING)
            for job in self.submitted
            if self._busy and job.name not in self.cancelled
        ]

    def submit(self, job: Job) -> str:
        if not self._busy:
            assert not job_commands.call(list(job.argv[len(jobs.program("")) :]))
        return super().submit(job)


def swept(run_dir: RunDir, cluster: Cluster) -> list[Job]:
    run = make_run(folder=str(run_dir.root), settings={"stage": {"root": str(run_dir.root)}})
    sweep(run, run_dir, cluster, 0.001, SetClock(), note=lambda step: None)
    return cluster.submitted


def test_a_small_job_on_the_node_removes_what_nobody_holds(run_dir: RunDir, tmp_path: Path) -> None:
    folders = [node_memory.user_folder(str(tmp_path)) / run / "n" for run in ("dead", "living")]
    dead, living = (node_memory.open_lock(each.with_name("n.lock")) for each in folders)
    for folder in folders:
        folder.mkdir()
    os.close(dead)  # as the kernel does
    keeper(run_dir, "ready")
    [job] = swept(run_dir, Cluster())
    assert (job.node, job.count, job.gpus, job.cpus) == ("n", 1, 0, 1)
    assert [folder.exists() for folder in folders] == [False, True]
    os.close(living)


def test_a_node_that_is_taken_is_left_to_the_next_keeper(run_dir: RunDir) -> None:
    keeper(run_dir, "ready")
    cluster = Cluster(busy=True)
    [job] = swept(run_dir, cluster)
    assert cluster.cancelled == [job.name]


def test_a_node_that_takes_no_such_job_keeps_no_other_from_being_swept(run_dir: RunDir) -> None:
    class Picky(Cluster):
        def submit(self, job: Job) -> str:
            if job.node == "m":
                raise SubmitRefused("no GPUs asked for")
            return super().submit(job)

    keeper(run_dir, "ready")
    trial(run_dir, "running", node="m", name="m-0")
    assert nodes_to_sweep(run_dir) == ["m", "n"]
    assert [job.node for job in swept(run_dir, Picky())] == ["n"]


def test_nothing_is_submitted_and_waited_for_where_nobody_was_killed(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper(run_dir, "removed")
    trial(run_dir, "ended")
    cluster = Cluster()
    monkeypatch.delattr(Cluster, "poll")
    monkeypatch.delattr(FakeCluster, "poll")
    assert swept(run_dir, cluster) == []
