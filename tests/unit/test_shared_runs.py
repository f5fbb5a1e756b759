"""Two users whose runs have one id, in a folder that they share."""

import errno
import json
import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.reviewer import FakeCluster
from tests.run_dirs import unplanned

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import TaskStatus
from coordinate_eval.coordinator.cli.inquire.runs import find, name_for_commands
from coordinate_eval.coordinator.cli.launch import run as launch
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.report.results import collect_results
from coordinate_eval.coordinator.run import own
from coordinate_eval.coordinator.run.own import place
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.starting.create import create_whole
from coordinate_eval.errors import RunExists, UserError

MINE = f"x-{os.geteuid()}"


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A run `x` of a colleague's."""
    folder = tmp_path / "x"
    folder.mkdir()
    (folder / "run.json").touch()
    real = own.is_own
    monkeypatch.setattr(own, "is_own", lambda path: path != folder and real(path))
    return folder


def test_a_run_has_its_id_for_a_name(tmp_path: Path) -> None:
    assert place(tmp_path, "x") == tmp_path / "x"
    (tmp_path / "x").mkdir()
    assert place(tmp_path, "x") == tmp_path / "x"


def test_beside_that_of_a_colleague_it_has_the_users_number(theirs: Path) -> None:
    assert place(theirs.parent, "x") == theirs.parent / MINE


def test_a_link_that_leads_nowhere_is_in_the_way_too(tmp_path: Path, theirs: Path) -> None:
    (theirs / "run.json").unlink()
    theirs.rmdir()
    theirs.symlink_to(tmp_path / "nothing")
    assert place(tmp_path, "x") == tmp_path / MINE


def test_the_id_finds_ones_own_first(theirs: Path) -> None:
    settings = Settings(runs_dir=str(theirs.parent))
    assert find("x", settings).root == theirs  # there is no other: it can be shown
    mine = theirs.with_name(MINE)
    mine.mkdir()
    (mine / "run.json").touch()
    assert find("x", settings).root == mine
    assert find(str(theirs), settings).root == theirs
    run: Any = SimpleNamespace(id="x")
    assert name_for_commands(RunDir(mine), run, settings) == "x"
    assert name_for_commands(RunDir(theirs), run, settings) == str(theirs)


def test_a_run_that_may_not_be_replaced_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder with the sticky bit, the kernel looks at the owner first."""
    real = Path.rename

    def rename(self: Path, target: Path) -> Path:
        if Path(target).name == "x":
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(UserError) as said:
        create_whole(tmp_path / "x", lambda made: None)
    assert not isinstance(said.value, RunExists)
    (tmp_path / "x").mkdir()
    with pytest.raises(RunExists):
        create_whole(tmp_path / "x", lambda made: None)
    assert [each.name for each in tmp_path.iterdir()] == ["x"]


def test_who_comes_second_makes_one_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    roots = [Path("/runs/x"), Path("/runs") / MINE]
    made: list[Path] = []

    def create(root: Path, *_: object) -> RunDir:
        made.append(root)
        if root == Path("/runs/x"):
            raise RunExists("another process has just made this run")
        return RunDir(root)

    inputs: Any = SimpleNamespace(reviewed=None)
    run: Any = SimpleNamespace(id="x")
    monkeypatch.setattr(launch, "create", create)
    monkeypatch.setattr(launch, "root_of", lambda *_: roots[min(len(made), 1)])
    assert launch._create(inputs, None, run).root == roots[1]
    made.clear()
    monkeypatch.setattr(launch, "root_of", lambda *_: roots[0])
    with pytest.raises(RunExists):  # it is the user's own: another process of hers made it
        launch._create(inputs, None, run)


def test_a_run_that_another_process_has_just_made_is_told_as_ones_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir, run = unplanned(tmp_path)
    joined = partial(launch._join, run_dir, FakeCluster(), Settings(), wait=False)
    assert joined(as_json=True) == 0
    assert json.loads(capsys.readouterr().out) == {
        "run": run.id, "dir": str(run_dir.root), "job": None, "state": "submitted", "request": None,
    }  # fmt: skip
    assert joined(as_json=False) == 0
    assert capsys.readouterr().out == f"{run_dir.root}\n"


def test_who_waits_for_it_gets_its_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir, run = unplanned(tmp_path)

    class Ending(FakeCluster):
        """A scheduler under which the run ends at the second look."""

        looks = 0

        def poll(self, prefix: str) -> list[TaskStatus]:
            self.looks += 1
            if self.looks == 2:
                _files.write(run_dir.results, _files.pretty(collect_results(run_dir, run, "no")))
            return []

    assert launch._join(run_dir, Ending(), Settings(), wait=True, as_json=True) == 1
    assert json.loads(capsys.readouterr().out)["reason"] == "no"
