"""Whole runs on a real controller. Killed, lost and refused jobs change no score."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.buckets import bucket
from tests.dev_cluster import DevCluster
from tests.runs import (
    TASKS,
    Pause,
    Workspace,
    begun,
    kill,
    processes,
    results,
    scores,
    times_answered,
    until,
)
from tests.slurm.runs import FOUR_TASKS, SLOW, Undisturbed, all_gone, long_suite, pending, queue
from tests.tiny import tiny_model


@pytest.fixture(scope="module")
def workspace(undisturbed: Undisturbed, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """One user for all tests of this file."""
    return Workspace(tmp_path_factory.mktemp("user")).with_prompts(undisturbed.requests)


@pytest.fixture(scope="module")
def expected(undisturbed: Undisturbed) -> dict[str, Any]:
    return undisturbed.scores


@pytest.fixture(scope="module")
def long(workspace: Workspace) -> Path:
    """The same datasets, which are worth all GPUs whatever earlier runs have measured."""
    return long_suite(workspace)


@pytest.fixture
def no_umask() -> Iterator[None]:
    """Files that are made here, and by jobs that are submitted here, are open to all by default."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("no_umask")
def test_four_nodes_share_a_suite(
    workspace: Workspace, long: Path, expected: dict[str, Any]
) -> None:
    pause = workspace.pause("four nodes")
    run = workspace.submit(
        long, *pause.args, "--max-gpus", 8, "--nodes", "node[1-4]",
        "--run-dir", workspace.folder / "four \"nodes\"\nand a line",
        COORDINATE_EVAL_TRIAL_MEMORY_GIB="400",
        COORDINATE_EVAL_AFTER_RUN='["sh", "-c", "cat \\"$0\\"/results.json"]',
    )  # fmt: skip
    until(lambda: len(nodes_of_trials(run)) == 4, "a trial on each node", run)
    pause.end()
    assert scores(run) == expected
    assert set(times_answered(run).values()) == {1}
    found = results(run)
    assert found["items"] == {"tiny_choice": 12, "tiny_cloze": 10, "tiny_code": 5, "tiny_sums": 11}
    # Each second of each GPU is somewhere.
    ledger, asked = found["ledger"], json.loads((run / "rounds" / "0.json").read_text())["nodes"]
    gpus = sum(node["trials"] for node in asked)
    assert ledger["total_gpu_seconds"] == pytest.approx(gpus * ledger["seconds"], rel=0.01)
    parts = sum(ledger["gpu_seconds"].values())  # each is rounded to milliseconds
    assert parts == pytest.approx(ledger["total_gpu_seconds"], abs=0.01)
    # A keeper and an array of trials a node, whatever there is of other arrays. The supervisor
    # itself was submitted by the command.
    submitted = [path.stem for path in (run / "jobs").glob("*.json")]
    assert [sum(kind in name for name in submitted) for kind in ("-keep", "-trial")] == [4, 4]
    assert found["scheduler_calls"]["sbatch"] < len(submitted)
    all_gone(workspace)
    assert "What happened" in (run / "report.html").read_text()
    assert json.loads((run / "logs" / "after_run.log").read_text()) == found
    assert [path for path in run.rglob("*") if path.stat().st_mode & 0o022] == []


def nodes_of_trials(run: Path) -> set[str]:
    """Return the nodes on which trials of a run have begun."""
    return {json.loads(path.read_text())["node"] for path in (run / "trials").glob("*.json")}


def test_asking_again_runs_nothing(undisturbed: Undisturbed) -> None:
    user = Workspace(undisturbed.user)
    suite = user.suite(*FOUR_TASKS)
    done = user.call("run", tiny_model(), "--suite", suite, "--max-gpus", 4, "--json")
    assert json.loads(done.stdout)["results"] == undisturbed.scores
    assert queue() == []


def test_whatever_is_killed_the_scores_are_the_same(
    workspace: Workspace, expected: dict[str, Any]
) -> None:
    run, pause = paused(workspace, "killed")
    planned = json.loads((run / "rounds" / "0.json").read_text())["nodes"]
    trials = sum(node["trials"] for node in planned)
    # If a trial began later and went on, there would be no other round.
    until(lambda: len(list(run.glob("trials/*.json"))) == trials, "all trials", run)
    for job in ("_trial", "_supervise"):
        kill(until(partial(processes, job, str(run)), f"a {job}"))
    until(lambda: list(run.glob("stage/1-*.json")), "another round", run)
    until(lambda: len(list(run.glob("trials/*.json"))) > trials, "its trials", run)
    # The keeper's weights are the trials' to remove.
    for job in ("_keep", "_score"):
        kill(until(partial(processes, job, str(run)), f"a {job}"))
    pause.end()
    assert scores(run) == expected
    for trace in ("rounds/1.json", "supervisor/2.json", "jobs/*-score1.json"):
        assert list(run.glob(trace)), trace
    all_gone(workspace)


