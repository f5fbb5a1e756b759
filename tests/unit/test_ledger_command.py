"""`status --ledger`: read from the records of a run that goes on, or from its results."""

import html
import json
import re
import time
from pathlib import Path

import pytest
from tests.decisions import ROUND, RUN, make_run
from tests.plans import reviewed
from tests.trainings import call
from typer.testing import Result

from coordinate_eval import _files
from coordinate_eval.coordinator.display.run_page import write_report
from coordinate_eval.coordinator.report.results import collect_results
from coordinate_eval.coordinator.report.time_ledger import Use, read_time_ledger
from coordinate_eval.coordinator.run.measurements import Scored, ShardDone, append_line
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import StageProgress, TrialProgress, read_run
from coordinate_eval.records import Dataset, DatasetResults, Outputs

SECONDS = 100.0


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A run of four trials on two nodes, submitted 100 s ago: one answers, one has failed."""
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    made, began = RunDir(tmp_path / "runs" / "r"), now - SECONDS
    settings = RUN.settings.model_copy(update={"runs_dir": str(tmp_path / "runs")})
    _files.write_record(made.run, make_run(created=began, settings=settings))
    _files.write_record(made.round(0), ROUND.model_copy(update={"created": began + 10}))
    stage: dict[str, object] = {"state": "ready", "done_bytes": 1, "total_bytes": 1}
    stage |= {"started": began + 20, "ready": began + 30, "updated": began + 30}
    _files.write_record(made.stage(0, "n1"), StageProgress.model_validate(stage))
    trial: dict[str, object] = {"trial": "n1-0", "task": "8_0.0", "node": "n1", "state": "running"}
    trial |= {"started": began + 25, "prepared": began + 27, "staged": began + 30}
    trial |= {"running": began + 40, "ready": began + 41, "last": began + 90}
    _files.write_record(
        made.trial("n1-0"), TrialProgress.model_validate(trial | {"updated": began + 90})
    )
    failed = trial | {"trial": "n1-1", "state": "failed", "running": None, "last": None}
    _files.write_record(
        made.trial("n1-1"), TrialProgress.model_validate(failed | {"updated": began + 35})
    )
    append_line(made.scorings("a"), Scored(time=began + 95, items=5, requests=5, seconds=7))
    return made


def ask(run_dir: RunDir, *args: str) -> Result:
    return call(run_dir.root.parent, "status", "--ledger", *args)


def test_the_page_of_a_run_shows_what_happened_beside_the_plan(run_dir: RunDir) -> None:
    begin = time.time() - SECONDS
    hostile = "</title><script>x"
    for dataset, after in (("a", 60), (hostile, 80)):
        done: dict[str, object] = {
            "time": begin + after,
            "dataset": dataset,
            "start": 0,
            "stop": 5,
            "items": 5,
        }
        counts = ("requests", "prompt_tokens", "output_tokens", "scored_tokens")
        done |= dict.fromkeys((*counts, "longest_output_tokens", "gpu_seconds"), 1)
        append_line(run_dir.observations("n1-0"), ShardDone.model_validate(done))
    run = read_run(run_dir)
    results = collect_results(run_dir, run)
    assert "cannot write" in write_report(run_dir, results)
    results["ledger"] = read_time_ledger(run_dir, run, ended=True).model_dump(mode="json")
    assert write_report(run_dir, results) == ""
    page = run_dir.report.read_text()
    assert hostile not in page
    assert "a, items 0&#8211;5" in page
    for word in ("What happened", "shards that others finished", "lost to faults", "n2-1"):
        assert word in page
    assert page.count("<svg") == 1  # it waited for nodes, and nothing was planned
    _files.write_record(run_dir.plan, reviewed(nodes=2, trials=2).plan)
    assert write_report(run_dir, results) == ""
    page = run_dir.report.read_text()
    assert page.count("<svg") == 2
    assert "The last response came after" in page


def test_the_page_of_a_run_begins_with_its_scores(run_dir: RunDir) -> None:
    first, second = "a", "b"
    run = read_run(run_dir)
    two = run.suite.model_copy(update={"datasets": [Dataset(name=n) for n in (first, second)]})
    run = run.model_copy(update={"suite": two})
    _files.write_record(run_dir.run, run)
    one = {first: {"acc,none": 0.61234, "acc_stderr,none": 0.0123}}
    many = {f"task{n}": {"exact_match,strict": 0.25 * n} for n in range(3)}
    for name, scores in ((first, one), (second, many)):
        _files.write_record(
            run_dir.dataset_results(name),
            DatasetResults(
                dataset=name, items=1234, results=scores,
                outputs=Outputs(responses=100, empty=30) if name == second else None,
            ),
        )  # fmt: skip
    results = collect_results(run_dir, run)
    results["ledger"] = read_time_ledger(run_dir, run, ended=True).model_dump(mode="json")
    assert write_report(run_dir, results) == ""
    page = run_dir.report.read_text()
    text = html.unescape(re.sub(r"<[^>]*>", " ", page))
    assert re.search(rf"{first}\s+0.6123\s+± 0.0123\s+acc\s+1,234", text)
    assert re.search(rf"{second}\s+0.2500\s+exact_match,strict \(mean of 3 tasks\)\s+1,234", text)
    assert f"{second}: 30% of answers are empty" in text
    assert text.index("0.6123") < text.index("to the last score")


def test_a_run_that_goes_on(run_dir: RunDir) -> None:
    found = json.loads(ask(run_dir, "--json").stdout)
    spent = found["gpu_seconds"]
    assert found["seconds"] == pytest.approx(SECONDS, abs=0.1)
    assert found["total_gpu_seconds"] == pytest.approx(4 * found["seconds"], abs=0.1)
    assert sum(spent.values()) == pytest.approx(found["total_gpu_seconds"], abs=0.1)
    assert spent["waiting"] == pytest.approx(4 * 10, abs=0.1)
    assert spent["engine start"] == pytest.approx(2 + 10, abs=0.1)
    # Both trials of n1 waited for the copy before they began, one of them also afterwards.
    assert spent["staging"] == pytest.approx(5 + 5 + 3, abs=0.1)
    assert spent["requests"] == pytest.approx(60, abs=0.1)
    assert spent["lost to faults"] == pytest.approx(75, abs=0.1)
    assert found["cpu_seconds"] == {"building": 0.0, "metrics": 0.0, "scoring": 7.0}
    assert found["advice"].startswith("5")
    assert "of GPU time was queue: ask for less" in found["advice"]


def test_a_table_and_what_to_change_next(run_dir: RunDir) -> None:
    done = ask(run_dir)
    assert done.exit_code == 0
    for word in ("run r:", "engine start", "lost to faults", "scoring 7.0 s", "ask for less"):
        assert word in done.output
    assert "leave out --follow" in str(ask(run_dir, "--follow").exception)


def test_an_ended_run_keeps_its_ledger(run_dir: RunDir) -> None:
    run = make_run()
    ended = read_time_ledger(run_dir, run, ended=True)
    # The trial that answered did not say that it ended: it was killed.
    assert ended.gpu_seconds[Use.REQUESTS] == pytest.approx(50, abs=0.1)
    results = collect_results(run_dir, run) | {"ledger": ended.model_dump(mode="json")}
    _files.write(run_dir.results, _files.pretty(results))
    assert (
        json.loads(ask(run_dir, "--json").stdout)["gpu_seconds"] == results["ledger"]["gpu_seconds"]
    )


def test_a_run_that_is_resumed_for_its_scores_holds_no_gpu(run_dir: RunDir) -> None:
    run = make_run(created=time.time() - SECONDS)
    assert read_time_ledger(run_dir, run, ended=True).total_gpu_seconds > 0
    trial = _files.read_record(run_dir.trial("n1-0"), TrialProgress)
    _files.write_record(run_dir.trial("n1-0"), trial.model_copy(update={"state": "ended"}))
    _files.write(run_dir.resumed, "")
    resumed = read_time_ledger(run_dir, run, ended=True)
    assert resumed.total_gpu_seconds == 0
    assert resumed.cpu_seconds == {"building": 0.0, "metrics": 0.0, "scoring": 0.0}
    assert resumed.advice == "no GPU was asked for"
