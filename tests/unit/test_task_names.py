"""Names of tasks are checked against what the harness was found to have, without the harness."""

import os
from pathlib import Path

import pytest

from coordinate_eval.coordinator.inputs.suites.known_tasks import unknown_tasks
from coordinate_eval.evaluators.harness.tasks import task_names
from coordinate_eval.evaluators.harness.tasks.task_names import KeptTasks
from coordinate_eval.records import Dataset, Suite


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an installed harness's tasks."""
    folder = tmp_path / "lm_eval" / "tasks"
    folder.mkdir(parents=True)
    (folder / "gsm8k.yaml").write_text("task: gsm8k\n")
    monkeypatch.setattr(task_names, "_tasks_folder", lambda: folder)
    monkeypatch.setattr("importlib.metadata.version", lambda package: "0.4.99")
    return folder


@pytest.fixture
def cache(tasks: Path, tmp_path: Path) -> Path:
    """A cache in which the index of that harness is kept."""
    folder = tmp_path / "cache"
    keep(folder, tasks)
    return folder


def keep(cache: Path, tasks: Path) -> Path:
    file = task_names.kept_file(cache)
    assert file is not None
    entries = [("gsm8k", "TASK", "gsm8k.yaml", ["math"]), ("math", "TAG", "", ["gsm8k"])]
    task_names.keep(file, KeptTasks(state=task_names.state_of(tasks), entries=entries))
    return file


def test_names_that_are_not_there(cache: Path) -> None:
    missing, known = task_names.unknown(["gsm8k", "gms8k", "math", "gms8k"], cache)
    assert missing == ["gms8k"]
    assert known == ["gsm8k", "math"]
    message = task_names.no_such_task("sums", "gms8k", known, ["/mine"])
    assert message == (
        "dataset 'sums': there is no task, group or tag named 'gms8k'; did you mean 'gsm8k'?\n"
        "looked in: /mine, the harness's own tasks"
    )


def test_where_nothing_is_kept_the_files_tell_what_is_in_none(tasks: Path, tmp_path: Path) -> None:
    (tasks / "more.yaml").write_text('group: "many"\ntask:\n- gsm8k\n- task: one_of_them\n')
    (tasks / "more.md").write_text("nonsense")
    empty = tmp_path / "empty"
    missing, known = task_names.unknown(["gsm8k", "nonsense", "many", "nonsense"], empty)
    assert (missing, known) == (["nonsense"], ["gsm8k", "many"])
    assert task_names.unknown(["many", "one_of_them"], empty) == ([], [])
    assert task_names.unknown([], empty) == ([], [])
    (tasks / "included_by_others").write_text("tag: shared\n")
    assert task_names.unknown(["shared"], empty) == ([], [])
    (tasks / "broken.yaml").symlink_to("nowhere")
    assert task_names.unknown(["nonsense"], empty) == ([], [])


def test_nothing_is_said_of_a_harness_that_has_changed(tasks: Path, cache: Path) -> None:
    (tasks / "new.yaml").write_text("task: new\n")
    assert task_names.unknown(["new"], cache) == ([], [])


def test_another_version_has_another_file(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert task_names.unknown(["math"], cache) == ([], ["gsm8k", "math"])
    monkeypatch.setattr("importlib.metadata.version", lambda package: "0.5.0")
    assert task_names.unknown(["math"], cache) == (["math"], ["gsm8k"])


def test_without_the_harness_no_name_is_unknown(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_names, "_tasks_folder", lambda: None)
    assert task_names.unknown(["nonsense"], cache) == ([], [])


@pytest.mark.parametrize("mode", [0o666, 0o602])
def test_what_others_can_write_is_not_taken_for_true(
    tasks: Path, tmp_path: Path, mode: int
) -> None:
    file = keep(tmp_path, tasks)
    os.chmod(file, mode)  # noqa: PTH101
    assert task_names.unknown(["math"], tmp_path) == (["math"], ["gsm8k"])
    assert task_names.read(file, tasks) is None


def test_only_the_user_can_enter_the_folder(tasks: Path, tmp_path: Path) -> None:
    assert keep(tmp_path, tasks).parent.stat().st_mode & 0o777 == 0o700


USERS = {
    "mine.yaml": "task: mine\ntag: [some, gsm8k_like]\nprocess_docs: !function utils.docs\n",
    "deep/group.yaml": "include: ../shared\ngroup: ours\n",
    "shared": "tag: taken_over\n",
    "loop.yaml": "include: loop.yaml\ntask: never\n",
    "broken.yaml": "task: [",
    "list.yaml": "- task: never\n",
}


def suite_of(folder: Path, *names: str) -> Suite:
    for name, text in USERS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    datasets = [Dataset(name=f"d{i}", task=name) for i, name in enumerate(names)]
    datasets.append(Dataset(name="judged", items=3))  # planned only
    return Suite(name="s", digest="d", include_path=[str(folder)], datasets=datasets)


def test_a_suite_whose_tasks_are_there(cache: Path, tmp_path: Path) -> None:
    file = tmp_path / "alone.yaml"
    file.write_text("task: alone\n")
    tasks = ["gsm8k", "math", "mine", "some", "gsm8k_like", "ours", "taken_over", str(file)]
    assert unknown_tasks(suite_of(tmp_path / "users", *tasks), cache) == {}


def test_a_suite_with_tasks_of_other_names(cache: Path, tmp_path: Path) -> None:
    suite = suite_of(tmp_path / "users", "gsm8k", "mein", "never", "ours")
    found = {name: said.splitlines() for name, said in unknown_tasks(suite, cache).items()}
    assert found.keys() == {"d1", "d2"}
    assert found["d1"][0] == (
        "dataset 'd1': there is no task, group or tag named 'mein'; did you mean 'mine'?"
    )
    assert found["d2"][0] == "dataset 'd2': there is no task, group or tag named 'never'"
    assert all(lines[1].startswith("looked in: ") for lines in found.values())


def test_a_suite_with_tasks_of_other_names_where_nothing_is_kept(
    tasks: Path, tmp_path: Path
) -> None:
    suite = suite_of(tmp_path / "users", "mein", "gsm8k", "ours")
    (said,) = unknown_tasks(suite, tmp_path / "empty").values()
    assert "'mein'; did you mean 'mine'?" in said