def test_a_killed_rescoring_ends_with_the_same_scores_and_no_gpu(undisturbed: Undisturbed) -> None:
    user = Workspace(undisturbed.user)
    root = Path(user.call("rescore", undisturbed.run).stdout.rstrip("\n"))
    scoring = until(lambda: processes("_score", str(root)), "a scoring job")
    kill(scoring + processes("_supervise", str(root)))
    assert scores(root) == undisturbed.scores
    assert results(root)["rescored"]["changed"] == {}
    submitted = [json.loads(path.read_text())["job"] for path in (root / "jobs").glob("*.json")]
    assert submitted
    assert all(job["gpus"] == 0 for job in submitted)
    all_gone(user)


HELD = """
import time
from pathlib import Path


def documents(dataset):
    while Path({file!r}).exists():
        time.sleep(0.05)
    return dataset
"""


def test_a_killed_build_job_is_replaced(workspace: Workspace, expected: dict[str, Any]) -> None:
    # The first task, whose prompts are not made while a file is there.
    own, hold = workspace.folder / "held tasks", workspace.folder / "hold"
    own.mkdir()
    hold.touch()
    text = (TASKS / f"{FOUR_TASKS[0]}.yaml").read_text()
    (own / f"{FOUR_TASKS[0]}.yaml").write_text(f"{text}process_docs: !function held.documents\n")
    (own / "held.py").write_text(HELD.format(file=str(hold)))
    suite = yaml.safe_load(workspace.suite(*FOUR_TASKS).read_text())
    suite["include_path"].append(str(own))
    file = workspace.folder / "held.yaml"
    file.write_text(yaml.safe_dump(suite))
    run = workspace.submit(
        file, "--max-gpus", 2, "--run-dir", workspace.folder / "rebuilt",
        COORDINATE_EVAL_CACHE_DIR=str(workspace.folder / "another cache"),
    )  # fmt: skip
    (claim,) = until(lambda: list(run.glob(f"claims/requests/{FOUR_TASKS[0]}/*.json")), "a claim")
    kill([json.loads(claim.read_text())["pid"]])
    hold.unlink()
    assert scores(run) == expected
    assert claim.with_suffix(".revoked").exists()
    all_gone(workspace)


def paused(
    workspace: Workspace, name: str, checkpoint: Path | None = None, **environ: str
) -> tuple[Path, Pause]:
    """A run on two GPUs that has begun and does not end before its pause."""
    pause, run = workspace.pause(name), workspace.folder / name
    workspace.call(
        "run", checkpoint or tiny_model(), "--suite", workspace.suite(*FOUR_TASKS), *pause.args,
        "--max-gpus", 2, "--run-dir", run, status=0, **environ,
    )  # fmt: skip
    return begun(run), pause


def supervisor(run: Path) -> str:
    """The first supervisor's job id."""
    (path,) = run.glob("jobs/*super1.json")
    return str(json.loads(path.read_text())["job_id"])


def test_a_run_outlives_a_silent_controller_its_supervisor_and_its_checkpoint(
    workspace: Workspace, expected: dict[str, Any], slurm_cluster: DevCluster, tmp_path: Path
) -> None:
    checkpoint = Path(shutil.copytree(tiny_model(), tmp_path / "step-1"))
    run, pause = paused(workspace, "outlives", checkpoint)
    shutil.rmtree(checkpoint)  # it is staged
    slurm_cluster.stop_controller()
    try:
        log = next(run.glob("logs/*super1*.log"))
        until(lambda: "does not answer" in log.read_text(), "the supervisor to notice")
        assert not list(run.glob("claims/outputs/*/*.revoked"))
    finally:
        slurm_cluster.start_controller()
    subprocess.run(["scancel", "--signal=USR1", "--batch", supervisor(run)], check=True)
    until(lambda: list(run.glob("jobs/*super2.json")), "the one that it hands over to", run)
    pause.end()
    assert scores(run) == expected
    all_gone(workspace)


