"""The folder of saves, after its process was killed at any instant. No torch is needed for it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from coordinate_eval.checkpointing.saves import RECORD, Folder, finished, latest

_CHANGES = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree"}


def make(folder: Folder, step: int, content: bytes = b"12345") -> None:
    draft = folder.begin(step)
    assert draft is not None
    (draft / "__0_0.distcp").write_bytes(content)
    (draft / ".metadata").write_bytes(b"m")
    folder.publish(draft, step, {"__0_0.distcp": len(content)})


def killed_at(number: int, act: Callable[[], None]) -> bool:
    """Do something in a child that dies before its so-and-so-manieth change of a file.

    Return whether it was killed.
    """
    child = os.fork()
    if child == 0:
        left = number

        def count(event: str, args: object) -> None:
            nonlocal left
            if event in _CHANGES:
                left -= 1
                if left < 0:
                    os._exit(9)

        sys.addaudithook(count)
        act()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def one_more_save(path: Path, step: int) -> None:
    folder = Folder(path)
    make(folder, step, b"of-" + str(step).encode())
    folder.rotate(2)


@pytest.mark.parametrize("step", [2, 3], ids=["the same step again", "a later step"])
def test_a_kill_at_any_instant_leaves_the_last_save_or_the_new_one(
    tmp_path: Path, step: int
) -> None:
    for number in range(1000):
        path = tmp_path / str(number)
        begun = Folder(path)
        for earlier in (0, 1, 2):
            make(begun, earlier)
        (path / ".step-5.not-a-token.tmp").mkdir()
        foreign = path / f".step-6.{'a' * 16}.tmp"
        foreign.mkdir()
        (foreign / "notes").touch()
        (path / "step-7").mkdir()
        died = killed_at(number, lambda path=path: one_more_save(path, step))  # type: ignore[misc]
        folder = Folder(path)
        newest = latest(path)
        assert newest is not None
        assert newest.name in ("step-2", f"step-{step}")
        hidden = sorted(p.name for p in path.iterdir() if p.name.startswith("."))
        assert hidden == [RECORD, ".step-5.not-a-token.tmp", foreign.name]
        assert (path / "step-7").is_dir()
        make(folder, 4)
        assert latest(path) == path / "step-4"
        if not died:
            assert newest.name == f"step-{step}"
            assert number > 10
            return
    pytest.fail("it never came to its end")


def test_saves_are_in_the_order_in_which_they_were_made(tmp_path: Path) -> None:
    for step in (300, 100, 200):
        make(Folder(tmp_path), step)
    for step in (150, 500):  # of another program, or before there were Savers
        (tmp_path / f"step-{step}").mkdir()
        (tmp_path / f"step-{step}" / ".metadata").touch()
    assert [save.step for save in finished(tmp_path)] == [200, 100, 300, 500, 150]
    assert latest(tmp_path / "missing") is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"schema": "coordinate-eval/save@1"}', "9" * 9999]
)
def test_a_record_of_anybody_is_no_record(tmp_path: Path, text: str) -> None:
    make(Folder(tmp_path), 1)
    (tmp_path / "step-1" / RECORD).write_text(text)
    (tmp_path / RECORD).write_text(text)
    folder = Folder(tmp_path)
    make(folder, 2)
    folder.rotate(1)
    assert sorted(p.name for p in tmp_path.glob("step-*")) == ["step-1", "step-2"]


def test_the_import_is_light() -> None:
    script = "import sys, coordinate_eval.checkpointing; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    packages = {name.partition(".")[0] for name in done.stdout.split()}
    assert packages.isdisjoint({"torch", "numpy", "pydantic", "yaml"})
