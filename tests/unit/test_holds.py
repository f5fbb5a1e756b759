"""Jobs that the scheduler holds: for a person, which is respected, or after a failed launch."""

import time
from functools import partial
from pathlib import Path

import pytest
from tests.clocks import SetClock
from tests.decisions import DIR, RUN, TRIAL, facts, submitted, tasks
from tests.reviewer import Cancelling, FakeCluster, Reviewer
from tests.run_dirs import unplanned
from tests.shown_runs import SUPERVISOR, ask, pending, running, seen
from tests.tiny import tiny_model

from coordinate_eval.clusters.protocol import Hold, Job, State, TaskStatus
from coordinate_eval.coordinator.cli.launch.resume import resume_run
from coordinate_eval.coordinator.cli.launch.run import start_run
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.report.state import Phase
from coordinate_eval.coordinator.run import jobs, supervision
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import ANY_NODE, Round, RoundNode
from coordinate_eval.coordinator.supervisor.decide import decide
from coordinate_eval.coordinator.supervisor.handover import LOOK_SECONDS
from coordinate_eval.coordinator.supervisor.loop import Supervisor
from coordinate_eval.coordinator.supervisor.placing import promises
from coordinate_eval.coordinator.supervisor.values import Cancel
from coordinate_eval.errors import CoordinateError

PERSONS = [Hold.ADMIN, Hold.USER]
LAUNCH_FAILED = "launch failed requeued held"


def late(held: Hold, *names: str, node: str = "n1") -> set[str]:
    """Return what is cancelled of two held tasks each that were submitted long ago."""
    round_ = Round(number=0, created=0, nodes=[RoundNode(name=node, gpu_type="", trials=2)],
                   minutes=9)  # fmt: skip
    waiting = [
        task.model_copy(update={"held": held})
        for name in names
        for task in tasks(name, State.PENDING, State.PENDING)
    ]
    known = facts(rounds=[round_], now=1e6, submitted=submitted(*names), tasks=waiting)
    found = [action for action in decide(RUN, DIR, known) if isinstance(action, Cancel)]
    return {job for action in found for job in action.job_ids}


@pytest.mark.parametrize("held", PERSONS)
def test_what_a_person_holds_is_not_late(held: Hold) -> None:
    anywhere = jobs.trials_name(RUN, 0, ANY_NODE)
    keeper = jobs.keeper_name(RUN, 0, "n1")
    assert late(held, keeper, TRIAL[0]) == late(held, anywhere, node=ANY_NODE) == set()


def test_what_failed_to_launch_is_tried_elsewhere() -> None:
    assert late(Hold.LAUNCH, TRIAL[0]) == {f"{TRIAL[0]}_0", f"{TRIAL[0]}_1"}


def test_a_held_job_keeps_no_node_from_other_runs() -> None:
    prefix = "ce-other.1-"
    keeper, trials = jobs.node_names(prefix, 0, "n1")
    on = promises.PromisedNode(name="n1", gpu_type="", trials=1, round=0)
    other = promises.Promise(
        run="other", prefix=prefix, root="/r", created=0, looked=0, waiting=False, gpus=1, cpus=1,
        memory_gib=1, keeper_gib=0, nodes=[on],
    )  # fmt: skip
    (waiting,) = tasks(trials, State.PENDING)
    held = waiting.model_copy(update={"held": Hold.ADMIN})
    node = FakeCluster().free[0].model_copy(update={"name": "n1"})
    there = {prefix: frozenset({keeper, trials})}
    free = [
        promises.beside([node], [], promises.Others([other], [task], there))[0]
        for task in (waiting, held)
    ]
    assert [n.free_gpus for [n] in free] == [node.gpus - 1, node.gpus]


def hold(task: TaskStatus, held: Hold, reason: str = "R") -> TaskStatus:
    return task.model_copy(update={"state": State.PENDING, "held": held, "reason": reason})


@pytest.mark.parametrize(
    ("held", "cure"),
    [
        (Hold.ADMIN, "by an administrator (R): ask the administrators"),
        (Hold.USER, "by hand (R): `scontrol release 8`"),
        (Hold.LAUNCH, "after its launch failed (R): `scontrol release 8`"),
    ],
)
def test_status_says_who_holds_a_job_and_what_lets_it_start(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, held: Hold, cure: str
) -> None:
    status = partial(ask, run_dir, monkeypatch)
    waits = [hold(pending(TRIAL[0]).model_copy(update={"index": i}), held) for i in range(2)]
    said = " ".join(status([SUPERVISOR, *waits]).output.split())
    assert said.count("job 8 is held ") == 1
    assert cure in said


@pytest.mark.parametrize("held", PERSONS)
def test_a_supervisor_that_a_person_holds_is_shown_whatever_else_is_alive(
    run_dir: RunDir, held: Hold
) -> None:
    held_one = hold(SUPERVISOR, held)
    found = seen(run_dir, held_one, running(TRIAL[0]), pending(TRIAL[1]))
    assert found.phase is Phase.QUEUED
    assert "job 7 is pending" in found.detail
    other = SUPERVISOR.model_copy(update={"job_id": "9"})
    assert seen(run_dir, held_one, other).phase is Phase.WAITING


