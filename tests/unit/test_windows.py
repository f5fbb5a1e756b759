"""Jobs end before others have all nodes, where there is time for them, and that is said."""

import time
from pathlib import Path

import pytest
from tests.decisions import make_run, nodes, shards

from coordinate_eval.clusters.protocol import JobLimits, Window
from coordinate_eval.coordinator.doctor.findings import State
from coordinate_eval.coordinator.doctor.scheduler import of_limits
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.claiming.pullers import Pullers, pullers_job
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.coordinator.run.rounds import make_round

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


def limited(limits: JobLimits) -> Run:
    return make_run().model_copy(update={"limits": limits})


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
