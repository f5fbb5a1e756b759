"""Whole runs on a real controller: their tasks, their pace, the queue, and a site that refuses."""

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.runs import Workspace, scores, until

FAKES = Path(__file__).parents[1] / "fakes"

FOUR_TASKS = ("tiny_choice", "tiny_cloze", "tiny_code", "tiny_sums")
"""One of each kind: choices, likelihoods, programs, and texts."""

REAL_TASKS = ("tiny_group", "tiny_mutual", "tiny_written", "tiny_cloze", "tiny_prose", "tiny_code")
"""What real engines answer, and the harness's own command."""

ROOM = 2048
"""A context that no prompt of the fixtures exceeds: see `reference.roomy`."""

SLOW = ("--engine-args", '{"seconds_per_request": 0.2}')
"""So that no trial has done everything before the others begin, in runs that nothing holds up."""


class Undisturbed(NamedTuple):
    """What is known of a run of the four tasks that nobody disturbed."""

    scores: dict[str, Any]
    user: Path
    """The folder of its user."""
    run: Path
    requests: Path
    """The folder of the prompts in its user's cache."""
    priors: Path
    """What was measured."""


def once(folder: Path, name: str, make: Callable[[], Any]) -> Any:
    """Return what the first worker of a session makes for all of them, in a folder they share."""
    kept = folder / f"{name}.json"
    with kept.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            kept.write_text(json.dumps(make()))
    return json.loads(kept.read_text())


def undisturbed_run(folder: Path) -> Undisturbed:
    """Have one such run for all workers of a session, in a folder that they share."""
    user = folder / "undisturbed"

    def make() -> str:
        shutil.rmtree(user, ignore_errors=True)
        user.mkdir()
        made = Workspace(user)
        run = made.submit(made.suite(*FOUR_TASKS), "--max-gpus", 4)
        scores(run)
        all_gone(made)
        return str(run)

    run = Path(once(folder, "undisturbed", make))
    (requests,) = (user / "cache").glob("requests-*")
    return Undisturbed(scores(run), user, run, requests, user / ".coordinate-eval" / "priors")


def all_gone(workspace: Workspace) -> None:
    """Wait for an empty queue, and check that the nodes' memory is empty."""
    until(lambda: not queue(), "an empty queue")
    assert list(workspace.memory.iterdir()) == []


def queue() -> list[str]:
    """Return the tasks that wait, run, or have not left their nodes: id, job, state and node."""
    answer = subprocess.run(
        ["squeue", "-h", "-r", "-o", "%i %j %T %N"], capture_output=True, text=True, check=True
    )
    return answer.stdout.splitlines()


def pending(what: str) -> bool:
    """Return whether a job with this in its name is pending."""
    return any(what in line and "PENDING" in line for line in queue())


def picky_site(folder: Path) -> dict[str, str]:
    """Variables of a run whose site refuses jobs, those with GPUs while there is `folder/full`."""
    real = shutil.which("sbatch")
    assert real is not None
    commands = folder / "bin"
    commands.mkdir(exist_ok=True)
    (commands / "sbatch").unlink(missing_ok=True)
    (commands / "sbatch").symlink_to(FAKES / "picky_sbatch")
    return {
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "COORDINATE_EVAL_SLURM_ENVIRONMENT": '["REAL_SBATCH", "FULL"]',
        "REAL_SBATCH": real,
        "FULL": str(folder / "full"),
    }


def times(user: Workspace, *, seconds: float) -> None:
    """Have engines that start from now on take so long for each request."""
    found = {task: {"seconds_per_request": seconds} for task in FOUR_TASKS}
    (user.folder / "times.json").write_text(json.dumps(found))


def long_suite(user: Workspace) -> Path:
    """The usual suite, with so much work by its own figures that another trial always pays."""
    suite = yaml.safe_load(user.suite(*FOUR_TASKS).read_text())
    for dataset in suite["datasets"]:
        dataset["prior"] = {"gpu_seconds": 9000}
    path = user.folder / "long.yaml"
    path.write_text(yaml.safe_dump(suite))
    return path
