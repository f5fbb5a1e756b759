"""A supervisor whose time is nearly up has the next one submitted, and goes on until it begins."""

from itertools import pairwise
from pathlib import Path

import pytest
from tests.clocks import SetClock
from tests.reviewer import Cancelling
from tests.run_dirs import unplanned

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import End, Job, State, TaskStatus
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.supervision import take_over
from coordinate_eval.coordinator.supervisor import loop
from coordinate_eval.coordinator.supervisor.handover import LOOK_SECONDS
from coordinate_eval.coordinator.supervisor.loop import Supervisor
from coordinate_eval.coordinator.supervisor.polls import MAX_BACKOFF_SECONDS
from coordinate_eval.coordinator.supervisor.submitting import LONGEST_PAUSE_SECONDS
from coordinate_eval.errors import ClusterError, ClusterSilent

MINUTES = 60.0


class Busy(Cancelling):
    """A scheduler in whose queue supervisors wait."""

    def submit(self, job: Job) -> str:
        super().submit(job)
        return job.name

    def poll(self, prefix: str) -> list[TaskStatus]:
        return [
            TaskStatus(name=job.name, job_id=job.name, state=State.PENDING)
            for job in self.submitted
            if job.name not in self.cancelled
        ]

    def supervisors(self) -> list[str]:
        return [job.name for job in self.submitted if "_supervise" in job.argv]


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


def test_it_goes_on_while_the_next_one_waits_in_the_queue(tmp_path: Path, clock: SetClock) -> None:
    run_dir, run = unplanned(tmp_path, cluster="slurm")
    cluster = Busy()
    supervisor = Supervisor(run_dir, cluster, minutes=MINUTES, clock=clock)
    assert not supervisor.step()
    assert cluster.supervisors() == []
    next_one = jobs.supervisor_name(run, 2)
    for minutes in (46, 49, 52):
        clock.seconds = clock.begin + minutes * 60
        assert not supervisor.step()
        assert cluster.supervisors() == [next_one]
    take_over(run_dir)
    with pytest.raises(loop.Superseded):
        supervisor.step()


def test_it_leaves_when_its_time_is_up(tmp_path: Path, clock: SetClock) -> None:
    run_dir, run = unplanned(tmp_path, cluster="slurm")
    cluster = Busy()
    supervisor = Supervisor(run_dir, cluster, minutes=MINUTES, clock=clock)
    clock.seconds = clock.begin + MINUTES * 60 - 1
    assert supervisor.step()
    assert cluster.supervisors() == [jobs.supervisor_name(run, 2)]
    assert supervisor.results is None


def test_one_that_vanishes_from_the_queue_is_submitted_again(
    tmp_path: Path, clock: SetClock
) -> None:
    run_dir, run = unplanned(tmp_path, cluster="slurm")
    cluster = Busy()
    supervisor = Supervisor(run_dir, cluster, minutes=MINUTES, clock=clock)
    clock.seconds = clock.begin + 46 * 60
    assert not supervisor.step()
    cluster.submitted.clear()
    clock.seconds = clock.begin + 48 * 60
    assert not supervisor.step()
    assert cluster.supervisors() == [jobs.supervisor_name(run, 2)]


