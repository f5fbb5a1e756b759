"""`coordinate-eval compare` on runs with made-up responses, and the scores of items behind it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.scoring import right_sums, runs_of_sums
from typer.testing import CliRunner, Result

from coordinate_eval import _files
from coordinate_eval.coordinator.cli.app import app
from coordinate_eval.coordinator.report.results import read_dataset
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import read_run
from coordinate_eval.coordinator.workers.scorer import (
    answer_files,
    response_files,
    start_evaluator,
)
from coordinate_eval.errors import UserError
from coordinate_eval.evaluators.confined.evaluator import Samples
from coordinate_eval.records import DatasetItems, DatasetRequests, ItemScores

pytest.importorskip("lm_eval")

from coordinate_eval.evaluators.harness.item_scores import ItemBook, clusters_of

PASSAGE = "A passage that several questions are about, and that has more words than any name. "

Call = Callable[..., Result]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of two datasets: one answers all sums rightly, the other none."""
    return runs_of_sums(tmp_path_factory.mktemp("home"), a=[""], b=right_sums())


@pytest.fixture
def call(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Call the command on the runs."""
    monkeypatch.chdir(tmp_path)

    def call(*args: str) -> Result:
        env = {"COORDINATE_EVAL_RUNS_DIR": str(home), "COLUMNS": "120", "HOME": str(home)}
        return CliRunner().invoke(app, ["compare", *args], env=env)

    return call


def test_a_dataset_that_changed_is_told_from_one_that_did_not(call: Call) -> None:
    done = call("a", "b")
    assert done.exit_code == 0, done.output
    rows = {line.split("│")[1].strip(): line for line in done.stdout.splitlines() if "│" in line}
    assert "+1.0000" in rows["tiny_sums"]
    assert "better" in rows["tiny_sums"]
    assert "would show ±" in rows["tiny_group"]
    assert "of 2 datasets, better in 1, worse in 0, too close in 1" in done.stdout
    back = json.loads(call("b", "a", "--json").stdout)
    assert back["schema"] == "coordinate-eval/comparison@1"
    sums, group = back["datasets"]
    assert (sums["name"], sums["verdict"], sums["items"]) == ("tiny_sums", "worse", 11)
    assert sums["p"] == pytest.approx(2 / 2**11)
    assert -1 == sums["low"] == sums["difference"] < sums["high"] < 0
    assert (group["name"], group["verdict"], group["p"]) == ("tiny_group", "no difference", 1)
    assert back["mean"]["datasets"] == 2
    assert back["left_out"] == back["unlike"] == {}


def test_one_dataset_or_metric_of_runs_named_by_their_checkpoint(call: Call) -> None:
    done = call("/ckpt", "b", "--dataset", "tiny_sums", "--json")
    assert [each["name"] for each in json.loads(done.stdout)["datasets"]] == ["tiny_sums"]
    found = json.loads(call("a", "b", "--metric", "acc", "--json").stdout)
    assert [(each["name"], each["metric"]) for each in found["datasets"]] == [("tiny_group", "acc")]
    assert found["left_out"] == {"tiny_sums": "no score with metric 'acc' in both runs"}


def test_runs_that_asked_differently_are_refused_unless_told_otherwise(
    call: Call, home: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(home / "b", tmp_path / "other"))
    run = json.loads((other / "run.json").read_text())
    sums, _ = run["suite"]["datasets"]
    sums["num_fewshot"] = 3
    (other / "run.json").write_text(json.dumps(run))
    done = call("a", str(other))
    assert isinstance(done.exception, UserError)
    said = str(done.exception)
    assert "tiny_sums: num fewshot " in said
    assert "tiny_group" not in said
    assert "--anyway" in said
    assert call("a", str(other), "--dataset", "tiny_group").exit_code == 0
    anyway = call("a", str(other), "--anyway")
    assert "tiny_sums was asked differently: num fewshot" in anyway.stderr
    # Items that are not the same cannot be paired.
    path = RunDir(other).items("tiny_sums")
    path.write_text(path.read_text().replace('"documents":"', '"documents":"f'))
    told = json.loads(call("a", str(other), "--anyway", "--json").stdout)["datasets"][0]
    assert (told["name"], told["verdict"], told["low"]) == ("tiny_sums", "", None)
    assert "items of task tiny_sums are not the same" in told["why_not"]
    # A score of other items than the other run's is no ground for a verdict.
    kept = json.loads((home / "b" / "items" / "tiny_sums.json").read_text())
    for table in kept["tables"]:
        table["metrics"] = {name: [None, *values[1:]] for name, values in table["metrics"].items()}
    path.write_text(json.dumps(kept))
    told = json.loads(call("a", str(other), "--anyway", "--json").stdout)["datasets"][0]
    assert (told["verdict"], told["why_not"]) == ("", "1 item with a value in one run only")
    for table in kept["tables"]:
        table["metrics"] = {"another": table["items"]}
    path.write_text(json.dumps(kept))
    told = json.loads(call("a", str(other), "--anyway", "--json").stdout)["datasets"][0]
    assert "no scores of items in both runs" in told["why_not"]
    path.unlink()
    told = json.loads(call("a", str(other), "--anyway", "--json").stdout)["datasets"][0]
    assert "coordinate-eval rescore" in told["why_not"]


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("a", "c"), "no run 'c'"),
        (("a", "b", "--dataset", "tiny_sum"), "no dataset 'tiny_sum' in these runs"),
        (("a", "b", "--metric", "bleu"), "nothing can be compared in these runs: tiny_sums: no"),
    ],
)
def test_what_cannot_be_compared_is_named(call: Call, args: tuple[str, ...], why: str) -> None:
    assert why in str(call(*args).exception)


@pytest.mark.parametrize("dataset", ["tiny_sums", "tiny_group"])
def test_each_item_has_the_scores_of_the_harness_s_own_sample(home: Path, dataset: str) -> None:
    run_dir = RunDir(home / "b")
    items = _files.read_record(run_dir.items(dataset), DatasetItems)
    found = {
        (table.task, table.filter, item): {
            name: values[n] for name, values in table.metrics.items() if values[n] is not None
        }
        for table in items.tables
        for n, item in enumerate(table.items)
    }
    verdicts = _samples(run_dir, dataset).verdicts
    assert found == {(each.task, each.filter, each.item): each.metrics for each in verdicts}
    results = read_dataset(run_dir, dataset)
    assert results is not None
    for table in items.tables:
        for name, values in table.metrics.items():
            mean = sum(value for value in values if value is not None) / len(values)
            assert mean == pytest.approx(results.results[table.task][f"{name},{table.filter}"])


def _samples(run_dir: RunDir, name: str) -> Samples:
    run = read_run(run_dir)
    dataset = next(each for each in run.suite.datasets if each.name == name)
    index = _files.read_record(run_dir.requests_index(name), DatasetRequests)
    shards = [shard for shard in run.shards if shard.dataset == name]
    with (
        start_evaluator(run_dir, run, {name: index}) as evaluator,
        evaluator.samples(
            dataset, response_files(run_dir, shards), answer_files(run_dir, run, shards)
        ) as samples,
    ):
        return samples


def test_documents_of_one_passage_are_a_cluster_and_those_of_one_instruction_are_not() -> None:
    passages = [{"passage": f"{PASSAGE}{n // 3}", "question": f"q{n}"} for n in range(12)]
    assert clusters_of({"t": passages}) == {"t": [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]}
    instructed = [{"instruction": f"{PASSAGE}{n % 2}", "question": f"q{n}"} for n in range(12)]
    assert clusters_of({"t": instructed}) == {}
    assert clusters_of({"t": ["no mapping", *passages[:1]]}) == {}


def test_translations_are_clusters_across_tasks_and_running_numbers_join_nothing() -> None:
    labels = [1, 0, 1, 1]
    german = [{"idx": n, "text": f"de {n}", "label": label} for n, label in enumerate(labels)]
    french = [{"idx": n, "text": f"fr {n}", "label": label} for n, label in enumerate(labels)]
    assert clusters_of({"de": german, "fr": french}) == {"de": [0, 1, 2, 3], "fr": [0, 1, 2, 3]}
    other = [
        {**document, "label": 1 - label} for document, label in zip(french, labels, strict=True)
    ]
    assert clusters_of({"de": german, "fr": other}) == {}
    assert clusters_of({"de": german, "fr": french[:3]}) == {}


def test_what_json_cannot_hold_costs_the_scores_of_items_alone() -> None:
    instance = SimpleNamespace(doc={("a", "key"): 1}, filtered_resps={"none": []})
    ask = SimpleNamespace(task="t", doc=0, item=0, instance=instance)
    task = SimpleNamespace(instances=[instance], process_results=lambda doc, found: {"acc": 1.0})
    book = ItemBook([(ask, [])], [("t", 0, instance.doc)])  # type: ignore[list-item]
    with book.noting({"t": task}):
        assert task.process_results(instance.doc, []) == {"acc": 1.0}
    assert book.tables({"t": task}, {"t": "t"}) == []


def test_a_table_whose_lists_differ_in_length_or_order_is_refused() -> None:
    given = {"task": "t", "filter": "none", "documents": "d", "items": [0, 1]}
    assert ItemScores.model_validate({**given, "metrics": {"acc": [1, None]}}).clusters == []
    for wrong in (
        {"metrics": {"acc": [1]}},
        {"metrics": {"acc": [1, 1]}, "clusters": [0]},
        {"metrics": {"acc": [1, 1]}, "items": [1, 1]},
        {"metrics": {"acc": [1, "NaN"]}},
    ):
        with pytest.raises(ValueError, match=r"item|finite|number"):
            ItemScores.model_validate(given | wrong)
