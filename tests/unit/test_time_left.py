"""The time that is left to a run: by its pace, then by its judge, then by its scoring."""

import time

import pytest
from tests.decisions import ROUND, RUN, SPANS, make_run
from tests.shown_runs import SUPERVISOR, publish, running, score, seen, trial

from coordinate_eval import _files
from coordinate_eval.coordinator.inputs.settings import JudgeSettings
from coordinate_eval.coordinator.report.state import Phase
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.claiming.claims import Ledger, whole
from coordinate_eval.coordinator.run.claiming.work import all_portions
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run


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
        known = seen(run_dir, SUPERVISOR, run=run)
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
        return seen(run_dir, SUPERVISOR, run=run).left_seconds

    assert left(server) == left(alone) == 1000
    first, *others = all_portions(server)
    _files.write(run_dir.published("answers", first), "")
    assert left(server) == pytest.approx(1000 * len(others) / (1 + len(others)))
    assert left(alone) == left(server)
    for portion in others:
        _files.write(run_dir.published("answers", portion), "")
    assert left(server) is left(alone) is None
