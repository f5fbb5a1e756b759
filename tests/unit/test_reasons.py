"""Why a run has no results of a dataset, in few words, and how often it was tried in vain."""

from pathlib import Path
from typing import Any

import pytest
from tests.decisions import SPANS, make_run
from tests.shown_runs import publish

from coordinate_eval import _files, _job_log
from coordinate_eval.coordinator.report.missing import reasons
from coordinate_eval.coordinator.report.results import collect_results
from coordinate_eval.coordinator.run.claiming.pullers import Pullers, pullers_name
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.starting import resumes


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
        Path(log.replace("metric0.8", "metric1.9")),
        f"module gcc is loaded\n{_job_log.LINE}\nslurmstepd: *** JOB 9 CANCELLED AT 9 ***\n",
    )
    results = collect_results(run_dir, run, "no answer")
    assert results["missing"]["a"] == f"{unanswered}; the last metric job said:\n{words}"
    assert any("let users create namespaces" in line for line in reasons(results))
