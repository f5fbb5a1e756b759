"""The Slurm backend against a real controller."""

import json
import re
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from coordinate_eval import _job_log
from coordinate_eval.clusters.protocol import Busy, Job, Node, State
from coordinate_eval.errors import ClusterSilent, SubmitRefused, UserError
from coordinate_eval.slurm.client import slurm_configured
from coordinate_eval.slurm.cluster import SlurmCluster
from coordinate_eval.slurm.scripts import submission
from coordinate_eval.slurm.settings import SlurmSettings
from tests.dev_cluster import DevCluster
from tests.runs import until
from tests.slurm.jobs import SLEEP, await_end, await_running

HOSTILE = "a 'b' \"c\" 100%j %%A $(touch pwned) `id` #\n#SBATCH --hold\n\r\n ; é"


Nodes = tuple[list[Node], list[Busy]]


def said(log: Path) -> str:
    """What the program of a job has written."""
    return _job_log.below(log.read_text())


def nodes_when_free(cluster: SlurmCluster, *names: str) -> Nodes:
    """Wait until just these nodes are free: one may be silent, or end an earlier test's job."""

    def read() -> Nodes | None:
        nodes, busy = cluster.nodes()
        return (nodes, busy) if [node.name for node in nodes] == list(names) else None

    found = until(read, f"{names} to be free, and no others")
    assert found is not None
    return found


def test_gpus_cpus_and_memory_in_use_are_not_free(
    cluster: SlurmCluster, job: Callable[..., Job]
) -> None:
    _, busy = nodes_when_free(cluster, "node1", "node2", "node3", "node4")
    assert not busy
    cluster.submit(
        job(SLEEP, node="node1", gpus=3, gpu_type="h200", cpus=4, memory_mib=2048, name="part")
    )
    cluster.submit(job(SLEEP, node="node2", gpus=4, count=2, name="full"))
    await_running(cluster, "part")
    await_running(cluster, "full")

    nodes, busy = nodes_when_free(cluster, "node1", "node3", "node4")

    by_name = {node.name: node for node in nodes}
    assert by_name["node1"].free_gpus == 5
    assert by_name["node1"].cpus == by_name["node3"].cpus - 4
    assert by_name["node1"].memory_gib == by_name["node3"].memory_gib - 2
    assert by_name["node3"].free_gpus == by_name["node3"].gpus == 8
    assert by_name["node3"].gpu_memory_gib == 141
    assert [(node.name, node.why) for node in busy] == [("node2", "8 of 8 GPUs in use")]


def test_a_drained_node_is_busy_with_the_reason(
    cluster: SlurmCluster, slurm_cluster: DevCluster
) -> None:
    update = ["scontrol", "update", "NodeName=node4"]
    subprocess.run([*update, "State=DRAIN", "Reason=hw check, State=IDLE\nwhy"], check=True)
    try:
        _, busy = nodes_when_free(cluster, "node1", "node2", "node3")
    finally:
        subprocess.run([*update, "State=RESUME"], check=True)
    assert [(node.name, node.why) for node in busy] == [
        ("node4", "drained: hw check, State=IDLE\nwhy")
    ]


def test_a_partition_of_whole_nodes(slurm_cluster: DevCluster, job: Callable[..., Job]) -> None:
    default = SlurmCluster(SlurmSettings())
    whole = SlurmCluster(SlurmSettings(partition="whole", cpu_partition="low"))
    assert whole.whole_nodes()
    assert not SlurmCluster(SlurmSettings(partition="low")).whole_nodes()
    assert not default.whole_nodes()
    with pytest.raises(UserError, match=r"whole nodes: set .* cpu_partition"):
        SlurmCluster(SlurmSettings(partition="whole")).whole_nodes()
    job_id = default.submit(job(SLEEP, node="node1"))
    await_running(default, job("").name)

    _, busy = nodes_when_free(whole, "node2", "node3", "node4")

    assert [node.name for node in busy] == ["node1"]
    assert "whole nodes" in busy[0].why
    default.cancel([job_id])
    await_end(default, job("").name)