def test_a_supervisor_that_was_not_launched_is_none(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = hold(SUPERVISOR, Hold.LAUNCH, LAUNCH_FAILED)
    done = ask(run_dir, monkeypatch, [lost])
    assert done.exit_code == 1
    assert "has no supervisor" in done.output
    assert LAUNCH_FAILED in done.output
    assert "coordinate-eval resume r" in done.output
    assert "jobs go on" not in done.output
    assert "jobs go on" in ask(run_dir, monkeypatch, [lost, running(TRIAL[0])]).output


class Holding(Cancelling):
    """A scheduler that holds jobs until they are cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.held = Hold.NONE

    def poll(self, prefix: str) -> list[TaskStatus]:
        return [
            hold(task, self.held)
            for task in super().poll(prefix)
            if task.job_id not in self.cancelled
        ]

    def supervisors(self) -> list[Job]:
        return [job for job in self.submitted if "_supervise" in job.argv]


@pytest.fixture
def submitted_run(reviewer: Reviewer, monkeypatch: pytest.MonkeyPatch) -> tuple[RunDir, Holding]:
    """A run with a supervisor in the queue of a scheduler that can hold it."""
    cluster = Holding()
    for name in ("poll", "submit", "cancel"):
        monkeypatch.setattr(reviewer.cluster, name, getattr(cluster, name))
    assert start_run(reviewer.inputs(tiny_model())) == 0
    (root,) = (reviewer.folder / "runs").iterdir()
    return RunDir(root), cluster


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("held", PERSONS)
def test_a_run_whose_supervisor_a_person_holds_is_not_resumed(
    submitted_run: tuple[RunDir, Holding], held: Hold, again: bool
) -> None:
    run_dir, cluster = submitted_run
    cluster.held = held
    cure = "administrators" if held is Hold.ADMIN else "`scontrol release 1`"
    with pytest.raises(CoordinateError, match=cure) as caught:
        resume_run(run_dir, Settings(), wait=False, as_json=False, asked_again=again)
    assert caught.value.exit_status == 1
    assert (len(cluster.submitted), cluster.cancelled) == (1, [])
    assert not run_dir.resumed.exists()


@pytest.mark.parametrize("again", [False, True])
def test_a_run_whose_supervisor_was_not_launched_gets_another(
    submitted_run: tuple[RunDir, Holding], again: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir, cluster = submitted_run
    cluster.held = Hold.LAUNCH
    call = partial(resume_run, run_dir, Settings(), wait=False, as_json=False, asked_again=again)
    assert call() == 0
    assert (len(cluster.submitted), cluster.cancelled) == (2, ["1"])
    assert "job 1, whose launch failed" in capsys.readouterr().err
    cluster.held = Hold.NONE
    assert call() == 0
    assert "is supervised by job 2" in capsys.readouterr().err
    assert len(cluster.submitted) == 2


def test_a_run_is_supervised_by_who_runs_and_not_by_a_held_successor() -> None:
    held = hold(SUPERVISOR, Hold.USER)
    runs = SUPERVISOR.model_copy(update={"job_id": "9"})
    assert supervision.supervisors(jobs.prefix(RUN), [held, runs]) == [runs, held]
    assert supervision.held_supervisor(jobs.prefix(RUN), [held, runs]) is None
    assert supervision.held_supervisor(jobs.prefix(RUN), [held]) == held


class Leaving:
    """A supervisor whose time is up, and the scheduler that holds the next one."""

    def __init__(self, folder: Path, held: Hold) -> None:
        run_dir, run = unplanned(folder, cluster="slurm")
        self.cluster, self.told = Holding(), list[str]()
        self.cluster.held = held
        self.next_one = jobs.supervisor_name(run, 2)
        self.clock = SetClock()
        self.supervisor = Supervisor(
            run_dir, self.cluster, minutes=60, tell=self.told.append, clock=self.clock
        )
        self.cluster.submit(jobs.supervisor_job(run, run_dir, 2, time.time()))
        self.supervisor.leave_soon()


@pytest.mark.parametrize("held", PERSONS)
def test_a_supervisor_goes_on_while_a_person_holds_the_next_one(tmp_path: Path, held: Hold) -> None:
    leaving = Leaving(tmp_path, held)
    assert not leaving.supervisor.step()
    assert (len(leaving.cluster.supervisors()), leaving.cluster.cancelled) == (1, [])
    (said,) = (event for event in leaving.told if "does not start" in event)
    assert "job 1 is held" in said


def test_it_leaves_when_the_next_one_is_released(tmp_path: Path) -> None:
    leaving = Leaving(tmp_path, Hold.USER)
    assert not leaving.supervisor.step()
    leaving.cluster.held = Hold.NONE
    leaving.clock.sleep(LOOK_SECONDS + 1)
    assert leaving.supervisor.step()
    assert len(leaving.cluster.supervisors()) == 1


def test_the_next_one_is_submitted_again_where_it_was_not_launched(tmp_path: Path) -> None:
    leaving = Leaving(tmp_path, Hold.LAUNCH)
    assert leaving.supervisor.step()
    assert [job.name for job in leaving.cluster.supervisors()] == [leaving.next_one] * 2
    assert leaving.cluster.cancelled == ["1"]
