"""The scores of items that scoring notes are those of the harness's own samples."""

import json
from pathlib import Path

import pytest
from tests.scoring import make_scorable, start_scorer, wait_for

from coordinate_eval import _files
from coordinate_eval.coordinator.report.results import read_dataset
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import read_run
from coordinate_eval.coordinator.workers.scorer import (
    answer_files,
    response_files,
    start_evaluator,
)
from coordinate_eval.evaluators.confined.evaluator import Samples
from coordinate_eval.records import DatasetItems, DatasetRequests, ItemScores

pytest.importorskip("lm_eval")

from coordinate_eval.evaluators.harness.item_scores import clusters_of

TASKS = Path(__file__).parents[1] / "fixtures" / "tasks"
PASSAGE = "A passage that several questions are about, and that has more words than any name. "


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A run of two datasets, scored."""
    home = tmp_path_factory.mktemp("home")
    rows = [json.loads(line) for line in (TASKS / "data" / "sums.jsonl").read_text().splitlines()]
    texts = [f"The answer is {row['answer'].split()[-1]}" for row in rows]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(TASKS)
        made = make_scorable(home / "a", TASKS, {"tiny_sums": ["", *texts[1:]], "tiny_group": [""]})
        scored = wait_for(start_scorer(made, {"HOME": str(home)}), made)
    assert (scored.status, scored.errors) == (0, {}), scored.said
    return made


@pytest.mark.parametrize("dataset", ["tiny_sums", "tiny_group"])
def test_each_item_has_the_scores_of_the_harness_s_own_sample(
    run_dir: RunDir, dataset: str
) -> None:
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
