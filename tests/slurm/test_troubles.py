"""Trials in trouble, on a real controller: they cost time, and nothing but what causes it."""

import json
import os
import shutil
import signal
import subprocess
from typing import Any

import pytest

from tests.runs import (
    Workspace,
    claimant,
    processes,
    results,
    scores,
    times_answered,
    trials,
    until,
)
from tests.slurm.runs import FOUR_TASKS, Undisturbed, all_gone, long_suite, times
from tests.tiny import need, tiny_model


@pytest.fixture(scope="module")
def user(undisturbed: Undisturbed, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("troubles")).with_prompts(undisturbed.requests)


@pytest.fixture(scope="module")
def expected(undisturbed: Undisturbed) -> dict[str, Any]:
    return undisturbed.scores


def test_a_trial_that_hangs_is_ended_and_others_take_its_shards(
    user: Workspace, undisturbed: Undisturbed
) -> None:
    pause = user.pause("hangs")
    run = user.submit(
        user.suite(*FOUR_TASKS), *pause.args, "--max-gpus", 2, "--run-dir", user.folder / "hangs",
        COORDINATE_EVAL_TRIAL_HANG_MINUTES="0.4",
        # A start takes as long as was measured, and not as long as is thought at first.
        COORDINATE_EVAL_PRIORS_DIR=str(undisturbed.priors),
    )  # fmt: skip
    claims = until(lambda: list(run.glob("claims/outputs/*/*.json")), "a claim")
    stopped = int(json.loads(claims[0].read_text())["pid"])
    os.kill(stopped, signal.SIGSTOP)
    pause.end()
    assert scores(run) == undisturbed.scores
    hung = [json.loads(path.read_text())["how"] for path in (run / "incidents").glob("*.json")]
    assert "hung" in hung
    all_gone(user)
    assert stopped not in processes("_trial", str(run))


def test_a_checkpoint_that_no_engine_loads_ends_its_run_at_once(user: Workspace) -> None:
    need("torch", "transformers")
    checkpoint = user.folder / "of nobody"
    shutil.copytree(tiny_model(), checkpoint)
    config = json.loads((checkpoint / "config.json").read_text())
    config["model_type"] = "of-nobody"  # an engine may know it, by a plugin
    (checkpoint / "config.json").write_text(json.dumps(config))
    run = user.folder / "misfit"
    user.call(
        "run", checkpoint, "--suite", user.suite("tiny_sums"), "--engine", "transformers",
        "--max-gpus", 2, "--run-dir", run,
    )  # fmt: skip
    reason = results(run)["reason"]
    assert "every trial of a round failed with the same error" in reason
    assert "Model Loading Error (framework): the engine's version does not know" in reason
    assert [path.name for path in (run / "rounds").iterdir()] == ["0.json"]
    shown = user.call("diagnose", run, COLUMNS="200").stdout
    assert "do: the engine's version does not know this architecture" in shown
    assert "done: the run was ended" in shown
    assert "somebody cancelled it" not in shown
    assert "is avoided" not in shown
    all_gone(user)


def test_a_trial_that_is_lost_is_replaced_while_another_goes_on(
    user: Workspace, expected: dict[str, Any]
) -> None:
    slow = {"times": str(user.folder / "times.json"), "concurrency": 1}
    times(user, seconds=2)
    run = user.submit(
        long_suite(user), "--engine-args", json.dumps(slow),
        "--max-gpus", 2, "--run-dir", user.folder / "replaced",
    )  # fmt: skip
    stays = until(lambda: [trial for trial in trials(run) if trial.responses], "an answer")[0]
    # It goes on, with a shard in work, until the other one is replaced: however long that takes.
    pid = claimant(run, stays.trial)
    os.kill(pid, signal.SIGSTOP)
    job, index = stays.task.split(".")[0].split("_")
    subprocess.run(["scancel", f"{job}_{1 - int(index)}"], check=True)
    times(user, seconds=0)  # of an engine that starts from now on
    new = until(lambda: [t for t in trials(run) if t.trial.endswith("-r1") and t.responses], "more")
    assert len(new) == 1
    os.kill(pid, signal.SIGCONT)
    assert scores(run) == expected
    assert set(times_answered(run).values()) == {1}
    all_gone(user)