@pytest.mark.parametrize("extra", ["", "back\\slash %j"], ids=["", "backslash"])
@pytest.mark.parametrize("requeue", [False, True])
def test_hostile_names_arrive_byte_for_byte(
    cluster: SlurmCluster, job: Callable[..., Job], tmp_path: Path, extra: str, requeue: bool
) -> None:
    args = [HOSTILE, "", " ", "-n", "~", "*", "A=b", "\\", "'", "\t\x01\x7f", "\r\n", "ü\u2028"]
    code = "import json, sys; print(json.dumps(sys.argv[1:]))"
    folder = tmp_path / (HOSTILE + extra)
    hostile = job(code, *args, name=HOSTILE, log=str(folder / HOSTILE), requeue=requeue)
    job_id = cluster.submit(hostile)
    await_end(cluster, HOSTILE)
    (task,) = [task for task in cluster.poll(HOSTILE) if task.job_id == job_id]
    assert task.name == HOSTILE
    assert json.loads(said(folder / f"{HOSTILE}.{job_id}.log")) == args
    assert not Path("pwned").exists()


@pytest.mark.parametrize("folder", ["plain", "back\\slash"])
def test_tasks_of_an_array_know_their_index_and_have_a_log_each(
    cluster: SlurmCluster, job: Callable[..., Job], tmp_path: Path, folder: str
) -> None:
    code = (
        "import os, sys; names = 'COORDINATE_EVAL_INDEX', 'COORDINATE_EVAL_TASK';"
        "print(*(os.environ[name] for name in names)); print('words', file=sys.stderr)"
    )
    name = f"array-{folder}"
    job_id = cluster.submit(job(code, count=3, name=name, log=str(tmp_path / folder / "log")))
    await_end(cluster, name)
    assert {(task.job_id, task.index) for task in cluster.poll(name)} == {
        (job_id, 0),
        (job_id, 1),
        (job_id, 2),
    }
    for index in range(3):
        log = tmp_path / folder / f"log.{job_id}_{index}.log"
        assert said(log).split() == [str(index), f"{job_id}_{index}.0", "words"]


def test_what_a_dry_run_shows_can_be_submitted_by_hand(
    cluster: SlurmCluster, job: Callable[..., Job], tmp_path: Path
) -> None:
    name = "by hand: 'x'"
    by_hand = job("print('ran')", name=name, log=str(tmp_path / "it's"))
    text = submission(by_hand, SlurmSettings()).text()
    done = subprocess.run(["bash", "-c", text], check=True, capture_output=True, text=True)
    await_end(cluster, name)
    assert said(tmp_path / f"it's.{done.stdout.strip()}.log") == "ran\n"


def test_a_refused_job_says_slurms_words(
    slurm_cluster: DevCluster, job: Callable[..., Job]
) -> None:
    with pytest.raises(SubmitRefused, match="Invalid partition name specified"):
        SlurmCluster(SlurmSettings(partition="nope")).submit(job(""))
    with pytest.raises(SubmitRefused, match="Invalid node name specified"):
        SlurmCluster(SlurmSettings()).submit(job("", node="nope"))
    with pytest.raises(SubmitRefused, match="unrecognized option"):
        SlurmCluster(SlurmSettings(extra_args=("--nope",))).submit(job(""))


def test_a_wrong_partition_is_named_before_anything_is_submitted(slurm_cluster: DevCluster) -> None:
    for settings in (SlurmSettings(partition="nope"), SlurmSettings(cpu_partition="nope")):
        with pytest.raises(UserError, match=r"'nope'.*high, low, whole"):
            SlurmCluster(settings).nodes()