def test_one_that_dies_at_once_is_submitted_ever_less_often_and_that_is_said(
    tmp_path: Path, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, run = unplanned(tmp_path, cluster="slurm")
    cluster, said = Busy(), list[str]()
    name = jobs.supervisor_name(run, 2)

    def poll(prefix: str) -> list[TaskStatus]:
        tasks = Busy.poll(cluster, prefix)
        over = {"state": State.ENDED, "end": End.FAILED}
        return [t.model_copy(update=over) if t.name == name else t for t in tasks]

    monkeypatch.setattr(cluster, "poll", poll)
    supervisor = Supervisor(run_dir, cluster, minutes=240, tell=said.append, clock=clock)
    clock.seconds = clock.begin + 210 * 60.0 + 1
    submitted = dict[int, float]()
    while not supervisor.step():
        submitted.setdefault(len(cluster.supervisors()), clock.slept)
        clock.sleep(10)
    assert clock.slept >= 225 * 60
    waits = [after - before for before, after in pairwise(submitted.values())]
    doubled = [LOOK_SECONDS, 2 * LOOK_SECONDS, 4 * LOOK_SECONDS, LONGEST_PAUSE_SECONDS]
    assert all(
        expected <= wait < expected + 30 for wait, expected in zip(waits, doubled, strict=False)
    )
    assert len(submitted) <= 6
    told = [event for event in said if name in event]
    assert all(f"{name}, ended (failed) before it took over" in event for event in told)
    assert any(
        "3 times in a row" in event and "It is submitted again in" in event for event in told
    )
    assert str(run_dir.logs) in told[0]


def test_one_that_is_to_leave_waits_between_polls_of_a_silent_scheduler(
    tmp_path: Path, clock: SetClock
) -> None:
    run_dir, _ = unplanned(tmp_path, cluster="slurm")
    polled: list[float] = []

    class Silent(Busy):
        def poll(self, prefix: str) -> list[TaskStatus]:
            polled.append(clock.seconds)
            if len(polled) == 10:
                take_over(run_dir)
            raise ClusterSilent("no answer")

    supervisor = Supervisor(run_dir, Silent(), minutes=MINUTES, clock=clock)
    supervisor.leave_soon()
    assert supervisor.run() is None
    assert all(before < after for before, after in pairwise(polled))


def test_one_that_runs_and_takes_nothing_over_yet_is_not_submitted_again(
    tmp_path: Path, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, run = unplanned(tmp_path, cluster="slurm")
    cluster, said = Busy(), list[str]()
    supervisor = Supervisor(run_dir, cluster, minutes=MINUTES, tell=said.append, clock=clock)
    clock.seconds = clock.begin + 46 * 60
    assert not supervisor.step()
    name = jobs.supervisor_name(run, 2)
    running = TaskStatus(name=name, job_id=name, state=State.RUNNING)
    monkeypatch.setattr(cluster, "poll", lambda prefix: [running])
    clock.seconds = clock.begin + 48 * 60
    assert not supervisor.step()
    assert cluster.supervisors() == [name]
    assert not [event for event in said if name in event]


def test_the_next_one_is_cancelled_where_the_run_ends_before_it_begins(
    tmp_path: Path, clock: SetClock
) -> None:
    run_dir, run = unplanned(tmp_path, cluster="slurm")
    cluster = Busy()
    supervisor = Supervisor(run_dir, cluster, minutes=MINUTES, clock=clock)
    clock.seconds = clock.begin + 46 * 60
    assert not supervisor.step()
    _files.write(run_dir.cancelled, "")
    assert supervisor.run() is not None
    assert jobs.supervisor_name(run, 2) in cluster.cancelled


def test_one_that_another_process_has_submitted_is_not_submitted_twice(
    tmp_path: Path, clock: SetClock
) -> None:
    run_dir, run = unplanned(tmp_path, cluster="slurm")
    cluster = Busy()
    killed = Supervisor(run_dir, cluster, minutes=MINUTES, clock=clock)
    clock.seconds = clock.begin + 46 * 60
    assert not killed.step()
    clock.seconds = clock.begin + 0
    again = Supervisor(run_dir, cluster, minutes=MINUTES, clock=clock)
    clock.seconds = clock.begin + 48 * 60
    assert not again.step()
    assert cluster.supervisors() == [jobs.supervisor_name(run, 2)]
    _files.write(run_dir.cancelled, "")
    assert again.run() is not None
    assert jobs.supervisor_name(run, 2) in cluster.cancelled


def test_errors_meanwhile_are_borne_as_at_any_time(
    tmp_path: Path, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits ever longer between its tries, and does not give up at once."""
    run_dir, _ = unplanned(tmp_path, cluster="slurm")
    cluster = Busy()
    supervisor = Supervisor(run_dir, cluster, minutes=MINUTES, clock=clock)
    clock.seconds = clock.begin + 46 * 60

    def silent(prefix: str) -> list[TaskStatus]:
        raise ClusterError("no such thing")

    monkeypatch.setattr(cluster, "poll", silent)
    with pytest.raises(ClusterError):
        supervisor.run()
    assert clock.slept > 46 * 60 + MAX_BACKOFF_SECONDS
