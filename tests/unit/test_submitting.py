"""Jobs that the scheduler refuses: for a while, here, or at all."""

import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.clocks import SetClock
from tests.decisions import KEEP, RUN, TRIAL, facts, make_run, tasks, waiting_for
from tests.incidents import incident
from tests.reviewer import FakeCluster

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import Job, State
from coordinate_eval.coordinator.incidents.bad_nodes import avoid
from coordinate_eval.coordinator.incidents.incident import write_incident
from coordinate_eval.coordinator.incidents.shown import refused_now, report_failures
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run.claiming.pullers import Pullers, pullers_name
from coordinate_eval.coordinator.run.jobs import read_submitted
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Refusals
from coordinate_eval.coordinator.supervisor.submitting import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    MAX_REFUSALS,
    Submitter,
)
from coordinate_eval.coordinator.supervisor.values import Finish, Hands, Submit
from coordinate_eval.errors import (
    ArrayRefused,
    SettingsRefused,
    SubmitLater,
    SubmitRefused,
    UserError,
)

FULL = SubmitLater("Slurm refused the job: QOSMaxSubmitJobPerUserLimit\n(submitted with sbatch)")
METRIC = pullers_name(RUN, Pullers.METRIC, 0)


class Refusing(FakeCluster):
    """A scheduler that refuses with this error, as long as it has one."""

    def __init__(self) -> None:
        super().__init__()
        self.error: SubmitRefused | None = None
        self.asked = 0
        self.most_tasks: int | None = None

    def submit(self, job: Job) -> str:
        self.asked += 1
        if self.error is not None:
            raise self.error
        if self.most_tasks is not None and job.count > self.most_tasks:
            raise ArrayRefused("Slurm refused the job: Invalid job array specification")
        return super().submit(job)


class Desk:
    """Submits jobs of a run at given times."""

    def __init__(self, folder: Path, *, strict: bool = False) -> None:
        self.dir, self.cluster = RunDir(folder), Refusing()
        self.said: list[str] = []
        hands = Hands(self.dir, self.cluster, SetClock(), self.said.append, self.said.append)
        self.submitter = Submitter(hands, strict=strict, has_room=lambda job: True)

    def submit(
        self, name: str, now: float, *, count: int = 8, beside: str = "", **known: Any
    ) -> Finish | None:
        job = Job(name=name, argv=("x",), minutes=5, log="/l", count=count)
        found = facts(**{"now": now, "unpublished": [], **known})
        return self.submitter.submit(RUN, Submit(job, beside), found)

    def recorded(self) -> dict[str, str | None]:
        return {each.job.name: each.job_id for each in read_submitted(self.dir)}


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.mark.parametrize(
    ("avoided", "kept_away"),
    [([], ()), (["n2", "gone"], ("n2",)), (["n1", "n2"], ())],
    ids=["none", "one", "all"],
)
def test_trials_in_the_queue_keep_away_from_avoided_nodes_that_exist_unless_all_are(
    desk: Desk, tmp_path: Path, avoided: list[str], kept_away: tuple[str, ...]
) -> None:
    run = make_run(settings=Settings(cache_dir=str(tmp_path / "cache")))
    for node in avoided:
        avoid(run.settings, node, "it hung", "e", time.time())
    job = Job(name=TRIAL[0], argv=("x",), minutes=5, log="/l", gpus=1)
    desk.submitter.submit(run, Submit(job), facts())
    assert desk.cluster.submitted[0].avoid == kept_away


