"""The doctor on a real Slurm: the words of its controller, answers from jobs, and bad nodes."""

import json
import shlex
from pathlib import Path

from tests.dev_cluster import DevCluster
from tests.runs import Workspace


def test_jobs_answer_for_their_partitions(slurm_cluster: DevCluster, tmp_path: Path) -> None:
    assert slurm_cluster.conf.exists()
    user = Workspace(tmp_path)
    environ = {
        "HF_HUB_OFFLINE": "1",
        "COORDINATE_EVAL_CLUSTER": "slurm",
        "COORDINATE_EVAL_SLURM_PARTITION": "low",
        "COORDINATE_EVAL_SLURM_CPU_PARTITION": "high",
    }
    done = user.call("doctor", "--submit", "--json", status=None, **environ)
    report = json.loads(done.stdout)
    here, *jobs = report["answers"]
    found = {each["check"]: each["found"] for each in here["findings"]}
    assert found["controller"].startswith("Slurm ")
    assert {"partition low (default)", "partition high", "GPUs h200"} <= set(found)
    assert {each["where"] for each in jobs} == {
        "in a job with a GPU, partition low",
        "in a job without a GPU, partition high",
    }
    for each in jobs:
        states = {finding["check"]: finding["state"] for finding in each["findings"]}
        assert states["runs_dir"] == "ok", each
        assert ("[stage] where" in states) == ("with a GPU" in each["where"])
        assert ("harness" in states) == ("without a GPU" in each["where"])
    assert list(Path(user.environ["COORDINATE_EVAL_RUNS_DIR"]).iterdir()) == []
    assert done.returncode == 0, done.stdout
    # A partition that is not there is a failure, and is named.
    gone = user.call("doctor", "--json", "--partition", "nowhere", status=1, **environ)
    failures = [
        finding["found"]
        for finding in json.loads(gone.stdout)["answers"][0]["findings"]
        if finding["state"] == "failure"
    ]
    assert len(failures) == 1
    assert "nowhere" in failures[0]


def test_bad_nodes_are_named(slurm_cluster: DevCluster, tmp_path: Path) -> None:
    bad = ["node2", "node3"]
    verdicts = {"node1": "good", "node2": "bad", "node3": "bad", "node4": "good"}
    assert slurm_cluster.conf.exists()
    user = Workspace(tmp_path)
    # A bad node lacks the network interface that all are told to use.
    for node in sorted(verdicts):
        (tmp_path / node).write_text("ib7" if node in bad else "lo")
    interface = f'export GLOO_SOCKET_IFNAME="$(cat {shlex.quote(str(tmp_path))}/$SLURMD_NODENAME)"'
    environ = {
        "COORDINATE_EVAL_CLUSTER": "slurm",
        "COORDINATE_EVAL_SLURM_SETUP": json.dumps([interface]),
    }
    done = user.call("doctor", "--nodelist", "node[1-4]", "--json", status=1, **environ)
    report = json.loads(done.stdout)
    assert {each["node"]: each["verdict"] for each in report["nodes"]} == verdicts, done.stdout
    assert f"nodename={','.join(bad)} state=drain" in report["drain"]
    for each in report["nodes"]:
        assert bool(each["why"]) == (each["verdict"] != "good"), each
    avoided = [path.stem for path in (tmp_path / "cache").glob("avoided-nodes-*/*.json")]
    assert sorted(avoided) == bad
    assert list(Path(user.environ["COORDINATE_EVAL_RUNS_DIR"]).iterdir()) == []
