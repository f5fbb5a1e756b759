"""What a suite asks for and nobody has is said at once, without the harness."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.decisions import RUN

from coordinate_eval.coordinator.cli.launch.runnable import check_common, runnable
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.inputs.suites.known_tasks import (
    with_counted_items,
    without_chat_template,
    wrong_generation,
)
from coordinate_eval.coordinator.planning.new_run import Inputs
from coordinate_eval.errors import UserError
from coordinate_eval.records import Dataset, Suite

TURNS = 'task: turns\nmetadata: {turn_template: "{{question}}"}\n'
FILES = {
    "plain.yaml": "task: plain\nmetadata: {version: 1}\n",
    "turns.yaml": TURNS,
    "included.yaml": "include: turns.yaml\ntask: included\n",
    "group.yaml": "group: some\ntask: [turns]\n",
    "tagged.yaml": "task: tagged\ntag: any\n",
    "alone.txt": TURNS,
}


def suite(*datasets: dict[str, Any], folder: Path | None = None) -> Suite:
    made = [Dataset(name=f"d{n}", **given) for n, given in enumerate(datasets)]
    return Suite(name="s", digest="d", include_path=[str(folder)] if folder else [], datasets=made)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"typical_p": 0.9}, "typical_p=0.9 is not supported"),
        ({"num_beams": 4}, "beam search"),
        ({"max_length": 9}, "set max_gen_toks"),
        ({"temperature": "hot"}, "temperature='hot'"),
    ],
)
def test_generation_arguments_that_no_engine_honours(given: dict[str, Any], words: str) -> None:
    asks = {"do_sample": True, "until": ["."], "max_tokens": 4, "top_p": 0.5, "num_beams": 1}
    assert wrong_generation(suite({"gen_kwargs": asks})) == {}
    found = wrong_generation(suite({"gen_kwargs": asks | given}, {}))
    assert found.keys() == {"d0"}
    assert found["d0"].startswith("dataset 'd0', gen_kwargs: ")
    assert words in found["d0"]


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def asked(tasks: Path, *names: str, **more: Any) -> Suite:
    given = {"chat_template": True} | more
    return suite(*({"task": name} | given for name in names), folder=tasks)


def test_a_chat_template_that_is_not_there(tasks: Path) -> None:
    found = without_chat_template(asked(tasks, "plain", "turns", "gsm8k", "tagged"), [])
    assert list(found) == ["d0", "d2", "d3"]
    assert found["d0"].startswith("dataset 'd0': ")
    assert "set it to false, or put chat_template.jinja" in found["d0"]


def test_what_may_do_without_one_is_left_to_the_harness(tasks: Path) -> None:
    own = asked(tasks, "turns", "included", "some", "any", "alone.txt")
    assert without_chat_template(own, [], str(tasks)) == {}
    assert without_chat_template(asked(tasks, "plain", metadata={"turn_template": "x"}), []) == {}
    assert without_chat_template(asked(tasks, "plain", chat_template=False), []) == {}


@pytest.mark.parametrize(
    ("kwargs", "split", "items"),
    [
        ("{data_files: {test: a.jsonl, train: b.jsonl}}", "test_split: test", 3),
        ("{data_files: {dev: [a.jsonl, b.jsonl]}}", "validation_split: dev", 5),
        ("{data_files: a.jsonl}", "test_split: train", 3),
        ("{data_files: {test: ABSOLUTE/a.jsonl}}", "test_split: test", 3),
        ("{data_files: {test: gone.jsonl}}", "test_split: test", None),
        ("{data_files: {test: pipe.jsonl}}", "test_split: test", None),
        ("{data_files: {test: a.parquet}}", "test_split: test", None),
        ("{data_files: {test: 7}}", "test_split: test", None),
        ("{data_files: {test: a.jsonl}}", "test_split: other", None),
        ("{data_dir: x}", "test_split: test", None),
        ("{data_files: {test: list.json}}", "test_split: test", None),
        ("{data_files: {test: [a.jsonl, none.json]}}", "test_split: test", None),
        ("{data_files: {test: pretty.json}}", "test_split: test", None),
        ("{data_files: a.jsonl}", "test_split: train\nprocess_docs: !function a.b", None),
        ("{data_files: a.jsonl}", "test_split: train\ncustom_dataset: !function a.b", None),
    ],
)
def test_items_are_counted_in_local_json_lines(
    tmp_path: Path, kwargs: str, split: str, items: int | None
) -> None:
    """Count what an estimate plans with where nothing else is known of a task."""
    (tmp_path / "a.jsonl").write_text('{"q": 1}\n\n{"q": 2}\n{"q": 3}')
    (tmp_path / "b.jsonl").write_text('{"q": 1}\n{"q": 2}\n')
    (tmp_path / "list.json").write_text('[{"q": 1}]')
    (tmp_path / "none.json").write_text("[]")
    (tmp_path / "pretty.json").write_text('{\n  "q": 1\n}\n')
    os.mkfifo(tmp_path / "pipe.jsonl")
    text = f"task: mine\ndataset_path: json\ndataset_kwargs: {kwargs}\n{split}\n"
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    (tasks / "mine.yaml").write_text(text.replace("ABSOLUTE", str(tmp_path)))
    given = suite({"task": "mine"}, {"task": "mine", "items": 9}, {"task": "gsm8k"}, folder=tasks)
    found = with_counted_items(given, str(tmp_path))
    assert [d.items for d in found.datasets] == [items, 9, None]
    assert found.digest == given.digest


def test_a_missing_task_stops_no_other_unless_that_is_asked_for(
    tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(runs_dir=str(tmp_path / "runs"), cache_dir=str(tmp_path / "cache"))
    lacking = suite({"task": "plain"}, {"task": "no_task_of_ours"}, folder=tasks)
    unattended = Inputs(RUN.checkpoint, lacking, settings, strict=False)
    assert runnable(unattended).suite == lacking  # its results will say what is missing
    said = capsys.readouterr().err
    assert said.startswith("dataset 'd1': there is no task, group or tag named 'no_task_of_ours'")
    assert "The run will be incomplete: 1 dataset of 2 can be evaluated" in said
    check_common(settings, lacking, strict=False)
    beams = {"task": "plain", "gen_kwargs": {"num_beams": 4}}
    nothing = suite({"task": "no_task_of_ours"}, beams, folder=tasks)
    for strict, asked_for in ((True, lacking), (False, nothing), (True, nothing)):
        with pytest.raises(UserError, match="'no_task_of_ours'"):
            runnable(replace(unattended, suite=asked_for, strict=strict))
        with pytest.raises(UserError, match="'no_task_of_ours'"):
            check_common(settings, asked_for, strict=strict)
    assert capsys.readouterr().err == ""
