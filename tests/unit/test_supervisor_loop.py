"""A supervisor whose scheduler does not answer, or whose trials all fail."""

import os
from pathlib import Path
from typing import Any

import pytest
from tests.decisions import make_run, shards
from tests.incidents import Enough, Failing
from tests.plan_examples import planned
from tests.reviewer import Cancelling, FakeCluster
from tests.run_dirs import unplanned

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import Busy, Job, Node, State, TaskStatus
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.claiming.claims import AttemptWriter, Ledger
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Submitted
from coordinate_eval.coordinator.run.supervision import take_over
from coordinate_eval.coordinator.supervisor import decide_rounds, handover
from coordinate_eval.coordinator.supervisor.loop import Supervisor
from coordinate_eval.coordinator.supervisor.polls import MAX_BACKOFF_SECONDS, MAX_FAULTS
from coordinate_eval.coordinator.workers.on_node import node_memory
from coordinate_eval.coordinator.workers.on_node.staging import StagedWeights
from coordinate_eval.errors import (
    ClusterError,
    ClusterSilent,
    CoordinateError,
    SettingsRefused,
    SubmitLater,
    UserError,
)
from coordinate_eval.records import Question, QuestionKind, Shard, Span


class Mute(FakeCluster):
    """A scheduler of which every question ends like this."""

    def __init__(self, error: CoordinateError) -> None:
        super().__init__()
        self._error = error

    def nodes(self) -> tuple[list[Node], list[Busy]]:
        raise self._error

    def submit(self, job: Job) -> str:
        raise self._error

    def poll(self, prefix: str) -> list[TaskStatus]:
        raise self._error

    def cancel(self, job_ids: list[str]) -> None:
        raise self._error


def waits(
    folder: Path, error: CoordinateError, most: int, monkeypatch: pytest.MonkeyPatch
) -> list[float]:
    """Seconds between the first questions."""
    found: list[float] = []

    def wait(self: Supervisor, seconds: float, **_: Any) -> None:
        found.append(seconds)
        if len(found) == most:
            raise Enough

    run_dir = RunDir(folder)
    _files.write_record(run_dir.run, make_run(folder=str(folder)))
    monkeypatch.setattr(Supervisor, "_wait", wait)
    with pytest.raises((Enough, CoordinateError)):
        Supervisor(run_dir, Mute(error)).run()
    return found


def test_a_silent_scheduler_is_asked_ever_less_often_and_never_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = waits(tmp_path, ClusterSilent("no route to host"), 2000, monkeypatch)
    assert found[:4] == [10, 20, 40, MAX_BACKOFF_SECONDS]
    assert set(found[4:]) == {MAX_BACKOFF_SECONDS}
    assert len(found) == 2000


def test_one_that_answers_with_errors_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(waits(tmp_path, ClusterError("no such thing"), 2000, monkeypatch)) == MAX_FAULTS