@pytest.mark.usefixtures("slurm_cluster")
def test_a_job_gets_little_of_what_the_caller_has_set(
    job: Callable[..., Job],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLURM_CLUSTERS", "dev")  # another cluster would be refused
    for name in ("SBATCH_PARTITION", "SLURM_PARTITION", "SQUEUE_USERS"):
        monkeypatch.setenv(name, "nope")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "7")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "7")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "NoDevFiles")
    monkeypatch.setenv("COORDINATE_EVAL_INDEX", "7")
    monkeypatch.setenv("KEPT_FOR_JOBS", "with\nnewline")
    monkeypatch.setenv("HF_HOME", "/hf")
    own = ("TMPDIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "VLLM_CACHE_ROOT")
    for name in (*own, "_SLURM_SPANK_OPTION_lua_x"):
        monkeypatch.setenv(name, "/of/the/caller")
    cluster = SlurmCluster(SlurmSettings(environment=("KEPT_*",)))
    job_id = cluster.submit(job("import json, os; print(json.dumps(dict(os.environ)))"))
    await_end(cluster, job("").name)
    environment = json.loads(said(tmp_path / f"log.{job_id}.log"))
    assert environment["KEPT_FOR_JOBS"] == "with\nnewline"
    assert environment["HF_HOME"] == "/hf"
    assert "/of/the/caller" not in environment.values()
    assert environment["COORDINATE_EVAL_INDEX"] == "0"
    assert environment["COORDINATE_EVAL_TASK"] == f"{job_id}.0"
    assert "CUDA_VISIBLE_DEVICES" not in environment
    assert not {"SBATCH_PARTITION", "SLURM_PARTITION", "SLURM_CLUSTERS"} & set(environment)


def test_setup_lines_run_before_the_program_and_a_failing_one_ends_the_job(
    slurm_cluster: DevCluster, job: Callable[..., Job], tmp_path: Path
) -> None:
    program = job("import os; print(os.environ['FROM_SETUP'])")
    good = SlurmCluster(SlurmSettings(setup=("greet() { export FROM_SETUP='a b'; }", "greet")))
    bad = SlurmCluster(SlurmSettings(setup=("export FROM_SETUP=x", "source /nowhere/activate")))
    ran, failed = good.submit(program), bad.submit(program)
    await_end(good, program.name)
    assert said(tmp_path / f"log.{ran}.log") == "a b\n"
    assert "/nowhere/activate: No such file" in (tmp_path / f"log.{failed}.log").read_text()


def test_a_silent_controller_is_no_answer_and_jobs_survive_it(
    cluster: SlurmCluster,
    job: Callable[..., Job],
    slurm_cluster: DevCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = job("").name
    job_id = cluster.submit(job(SLEEP))
    await_running(cluster, name)
    cluster.nodes()
    hasty = tmp_path / "slurm.conf"
    known = slurm_cluster.conf.read_text()
    hasty.write_text(re.sub(r"(?m)^MessageTimeout=.*", "MessageTimeout=5", known))
    slurm_cluster.stop_controller()
    monkeypatch.setenv("SLURM_CONF", str(hasty))
    try:
        questions: list[Callable[[], object]] = [
            lambda: cluster.poll(name),
            cluster.nodes,
            lambda: cluster.submit(job("")),
            lambda: cluster.cancel([job_id]),
            lambda: SlurmCluster(SlurmSettings(partition="low")).whole_nodes(),
        ]
        # Each takes the seconds of `MessageTimeout`, for which Slurm's commands try again.
        with ThreadPoolExecutor(len(questions)) as pool:
            for answer in [pool.submit(question) for question in questions]:
                assert isinstance(answer.exception(), ClusterSilent), answer
        assert slurm_configured()
    finally:
        monkeypatch.setenv("SLURM_CONF", str(slurm_cluster.conf))
        slurm_cluster.start_controller()
    (task,) = until(lambda: cluster.poll(name), "the job")
    assert (task.job_id, task.state) == (job_id, State.RUNNING)
