"""Jobs ask for what a site and its scheduler allow, and end before others have all nodes.

That is asked for when they are submitted, and not only when the run is created.
"""

import time
from pathlib import Path

import pytest
from tests.clocks import SetClock
from tests.decisions import KEEP, ROUND, RUN, TRIAL, facts, make_run, nodes, shards
from tests.plans import CHECKPOINT, capacity
from tests.reviewer import FakeCluster
from tests.run_dirs import SHARDS, unplanned, write_built

from coordinate_eval.clusters.protocol import Job, JobLimits, Window
from coordinate_eval.coordinator.doctor.findings import State
from coordinate_eval.coordinator.doctor.scheduler import of_limits
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.planning import planner
from coordinate_eval.coordinator.planning.dealing.packing import Piece, cut
from coordinate_eval.coordinator.planning.plan import Cost, PlanEngine, PlanSuite
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.claiming.claims import Ledger
from coordinate_eval.coordinator.run.claiming.pullers import Pullers, pullers_job
from coordinate_eval.coordinator.run.jobs import read_submitted
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.coordinator.run.rounds import make_round
from coordinate_eval.coordinator.supervisor.loop import Supervisor
from coordinate_eval.coordinator.supervisor.submitting import (
    LIMITS_SECONDS,
    NO_ANSWER_SECONDS,
    CurrentLimits,
    Submitter,
)
from coordinate_eval.coordinator.supervisor.values import Hands, Submit
from coordinate_eval.coordinator.workers import trial
from coordinate_eval.errors import ClusterError, ClusterSilent, PlaceGone

SHORT = JobLimits(gpu_minutes=30, gpu_why="MaxTime of partition gpu", cpu_minutes=20)


def limited(limits: JobLimits = SHORT, **settings: object) -> Run:
    run = make_run(settings=Settings.model_validate(settings, extra="forbid"))
    return run.model_copy(update={"limits": limits})


def minutes(run: Run, work: float, now: float = 1000.0, short_rounds: int = 0) -> int:
    made = make_round(
        run, 0, now, nodes(1), shards(work), ready_seconds=60, floor_seconds={},
        short_rounds=short_rounds,
    )  # fmt: skip
    return made.minutes


def test_trials_ask_for_no_more_than_is_allowed() -> None:
    assert minutes(limited(), work=60) == 15
    assert minutes(limited(), work=1e6) == 30
    assert minutes(limited(), work=60, short_rounds=9) == 30
    assert minutes(limited(JobLimits(gpu_minutes=5)), work=60) == 5
    assert minutes(limited(trial={"max_minutes": 20}), work=1e6) == 20


def test_trials_end_when_all_jobs_have_to() -> None:
    until = JobLimits(gpu_minutes=30, until=1000.0 + 12.5 * 60, until_why="reservation night ends")
    assert minutes(limited(until), work=1e6) == 12
    assert minutes(limited(until), work=1e6, now=1e9) == 1


def cost(**values: object) -> Cost:
    whole = {"name": "a", "items": 100, "gpu_seconds": 7200.0, "metric_cpu_seconds": 0.0}
    return Cost.model_validate({**whole, "chunk_overhead_seconds": 1.0, **values}, extra="forbid")


def test_a_piece_is_cut_into_parts_that_a_job_has_time_for() -> None:
    whole = Piece(0, 10, 60)
    parts = list(cut(cost(), whole, 1000.0))
    assert [(part.start, part.stop) for part in parts] == [(10, 22), (22, 35), (35, 47), (47, 60)]
    assert list(cut(cost(), whole, None)) == [whole]
    assert list(cut(cost(splittable=False), whole, 1000.0)) == [whole]
    assert len(list(cut(cost(items=3), Piece(0, 0, 3), 1.0))) == 3


def test_a_plan_on_one_gpu_has_no_shard_that_is_too_long_for_its_job() -> None:
    suite, engine = PlanSuite(name="s", digest="d"), PlanEngine(name="vllm", args={})
    place = capacity(1, 1).model_copy(update={"longest_shard_seconds": 600.0})
    made = planner.plan_on_capacity(CHECKPOINT, suite, engine, [cost()], place)
    (queue,) = [trial.shards for trial in made.trials]
    assert max(shard.gpu_seconds for shard in queue) <= 600 + 72 + 1
    assert [shard.start for shard in queue[1:]] == [shard.stop for shard in queue[:-1]]
    assert sum(shard.stop - shard.start for shard in queue) == 100


@pytest.mark.usefixtures("no_weights")
def test_work_for_which_no_job_has_time_is_done_by_several(tmp_path: Path) -> None:
    """A job of one minute has no time for any shard: it begins one, and the next another."""
    run_dir = RunDir(tmp_path / "run")
    (tmp_path / "memory").mkdir()
    write_built(run_dir, {})
    outputs, spans = Ledger(run_dir, "outputs"), [shard.span for shard in SHARDS]
    for number in range(len(SHARDS)):
        left = len(outputs.unpublished(spans))
        trial.run_trial(run_dir, "n", number, 1)
        assert len(outputs.unpublished(spans)) == left - 1
    assert not outputs.unpublished(spans)


