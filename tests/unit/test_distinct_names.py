"""Datasets that have a task in common: each score is of the dataset that it stands with."""

from typing import Any

from coordinate_eval.coordinator.report.main_metric import main_score
from coordinate_eval.coordinator.report.results import with_distinct_names
from coordinate_eval.records import DatasetResults


def group(name: str, *leaves: str, acc: float) -> DatasetResults:
    """The results of a group, or of a task without leaves."""
    names = (name, *leaves)
    tables: dict[str, Any] = {
        "results": {task: {"acc,none": acc} for task in names},
        "n_samples": {task: {"original": 9, "effective": 9} for task in names},
        "groups": {name: {"acc,none": acc}} if leaves else {},
        "group_subtasks": {name: list(leaves)} if leaves else {},
    }
    return DatasetResults(dataset=name, items=9, **tables)


def test_what_is_in_one_dataset_only_keeps_its_name() -> None:
    scored = [group("g", "x", "y", acc=0.5), group("z", acc=0.25)]
    assert with_distinct_names(scored) == scored


def test_a_task_of_two_groups_is_named_after_each() -> None:
    first, second = with_distinct_names([group("g", "x", "y", acc=0.5), group("h", "x", acc=0.25)])
    assert first.results.keys() == first.n_samples.keys() == {"g", "g/x", "y"}
    assert second.results.keys() == {"h", "h/x"}
    assert first.group_subtasks == {"g": ["g/x", "y"]}
    assert second.results["h/x"] == {"acc,none": 0.25}


def test_a_task_that_is_a_dataset_by_itself_keeps_its_name_there() -> None:
    found, alone = with_distinct_names([group("g", "x", "y", acc=0.5), group("x", acc=0.25)])
    assert found.results.keys() == {"g", "g/x", "y"}
    assert alone.results == {"x": {"acc,none": 0.25}}
    score = main_score(found)
    assert score is not None
    assert (score.metric, score.value) == ("acc", 0.5)
