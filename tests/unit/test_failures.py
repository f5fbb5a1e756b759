"""Errors of keepers and trials: which end a run, and how they are reported."""

import errno
import os
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.decisions import make_run
from tests.incidents import judge

from coordinate_eval import _files
from coordinate_eval.coordinator.incidents.causes import find
from coordinate_eval.coordinator.incidents.shown import report_failures
from coordinate_eval.coordinator.report.results import collect_results
from coordinate_eval.coordinator.run.jobs import keeper_job
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import (
    Round,
    RoundNode,
    StageProgress,
    Submitted,
    TrialProgress,
    read_run,
)
from coordinate_eval.coordinator.supervisor.decide_rounds import last_round_recurs
from coordinate_eval.coordinator.supervisor.gather import gather_facts
from coordinate_eval.coordinator.workers.trial import TrialRunner
from coordinate_eval.diagnosis.rules import shipped
from coordinate_eval.errors import EngineError, UserError

ROUND = Round(
    number=0,
    created=time.time(),
    nodes=[RoundNode(name=n, gpu_type="h200", trials=4) for n in ("n1", "n2")],
    minutes=30,
)


@pytest.fixture
def failing(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path)
    _files.write_record(made.run, make_run())
    _files.write_record(made.round(0), ROUND)
    return made


def say(run_dir: RunDir, cause: str | None, message: str = "no such argument: x") -> None:
    """All trials of the round fail so."""
    for node in ("n1", "n2"):
        for index in range(4):
            tell(run_dir, node, index, cause, message)


def tell(run_dir: RunDir, node: str, index: int, cause: str | None, message: str) -> None:
    record = TrialProgress.model_validate(
        {
            "trial": f"{node}-{index}",
            "task": f"7_{index}.0",
            "node": node,
            "state": "failed" if cause else "ended",
            "started": 0,
            "updated": time.time(),
            "message": message,
            "cause": cause,
            "log": f"/logs/{node}_{index}.log",
        }
    )
    _files.write_record(run_dir.trial(record.trial), record)
    run_dir.incident(record.trial).unlink(missing_ok=True)


def test_bad_input_comes_back(failing: RunDir) -> None:
    say(failing, "input")
    assert comes_back(failing)
    tell(failing, "n1", 2, "input", "something else")
    assert not comes_back(failing)


def test_engines_that_do_not_start_say_so_together(failing: RunDir) -> None:
    tell(failing, "n1", 0, "engine start", "cannot load /dev/shm/n1")
    assert not comes_back(failing)
    tell(failing, "n1", 1, "engine start", "cannot load /dev/shm/n1")
    assert not comes_back(failing), "the node may be faulty"
    tell(failing, "n2", 0, "engine start", "cannot load /dev/shm/n2")
    assert comes_back(failing)


def comes_back(run_dir: RunDir) -> bool:
    """Whether another round would fail too, as a supervisor sees the run."""
    run = read_run(run_dir)
    judge(run_dir)
    return bool(last_round_recurs(gather_facts(run_dir, run, [], time.time(), Counter())))


def raised(error: Exception, cause: Exception | None) -> Exception:
    """Return the error as it is when it was raised from another one."""
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (UserError("no such argument"), "input"),
        (raised(UserError("cannot import it"), ImportError("torch")), "engine start"),
        (raised(UserError("no such file"), FileNotFoundError("config.json")), "engine start"),
        (EngineError("no such dtype"), "engine start"),
        (raised(EngineError("no model"), OSError("it has no file named config.json")),
         "engine start"),
        (raised(UserError("cannot stage weights"), OSError(errno.ENOSPC, "No space")), "node"),
        (raised(EngineError("did not start"), OSError(errno.EIO, "I/O error")), "node"),
        (raised(EngineError("did not start"), MemoryError()), "out of memory"),
        (raised(EngineError("did not start"), OSError(errno.ENOMEM, "none")), "out of memory"),
        (raised(EngineError("did not start"), type("OutOfMemoryError", (RuntimeError,), {})()),
         "out of memory"),
        (EngineError("vLLM failed: CUDA out of memory. Tried to allocate"), "out of memory"),
        (KeyError("a bug"), "other"),
    ],
)  # fmt: skip
def test_what_may_pass_is_no_bad_input(failing: RunDir, error: Exception, cause: str) -> None:
    TrialRunner(failing, "n1-0", "n1", 0, time.time() + 60).write_failure(error)
    assert _files.read_record(failing.trial("n1-0"), TrialProgress).cause == cause


