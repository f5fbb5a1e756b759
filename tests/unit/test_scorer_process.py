"""A scorer that crashes or hangs is started again, and costs the run one dataset at most."""

from collections import Counter
from pathlib import Path

import pytest
from tests.runs import until
from tests.unit.test_decide import make_run

from coordinate_eval import _files
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.report.results import given_up
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.supervisor import scorer_process
from coordinate_eval.coordinator.supervisor.facts import gather_facts
from coordinate_eval.coordinator.supervisor.scorer_process import ScorerProcess, refuse_unconfined
from coordinate_eval.evaluators.sandbox.confinement import Level
from coordinate_eval.records import DatasetRequests

CRASHES = "echo at it; exit 3"
HANGS = "exec sleep 1000"
"""Longer than any test: it is ended."""


def scorer(folder: Path, *does: str, minutes: float = 1e-4) -> tuple[RunDir, ScorerProcess]:
    """Return a scorer process whose child is this script, in the run's directory."""
    run_dir = RunDir(folder)
    python = folder / "fake-python"
    python.write_text("\n".join(["#!/bin/sh", 'cd "$5" || exit', "mkdir -p results", *does]))
    python.chmod(0o755)
    settings = Settings.model_validate({"metrics": {"scoring_minutes": minutes}})
    run = make_run(folder=str(folder), settings=settings, python=str(python))
    _files.write_record(run_dir.run, run)
    return run_dir, ScorerProcess(run_dir, run)


def check_until_given_up(
    run_dir: RunDir, process: ScorerProcess, name: str, waiting: set[str], begins: bool = True
) -> list[str]:
    said: list[str] = []

    def given_up() -> bool:
        if not begins or process.ended or run_dir.scoring.exists():
            said.append(process.check(waiting))
        return run_dir.dataset_error(name).exists()

    try:
        process.check(waiting)
        until(given_up, f"{name} given up")
    finally:
        process.kill()
    return [event for event in said if event]


@pytest.mark.parametrize(
    ("does", "why"),
    [(CRASHES, "the scorer crashed"), (HANGS, "scoring did not end within 0.0001 minutes")],
)
def test_the_dataset_that_ends_it_thrice_is_given_up(tmp_path: Path, does: str, why: str) -> None:
    run_dir, process = scorer(tmp_path, "printf b > results/scoring", does)
    said = check_until_given_up(run_dir, process, "b", waiting=set())
    assert said == [f"{why}, at b; trying again"] * 2 + [f"{why}, at b"]
    assert run_dir.dataset_error("b").read_text().startswith(why)
    assert not run_dir.dataset_error("a").exists()


@pytest.mark.parametrize("does", [CRASHES, HANGS])
def test_one_that_never_begins_loses_what_waits_for_it_alone(tmp_path: Path, does: str) -> None:
    run_dir, process = scorer(tmp_path, does)
    check_until_given_up(run_dir, process, "b", waiting={"a"}, begins=False)
    assert not run_dir.dataset_error("a").exists()


def test_one_that_waits_for_responses_is_left_alone(tmp_path: Path) -> None:
    run_dir, process = scorer(tmp_path, ": > results/scoring", "touch results/there", HANGS)
    try:
        assert process.check({"a", "b"}) == ""
        until((run_dir.root / "results" / "there").exists, "the scorer")
        for _ in range(20):
            assert process.check({"a", "b"}) == ""
        assert not process.ended
    finally:
        process.kill()


def test_with_everything_scored_there_is_none(tmp_path: Path) -> None:
    run_dir, process = scorer(tmp_path, "touch results/started", HANGS)
    for name in ("a", "b"):
        _files.write(run_dir.dataset_error(name), "no\n")
    assert process.check(set()) == ""
    process.kill()
    assert not (run_dir.root / "results" / "started").exists()


@pytest.mark.parametrize(
    ("level", "refused"), [(None, ["b"]), (Level.NAMESPACES, []), (Level.LIMITS, [])]
)
def test_what_may_run_text_is_given_up_where_nothing_confines_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: Level | None, refused: list[str]
) -> None:
    run_dir, run = RunDir(tmp_path), make_run()
    for name, what in (("a", ""), ("b", "metric.py, line 6, calls eval")):
        index = DatasetRequests(
            dataset=name, key="", items=1, requests=1, prompt_tokens=0, generate_requests=1,
            max_output_tokens=1, longest_output_tokens=1, asks=False, runs_text=what, offsets=[],
        )  # fmt: skip
        _files.write_record(run_dir.requests_index(name), index)
    monkeypatch.setattr(scorer_process, "find_level", lambda _: (level, "install bubblewrap"))
    said = refuse_unconfined(run_dir, run)
    assert sorted(given_up(run_dir)) == refused
    assert said.startswith("not run: b.") == bool(refused)
    if refused:
        why = run_dir.dataset_error("b").read_text()
        assert "metric.py, line 6, calls eval" in why
        assert "install bubblewrap" in why
        unpublished = gather_facts(run_dir, run, [], now=0, idle_arrays=Counter()).unpublished
        assert {span.dataset for span in unpublished} == {"a"}
