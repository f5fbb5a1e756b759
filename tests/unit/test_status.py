"""What `status` shows of a run, and the exit status that tells."""

import json
import time
from collections.abc import Callable
from functools import partial

import pytest
from tests.decisions import NODES, ROUND, RUN, SPANS
from tests.shown_runs import SUPERVISOR, ask, complete, finish, publish, running, score, trial
from typer.testing import Result

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import TaskStatus
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.claiming.claims import Ledger, whole
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import (
    Submitted,
    TrialProgress,
    read_run,
)
from coordinate_eval.coordinator.run.supervision import Epoch

Status = Callable[..., Result]


@pytest.fixture
def status(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> Status:
    """Call `status` beside a scheduler with these tasks; without any (None) it does not answer."""
    return partial(ask, run_dir, monkeypatch)


def test_a_supervisor_in_a_terminal_elsewhere_is_named(run_dir: RunDir, status: Status) -> None:
    epoch = Epoch(epoch=1, host="login2", pid=1, time=time.time(), token="t", task="")
    _files.write_record(run_dir.supervisor(1), epoch)
    assert "a terminal on login2" in status([]).stdout
    assert "login2" not in status([SUPERVISOR]).stdout


@pytest.mark.parametrize(
    ("tasks", "code", "words"),
    [
        ([SUPERVISOR], 0, ("waiting for GPUs", "0 of 26 (0%)", "super1")),
        ([], 1, ("has no supervisor", "coordinate-eval resume r")),
        ([running(jobs.trials_name(RUN, 0, "n1"))], 1, ("jobs go on", "coordinate-eval cancel r")),
        (None, 3, ("the jobs are not shown: no answer", "unknown")),
    ],
)
def test_the_exit_status_tells_whether_a_run_goes_on(
    status: Status, tasks: list[TaskStatus] | None, code: int, words: tuple[str, ...]
) -> None:
    done = status(tasks)
    assert done.exit_code == code, done.output
    for word in words:
        assert word in done.output


def test_a_finished_run_shows_its_scores_and_needs_no_scheduler(
    run_dir: RunDir, status: Status
) -> None:
    complete(run_dir)
    done = status(None)
    assert done.exit_code == 0
    for word in ("complete", "0.5000", "0.1000", "acc", "coordinate-eval scores r"):
        assert word in done.output
    assert "no answer" not in done.output


def test_tasks_of_an_array_have_ids_of_their_own(run_dir: RunDir, status: Status) -> None:
    run = read_run(run_dir)
    job = jobs.trials_job(run, run_dir, ROUND, ROUND.nodes[0])
    submitted = Submitted(job=job, job_id="8", time=time.time())
    _files.write_record(run_dir.job(job.name), submitted)
    tasks = [running(job.name, index) for index in range(job.count)]
    shown = json.loads(status([SUPERVISOR, *tasks], "--json").output)
    assert [task["id"] for task in shown["jobs"]] == ["7", "8_0", "8_1"]


def test_a_failed_run_says_why_once_and_what_to_do(run_dir: RunDir, status: Status) -> None:
    _files.write_record(run_dir.round(0), ROUND)
    for node in NODES:
        for index in range(2):
            trial(run_dir, node, index, "failed")
            path = run_dir.trial(f"{node}-{index}")
            said = _files.read_record(path, TrialProgress)
            log = str(run_dir.logs / "trial.log")
            failed = said.model_copy(update={"message": "out of memory", "log": log})
            _files.write_record(path, failed)
    finish(run_dir, "3 rounds in a row answered nothing")
    done = status([])
    assert done.exit_code == 1
    assert done.output.count("out of memory") == 1
    for word in ("4 trials", str(run_dir.logs / "trial.log"), "a, b: items have no responses",
                 "3 rounds in a row", "coordinate-eval resume r"):  # fmt: skip
        assert word in done.output
    shown = json.loads(status([], "--json").output)
    assert shown["state"] == shown["phase"] == "incomplete"
    assert len(shown["reasons"]) == 3


def test_json_has_all_fields(status: Status) -> None:
    shown = json.loads(status([SUPERVISOR], "r", "--json").output)
    assert shown.keys() >= {
        "run", "dir", "state", "checkpoint", "datasets", "first_signal", "trials", "jobs", "note",
        "phase", "detail", "responses", "requests", "elapsed_seconds", "left_seconds", "nodes",
        "trials_by_state", "reasons", "next", "suite",
    }  # fmt: skip
    assert shown["state"] == "running"
    assert shown["datasets"]["a"].items() >= {"state": "waiting", "shards": 2}.items()
    assert shown["elapsed_seconds"] == pytest.approx(60, abs=30)


def test_what_is_being_scored_is_said(run_dir: RunDir, status: Status) -> None:
    publish(run_dir, len(SPANS))
    score(run_dir, "a")
    assert "1 of 2 datasets scored\n" in status([SUPERVISOR]).output
    assert Ledger(run_dir, "results").claim(whole("b"), "score-0", "9_0.0")
    done = status([SUPERVISOR])
    assert "1 of 2 datasets scored, 1 being scored\n" in done.output
    shown = json.loads(status([SUPERVISOR], "r", "--json").output)
    assert [row["state"] for row in shown["datasets"].values()] == ["scored", "scoring"]


def test_following_ends_with_the_run(
    run_dir: RunDir, status: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sleep(seconds: float) -> None:
        complete(run_dir)

    monkeypatch.setattr(time, "sleep", sleep)
    done = status([SUPERVISOR], "--follow")
    assert done.exit_code == 0
    first, *_, last = done.output.splitlines()
    assert first.startswith("waiting for GPUs")
    assert "coordinate-eval scores" in last
    assert status([], "--follow", "--json").exit_code != 0
