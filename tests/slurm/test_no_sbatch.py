"""Machines without sbatch, on a real controller: containers that train, and compute nodes."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runs import PATIENCE_SECONDS, TASKS, Workspace, results, until
from tests.slurm.runs import Undisturbed, queue
from tests.tiny import tiny_model

TRAINING = """
import logging, sys
import coordinate_eval
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
print(coordinate_eval.after_save(sys.argv[1], step=100, suite=sys.argv[2], rank=0))
"""


@pytest.fixture(scope="module")
def workspace(undisturbed: Undisturbed, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """One user for all tests of this file."""
    return Workspace(tmp_path_factory.mktemp("user")).with_prompts(undisturbed.requests)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH that has everything but Slurm."""
    folder = tmp_path_factory.mktemp("bin")
    slurms = {"sbatch", "squeue", "scontrol", "sinfo", "scancel", "srun", "salloc", "sacct"}
    programs = {
        p.name: p for place in ("/usr/local/bin", "/usr/bin") for p in Path(place).iterdir()
    }
    for name in programs.keys() - slurms:
        (folder / name).symlink_to(programs[name])
    return str(folder)


def save(workspace: Workspace, name: str) -> Path:
    checkpoint = workspace.folder / "ckpts" / name
    shutil.copytree(tiny_model(), checkpoint)
    return checkpoint


def found(workspace: Workspace, name: str) -> Path:
    """The only run of a checkpoint, once it is there."""

    def one() -> list[Path]:
        return [path.parent for path in (workspace.folder / "runs").glob(f"{name}-*/run.json")]

    until(one, f"a run of {name}")
    (run,) = one()
    return run


def train(workspace: Workspace, path: str, name: str) -> str:
    """A training job without Slurm's commands saves a checkpoint; what it says."""
    checkpoint, suite = save(workspace, name), workspace.suite("tiny_cloze")
    script = workspace.folder / "train.py"
    script.write_text(TRAINING)
    wrapped = ["/usr/bin/env", f"PATH={path}", sys.executable, str(script)]
    done = subprocess.run(
        ["srun", "--mem=1000", *wrapped, str(checkpoint), str(suite)],
        env=workspace.environ,
        cwd=TASKS,  # where the tasks have their data
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_what_a_training_job_without_sbatch_asks_for_cron_submits(
    workspace: Workspace, path: str
) -> None:
    said = train(workspace, path, "step-1")
    assert said.splitlines()[0] == "requesting"
    assert "is requested: there is no sbatch on" in said
    assert not list((workspace.folder / "runs").glob("*/run.json"))
    looks = [workspace.start("watch", "--once", "--json") for _ in range(2)]  # two at once
    answers = [json.loads(each.communicate(timeout=PATIENCE_SECONDS)[0]) for each in looks]
    states = [row["state"] for each in answers for row in each["requests"]]
    assert "submitted" in states
    assert set(states) <= {"submitted", "being submitted"}
    run = found(workspace, "step-1")
    assert results(run)["complete"]
    assert json.loads((run / "run.json").read_text())["step"] == 100
    until(lambda: not queue(), "an empty queue")
    assert not list((workspace.folder / "runs").glob(".spool-*/*"))


def test_the_supervisor_of_another_run_submits_it_too(workspace: Workspace, path: str) -> None:
    pause = workspace.pause("other")
    other = workspace.submit(workspace.suite("tiny_choice"), *pause.args)
    until(lambda: list(other.glob("supervisor/*.json")), "a supervisor", other)
    train(workspace, path, "step-2")
    run = found(workspace, "step-2")
    pause.end()
    assert results(run)["complete"]
    assert results(other)["complete"]
    until(lambda: not queue(), "an empty queue")


def supervisor(run: Path) -> int:
    """The process that supervises a run as none of its jobs; 0 before there is one."""
    epochs = sorted(run.glob("supervisor/*.json"), key=lambda path: int(path.stem))
    last = json.loads(epochs[-1].read_text()) if epochs else {"task": "none"}
    return 0 if last["task"] else int(last["pid"])


def test_a_run_whose_supervisor_finds_no_sbatch_goes_on_where_there_is_one(
    workspace: Workspace, path: str
) -> None:
    setup = json.dumps([f"export PATH={path}"])  # of every job
    run = workspace.submit(workspace.suite("tiny_cloze"), COORDINATE_EVAL_SLURM_SETUP=setup)
    until(lambda: not queue(), "the end of the supervisor's job", run)
    said = workspace.call("status", run.name, status=1).stdout
    assert "there is no sbatch on" in said
    assert "coordinate-eval watch" in said
    for _ in range(2):
        workspace.call("watch", "--once")
    assert results(run)["complete"]
    assert len(list(run.glob("supervisor/*.json"))) == 1
    until(lambda: not queue(), "an empty queue")


def test_supervisors_of_login_nodes_are_started_again(workspace: Workspace, path: str) -> None:
    login = {
        "COORDINATE_EVAL_SLURM_SUPERVISOR": "login",
        "COORDINATE_EVAL_SLURM_SETUP": json.dumps([f"export PATH={path}"]),
    }
    pause = workspace.pause("login")
    run = workspace.submit(workspace.suite("tiny_sums"), *pause.args, **login)
    until(lambda: "trial" in "".join(queue()), "a trial", run)
    os.kill(supervisor(run), signal.SIGKILL)
    assert "no supervisor" in workspace.call("status", run.name, status=1).stdout

    def started() -> bool:
        return f"run {run.name} is supervised by" in workspace.call("watch", "--once").stderr

    until(started, "another supervisor", run)
    pause.end()
    assert results(run)["complete"]
    until(lambda: not queue(), "an empty queue")