def test_what_the_user_has_to_mend_is_waited_for_as_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a partition that takes no jobs, or a folder that all may change."""
    assert len(waits(tmp_path, UserError("takes no jobs"), 2000, monkeypatch)) == MAX_FAULTS


@pytest.mark.parametrize(("cause", "rounds"), [("input", 1), ("engine start", 1), ("other", 3)])
def test_bad_input_takes_one_round_to_be_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: str, rounds: int
) -> None:
    run_dir = RunDir(tmp_path)
    settings = {"supervisor": {"poll_seconds": 0.001}, "nodes": "2"}
    settings |= {"priors_dir": str(tmp_path / "priors")}
    run = make_run(folder=str(tmp_path), settings=settings, shards=shards(*[1.0] * 8))
    _files.write_record(run_dir.run, run)
    _files.write_record(run_dir.plan, planned())
    monkeypatch.setattr(decide_rounds, "ROUND_PAUSE_SECONDS", 0.0)
    cluster = Failing(run_dir, cause, "vLLM has no argument 'x'")
    results = Supervisor(run_dir, cluster).run()
    assert results is not None
    assert cluster.trials == rounds * 8
    assert results["failures"] == [f"{rounds * 8} trials: vLLM has no argument 'x'"]
    assert results["reason"]
    assert _files.pretty(results).count("no argument 'x'") == 1


class Dying(FakeCluster):
    """A scheduler whose metric jobs die one after the other, while they run these programs.

    Its scoring jobs do nothing.
    """

    def __init__(self, run_dir: RunDir, portion: Span, programs: list[str]) -> None:
        super().__init__()
        self._ledger, self._portion = Ledger(run_dir, "answers"), portion
        self.left = list(programs)

    def submit(self, job: Job) -> str:
        if "_score" in job.argv:
            return super().submit(job)
        attempt = self._ledger.claim(self._portion, job.name, "9.0")
        assert attempt is not None
        writer = AttemptWriter(self._ledger, self._portion, attempt)
        if self.left:
            writer.note_running(self.left.pop(0))
        else:
            writer.publish()
        return super().submit(job)

    def poll(self, prefix: str) -> list[TaskStatus]:
        return []


@pytest.mark.parametrize(
    ("programs", "why"),
    [
        # All is answered, and nobody scores.
        (["p"] * 3 + ["q"] * 3 + ["r"] * 3, "3 arrays of score jobs in a row did nothing"),
        ([""] * 9, "3 arrays of metric jobs in a row did nothing"),
    ],
)
def test_metric_jobs_that_die_at_programs_do_not_count_as_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, programs: list[str], why: str
) -> None:
    run_dir = RunDir(tmp_path)
    shard = Shard(dataset="a", start=0, stop=5, gpu_seconds=1, metric_cpu_seconds=0)
    run = make_run(
        folder=str(tmp_path),
        settings={"supervisor": {"poll_seconds": 0.001}, "priors_dir": str(tmp_path / "priors")},
        asks=["a"],
        shards=[shard],
    )
    _files.write_record(run_dir.run, run)
    _files.write(run_dir.published("outputs", shard.span), "")
    question = Question(id="p", kind=QuestionKind.PROGRAM, content="", timeout_seconds=1)
    _files.write(run_dir.questions(shard.span), question.line())
    monkeypatch.setattr(decide_rounds, "ROUND_PAUSE_SECONDS", 0.0)
    results = Supervisor(run_dir, Dying(run_dir, shard.span, programs)).run()
    assert results is not None
    assert why in results["reason"]


class Resumed(Cancelling):
    """A scheduler of a run that is resumed while its first supervisor waits for jobs to end."""

    def __init__(self, run_dir: RunDir) -> None:
        super().__init__()
        self._dir = run_dir

    def submit(self, job: Job) -> str:
        _files.write(self._dir.requests_error("a"), "no such task\n")
        _files.write(self._dir.requests_error("b"), "no such task\n")
        return super().submit(job)

    def poll(self, prefix: str) -> list[TaskStatus]:
        if not self._dir.results.exists():
            return []
        if not self._dir.supervisor(2).exists():
            take_over(self._dir)
        return [TaskStatus(name=f"{prefix}build1", job_id="7", state=State.RUNNING)]


def test_one_that_has_ended_the_run_leaves_the_jobs_of_the_next_alone(tmp_path: Path) -> None:
    run_dir, _ = unplanned(tmp_path)
    cluster = Resumed(run_dir)
    assert Supervisor(run_dir, cluster).run() is None
    assert not cluster.cancelled


def test_who_waits_for_results_hears_of_them_before_the_last_jobs_have_left(tmp_path: Path) -> None:
    run_dir, _ = unplanned(tmp_path)
    _files.write(run_dir.cancelled, "")
    told: list[dict[str, Any]] = []

    class Leaving(FakeCluster):
        def poll(self, prefix: str) -> list[TaskStatus]:
            keeper = TaskStatus(name=f"{prefix}keep0-n1", job_id="7", state=State.RUNNING)
            return [] if told else [keeper]

    results = Supervisor(run_dir, Leaving(), ended=told.append).run()
    assert told == [results]


@pytest.mark.parametrize("local", [True, False])
def test_who_ends_a_run_on_one_machine_clears_its_memory_of_what_the_dead_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local: bool
) -> None:
    memory = tmp_path / "memory"
    memory.mkdir()
    run_dir, run = unplanned(tmp_path, stage={"root": str(memory)})
    cluster = FakeCluster()
    monkeypatch.setattr(cluster, "local", local)
    _files.write(run_dir.cancelled, "")
    dead, living = (StagedWeights(str(memory), each, "local") for each in (run.id, "another"))
    os.close(node_memory.open_lock(dead.folder.with_name("local.lock")))  # as the kernel does
    dead.folder.mkdir()
    with living.hold():
        living.folder.mkdir()
        assert Supervisor(run_dir, cluster).run() is not None
        assert dead.folder.exists() is not local
        assert living.folder.exists()


def test_no_supervisor_hands_over_to_one_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, run = unplanned(tmp_path)
    cluster, name = FakeCluster(), jobs.supervisor_name(run, 2)
    dead = TaskStatus(name=name, job_id="7", state=State.ENDED)
    monkeypatch.setattr(cluster, "poll", lambda prefix: [dead])
    supervisor = Supervisor(run_dir, cluster)
    supervisor.leave_soon()
    assert supervisor.run() is None
    assert [job.name for job in cluster.submitted] == [name]


class Late(FakeCluster):
    """A scheduler that takes the first job so late that another supervisor has submitted it."""

    def __init__(self, run_dir: RunDir) -> None:
        super().__init__()
        self._dir = run_dir
        self.alive: dict[str, str] = {}

    def submit(self, job: Job) -> str:
        if not self._dir.supervisor(2).exists():
            with pytest.raises(Enough):
                Supervisor(self._dir, self).run()
        job_id = super().submit(job)
        self.alive[job_id] = job.name
        return job_id

    def poll(self, prefix: str) -> list[TaskStatus]:
        return [
            TaskStatus(name=name, job_id=job_id, state=State.RUNNING)
            for job_id, name in self.alive.items()
        ]

    def cancel(self, job_ids: list[str]) -> None:
        for job_id in job_ids:
            del self.alive[job_id]


def test_a_job_that_two_submitted_stays_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, _ = unplanned(tmp_path)
    cluster = Late(run_dir)

    def enough(self: Supervisor, seconds: float, **_: Any) -> None:
        raise Enough

    monkeypatch.setattr(Supervisor, "_wait", enough)
    with pytest.raises(Enough):  # it waits before it notices that another one has taken over
        Supervisor(run_dir, cluster).run()
    (name,) = set(cluster.alive.values())
    assert len(cluster.alive) == 2
    first = _files.read_record(run_dir.job(name), Submitted).job_id
    with pytest.raises(Enough):
        Supervisor(run_dir, cluster).run()
    assert cluster.alive == {first: name}


class Full(FakeCluster):
    """A scheduler that takes no job twice, and then all."""

    def __init__(self) -> None:
        super().__init__()
        self.refusals = 0

    def submit(self, job: Job) -> str:
        if self.refusals < 2:
            self.refusals += 1
            raise SubmitLater("no more jobs now")
        return super().submit(job)


def test_a_supervisor_whose_successor_is_not_taken_goes_on_and_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "FIRST_PAUSE_SECONDS", 0.0)
    run_dir, run = unplanned(tmp_path, cluster="slurm")
    cluster = Full()
    assert Supervisor(run_dir, cluster, minutes=0.0).run() is None
    assert cluster.refusals == 2
    assert jobs.supervisor_name(run, 2) in [job.name for job in cluster.submitted]


class Closed(FakeCluster):
    """A scheduler that takes no job of these settings."""

    def submit(self, job: Job) -> str:
        raise SettingsRefused("Requested reservation is invalid\nsubmitted with sbatch")


def test_a_run_whose_next_supervisor_is_never_taken_ends_with_the_reason(tmp_path: Path) -> None:
    run_dir, run = unplanned(tmp_path, cluster="slurm")
    supervisor = Supervisor(run_dir, Closed())
    supervisor.leave_soon()
    results = supervisor.run()
    assert results is not None
    name = jobs.supervisor_name(run, 2)
    assert results["reason"] == (f"the scheduler refused {name}: Requested reservation is invalid")
