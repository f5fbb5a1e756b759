"""Tasks that cannot be had: the message names the dataset, its file, and what is wrong."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval")
pytest.importorskip("transformers")

from tests.evaluators import Evaluators, byte_tokenizer, evaluator_of, requests_of
from tests.own_tasks import write_task
from tests.runs import TASKS

from coordinate_eval.errors import UserError
from coordinate_eval.evaluators.harness.evaluator import HarnessEvaluator
from coordinate_eval.records import Dataset

ROWS = [{"q": "a", "a": "b"}]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return byte_tokenizer(tmp_path_factory.mktemp("it's a tokenizer"))


@pytest.fixture
def evaluator(tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> Evaluators:
    monkeypatch.chdir(TASKS)  # the tasks' data paths are relative, as the harness wants them
    return partial(evaluator_of, tokenizer)


def test_an_unknown_task_is_named_with_its_neighbours_and_what_could_not_be_read(
    evaluator: Evaluators, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text("task: [never closed")
    with pytest.raises(UserError) as raised:
        requests_of(evaluator(TASKS, tmp_path), Dataset(name="mine", task="tiny_chioce"))
    message = str(raised.value)
    for words in ("'mine'", "'tiny_chioce'", "'tiny_choice'", str(TASKS), str(broken), "expected"):
        assert words in message


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"dataset_kwargs": {"data_files": {"test": "/nowhere/x.jsonl"}}}, "/nowhere/x.jsonl"),
        ({"doc_to_text": "{{q"}, "Syntax"),
        ({"output_type": "essay"}, "essay"),
        ({"test_split": "exam"}, "no split 'exam', only 'test'"),
        ({"fewshot_split": "train", "num_fewshot": 1}, "no split 'train', only 'test'"),
        ({"metric_list": [{"metric": "no_such_metric", "aggregation": "mean"}]}, "no_such_metric"),
        ({"generation_kwargs": {"until": {"a": 1}}}, "until"),
    ],
)
def test_a_task_that_cannot_be_loaded_is_named_with_its_file(
    evaluator: Evaluators, tmp_path: Path, config: dict[str, Any], words: str
) -> None:
    dataset = write_task(tmp_path, ROWS, **config)
    with pytest.raises(UserError) as raised:
        requests_of(evaluator(tmp_path), dataset)
    assert "'own'" in str(raised.value)
    assert words in str(raised.value)


def test_a_dataset_without_items_is_refused(evaluator: Evaluators, tmp_path: Path) -> None:
    dataset = write_task(tmp_path, ROWS)
    with pytest.raises(UserError, match=r"'own'.*no items"):
        requests_of(evaluator(tmp_path), dataset.model_copy(update={"limit": 0}))
    (tmp_path / "own's test.jsonl").write_text("")
    with pytest.raises(UserError, match=r"(?s)'own'.*data file .*own's test.jsonl is empty"):
        requests_of(evaluator(tmp_path), dataset)


def test_an_empty_file_that_marks_a_folder_is_not_blamed(
    evaluator: Evaluators, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "_SUCCESS").write_text("")
    (folder / "test.jsonl").write_text("torn")
    dataset = write_task(tmp_path, ROWS, dataset_path=str(folder), dataset_kwargs=None)
    with pytest.raises(UserError) as raised:
        requests_of(evaluator(tmp_path), dataset)
    assert "_SUCCESS" not in str(raised.value)


def test_what_lies_on_an_unreachable_hub_is_said_to(
    evaluator: Evaluators, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets.config
    import huggingface_hub.constants

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    dataset = write_task(tmp_path, ROWS, dataset_path="nobody/nothing", dataset_kwargs=None)
    with pytest.raises(UserError, match=r"(?s)own task\.yaml.*hub.*HF_HOME"):
        requests_of(evaluator(tmp_path), dataset)


def test_a_folder_without_tokenizer_is_refused(tmp_path: Path) -> None:
    ours = HarnessEvaluator(tokenizer=tmp_path, max_length=10, include_path=[str(TASKS)])
    with pytest.raises(UserError, match="tokenizer"):
        requests_of(ours, Dataset(name="tiny_choice"))


def test_a_missing_include_path_is_refused(evaluator: Evaluators, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="gone"):
        requests_of(evaluator(tmp_path / "gone"), Dataset(name="tiny_choice"))
