"""`coordinate-eval samples` on runs whose responses are made up."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.scoring import right_sums, runs_of_sums
from typer.testing import CliRunner, Result

from coordinate_eval import _files
from coordinate_eval.coordinator.cli.app import app
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.errors import UserError

EVIL = "\x1b[31mis 99.</pre><script>alert(1)</script>[bold]"

Call = Callable[..., Result]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of two datasets: one is always right about the first sum, the other never."""
    right = right_sums()
    return runs_of_sums(tmp_path_factory.mktemp("home"), a=right, b=[EVIL, *right[1:]])


@pytest.fixture
def copy(home: Path, tmp_path: Path) -> Path:
    """A copy of the runs, for a test that changes one."""
    return Path(shutil.copytree(home, tmp_path / "runs"))


@pytest.fixture
def call(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Call the command on the runs, or on their copy if the test has one."""
    monkeypatch.chdir(tmp_path)
    name = "copy" if "copy" in request.fixturenames else "home"
    home: Path = request.getfixturevalue(name)

    def call(*args: str) -> Result:
        env = {"COORDINATE_EVAL_RUNS_DIR": str(home), "COLUMNS": "100", "HOME": str(home)}
        return CliRunner().invoke(app, ["samples", *args], env=env)

    return call


def test_samples_are_shown_and_steer_nothing(call: Call) -> None:
    done = call("b", "--dataset", "tiny_sums", "--item", "0")
    assert done.exit_code == 0, done.output
    verdict = "item 0 · tiny_sums, document 0 · wrong: exact_match,strict-match 0"
    parts = ("prompt", "Question:", "answer", "<script>alert(1)</script>[bold]", "taken from it")
    for words in (verdict, *parts, "target"):
        assert words in done.stdout
    assert "\x1b[31m" not in done.stdout


def test_lines_are_those_of_the_harness_also_in_files(call: Call, tmp_path: Path) -> None:
    lines = call("a", "--dataset", "tiny_group", "--json").stdout.splitlines()
    call("a", "--dataset", "tiny_group", "--output", "there")
    files = sorted((tmp_path / "there").iterdir())
    assert [path.name.rpartition("_")[0] for path in files] == [
        "samples_tiny_choice", "samples_tiny_short",
    ]  # fmt: skip
    samples = [json.loads(line) for line in lines]
    assert {sample.pop("task") for sample in samples} == {"tiny_choice", "tiny_short"}
    written = "".join(path.read_text() for path in files).splitlines()
    assert [json.loads(line) for line in written] == samples
    sample: dict[str, Any] = samples[0]
    assert list(sample)[:11] == [
        "doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics",
        "doc_hash", "prompt_hash", "target_hash",
    ]  # fmt: skip
    assert sample.keys() >= set(sample["metrics"])
    assert sample["arguments"]["gen_args_0"].keys() == {"arg_0", "arg_1"}


def test_wrong_ones_and_those_that_two_runs_differ_in(call: Call) -> None:
    wrong = call("b", "--dataset", "tiny_sums", "--wrong", "--json").stdout.splitlines()
    assert {json.loads(line)["doc_id"] for line in wrong} == {0}
    done = call("a", "--dataset", "tiny_sums", "--diff", "b")
    assert "1 are right in" in done.stderr
    assert "and 0 in" in done.stderr
    assert done.stdout.count("item 0") == 2
    assert "item 1" not in done.stdout
    both = call("a", "--dataset", "tiny_sums", "--diff", "b", "--json").stdout.splitlines()
    assert {json.loads(line)["run"] for line in both} == {"r"}


def test_the_report_shows_samples_escaped(call: Call, copy: Path) -> None:
    run_dir = RunDir(copy / "b")
    ledger = {"seconds": 1.0, "gpu_seconds": {}, "total_gpu_seconds": 0.0, "cpu_seconds": {},
              "advice": ""}  # fmt: skip
    refused = call("b", "--dataset", "tiny_sums", "--report").exception
    assert "has not ended" in str(refused)
    _files.write(run_dir.results, json.dumps({"complete": True, "ledger": ledger}))
    assert call("b", "--dataset", "tiny_sums", "--report").exit_code == 0
    page = run_dir.report.read_text()
    assert "<h2>Samples</h2>" in page
    assert "&lt;script&gt;" in page
    assert "<script" not in page
    assert "\x1b" not in page


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("--dataset", "tiny_sum"), "has no dataset 'tiny_sum'; did you mean tiny_sums"),
        ((), "name one of the 2 datasets of run r with --dataset: tiny_sums, tiny_group"),
        (("--dataset", "tiny_sums", "--item", "999"), "has no item 999"),
        (("--dataset", "tiny_sums", "--metric", "f1"), "has no metric 'f1'"),
        (("--dataset", "tiny_sums", "--wrong", "--diff", "b"), "leave out --wrong"),
        (("--dataset", "tiny_sums", "--json", "--report"), "give one of them"),
        (("--dataset", "tiny_sums", "--diff", "c"), "no run 'c'"),
    ],
)
def test_what_cannot_be_shown_is_refused(call: Call, args: tuple[str, ...], why: str) -> None:
    error = call("a", *args).exception
    assert isinstance(error, UserError)
    assert why in str(error)


def test_the_only_dataset_need_not_be_named(call: Call, copy: Path) -> None:
    file = RunDir(copy / "a").run
    run = json.loads(file.read_text())
    run["suite"]["datasets"] = [d for d in run["suite"]["datasets"] if d["name"] == "tiny_sums"]
    run["shards"] = [s for s in run["shards"] if s["dataset"] == "tiny_sums"]
    file.write_text(json.dumps(run))
    assert "item 0 · tiny_sums" in call("a", "--item", "0").stdout


def test_a_dataset_without_scores_is_refused(call: Call, copy: Path) -> None:
    RunDir(copy / "a").dataset_results("tiny_group").unlink()
    assert "not scored yet" in str(call("a", "--dataset", "tiny_group").exception)
