"""Nothing is looked for in the working directory, whatever search paths are inherited."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.plans import CHECKPOINT

from coordinate_eval import _search_paths
from coordinate_eval.clusters.protocol import Job
from coordinate_eval.coordinator.inputs.folders import folder_for_tasks, working_in
from coordinate_eval.coordinator.run.jobs import program
from coordinate_eval.records import Checkpoint
from coordinate_eval.slurm.scripts import submission
from coordinate_eval.slurm.settings import SlurmSettings


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("PATH", ":/usr/bin:.:bin:/bin:", "/usr/bin:/bin"),
        ("PYTHONPATH", ":", None),
        ("PYTHONPATH", "/a::b", "/a"),
        ("LD_LIBRARY_PATH", "/a;:/b", "/a:/b"),
        ("LD_LIBRARY_PATH", "/a:/b", "/a:/b"),
        ("BASH_ENV", "env.sh", None),
        ("PYTHONUSERBASE", "/home/ada/.local", "/home/ada/.local"),
        ("PYTHONPYCACHEPREFIX", ".", None),
    ],
)
def test_relative_entries_are_dropped(name: str, before: str, after: str | None) -> None:
    environ = {name: before, "HOME": "/h"}
    _search_paths.make_absolute(environ, [])
    kept = {} if after is None else {name: after}
    assert environ == kept | {"HOME": "/h", "PYTHONSAFEPATH": "1"}


@pytest.mark.parametrize(("mode", "kept"), [(0o755, True), (0o1777, False)])
def test_modules_are_not_imported_from_where_others_write(
    tmp_path: Path, mode: int, kept: bool
) -> None:
    shared = tmp_path / "huggingface"
    shared.mkdir()
    shared.chmod(mode)
    for environ in ({"HF_HOME": str(shared)}, {"HF_MODULES_CACHE": str(shared / "modules")}):
        before = dict(environ)
        _search_paths.keep_modules_private(environ)
        assert (environ == before) == kept
        assert kept or "coordinate-eval" in environ["HF_MODULES_CACHE"]


def test_modules_are_not_looked_for_there_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    modules = ["", str(tmp_path), str(tmp_path / "lib"), "/usr/lib"]
    _search_paths.make_absolute({"PYTHONPATH": ":lib"}, modules)
    assert modules == ["/usr/lib"]


def test_a_job_finds_nothing_where_it_was_submitted(tmp_path: Path) -> None:
    """The script of a job, in a checkpoint's folder, with search paths as `module load` makes."""
    here, work = tmp_path / "checkpoint", tmp_path / "it's work"
    here.mkdir()
    work.mkdir()
    for name in ("coordinate_eval", "typer", "sitecustomize", "usercustomize"):
        (here / f"{name}.py").write_text("open('/dev/stderr', 'w').write('sang')")
    (here / "date").write_text("#!/bin/sh\necho sang >&2\n")
    (here / "date").chmod(0o755)
    job = Job(
        name="j",
        argv=(*program(sys.executable), "--version"),
        minutes=1,
        requeue=True,  # the script runs `date`
        folder=str(work),
        log="/l",
    )
    done = subprocess.run(
        ["bash", "-s"],
        input=submission(job, SlurmSettings()).script,
        cwd=here,
        env=os.environ | {"PYTHONPATH": ":".join(["", *filter(None, sys.path)]),
                          "PATH": f".:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "sang" not in done.stdout + done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    return tmp_path


def at(folder: Path) -> Checkpoint:
    folder.mkdir(parents=True, exist_ok=True)
    return CHECKPOINT.model_copy(
        update={"path": str(folder), "weights": [str(folder / "w")], "files": [str(folder / "c")]}
    )


def test_tasks_run_where_the_command_does(folder: Path) -> None:
    assert folder_for_tasks(str(folder), at(folder / "step-1")) == str(folder)


def test_tasks_do_not_run_in_a_checkpoint(folder: Path) -> None:
    checkpoint = at(folder / "step-1")
    (folder / "step-1" / "below").mkdir()
    (folder / "link").symlink_to(folder / "step-1")
    for place in ("step-1", "step-1/below", "link"):
        assert folder_for_tasks(str(folder / place), checkpoint) == ""


@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_tasks_do_not_run_where_others_write(folder: Path, mode: int) -> None:
    folder.chmod(mode)
    assert folder_for_tasks(str(folder), at(folder / "step-1")) == ""


def test_without_a_folder_work_is_done_in_an_empty_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with working_in(""):
        empty = Path.cwd()
        assert empty != folder
        assert not list(empty.iterdir())
        assert empty.stat().st_mode & 0o777 == 0o700
    assert Path.cwd() == folder
    assert not empty.exists()
