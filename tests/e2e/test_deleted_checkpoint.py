"""Whole runs whose checkpoint is deleted while they wait or work."""

import shutil
from pathlib import Path

from tests.runs import PATIENCE_SECONDS, Workspace, processes, results, until
from tests.tiny import tiny_model


def saved(user: Workspace, name: str) -> Path:
    """A checkpoint in a folder of its own, which training may delete."""
    folder = user.folder / name / "step-100"
    shutil.copytree(tiny_model(), folder)
    return folder


def test_a_checkpoint_that_is_deleted_after_the_call_is_scored(user: Workspace) -> None:
    checkpoint, run = saved(user, "rotated"), user.folder / "rotated run"
    asked = ("run", checkpoint, "--suite", user.suite("tiny_choice"), "--run-dir", run)
    process = user.start(*asked)
    leases = checkpoint.parent.glob
    until(lambda: list(leases(".coordinate-eval-*/step-100-*/run")), "a lease")
    shutil.rmtree(checkpoint)
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, err
    assert results(run)["complete"]
    assert not list(leases(".*"))


def test_without_a_lease_the_run_ends_at_once_and_says_so(user: Workspace) -> None:
    checkpoint, run = saved(user, "lost"), user.folder / "lost run"
    asked = ("run", checkpoint, "--suite", user.suite("tiny_choice"), "--run-dir", run)
    process = user.start(*asked, "--no-keep")
    until(lambda: (run / "run.json").exists(), "a run directory")
    process.kill()
    process.communicate()
    until(lambda: not processes(str(run)), "an end of its jobs")
    assert not list(checkpoint.parent.glob(".*"))
    shutil.rmtree(checkpoint)
    done = user.call("resume", run, status=None)
    assert done.returncode in (1, 2)
    assert f"checkpoint {checkpoint} was deleted" in done.stderr + done.stdout
    assert not list(run.glob("rounds/1.json"))
