"""Higher-priority jobs take what trials have, and give it back: a run loses what was in flight."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.runs import Workspace, claimant, scores, times_answered, trials, until
from tests.slurm.clusters import cluster_of
from tests.slurm.runs import FOUR_TASKS, Undisturbed, all_gone, pending, queue, times

CORES = 32


@pytest.fixture(scope="module")
def user(undisturbed: Undisturbed, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("preempted")).with_prompts(undisturbed.requests)


@pytest.fixture(scope="module")
def expected(undisturbed: Undisturbed) -> dict[str, Any]:
    return undisturbed.scores


@pytest.fixture
def run(
    request: pytest.FixtureRequest, expected: dict[str, Any], user: Workspace
) -> Iterator[Path]:
    """A run with trials on node1, one of which answers slowly, in a cluster that preempts so."""
    mode = request.param
    times(user, seconds=0.6 if mode == "suspend" else 4)
    with cluster_of(nodes=2, gpus=2, cpus=CORES, preempt=mode) as cluster:
        user.environ["SLURM_CONF"] = str(cluster.conf)
        run = user.submit(
            user.suite(*FOUR_TASKS), "--nodes", "node1", "--max-gpus", 2, "--engine-args",
            json.dumps({"times": str(user.folder / "times.json"), "concurrency": 1}),
            "--run-dir", user.folder / mode,
        )  # fmt: skip
        until(lambda: [trial for trial in trials(run) if trial.responses], "a response")
        yield run


@pytest.mark.parametrize("run", ["cancel"], indirect=True)
def test_a_run_whose_gpus_are_taken_waits_for_them(
    run: Path, user: Workspace, expected: dict[str, Any]
) -> None:
    times(user, seconds=0)  # of engines that start from now on
    job = urgent(run, "--gres=gpu:h200:2")
    # Other trials are in the queue, if GPUs seemed free before the job had them.
    until(lambda: (run / "waiting.json").exists() or pending("trial1"), "it to wait")
    until(lambda: f"{job} urgent RUNNING node1" in queue(), "the job")
    subprocess.run(["scancel", job], check=True)
    assert scores(run) == expected
    answered = times_answered(run)
    assert set(answered.values()) == {1}
    # Each of the two trials may have been about to write a response.
    assert sum(trial.responses for trial in trials(run)) <= len(answered) + 2
    all_gone(user)


@pytest.mark.parametrize("run", ["suspend"], indirect=True)
def test_a_run_whose_cores_are_taken_goes_on_where_it_was(
    run: Path, user: Workspace, expected: dict[str, Any]
) -> None:
    (slow, *_) = [trial for trial in trials(run) if trial.responses]
    os.kill(claimant(run, slow.trial), signal.SIGSTOP)  # until Slurm resumes it
    job = urgent(run, f"--cpus-per-task={CORES}")
    until(lambda: [line for line in queue() if "trial0" in line and "SUSPENDED" in line], "a pause")
    subprocess.run(["scancel", job], check=True)
    assert scores(run) == expected
    assert sum(trial.responses for trial in trials(run)) == len(times_answered(run))
    assert not list(run.glob("claims/outputs/*/*.revoked"))
    all_gone(user)


def urgent(run: Path, *what: str) -> str:
    """Submit a job that preempts what is on node1; its id."""
    done = subprocess.run(
        ["sbatch", "--parsable", "-J", "urgent", "-p", "high", "-w", "node1", "--mem=100",
         "-o", run / "urgent", *what, "--wrap", "sleep 3600"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()