WHY = "reservation maint (2026-11-24T12:00:36 to 2026-11-24T22:00:36)"


def before(minutes: float, now: float) -> JobLimits:
    """All nodes are taken in so many minutes."""
    window = Window(start=now + 60 * minutes, why=WHY)
    return JobLimits(gpu_window=window, cpu_window=window)


def asked(limits: JobLimits, now: float, tmp_path: Path) -> dict[str, int]:
    """The time limit of each kind of job of a long run."""
    run, run_dir = limited(limits), RunDir(tmp_path / "run")
    made = make_round(run, 0, now, nodes(2), shards(1e6), ready_seconds=0, floor_seconds={})
    found = {
        str(kind): pullers_job(run, run_dir, kind, 0, 1, time.time()).minutes for kind in Pullers
    }
    found["trial"] = made.minutes
    found["keeper"] = jobs.keeper_job(run, run_dir, made, made.nodes[0]).minutes
    supervisor = jobs.supervisor_job(run, run_dir, 1, time.time())
    assert supervisor.argv[-2:] == ("--minutes", str(supervisor.minutes))
    return {**found, "supervisor": supervisor.minutes}


@pytest.mark.parametrize(
    ("minutes", "most"),
    [(1000, 949), (100, 94), (20, 18), (12, 10), (11, None), (1, None), (0, None), (-600, None)],
)
def test_what_is_left_before_a_window(minutes: float, most: int | None) -> None:
    assert Window(start=1000.0 + 60 * minutes, why=WHY).minutes_before(1000.0) == most


def test_every_job_ends_before_a_window(tmp_path: Path) -> None:
    now = time.time()
    with_none = asked(JobLimits(), now, tmp_path)
    assert with_none["supervisor"] == with_none["build"] == with_none["score"] == 240
    assert with_none["trial"] == with_none["keeper"] == 720
    limits = before(100.5, now)
    found = asked(limits, now, tmp_path)
    assert found["supervisor"] == found["build"] == found["score"] == 94
    assert found["trial"] == found["keeper"] == 94
    assert all(minutes <= 94 for minutes in found.values())
    shorter = limits.model_copy(update={"gpu_minutes": 30, "cpu_minutes": 20})
    assert set(asked(shorter, now, tmp_path).values()) <= {15, 20, 30}


@pytest.mark.parametrize("minutes", [5, 0, -60, -1e6])
def test_a_window_that_is_near_or_over_cuts_no_job(tmp_path: Path, minutes: float) -> None:
    now = time.time()
    assert asked(before(minutes, now), now, tmp_path) == asked(JobLimits(), now, tmp_path)


def test_jobs_with_gpus_and_others_have_windows_of_their_own(tmp_path: Path) -> None:
    now = time.time()
    found = asked(before(100.5, now).model_copy(update={"cpu_window": None}), now, tmp_path)
    assert (found["trial"], found["keeper"], found["supervisor"]) == (94, 94, 240)
    found = asked(before(100.5, now).model_copy(update={"gpu_window": None}), now, tmp_path)
    assert (found["trial"], found["keeper"], found["supervisor"]) == (720, 720, 94)


def test_a_keeper_keeps_to_what_was_allowed_when_its_round_was_made(tmp_path: Path) -> None:
    """A run's own record of limits may be older than a window."""
    now = 1e9
    run, run_dir = limited(JobLimits()), RunDir(tmp_path / "run")
    told = run.model_copy(update={"limits": before(100, now)})
    made = make_round(told, 3, now, nodes(1), shards(1e6), ready_seconds=0, floor_seconds={})
    assert jobs.keeper_job(run, run_dir, made, made.nodes[0]).minutes == made.minutes == 94


def test_what_a_window_does_to_a_run_is_said_once() -> None:
    now = 1000.0
    (line,) = jobs.before_windows(limited(before(100, now)), now)
    assert line == (
        f"{WHY} takes all nodes: jobs ask for at most 94 minutes, to end before it, "
        "and the rest follows it"
    )
    (line,) = jobs.before_windows(limited(before(5, now)), now)
    assert line.endswith("jobs that do not end before it wait until it is over")
    for limits in (JobLimits(), before(1e4, now), before(-1, now)):
        assert not jobs.before_windows(limited(limits), now)


def test_doctor_warns_of_a_window_within_a_day() -> None:
    now = time.time()
    (found,) = of_limits(before(100.5, now))
    assert (found.check, found.state) == ("maintenance", State.WARNING)
    assert found.found.startswith(f"{WHY} takes all nodes in 1.7 h")
    assert "94 minutes" in found.do
    (found,) = of_limits(before(5, now))
    assert "wait until it is over" in found.do
    (found,) = of_limits(before(1e4, now))
    assert found.state is State.OK
    assert not list(of_limits(before(-5, now)))
    apart = before(100.5, now).model_copy(update={"gpu_window": None})
    (found,) = of_limits(apart)
    assert found.check == "maintenance of nodes for other jobs"


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
    cluster.limited = before(14.5, time.time())
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
    cluster.limited = before(14.5, time.time())
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
