"""Jobs that are submitted ask for what the scheduler allows then, not when the run was created."""

import time
from pathlib import Path

import pytest
from tests.clocks import SetClock
from tests.decisions import KEEP, ROUND, RUN, TRIAL, facts
from tests.reviewer import FakeCluster
from tests.run_dirs import unplanned

from coordinate_eval.clusters.protocol import Job, JobLimits, Window
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.claiming.pullers import Pullers, pullers_job
from coordinate_eval.coordinator.run.jobs import read_submitted
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.supervisor.loop import Supervisor
from coordinate_eval.coordinator.supervisor.submitting import (
    LIMITS_SECONDS,
    NO_ANSWER_SECONDS,
    CurrentLimits,
    Submitter,
)
from coordinate_eval.coordinator.supervisor.values import Hands, Submit
from coordinate_eval.errors import ClusterError, ClusterSilent, PlaceGone


class Telling(FakeCluster):
    """A scheduler that counts how often it is asked for limits, and tells none with an error."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.error: ClusterError | PlaceGone | None = None

    def limits(self) -> JobLimits:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return super().limits()


def maintenance(minutes: float) -> JobLimits:
    """Others have all nodes in so many minutes."""
    window = Window(start=time.time() + 60 * minutes, why="reservation maint")
    return JobLimits(gpu_window=window, cpu_window=window)


def job_of(minutes: int, **fields: object) -> Job:
    return Job.model_validate(
        {"name": "j", "argv": ("x",), "minutes": minutes, "log": "/l"} | fields, extra="forbid"
    )


def test_a_maintenance_that_is_announced_meanwhile_cuts_every_job_that_is_submitted_then(
    tmp_path: Path,
) -> None:
    cluster, run_dir = Telling(), RunDir(tmp_path)
    hands = Hands(run_dir, cluster, SetClock(), print, print)
    submitter = Submitter(hands, strict=False, has_room=lambda job: True)
    cluster.limited = maintenance(14.5)
    made = [pullers_job(RUN, run_dir, kind, 0, 1, time.time()) for kind in Pullers]
    made.append(jobs.keeper_job(RUN, run_dir, ROUND, ROUND.nodes[0]))
    made.append(jobs.trials_job(RUN, run_dir, ROUND, ROUND.nodes[1]))
    assert {job.name for job in made} >= {KEEP[0], TRIAL[1]}
    for job in made:
        assert job.minutes > 12
        submitter.submit(RUN, Submit(job), facts())
    assert [job.name for job in cluster.submitted] == [job.name for job in made]
    assert {job.minutes for job in cluster.submitted} == {12}
    assert {each.job.minutes for each in read_submitted(run_dir)} == {12}
    told = [job.argv[job.argv.index("--minutes") + 1] for job in cluster.submitted[-2:]]
    assert told == ["12", "12"]
    assert [job.argv[job.argv.index("--round") + 1] for job in cluster.submitted[-2:]] == ["0", "0"]
    assert cluster.asked == 1


def test_so_it_does_the_next_supervisor(tmp_path: Path) -> None:
    run_dir, _ = unplanned(tmp_path, cluster="slurm")
    cluster = Telling()
    cluster.limited = maintenance(14.5)
    supervisor = Supervisor(run_dir, cluster)
    supervisor.leave_soon()
    assert supervisor.run() is None
    (job,) = cluster.submitted
    assert job.minutes == 12
    assert job.argv[-2:] == ("--minutes", "12")


def test_limits_are_asked_for_when_they_are_needed_and_old() -> None:
    cluster, clock = Telling(), SetClock()
    limits = CurrentLimits(cluster, clock)
    assert cluster.asked == 0
    for _ in range(9):
        assert limits.within(job_of(60)).minutes == 60
    assert cluster.asked == 1
    cluster.limited = JobLimits(cpu_minutes=30, cpu_why="partition cpu")
    clock.sleep(LIMITS_SECONDS - 1)
    assert limits.within(job_of(60)).minutes == 60
    clock.sleep(1)
    assert limits.within(job_of(60)).minutes == 30
    assert limits.within(job_of(60, gpus=1)).minutes == 60
    assert cluster.asked == 2


@pytest.mark.parametrize(
    "error", [ClusterSilent("no answer"), ClusterError("slurm_load"), PlaceGone("no reservation")]
)
def test_while_the_scheduler_does_not_tell_the_last_ones_count(
    error: ClusterError | PlaceGone,
) -> None:
    cluster, clock = Telling(), SetClock()
    limits = CurrentLimits(cluster, clock)
    cluster.limited = JobLimits(cpu_minutes=30, cpu_why="partition cpu")
    assert limits.within(job_of(60)).minutes == 30
    cluster.error = error
    clock.sleep(LIMITS_SECONDS)
    for _ in range(9):
        assert limits.within(job_of(60)).minutes == 30
    assert cluster.asked == 2
    cluster.error, cluster.limited = None, JobLimits()
    clock.sleep(NO_ANSWER_SECONDS)
    assert limits.within(job_of(60)).minutes == 60
    assert cluster.asked == 3


def test_no_job_of_a_reservation_outlasts_it_and_none_is_longer_than_it_was_made() -> None:
    limits = JobLimits(gpu_minutes=90, until=1000.0 + 60 * 45, until_why="reservation ours")
    assert jobs.within(job_of(60, gpu_work=True), limits, 1000.0).minutes == 45
    assert jobs.within(job_of(30, gpu_work=True), limits, 1000.0).minutes == 30
    assert jobs.within(job_of(60), limits, 1000.0).minutes == 60
    assert jobs.within(job_of(60, gpu_work=True), limits, 9000.0).minutes == 1