def test_where_no_nodes_are_listed_sbatch_decides(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as for a partition that takes no jobs now: it may when the job is its turn."""
    run = make_run(settings=Settings(cache_dir=str(tmp_path / "cache")))
    avoid(run.settings, "n2", "it hung", "e", time.time())

    def closed() -> None:
        raise UserError("partition 'gpu' is down")

    monkeypatch.setattr(desk.cluster, "nodes", closed)
    job = Job(name=TRIAL[0], argv=("x",), minutes=5, log="/l", gpus=1)
    assert desk.submitter.submit(run, Submit(job), facts()) is None
    assert [each.avoid for each in desk.cluster.submitted] == [()]


def test_a_node_on_which_this_run_failed_is_kept_away_from_too(desk: Desk, tmp_path: Path) -> None:
    run = make_run(settings=Settings(cache_dir=str(tmp_path / "cache")))
    write_incident(desk.dir, incident("n1-0", time=time.time()))
    job = Job(name=TRIAL[0], argv=("x",), minutes=5, log="/l", gpus=1)
    desk.submitter.submit(run, Submit(job), facts())
    assert desk.cluster.submitted[0].avoid == ("n1",)


def test_no_keeper_holds_weights_for_trials_that_are_not_taken_now(desk: Desk) -> None:
    desk.cluster.error = FULL
    assert desk.submit(TRIAL[0], now=0) is None
    desk.cluster.error = None
    assert desk.submit(KEEP[1], now=FIRST_PAUSE_SECONDS - 1) is None
    assert desk.recorded() == {}
    assert desk.submit(KEEP[1], now=FIRST_PAUSE_SECONDS) is None
    assert desk.recorded() == {KEEP[1]: "1"}


@pytest.mark.parametrize("name", [TRIAL[0], KEEP[0], METRIC])
def test_a_job_that_is_taken_later_is_asked_for_ever_less_often(desk: Desk, name: str) -> None:
    desk.cluster.error = FULL
    asked: list[float] = []
    now = 0.0
    while len(asked) < 8:
        before = desk.cluster.asked
        assert desk.submit(name, now) is None
        asked += [now] * (desk.cluster.asked - before)
        now += 1
    waits = [after - before for before, after in pairwise(asked)]
    assert waits[:3] == [FIRST_PAUSE_SECONDS, 2 * FIRST_PAUSE_SECONDS, 4 * FIRST_PAUSE_SECONDS]
    assert waits[-1] == LONGEST_PAUSE_SECONDS
    assert desk.recorded() == {}
    (known,) = _files.read_record(desk.dir.refused, Refusals).jobs
    assert (known.job, known.tries, known.since) == (name, 8, 0)
    assert known.words == "Slurm refused the job: QOSMaxSubmitJobPerUserLimit"
    (said,) = refused_now(desk.dir, time.time())
    assert said.startswith(known.words)
    assert report_failures(desk.dir) == [f"job {name}: {known.words}"]

    desk.cluster.error = None
    assert desk.submit(name, now + LONGEST_PAUSE_SECONDS) is None
    assert desk.recorded() == {name: "1"}
    assert refused_now(desk.dir, time.time()) == report_failures(desk.dir) == []


def test_others_of_its_kind_wait_with_a_refused_job_and_no_others(desk: Desk) -> None:
    desk.cluster.error = FULL
    desk.submit(TRIAL[0], 0)
    desk.cluster.error = None
    desk.submit(TRIAL[1], 1)
    assert desk.recorded() == {}
    desk.submit(METRIC, 1)
    desk.submit(TRIAL[1], FIRST_PAUSE_SECONDS)
    desk.submit(TRIAL[0], FIRST_PAUSE_SECONDS)
    assert set(desk.recorded()) == {METRIC, *TRIAL}


def test_trials_are_not_submitted_beside_a_keeper_that_waits(desk: Desk) -> None:
    desk.cluster.error = FULL
    desk.submit(KEEP[0], 0)
    desk.cluster.error = None
    desk.submit(TRIAL[0], 0, beside=KEEP[0])
    assert desk.recorded() == {}


def test_an_array_that_is_refused_for_long_becomes_smaller(desk: Desk) -> None:
    """Its tasks count one by one, so that all of them may never be taken together."""
    desk.cluster.error = FULL
    desk.submit(TRIAL[0], 0)
    patience = RUN.settings.supervisor.patience_seconds
    desk.submit(TRIAL[0], 2 * patience - 1)
    desk.cluster.error = None
    desk.submit(TRIAL[0], 3 * patience - 1)
    assert [job.count for job in desk.cluster.submitted] == [2]
    desk.submit(TRIAL[1], 3 * patience)
    assert [job.count for job in desk.cluster.submitted] == [2, 8]


@pytest.mark.parametrize("name", [TRIAL[0], METRIC])
@pytest.mark.parametrize(("most", "taken"), [(1, 1), (2, 2), (3, 2), (7, 4), (8, 8)])
def test_an_array_is_as_large_as_the_scheduler_takes_it(
    desk: Desk, name: str, most: int, taken: int
) -> None:
    desk.cluster.most_tasks = most
    desk.submit(name, 0.0)
    assert [job.count for job in desk.cluster.submitted] == [taken]
    assert [each.job.count for each in read_submitted(desk.dir)] == [taken]
    asked = desk.cluster.asked
    desk.submit(TRIAL[1], 1.0, count=taken)
    assert desk.cluster.asked == asked + 1
    if taken < 8:  # what was refused once is not asked for again
        desk.submit(pullers_name(RUN, Pullers.SCORE, 0), 2.0, count=100)
        assert desk.cluster.asked == asked + 2
        assert desk.cluster.submitted[-1].count == taken
    assert report_failures(desk.dir) == []


def test_a_single_task_that_is_refused_as_an_array_is_a_refused_job(desk: Desk) -> None:
    desk.cluster.most_tasks = 0
    desk.submit(TRIAL[0], 0.0)
    assert desk.recorded() == {TRIAL[0]: None}


def test_a_refused_metric_array_is_not_tried_for_ever(desk: Desk) -> None:
    desk.cluster.error = SubmitRefused("no")
    now = 0.0
    working = facts().unpublished
    for _ in range(3 * MAX_REFUSALS):
        now += LONGEST_PAUSE_SECONDS
        assert desk.submit(METRIC, now, unpublished=working) is None
    assert desk.cluster.asked == MAX_REFUSALS
    ended = desk.submit(METRIC, now)
    assert ended == Finish(f"the scheduler refused {METRIC} {MAX_REFUSALS} times in a row: no")


def test_a_refusal_after_hours_of_waiting_for_room_is_the_first_of_its_kind(desk: Desk) -> None:
    now = 0.0
    for error in (*[SubmitLater("no room")] * MAX_REFUSALS, SubmitRefused("no")):
        desk.cluster.error = error
        now += LONGEST_PAUSE_SECONDS
        assert desk.submit(METRIC, now) is None
    (refused,) = _files.read_record(desk.dir.refused, Refusals).jobs
    assert (refused.tries, refused.again) == (1, now + FIRST_PAUSE_SECONDS)


@pytest.mark.parametrize("name", [TRIAL[0], METRIC])
def test_settings_that_are_refused_end_the_run_at_once(desk: Desk, name: str) -> None:
    desk.cluster.error = SettingsRefused("correct [slurm] account")
    ended = desk.submit(name, 0)
    assert ended == Finish(f"the scheduler refused {name}: correct [slurm] account")


def test_settings_that_are_refused_late_let_others_end_their_work(desk: Desk) -> None:
    desk.cluster.error = SettingsRefused("no")
    at_work = tasks(TRIAL[1], State.RUNNING)
    assert desk.submit(TRIAL[0], 0, tasks=at_work) is None
    assert desk.recorded() == {TRIAL[0]: None}
    assert desk.submit(METRIC, 0, unpublished=facts().unpublished) is None
    unscored = waiting_for(results=facts().unpublished)
    assert desk.submit(METRIC, 0, claimable=unscored) is None
    assert desk.submit(METRIC, 0) is not None
    assert desk.cluster.asked == 2


def test_a_first_job_that_is_refused_is_an_error_of_the_command(tmp_path: Path) -> None:
    desk = Desk(tmp_path, strict=True)
    desk.cluster.error = FULL
    assert desk.submit(METRIC, 0) is None
    desk.cluster.error = SubmitRefused("no")
    with pytest.raises(SubmitRefused):
        desk.submit(METRIC, FIRST_PAUSE_SECONDS)


def test_a_first_keeper_that_is_refused_is_none_as_its_trials_may_be_taken(tmp_path: Path) -> None:
    desk = Desk(tmp_path, strict=True)
    desk.cluster.error = SubmitRefused("no job without GPUs")
    assert desk.submit(KEEP[0], 0, count=1) is None
    assert desk.recorded() == {KEEP[0]: None}
    with pytest.raises(SubmitRefused):
        desk.submit(TRIAL[0], 1)
