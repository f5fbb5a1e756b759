"""What people are told of a comparison that can say nothing."""

from pathlib import Path

from tests.trainings import call, run_of

from coordinate_eval import _files
from coordinate_eval.records import DatasetItems, DatasetResults, ItemScores


def test_one_item_has_no_interval_and_nothing_is_counted(tmp_path: Path) -> None:
    for step in (100, 200):
        run_dir = run_of(tmp_path, step, {"a": 1.0})
        scores = {"a": {"acc,none": 1.0}}
        found = DatasetResults(dataset="a", items=1, harness="0", results=scores)
        _files.write_record(run_dir.dataset_results("a"), found)
        table = ItemScores(
            task="a", filter="none", items=[0], documents="d", metrics={"acc": [1.0]}
        )
        _files.write_record(run_dir.items("a"), DatasetItems(dataset="a", tables=[table]))

    told = call(tmp_path, "compare", "step-100-x", "step-200-x").output

    assert "step 200 against step 100: no dataset can be compared item by item." in told
    assert "a has no interval: it has one item" in told
