"""A training under the guard on a real controller: each fault is met, and the weights are right."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from tests.dev_cluster import DevCluster
from tests.runs import Workspace, until
from tests.slurm.runs import queue
from tests.tiny import need, tiny_model

TRAINING = Path(__file__).parents[1] / "fixtures" / "guarded.py"
LAST = 60


def slurm(*words: str) -> str:
    """What a command of Slurm says."""
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def runs_again(job: str) -> bool:
    """Return whether a requeued job runs again, and let it begin if it waits for its time."""
    begin = ["scontrol", "update", f"jobid={job}", "starttime=now"]
    subprocess.run(begin, check=False, capture_output=True)  # it may be between two states
    shown = slurm("scontrol", "show", "job", job)
    return "Restarts=1 " in shown and "JobState=RUNNING " in shown


class Training:
    """A training of a user, with its script, its faults by attempt, and its guard."""

    def __init__(
        self,
        folder: Path,
        faults: dict[int, dict[str, Any]],
        *words: object,
        nodes: int = 1,
        last: int = LAST,
        **policy: Any,
    ) -> None:
        self.user = Workspace(folder)
        self.saves = folder / "ckpts"
        self.script, self.policy = folder / "train.sbatch", folder / "guard.toml"
        (folder / "faults.json").write_text(json.dumps(faults))
        call = f"{sys.executable} {TRAINING} {self.saves} {last} {folder / 'faults.json'}"
        call = " ".join([call, *map(str, words)])
        output = f"--output={folder}/train-%j.log"
        options = ("--time=10", "--mem=100", f"--nodes={nodes}", output)
        lines = [*(f"#SBATCH {option}" for option in options), f"exec {call}"]
        self.script.write_text("\n".join(["#!/bin/bash", *lines, ""]))
        values = {"last_step": last, "pause_seconds": 0, "test_nodes": False, **policy}
        given = {key.rstrip("_"): each for key, each in values.items() if each is not None}
        text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in given.items())
        self.policy.write_text(text)
        self.args = ("guard", self.script, "--checkpoints", self.saves, "--policy", self.policy)

    def status(self) -> dict[str, Any]:
        done = self.user.call("guard", "status", "--json", status=None)
        assert done.stdout, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def await_end(self) -> None:
        """Wait until the guard does nothing more: the training is complete."""
        until(
            lambda: list(self.user.folder.glob("runs/guards/*/over.json")),
            "the end of the training",
        )
        assert self.status()["state"] == "complete"

    def ends(self) -> list[str]:
        return [each["what"] for each in self.status()["attempts"]]

    def check_weights(self) -> None:
        """Compare with the weights of a training that nothing has disturbed."""
        w = np.ones(4, dtype=np.float32)
        for _ in range(LAST):
            w = w * np.float32(1.01)
        found = load_file(self.saves / f"step-{LAST}" / "model.safetensors")["w"]
        assert found.tolist() == w.tolist()


def test_a_training_comes_to_its_end_through_every_kind_of_fault(
    slurm_cluster: DevCluster, tmp_path: Path
) -> None:
    faults: dict[int, dict[str, Any]] = {
        1: {"kind": "hardware", "at": 15},
        2: {"kind": "hang", "at": 25},
        3: {"kind": "nan", "at": 35},
        4: {"kind": "exit", "at": 45},
        5: {"kind": "deleted"},
    }
    training = Training(tmp_path, faults, silent_seconds=5, last_step=None)
    training.user.call(*training.args)
    training.await_end()
    assert training.ends() == [
        "failed",
        "hung",
        "loss not finite",
        "ended before its last step",
        "failed",
        "finished",
    ]
    training.check_weights()
    first, *_, early, deleted, last = training.status()["attempts"]
    assert first["cause"]["reason"] == "ECC Error"
    assert early["why"] == f"step 44 of {LAST}, by its log"
    assert deleted["cause"] is None
    assert deleted["why"].endswith("step-40 was deleted before the training had read it")
    assert last["checkpoint"].endswith("step-30")
    until(lambda: not queue(), "an empty cluster")


def test_a_bad_node_is_drained_and_fewer_nodes_do(
    slurm_cluster: DevCluster, tmp_path: Path
) -> None:
    """Of four nodes, one is taken for a while, and another one is broken."""
    taken = slurm(
        "sbatch", "--parsable", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 3600"
    ).strip()
    training = Training(
        tmp_path, {2: {"kind": "hardware", "at": 15}}, nodes=4,
        nodes_=[4, 3], start_seconds=3, drain=True,
    )  # fmt: skip
    bad = ""
    try:
        training.user.call(*training.args)
        until(lambda: list(tmp_path.glob("runs/guards/*/attempts/4.json")), "the fourth attempt")
        (bad,) = training.status()["attempts"][1]["tested"]["bad"]
        slurm("scancel", taken)
        training.await_end()
        never, failed, again, last = training.status()["attempts"]
        assert (never["what"], again["what"]) == ("did not start in time",) * 2
        assert failed["tested"]["words"].endswith(f"drained: {failed['tested']['bad'][0]}")
        assert slurm("sinfo", "-h", "-n", bad, "-p", "low", "-o", "%T").startswith("drain")
        assert last["excluded"] == [bad]
        training.check_weights()
    finally:
        slurm("scancel", taken)
        if bad:
            slurm("scontrol", "update", f"nodename={bad}", "state=resume")
    until(lambda: not queue(), "an empty cluster")


def test_a_guard_whose_job_is_warned_or_requeued_is_followed_by_the_next(
    slurm_cluster: DevCluster, tmp_path: Path
) -> None:
    training = Training(tmp_path, {1: {"kind": "wait", "at": 15}})
    begun = training.user.call(*training.args, "--json")
    first = json.loads(begun.stdout)["job"]
    until(lambda: training.status()["attempts"][:1] and training.saves.exists(), "the training")
    slurm("scancel", "--signal=USR1", "--batch", first)
    until(lambda: training.status()["guard"] not in ("none", f"job {first}"), "the next guard")
    until(lambda: first not in slurm("squeue", "-h", "-o", "%i").split(), "the end of the first")
    second = training.status()["guard"].removeprefix("job ")
    until(lambda: second in slurm("squeue", "-h", "-t", "R", "-o", "%i").split(), "the second")
    slurm("scontrol", "requeue", second)
    until(lambda: runs_again(second), "its next start")
    (tmp_path / "go").touch()
    training.await_end()
    assert training.ends() == ["finished"]
    training.check_weights()
    until(lambda: not queue(), "an empty cluster")


def test_a_guard_that_is_killed_goes_on_and_a_second_one_is_refused(
    slurm_cluster: DevCluster, tmp_path: Path
) -> None:
    training = Training(tmp_path, {1: {"kind": "hang", "at": 15}}, silent_seconds=20)
    first = training.user.start(*training.args, "--wait")
    until(lambda: training.saves.exists() and any(training.saves.iterdir()), "a checkpoint")
    refused = training.user.call(*training.args, status=2)
    assert "guarded already, by process" in refused.stderr
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    training.user.call(*training.args, "--wait")
    assert training.ends() == ["hung", "finished"]
    training.check_weights()


def test_an_error_of_the_script_stops_at_once_and_what_was_corrected_goes_on(
    slurm_cluster: DevCluster, tmp_path: Path
) -> None:
    training = Training(tmp_path, {1: {"kind": "script", "at": 25}})
    stopped = training.user.call(*training.args, "--wait", status=1)
    assert "unrecognized arguments: --lr" in stopped.stderr
    assert training.status()["state"] == "stopped"
    training.user.call(*training.args, "--wait")
    assert training.ends() == ["failed", "finished"]
    training.check_weights()


def test_a_wish_to_stop_ends_the_training_and_its_guard(
    slurm_cluster: DevCluster, tmp_path: Path
) -> None:
    training = Training(tmp_path, {1: {"kind": "hang", "at": 15}})
    training.user.call(*training.args)
    until(lambda: training.saves.exists() and any(training.saves.iterdir()), "a checkpoint")
    training.user.call("guard", "stop")
    until(lambda: not queue(), "an empty cluster")
    assert training.status()["state"] == "stopped"


def test_first_signals_are_asked_for_before_a_training_goes_back(
    slurm_cluster: DevCluster, tmp_path: Path
) -> None:
    need("torch", "transformers")
    need("lm_eval", "harness")
    suite = Workspace(tmp_path).suite("tiny_choice")
    training = Training(
        tmp_path, {1: {"kind": "diverge", "at": 85}}, tiny_model(), last=400, suite=str(suite)
    )
    training.user.call(*training.args, "--obey", "rollback")
    training.await_end()
    assert training.ends() == ["rolled back", "finished"]
    first, second = training.status()["attempts"]
    assert first["evaluated"] == "first signals: " + ", ".join(
        f"step {step}: healthy" for step in (10, 50, 80)
    )
    assert second["checkpoint"].endswith("step-80")
    until(lambda: not queue(), "an empty cluster")
