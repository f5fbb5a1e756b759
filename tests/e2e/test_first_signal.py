"""A whole run with `--first-signal`: rough scores of its slices, and those of all at the end."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.runs import TASKS, Workspace, scores
from tests.tiny import tiny_model

from coordinate_eval.coordinator.report.first_signal import Z_95
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import read_run
from coordinate_eval.records import Answer, Dataset, Response

PRIORS = {
    "tiny_group": {"gpu_seconds": 5, "chunk_overhead_seconds": 0.1},
    "tiny_sums": {"gpu_seconds": 5, "chunk_overhead_seconds": 0.1},
    # Too short to be cut, so it is in the first signal whole.
    "tiny_code": {"gpu_seconds": 1, "chunk_overhead_seconds": 0.5, "cpu_seconds": 1},
    # Of long items, so it has none.
    "tiny_cloze": {"gpu_seconds": 100},
}


@pytest.fixture(scope="module")
def suite(user: Workspace) -> Path:
    datasets = [{"name": name, "task": name, "prior": prior} for name, prior in PRIORS.items()]
    path = user.folder / "first-signal.yaml"
    path.write_text(yaml.safe_dump({"include_path": [str(TASKS)], "datasets": datasets}))
    return path


@pytest.fixture(scope="module")
def finished(user: Workspace, suite: Path) -> Path:
    run = user.folder / "with"
    user.call(
        "run", tiny_model(), "--suite", suite, "--run-dir", run, "--first-signal", "--json",
        # Of several, one may score the whole of a dataset while another one estimates it.
        COORDINATE_EVAL_HARNESS_JOBS="1",
    )  # fmt: skip
    return run


@pytest.fixture
def signal(finished: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((finished / "first-signal.json").read_text())
    return found


def test_slices_and_wholes_are_scored_as_their_responses_are(
    finished: Path, signal: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from coordinate_eval.evaluators.harness.evaluator import HarnessEvaluator

    monkeypatch.chdir(TASKS)
    run = read_run(RunDir(finished))
    evaluator = HarnessEvaluator(
        tokenizer=finished / "model", max_length=run.max_length, include_path=[str(TASKS)]
    )
    assert signal["complete"] is False
    assert signal["pending"] == []
    assert signal["datasets"].keys() == {"tiny_group", "tiny_sums", "tiny_code"}
    assert signal["without"].keys() == {"tiny_cloze"}
    lines = (line for path in finished.glob("answers/*/*.jsonl") for line in path.open())
    answers = {answer.id: answer for answer in map(Answer.model_validate_json, lines)}

    def responses(dataset: Dataset, *, signal: bool) -> list[Response]:
        found = [s for s in run.shards if s.dataset == dataset.name and (s.signal or not signal)]
        paths = [finished / "outputs" / dataset.name / f"{s.span.stem}.jsonl" for s in found]
        return [Response.model_validate_json(line) for path in paths for line in path.open()]

    whole: dict[str, Any] = {}
    for dataset in run.suite.datasets:
        whole |= evaluator.finish(dataset, responses(dataset, signal=False), answers).results
    assert scores(finished) == whole
    for dataset in run.suite.datasets[:3]:
        expected = evaluator.finish(dataset, responses(dataset, signal=True), answers, part=True)
        found = signal["datasets"][dataset.name]
        assert found["items"] == expected.items
        for task, metrics in found["estimates"].items():
            for metric, interval in metrics.items():
                assert interval["value"] == expected.results[task][metric]
                if interval["stderr"] is not None:
                    width = interval["high"] - interval["low"]
                    assert width == pytest.approx(2 * Z_95 * interval["stderr"])
    assert signal["datasets"]["tiny_code"]["items"] == 5
    assert signal["datasets"]["tiny_sums"]["items"] == 4
    group = signal["datasets"]["tiny_group"]
    assert (group["tasks"], group["of_tasks"]) == (1, 2)  # of the other, one item is in the slice
    assert group["estimates"]["tiny_group"]["acc,none"]["stderr"] > 0


def test_status_shows_it_until_the_results_are_complete(
    user: Workspace, finished: Path, signal: dict[str, Any], tmp_path: Path
) -> None:
    done = json.loads(user.call("status", finished, "--json").stdout)
    assert done["first_signal"] is None
    early = Path(shutil.copytree(finished, tmp_path / "early"))
    (early / "results.json").unlink()
    for path in early.glob("results/*.json"):
        path.unlink()
    shown = json.loads(user.call("status", early, "--json", status=1).stdout)
    assert shown["first_signal"] == signal
    text = user.call("status", early, status=1, COLUMNS="200").stdout
    assert "first signal" in text
    assert "4 of 11" in text
