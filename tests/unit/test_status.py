"""`status`: the phase of a run, its reasons and scores, and the exit status that tells."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from tests.decisions import NODES, ROUND, RUN, SPANS, make_run
from typer.testing import CliRunner, Result

from coordinate_eval import _files
from coordinate_eval.cluster import State, TaskStatus
from coordinate_eval.coordinator.cli.app import app
from coordinate_eval.coordinator.inputs import clusters
from coordinate_eval.coordinator.inputs.settings import JudgeSettings
from coordinate_eval.coordinator.report import state
from coordinate_eval.coordinator.report.results import collect_results, reasons
from coordinate_eval.coordinator.report.state import Phase
from coordinate_eval.coordinator.run import jobs, resumes
from coordinate_eval.coordinator.run.claiming.claims import Ledger, whole
from coordinate_eval.coordinator.run.claiming.portions import all_portions
from coordinate_eval.coordinator.run.claiming.pullers import Pullers, pullers_name
from coordinate_eval.coordinator.run.epochs import Epoch
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import (
    Round,
    Run,
    StageProgress,
    Submitted,
    TrialProgress,
    read_run,
    write_planned,
    write_run,
)
from coordinate_eval.errors import ClusterSilent
from coordinate_eval.records import DatasetRequests, DatasetResults

SUPERVISOR = TaskStatus(
    name=jobs.supervisor_name(RUN, 1), job_id="7", state=State.RUNNING, node="n0"
)
REQUESTS = 26


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


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    """A run of two datasets on two nodes with two trials each, submitted a minute ago."""
    made = RunDir(tmp_path / "runs" / "r")
    settings = RUN.settings.model_copy(update={"runs_dir": str(tmp_path / "runs")})
    _files.write_record(made.run, make_run(created=time.time() - 60, settings=settings))
    for name, items in (("a", 10), ("b", 3)):
        index = DatasetRequests(
            dataset=name, key="k", items=items, requests=2 * items, prompt_tokens=0,
            generate_requests=0, max_output_tokens=0, longest_output_tokens=0, asks=False,
            offsets=[0] * (items + 1),
        )  # fmt: skip
        _files.write_record(made.requests_index(name), index)
    return made


def pending(name: str, reason: str = "Resources") -> TaskStatus:
    return TaskStatus(name=name, job_id="8", state=State.PENDING, reason=reason)


def running(name: str, index: int = 0) -> TaskStatus:
    return TaskStatus(name=name, job_id="8", index=index, state=State.RUNNING)


def trial(run_dir: RunDir, node: str, index: int, word: str, responses: int = 0) -> None:
    now = time.time()
    record = TrialProgress.model_validate(
        {"trial": f"{node}-{index}", "task": f"8_{index}.0", "node": node, "state": word,
         "started": now - 30, "ready": now - 10, "updated": now, "responses": responses}
    )  # fmt: skip
    _files.write_record(run_dir.trial(record.trial), record)


def publish(run_dir: RunDir, count: int) -> None:
    for span in SPANS[:count]:
        _files.write(run_dir.published("outputs", span), "")


def score(run_dir: RunDir, *names: str) -> None:
    for name in names:
        results = {name: {"acc,none": 0.5, "acc_stderr,none": 0.1}}
        found = DatasetResults(dataset=name, items=3, results=results)
        _files.write_record(run_dir.dataset_results(name), found)


def finish(run_dir: RunDir, reason: str = "") -> None:
    run = make_run()
    _files.write(run_dir.results, _files.pretty(collect_results(run_dir, run, reason)))


def seen(run_dir: RunDir, *tasks: TaskStatus, silent: bool = False) -> state.Progress:
    known = None if silent else list(tasks)
    return state.progress(run_dir, make_run(), known, silent=silent, requests=REQUESTS)


def ask(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, tasks: list[TaskStatus] | None, *args: str
) -> Result:
    monkeypatch.setattr(clusters, "by_name", lambda *_: Scheduler(tasks))
    env = {"COORDINATE_EVAL_RUNS_DIR": str(run_dir.root.parent), "COLUMNS": "80"}
    return CliRunner().invoke(app, ["status", *args], env=env)


def test_every_phase_in_order(run_dir: RunDir) -> None:
    queued = pending(SUPERVISOR.name, "Priority")
    assert seen(run_dir, queued).phase is Phase.QUEUED
    assert "Priority" in seen(run_dir, queued).detail
    assert seen(run_dir, SUPERVISOR).phase is Phase.WAITING
    assert seen(run_dir, SUPERVISOR, pending("another")).phase is Phase.WAITING
    _files.write_record(run_dir.round(0), ROUND)
    waits = pending(jobs.keeper_name(RUN, 0, "n1"))
    assert seen(run_dir, SUPERVISOR, waits).phase is Phase.WAITING
    assert seen(run_dir, SUPERVISOR, waits).detail == "job 8 is pending: Resources"
    stage = StageProgress(state="copying", done_bytes=3, total_bytes=10, started=0, updated=1)
    _files.write_record(run_dir.stage(0, "n1"), stage)
    assert seen(run_dir, SUPERVISOR).phase is Phase.STAGING
    assert "30%" in seen(run_dir, SUPERVISOR).detail
    ready = stage.model_copy(update={"state": "ready"})
    _files.write_record(run_dir.stage(0, "n1"), ready)
    at_work = [running(jobs.trials_name(RUN, 0, "n1"), index) for index in range(2)]
    for node in ("n1", "n2"):
        for index in range(2):
            trial(run_dir, node, index, "staging")
    assert "ended" not in seen(run_dir, SUPERVISOR, *at_work).detail
    for path in run_dir.trials_folder.iterdir():
        path.unlink()
    trial(run_dir, "n1", 0, "starting")
    assert seen(run_dir, SUPERVISOR, *at_work).phase is Phase.STARTING
    trial(run_dir, "n1", 1, "running", responses=5)
    found = seen(run_dir, SUPERVISOR, *at_work)
    assert found.phase is Phase.RUNNING
    assert found.trials == {"starting": 1, "running": 1, "waiting": 2}
    assert (found.responses, found.requests, found.nodes) == (5, REQUESTS, len(NODES))
    publish(run_dir, len(SPANS))
    assert seen(run_dir, SUPERVISOR).phase is Phase.SCORING
    assert seen(run_dir, SUPERVISOR).responses == REQUESTS
    score(run_dir, "a", "b")
    finish(run_dir)
    assert seen(run_dir).phase is Phase.COMPLETE


def test_the_time_left_follows_the_pace_of_what_is_done(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    _files.write_record(run_dir.round(0), ROUND)
    publish(run_dir, 1)  # one of three predicted seconds
    trial(run_dir, "n1", 0, "running", responses=9)
    left = seen(run_dir, SUPERVISOR, running(jobs.trials_name(RUN, 0, "n1"))).left_seconds
    assert left == pytest.approx(2 * 10 / 1, rel=0.1)  # ten seconds for one


def test_the_time_left_counts_down_while_a_dataset_is_scored(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(score_seconds={"a": 100.0, "b": 10.0})
    publish(run_dir, len(SPANS))
    began, passed = time.time(), [0.0]
    monkeypatch.setattr(time, "time", lambda: began + passed[0])

    def left_after(seconds: float) -> float | None:
        passed[0] = seconds
        known = state.progress(run_dir, run, [SUPERVISOR], silent=False, requests=REQUESTS)
        assert known.phase is Phase.SCORING
        return known.left_seconds

    assert left_after(0) == left_after(5) == 100  # nobody has begun
    assert Ledger(run_dir, "results").claim(whole("a"), "score-0", "8_0") == 1
    assert left_after(5) == 100
    assert left_after(45) == pytest.approx(60)
    score(run_dir, "b")
    assert left_after(95) == pytest.approx(10)
    assert left_after(300) is None


def test_the_time_left_has_the_judge_s_part(run_dir: RunDir) -> None:
    judged = {"asks": ["a"], "judged": ["a"], "judge_seconds": 1000.0}
    own = RUN.settings.model_copy(update={"judge": JudgeSettings(checkpoint="/judge")})
    server, alone = make_run(**judged), make_run(**judged, settings=own)
    publish(run_dir, len(SPANS))

    def left(run: Run) -> float | None:
        known = state.progress(run_dir, run, [SUPERVISOR], silent=False, requests=REQUESTS)
        return known.left_seconds

    assert left(server) == left(alone) == 1000
    first, *others = all_portions(server)
    _files.write(run_dir.published("answers", first), "")
    assert left(server) == pytest.approx(1000 * len(others) / (1 + len(others)))
    assert left(alone) == 1000  # a run gives all answers together
    inner = RunDir(run_dir.judge_folder / "0123456789" / "run")
    answering = make_run(score_seconds={"a": 40.0, "b": 10.0})
    _files.write(inner.planned, "{}")
    assert left(alone) == 1000  # what cannot be read
    inner.planned.unlink()
    write_run(inner, answering)
    write_planned(inner, answering)
    assert left(alone) == 1000  # it waits for GPUs
    for span in SPANS:
        _files.write(inner.published("outputs", span), "")
    assert left(alone) == 40
    for portion in others:
        _files.write(run_dir.published("answers", portion), "")
    assert left(server) is left(alone) is None


def test_a_lost_trial_does_not_run(run_dir: RunDir) -> None:
    _files.write_record(run_dir.round(0), ROUND)
    trial(run_dir, "n1", 0, "running")
    assert seen(run_dir, SUPERVISOR).trials == {"waiting": 3}


def test_a_replacement_counts_beside_what_lives_on(run_dir: RunDir) -> None:
    _files.write_record(run_dir.round(0), ROUND)
    for node in NODES:
        for index in range(2):
            trial(run_dir, node, index, "running")
    _files.write(run_dir.released(0, "n2"), "")
    substitute = ROUND.nodes[0].model_copy(update={"name": "n3"})
    _files.write_record(run_dir.round(1), Round(number=1, created=1, nodes=[substitute], minutes=9))
    lives_on = running(jobs.trials_name(RUN, 0, "n1"))
    found = seen(run_dir, SUPERVISOR, lives_on)
    assert found.phase is Phase.RUNNING
    assert found.trials == {"running": 1, "waiting": 2}
    assert found.nodes == 3
    for name in ("n1", "n2", "n3"):
        for number in range(2):
            _files.write(run_dir.released(number, name), "")
    assert seen(run_dir, SUPERVISOR).nodes == 1


def test_who_supervises(run_dir: RunDir) -> None:
    assert seen(run_dir).phase is Phase.UNSUPERVISED
    assert seen(run_dir, silent=True).phase is Phase.UNKNOWN
    epoch = Epoch(epoch=1, host=os.uname().nodename, pid=2**22 + 1, time=1, token="t")
    _files.write_record(run_dir.supervisor(1), epoch)
    assert seen(run_dir).phase is Phase.UNSUPERVISED
    elsewhere = epoch.model_copy(update={"host": "another machine's name"})
    _files.write_record(run_dir.supervisor(1), elsewhere)
    assert not seen(run_dir).phase.ended
    _files.write_record(run_dir.supervisor(1), elsewhere.model_copy(update={"task": "7.0"}))
    assert seen(run_dir).phase is Phase.UNSUPERVISED


def test_a_supervisor_in_a_terminal_elsewhere_is_named(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch = Epoch(epoch=1, host="login2", pid=1, time=time.time(), token="t", task="")
    _files.write_record(run_dir.supervisor(1), epoch)
    assert "a terminal on login2" in ask(run_dir, monkeypatch, []).stdout
    assert "login2" not in ask(run_dir, monkeypatch, [SUPERVISOR]).stdout


def test_an_incomplete_run_that_is_resumed_has_not_ended(run_dir: RunDir) -> None:
    score(run_dir, "a")
    finish(run_dir, "3 rounds in a row answered nothing")
    assert seen(run_dir).phase is Phase.INCOMPLETE
    later = time.time() + 10
    resumes.note(run_dir, by_hand=True)
    os.utime(run_dir.resumed, (later, later))
    assert not seen(run_dir, SUPERVISOR).phase.ended
    assert seen(run_dir).phase is Phase.UNSUPERVISED


@pytest.mark.parametrize(
    ("tasks", "status", "words"),
    [
        ([SUPERVISOR], 0, ("waiting for GPUs", "0 of 26 (0%)", "super1")),
        ([], 1, ("has no supervisor", "coordinate-eval resume r")),
        (
            [TaskStatus(name=jobs.trials_name(RUN, 0, "n1"), job_id="8", state=State.RUNNING)],
            1,
            ("its jobs go on", "coordinate-eval cancel r"),
        ),
        (None, 3, ("the jobs are not shown: no answer", "unknown")),
    ],
)
def test_the_exit_status_tells(
    run_dir: RunDir,
    monkeypatch: pytest.MonkeyPatch,
    tasks: list[TaskStatus] | None,
    status: int,
    words: tuple[str, ...],
) -> None:
    done = ask(run_dir, monkeypatch, tasks)
    assert done.exit_code == status, done.output
    for word in words:
        assert word in done.output


def test_a_finished_run_shows_its_scores(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(run_dir, len(SPANS))
    score(run_dir, "a", "b")
    finish(run_dir)
    done = ask(run_dir, monkeypatch, [])
    assert done.exit_code == 0
    for word in ("complete", "0.5000", "0.1000", "acc", "coordinate-eval scores r"):
        assert word in done.output


def test_a_finished_run_needs_no_scheduler(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(run_dir, len(SPANS))
    score(run_dir, "a", "b")
    finish(run_dir)
    done = ask(run_dir, monkeypatch, None)
    assert done.exit_code == 0
    assert "no answer" not in done.output


def test_tasks_of_an_array_have_ids_of_their_own(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = read_run(run_dir)
    job = jobs.trials_job(run, run_dir, ROUND, ROUND.nodes[0])
    submitted = Submitted(job=job, job_id="8", time=time.time())
    _files.write_record(run_dir.job(job.name), submitted)
    tasks = [
        TaskStatus(name=job.name, job_id="8", index=index, state=State.RUNNING)
        for index in range(job.count)
    ]
    shown = json.loads(ask(run_dir, monkeypatch, [SUPERVISOR, *tasks], "--json").output)
    assert [task["id"] for task in shown["jobs"]] == ["7", "8_0", "8_1"]


def test_a_failed_run_says_why_once_and_what_to_do(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    done = ask(run_dir, monkeypatch, [])
    assert done.exit_code == 1
    assert done.output.count("out of memory") == 1
    for word in ("4 trials", str(run_dir.logs / "trial.log"), "a, b: items have no responses",
                 "3 rounds in a row", "coordinate-eval resume r"):  # fmt: skip
        assert word in done.output
    shown = json.loads(ask(run_dir, monkeypatch, [], "--json").output)
    assert shown["state"] == shown["phase"] == "incomplete"
    assert len(shown["reasons"]) == 3


def test_json_has_all_fields(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = json.loads(ask(run_dir, monkeypatch, [SUPERVISOR], "r", "--json").output)
    assert shown.keys() >= {
        "run", "dir", "state", "checkpoint", "datasets", "first_signal", "trials", "jobs", "note",
        "phase", "detail", "responses", "requests", "elapsed_seconds", "left_seconds", "nodes",
        "trials_by_state", "reasons", "next", "suite",
    }  # fmt: skip
    assert shown["state"] == "running"
    assert shown["datasets"]["a"].items() >= {"state": "waiting", "shards": 2}.items()
    assert shown["elapsed_seconds"] == pytest.approx(60, abs=30)


def test_what_is_being_scored_is_said(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(run_dir, len(SPANS))
    score(run_dir, "a")
    assert "1 of 2 datasets scored\n" in ask(run_dir, monkeypatch, [SUPERVISOR]).output
    assert Ledger(run_dir, "results").claim(whole("b"), "score-0", "9_0.0")
    done = ask(run_dir, monkeypatch, [SUPERVISOR])
    assert "1 of 2 datasets scored, 1 being scored\n" in done.output
    shown = json.loads(ask(run_dir, monkeypatch, [SUPERVISOR], "r", "--json").output)
    assert [row["state"] for row in shown["datasets"].values()] == ["scored", "scoring"]


def test_following_ends_with_the_run(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep(seconds: float) -> None:
        publish(run_dir, len(SPANS))
        score(run_dir, "a", "b")
        finish(run_dir)

    monkeypatch.setattr(time, "sleep", sleep)
    done = ask(run_dir, monkeypatch, [SUPERVISOR], "--follow")
    assert done.exit_code == 0
    first, *_, last = done.output.splitlines()
    assert first.startswith("waiting for GPUs")
    assert "coordinate-eval scores" in last
    assert ask(run_dir, monkeypatch, [], "--follow", "--json").exit_code != 0


def test_reasons_of_many_datasets_are_said_once() -> None:
    missing: dict[str, Any] = {f"d{i}": f"{i + 1} items have no responses" for i in range(8)}
    missing |= {"x": "Traceback\n  File\nKeyError: 'acc'\n"}
    said = reasons({"failures": [], "reason": "why", "missing": missing})
    assert said == [
        "why",
        "no results of d0, d1, d2, d3, d4 and 3 more: items have no responses",
        "no results of x: KeyError: 'acc'",
    ]


def test_tries_without_progress_are_counted(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resumes, "STARTING_SECONDS", 0.0)  # it has failed before one asks again
    assert resumes.tries_without_progress(run_dir) == 0
    for tries in (1, 2, 3):
        resumes.note(run_dir, by_hand=False)
        assert resumes.tries_without_progress(run_dir) == tries
    publish(run_dir, 1)
    assert resumes.tries_without_progress(run_dir) == 0
    resumes.note(run_dir, by_hand=False)
    assert resumes.tries_without_progress(run_dir) == 1
    resumes.note(run_dir, by_hand=True)
    assert resumes.tries_without_progress(run_dir) == 0
    _files.write(run_dir.resumed, "")  # of an earlier version
    assert resumes.tries_without_progress(run_dir) == 0


def test_a_node_that_confines_no_program_says_why(run_dir: RunDir) -> None:
    publish(run_dir, len(SPANS))
    run = make_run(asks=["a"])
    unanswered = "the questions of its metric are not all answered"
    assert collect_results(run_dir, run)["missing"]["a"] == unanswered
    log = f"{run_dir.logs}/{pullers_name(run, Pullers.METRIC, 0)}.8.log"
    words = "coordinate-eval: cannot be confined:\nlet users create namespaces"
    _files.write(Path(log), f"{words}\nslurmstepd: error: *** JOB 8 ON n CANCELLED AT 9 ***\n")
    # The end of the run has ended another one before it said anything.
    _files.write(
        Path(log.replace("metric0.8", "metric1.9")), "slurmstepd: *** JOB 9 CANCELLED AT 9 ***\n"
    )
    results = collect_results(run_dir, run, "no answer")
    assert results["missing"]["a"] == f"{unanswered}; the last metric job said:\n{words}"
    assert any("let users create namespaces" in line for line in reasons(results))