def test_a_supervisor_lost_for_good_is_resumed(
    workspace: Workspace, expected: dict[str, Any]
) -> None:
    run, pause = paused(workspace, "resumed", COORDINATE_EVAL_SUPERVISOR_PATIENCE_SECONDS="20")
    subprocess.run(["scancel", "--signal=KILL", "--full", supervisor(run)], check=True)
    pause.end()
    # Nobody releases its keeper, and nobody submits the metric jobs that its scoring job waits for.
    all_gone(workspace)
    workspace.call("resume", run)
    assert scores(run) == expected
    all_gone(workspace)


def test_a_cancelled_run_leaves_nothing_and_goes_on_when_asked(
    workspace: Workspace, expected: dict[str, Any]
) -> None:
    run, pause = paused(workspace, "cancelled")
    workspace.call("cancel", run)
    all_gone(workspace)
    pause.end()
    assert "cancelled" in workspace.call("status", run, status=1).stdout
    done = workspace.call("resume", run, "--wait", "--json")
    assert json.loads(done.stdout)["results"] == expected
    assert "datasets scored" in done.stderr
    all_gone(workspace)


def test_whole_nodes_take_weights_from_a_store(
    workspace: Workspace, expected: dict[str, Any]
) -> None:
    with bucket() as store:
        url, suite = store.put(tiny_model(), "run/step-1"), workspace.suite(*FOUR_TASKS)
        run = workspace.folder / "whole"
        workspace.call(
            "run", url, "--suite", suite, *SLOW, "--max-gpus", 3, "--partition", "whole",
            "--run-dir", run, status=0, COORDINATE_EVAL_SLURM_CPU_PARTITION="low",
            COORDINATE_EVAL_SLURM_ENVIRONMENT='["AWS_*"]', **store.environ,
        )  # fmt: skip
        assert scores(run) == expected
    assert json.loads((run / "run.json").read_text())["exclusive"] is True
    logs = [json.loads(path.read_text())["log"] for path in (run / "trials").glob("*.json")]
    assert len(set(logs)) == len(logs) > 0, "each trial has a log of its own"
    assert {Path(log).name for log in logs} <= {path.name for path in (run / "logs").iterdir()}
    all_gone(workspace)


def fill(folder: Path) -> str:
    """Submit a job that takes all GPUs; its id."""
    return subprocess.run(
        ["sbatch", "--parsable", "-N4", "--gres=gpu:h200:8", "--mem=100", "-o", folder / "busy",
         "--wrap", "sleep 36000"], capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip


def test_nothing_free_says_so_and_a_queued_run_waits(
    workspace: Workspace, expected: dict[str, Any], tmp_path: Path
) -> None:
    busy = fill(tmp_path)
    try:
        until(lambda: any("RUNNING" in line for line in queue()), "busy GPUs")
        args = ("run", tiny_model(), "--suite", workspace.suite(*FOUR_TASKS), "--max-gpus", 2)
        where = ("--run-dir", workspace.folder / "queued")
        done = workspace.call(*args, *where, status=2)
        assert "node1, node2, node3, node4: 8 of 8 GPUs in use" in done.stderr
        assert "--queue" in done.stderr
        assert not (workspace.folder / "queued").exists()
        run = Path(workspace.call(*args, *where, "--queue").stdout.rstrip("\n"))
        (log,) = until(lambda: list(run.glob("logs/*super1*.log")), "its supervisor")
        until(lambda: "is job" in log.read_text() and pending("trial0"), "its trials in the queue")
        later = fill(tmp_path)
    finally:
        subprocess.run(["scancel", busy], check=True)
    try:
        # Whoever came later waits. If it had its turn first, it would keep all GPUs for too long.
        assert scores(run) == expected
        assert json.loads((run / "rounds" / "0.json").read_text())["nodes"][0]["name"] == "queued"
        assert not list((run / "jobs").glob("*keep*"))
    finally:
        subprocess.run(["scancel", later], check=True)
    all_gone(workspace)


def test_a_refusal_is_passed_on_and_leaves_nothing(workspace: Workspace) -> None:
    run = workspace.folder / "refused"
    done = workspace.call(
        "run", tiny_model(), "--suite", workspace.suite(*FOUR_TASKS), "--max-gpus", 2,
        "--run-dir", run, status=2, COORDINATE_EVAL_SLURM_EXTRA_ARGS='["--reservation=nobody"]',
    )  # fmt: skip
    assert "reservation" in done.stderr.lower()
    assert "Traceback" not in done.stderr
    assert not run.exists()
    all_gone(workspace)
