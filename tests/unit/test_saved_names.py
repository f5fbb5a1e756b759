"""What is a checkpoint, by its name and its age."""

import os
import time
from pathlib import Path

import pytest

from coordinate_eval.coordinator.inputs.checkpoints.saved import Pattern, Saved, is_young, look
from coordinate_eval.errors import UserError


def names(folder: Path, pattern: str | None = None) -> list[str]:
    return [str(s.path.relative_to(folder)) for s in look(folder, Pattern(pattern))]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "ckpts"
    for name in (
        "step-9", "step-100", "step-20", ".step-30", "tmp-step-40", "step-50.tmp", "latest",
        "copy-step-90.backup",
        "logs", "deep/iter_7/hf", "deep/iter_70/hf", "deep/.iter_8/hf", "global_step60-partial",
    ):  # fmt: skip
        (made / name).mkdir(parents=True)
    (made / "step-70.pt").touch()
    (made / "step-80.evaluation.log").touch()
    return made


def test_folders_whose_names_tell_a_step(folder: Path) -> None:
    assert names(folder) == ["step-100", "step-20", "step-9"]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("step-{step}", ["step-100", "step-20", "step-9"]),
        ("step-{step}.pt", ["step-70.pt"]),
        ("step-{step}*", ["step-100", "step-50.tmp", "step-20", "step-9"]),
        ("deep/iter_{step}/hf", ["deep/iter_70/hf", "deep/iter_7/hf"]),
        ("*/iter_{step}/*", ["deep/iter_70/hf", "deep/iter_7/hf"]),
        ("latest", ["latest"]),
        ("none-{step}", []),
    ],
)
def test_patterns(folder: Path, pattern: str, found: list[str]) -> None:
    assert names(folder, pattern) == found


@pytest.mark.parametrize("pattern", ["", "/step", "../{step}", "a//b", "{step}-{step}", "a/"])
def test_what_is_no_pattern(pattern: str) -> None:
    with pytest.raises(UserError, match="give names below the folder"):
        Pattern(pattern)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read: No such file"):
        look(tmp_path / "nowhere", Pattern(None))


def test_a_folder_is_as_young_as_what_was_done_in_it_last(tmp_path: Path) -> None:
    checkpoint = tmp_path / "step-1"
    checkpoint.mkdir()
    file = checkpoint / "model.safetensors"
    file.touch()
    os.utime(file, (1, 1))  # a copy with the original's times
    (saved,) = look(tmp_path, Pattern(None))
    assert saved.changed > time.time() - 100
    assert not saved.quiet(100)
    assert saved.quiet(0)


def test_a_lease_does_not_make_a_checkpoint_young(tmp_path: Path) -> None:
    file = tmp_path / "step-1.pt"
    file.touch()
    os.utime(file, (1, 1))
    assert is_young(file)
    (tmp_path / "lease").hardlink_to(file)
    assert not is_young(file)


@pytest.mark.parametrize(("age", "quiet"), [(59, False), (61, True), (-300, False), (-1e6, True)])
def test_times_of_another_clock(age: float, quiet: bool) -> None:
    assert Saved(Path("x"), 1, time.time() - age, "").quiet(60) is quiet
