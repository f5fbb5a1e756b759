"""`coordinate-eval diagnose`: on log files, and on a run with failed and killed trials."""

import json
import time
from pathlib import Path

import pytest
from tests.decisions import ROUND, RUN, make_run
from tests.incidents import ended
from typer.testing import CliRunner, Result

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import End
from coordinate_eval.coordinator.cli.app import app
from coordinate_eval.coordinator.incidents import shown
from coordinate_eval.coordinator.incidents.incident import How
from coordinate_eval.coordinator.incidents.shown import report_failures
from coordinate_eval.coordinator.report.results import collect_results
from coordinate_eval.coordinator.run.jobs import keeper_job
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Submitted, TrialProgress
from coordinate_eval.errors import UserError

OOM = "Traceback (most recent call last):\ntorch.OutOfMemoryError: CUDA out of memory.\n"
KILLED = "slurmstepd: error: Detected 1 oom_kill event in StepId=9.0.\n"


def diagnose(*words: object) -> Result:
    return CliRunner().invoke(app, ["diagnose", *map(str, words)], env={"COLUMNS": "200"})


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    """A run of four trials: one failed, one was killed, one ended, and one goes on."""
    made = RunDir(tmp_path / "runs" / "r")
    settings = RUN.settings.model_copy(update={"runs_dir": str(tmp_path / "runs")})
    run = make_run(settings=settings)
    _files.write_record(made.run, run)
    _files.write_record(made.round(0), ROUND)
    texts = {"n1-0": OOM, "n1-1": KILLED, "n1-2": OOM, "n1-3": "hello\n"}
    states = {"n1-0": "failed", "n1-1": "running", "n1-2": "ended", "n1-3": "running"}
    for trial, text in texts.items():
        log = made.logs / f"{trial}.log"
        _files.write(log, text)
        record: dict[str, object] = {"trial": trial, "task": "8_0.0", "node": "n1", "started": 0}
        record |= {"state": states[trial], "updated": time.time(), "log": str(log)}
        record |= {"message": "EngineError: no engine" if trial == "n1-0" else ""}
        _files.write_record(made.trial(trial), TrialProgress.model_validate(record))
    job = keeper_job(run, made, ROUND, ROUND.nodes[0])
    refusal = "sbatch: error: invalid partition specified: x\nsbatch …"
    refused = Submitted(job=job, job_id=None, refusal=refusal, time=time.time())
    _files.write_record(made.job(job.name), refused)
    return made


def test_failed_killed_and_refused_jobs_of_a_run(run_dir: RunDir) -> None:
    done = diagnose(run_dir.root, "--json")
    assert done.exit_code == 0, done.output
    found = {each["name"]: each["cause"] for each in json.loads(done.stdout)["failures"]}
    reasons = {name: cause["reason"] for name, cause in found.items()}
    refused = next(name for name in reasons if "keep" in name)
    assert reasons == {
        "n1-0": "Out of Memory Error",
        "n1-1": "Out of Memory",
        refused: "Refused",
    }
    assert found["n1-0"]["number"] == 2
    assert found["n1-0"]["then"] == "less load"
    shown = diagnose(run_dir.root).stdout
    assert "trial n1-1: Out of Memory (slurm)" in shown
    assert "do: use less GPU memory" in shown


def test_of_a_log_of_terabytes_the_end_is_read(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sparse file takes no space, and would be read for hours."""
    monkeypatch.setattr(shown, "MOST_READ_BYTES", 1 << 20)
    log = run_dir.logs / "n1-0.log"
    with log.open("r+b") as file:
        file.seek(8 << 40)
        file.write(b"\n" + OOM.encode())
    done = diagnose(run_dir.root, "--json")
    found = {each["name"]: each["cause"] for each in json.loads(done.stdout)["failures"]}
    assert found["n1-0"]["reason"] == "Out of Memory Error"


def test_how_a_trial_ended_counts_beside_its_log(run_dir: RunDir) -> None:
    ends: dict[str, How] = {
        "n1-3": End.PREEMPTED,
        "n1-4": End.OUT_OF_MEMORY,
        "n1-5": "hung",
    }
    for trial, how in ends.items():
        log = str(run_dir.logs / f"{trial}.log")
        ended(run_dir, trial, how, message=f"it ended: {how}", log=log)
    done = diagnose(run_dir.root, "--json")
    assert done.exit_code == 1, "nobody knows why it hung"
    found = {each["name"]: each["cause"] for each in json.loads(done.stdout)["failures"]}
    assert found["n1-3"]["reason"] == "Preempted"
    assert found["n1-4"]["reason"] == "Out of Memory"
    assert found["n1-5"]["reason"] == "Unknown"


def test_a_run_without_results_and_without_a_dead_job_says_why_it_ended(tmp_path: Path) -> None:
    made = RunDir(tmp_path / "runs" / "r")
    settings = RUN.settings.model_copy(update={"runs_dir": str(tmp_path / "runs")})
    run = make_run(settings=settings)
    _files.write_record(made.run, run)
    going_on = diagnose(made.root)
    assert (going_on.exit_code, "failed\n" in going_on.stdout) == (0, True)
    why = "no node has enough memory for the weights"
    ended = collect_results(made, run, why)
    _files.write(made.results, _files.pretty(ended))
    done = diagnose(made.root)
    assert done.exit_code == 1
    assert "no job of" in done.stdout
    assert why in done.stdout
    as_json = diagnose(made.root, "--json")
    assert as_json.exit_code == 1
    assert why in json.loads(as_json.stdout)["reasons"]
    _files.write(made.results, _files.pretty({**ended, "complete": True, "missing": {}}))
    assert diagnose(made.root).exit_code == 0


def test_status_and_results_name_the_cause(run_dir: RunDir) -> None:
    lines = report_failures(run_dir)
    assert any("cause: Out of Memory Error (framework): use less" in line for line in lines)


def test_the_cause_is_found_among_all_logs_of_a_job(tmp_path: Path) -> None:
    (tmp_path / "0.log").write_text("Watchdog caught collective operation timeout: x\n")
    (tmp_path / "1.log").write_text(OOM)
    done = diagnose(tmp_path / "0.log", tmp_path / "1.log")
    assert done.exit_code == 0
    assert "2 logs: Out of Memory Error (framework)" in done.stdout
    assert "1.log:2: torch.OutOfMemoryError" in done.stdout
    assert "also seen: NCCL Timeout Error" in done.stdout


def test_exit_status_and_words_of_slurm(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("hello\n")
    assert "no failure found" in diagnose(log).stdout
    unknown = diagnose(log, "--end", "FAILED NonZeroExitCode 3:0")
    assert unknown.exit_code == 1
    assert "Unknown" in unknown.stdout
    assert "Preempted" in diagnose(log, "--end", "PREEMPTED").stdout


def test_no_escape_of_a_log_reaches_the_terminal(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"\x1b]0;x\x07KeyError: '\x1b[2J\xe2\x80\xae[red]x'\n")
    for words in ([], ["--json"], ["--compressed"]):
        shown = diagnose(log, *words).stdout
        assert "\x1b" not in shown
        assert "\u202e" not in shown


def test_what_is_left_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("step 1 loss 2.0\n" * 100 + OOM)
    done = diagnose(log, "--compressed")
    assert done.stdout.splitlines() == [
        "101: Traceback (most recent call last):",
        "102: torch.OutOfMemoryError: CUDA out of memory.",
    ]


def test_what_is_neither_run_nor_log_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("x\n")
    for words in (["none"], [log, "none"], [tmp_path]):
        done = diagnose(*words)
        assert isinstance(done.exception, UserError)