def test_input_that_was_answered_before_is_not_bad(failing: RunDir) -> None:
    say(failing, "input", "cannot import it")
    earlier = ROUND.model_copy(update={"nodes": [RoundNode(name="n0", gpu_type="", trials=1)]})
    last = ROUND.model_copy(update={"number": 1})
    for path in list(failing.trials_folder.iterdir()):
        progress = _files.read_record(path, TrialProgress)
        renamed = progress.model_copy(update={"trial": f"{progress.trial}-r1"})
        _files.write_record(failing.trial(renamed.trial), renamed)
        path.unlink()
    _files.write_record(failing.round(0), earlier)
    _files.write_record(failing.round(1), last)
    assert comes_back(failing)
    tell(failing, "n0", 0, None, "")
    answered = _files.read_record(failing.trial("n0-0"), TrialProgress)
    answered = answered.model_copy(update={"responses": 1})
    _files.write_record(failing.trial("n0-0"), answered)
    assert not comes_back(failing)


def test_a_round_without_trials_tells_nothing(failing: RunDir) -> None:
    assert not comes_back(failing)
    failing.round(0).unlink()
    assert not comes_back(failing)


def test_a_resumed_run_tries_again(failing: RunDir) -> None:
    say(failing, "input")
    _files.write(failing.resumed, "")
    later = time.time() + 10
    os.utime(failing.resumed, (later, later))
    assert not comes_back(failing)
    assert report_failures(failing) == []


def test_refused_jobs_are_reported_without_their_commands(failing: RunDir) -> None:
    run = make_run()
    for node in ROUND.nodes:
        job = keeper_job(run, failing, ROUND, node)
        refusal = f"Slurm refused the job: invalid account\n(submitted with sbatch {job.name})"
        submitted = Submitted(job=job, job_id=None, refusal=refusal, time=time.time())
        _files.write_record(failing.job(job.name), submitted)
    assert report_failures(failing) == ["2 jobs: Slurm refused the job: invalid account"]


def test_an_error_is_reported_once(failing: RunDir) -> None:
    say(failing, "input", "no such argument on n1: x")
    assert report_failures(failing) == [
        "4 trials: no such argument on n1: x; log: /logs/n1_3.log",
        "4 trials: no such argument on n1: x; log: /logs/n2_3.log",
    ]
    say(failing, "input")
    stage = StageProgress(
        state="failed", done_bytes=0, total_bytes=1, started=0, updated=time.time(),
        message="no room",
    )  # fmt: skip
    _files.write_record(failing.stage(0, "n2"), stage)
    assert report_failures(failing) == [
        "keeper n2: no room",
        "8 trials: no such argument: x; log: /logs/n2_3.log",
    ]
    run = read_run(failing)
    results = collect_results(failing, run, "every trial failed")
    assert results["reason"] == "every trial failed"
    assert _files.pretty(results).count("no such argument") == 1
    assert _files.pretty(results).count("every trial failed") == 1
    assert results["missing"] == {
        "a": "10 items have no responses",
        "b": "3 items have no responses",
    }


@pytest.mark.parametrize("what", ["pipe", "device", "nothing", "no path"])
def test_what_is_no_regular_file_is_not_read_as_a_log(tmp_path: Path, what: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    names = {"pipe": str(tmp_path / "pipe"), "device": "/dev/zero", "no path": "a\0b"}
    log = names.get(what, str(tmp_path / "nothing"))
    found = find(log, "KeyError: 'x'", "failed", shipped(), 1 << 20)
    assert found is not None
    assert found.reason == "Key Error"
