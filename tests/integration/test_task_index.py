"""The kept index of the harness's tasks is what the harness would make, or is not used."""

import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval")

from lm_eval.tasks import TaskManager, manager
from lm_eval.tasks._index import TaskIndex

from coordinate_eval.evaluators.harness.tasks import task_loader, task_names
from coordinate_eval.evaluators.harness.tasks.task_loader import TaskLoader
from coordinate_eval.records import Dataset

OWN = {
    "a.yaml": "task: a\ntag: [both, first]\n",
    "deep/b.yaml": "include: ../shared\ntask: b\n",
    "shared": "tag: both\n",
    "group.yaml": "group: all\ntask: [a, {task: b, num_fewshot: 2}]\n",
    "code.yaml": "task: coded\nclass: !function code.Task\n",
    "broken.yaml": "task: [",
}
USERS = {
    "mine.yaml": "task: mine\ntag: both\n",
    "a.yaml": "task: a\ntag: second\n",
    # Not all of it is in this folder.
    "more.yaml": "group: more\ntask: [mine, b]\n",
}


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of tasks of a small harness."""
    folder = write(tmp_path / "harness", OWN)
    monkeypatch.setattr(manager, "__file__", str(folder / "manager.py"))
    monkeypatch.setattr(task_loader, "_OWN_FOLDER", folder)
    return folder


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def shape(index: dict[str, Any]) -> dict[str, Any]:
    return {n: (e.name, e.kind, e.yaml_path, sorted(e.tags)) for n, e in index.items()}


def no_build(paths: object) -> None:
    raise AssertionError(f"{paths} was indexed again")


def test_the_index_of_the_real_harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "cache" / "tasks.json"
    made = task_loader.own_tasks(file)
    monkeypatch.setattr(TaskIndex, "build", no_build)
    kept = task_loader.own_tasks(file)
    assert shape(kept) == shape(made)
    assert list(kept) == list(made)


@pytest.mark.parametrize("first", [True, False])
def test_a_loader_has_what_the_harness_would_have(
    harness: Path, tmp_path: Path, first: bool
) -> None:
    users = write(tmp_path / "users", USERS)
    file = tmp_path / "cache" / "tasks.json"
    if not first:
        task_loader.own_tasks(file)
    loader = TaskLoader(
        include_path=[str(users)], tokenizer=tmp_path, seed=1, kept_tasks=file, max_length=100
    )
    dataset = Dataset(name="more", task="more")
    loader.begin(dataset)
    theirs = TaskManager(include_path=[str(users)]).task_index
    ours = loader._manager("more", dataset.metadata).task_index
    assert shape(ours) == shape(theirs)
    assert set(ours) == {"a", "b", "all", "coded", "both", "first", "second", "mine", "more"}


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "new.yaml").write_text("task: new"),
        lambda folder: (folder / "a.yaml").unlink(),
        lambda folder: (folder / "shared").write_text("tag: another\n"),
        lambda folder: shutil.copytree(folder / "deep", folder / "deeper"),
    ],
)
def test_a_changed_harness_is_indexed_again(harness: Path, tmp_path: Path, change: Any) -> None:
    file = tmp_path / "cache" / "tasks.json"
    task_loader.own_tasks(file)
    change(harness)
    assert shape(task_loader.own_tasks(file)) == shape(TaskIndex.build([harness]))
    assert shape(task_loader.own_tasks(file)) == shape(TaskIndex.build([harness]))


def test_a_torn_index_is_made_again(harness: Path, tmp_path: Path) -> None:
    file = tmp_path / "cache" / "tasks.json"
    made = task_loader.own_tasks(file)
    whole = file.read_text()
    file.write_text(whole[:-20])
    assert shape(task_loader.own_tasks(file)) == shape(made)
    assert file.read_text() == whole


def test_where_nothing_can_be_kept(harness: Path, tmp_path: Path) -> None:
    file = tmp_path / "cache" / "tasks.json"
    file.parent.write_text("a file, and no folder")
    assert shape(task_loader.own_tasks(file)) == shape(task_loader.own_tasks(None))


def test_compiled_files_do_not_count(harness: Path) -> None:
    before = task_names.state_of(harness)
    write(harness, {"__pycache__/code.pyc": "x", "deep/__pycache__/code.pyc": "x"})
    assert task_names.state_of(harness) == before
