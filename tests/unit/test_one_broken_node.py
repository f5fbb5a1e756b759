"""A run of which all jobs failed on one node: another one is tried before it ends."""

import re
import time
from pathlib import Path
from typing import Any

import pytest
from tests.decisions import make_run
from tests.incidents import Enough, Failing, avoided, ended, incident, tell
from tests.plan_examples import planned
from tests.plans import changed
from tests.reviewer import NODES, OnCluster
from tests.shown_runs import SUPERVISOR, Scheduler

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import Busy, End
from coordinate_eval.coordinator.cli.inquire.status import describe
from coordinate_eval.coordinator.incidents.bad_nodes import read_avoided, suspected_nodes
from coordinate_eval.coordinator.incidents.incident import write_incident
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.planning.places.asked_nodes import without_avoided
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Round, RoundNode, Run, read_run
from coordinate_eval.coordinator.run.rounds import read_rounds
from coordinate_eval.coordinator.supervisor import decide_rounds
from coordinate_eval.coordinator.supervisor.loop import Supervisor

MISSING = "ModuleNotFoundError: No module named 'vllm'"
ELSEWHERE = "No other node is there to try"


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A planned run that asks for one node at a time."""
    made = RunDir(tmp_path / "run")
    settings: dict[str, Any] = {"supervisor": {"poll_seconds": 0.001}, "nodes": "1"}
    settings |= {"priors_dir": str(tmp_path / "priors"), "cache_dir": str(tmp_path / "cache")}
    run = make_run(folder=str(tmp_path), settings=settings)
    _files.write_record(made.run, run)
    _files.write_record(made.plan, planned())
    monkeypatch.setattr(decide_rounds, "ROUND_PAUSE_SECONDS", 0.0)
    return made


def rounds(run_dir: RunDir) -> list[list[str]]:
    """The nodes of each round."""
    return [[node.name for node in each.nodes] for each in read_rounds(run_dir)]


def supervise(run_dir: RunDir, cluster: Failing) -> tuple[str, list[str]]:
    """Why the run ends, and what the user is told."""
    told: list[str] = []
    results = Supervisor(run_dir, cluster, tell=told.append).run()
    assert results is not None
    return results["reason"], told


def change(run_dir: RunDir, **settings: Any) -> None:
    run = read_run(run_dir)
    _files.write_record(run_dir.run, run.model_copy(update={"settings": _with(run, settings)}))


def _with(run: Run, settings: dict[str, Any]) -> Settings:
    return changed(run.settings, **settings)


def test_another_node_is_tried_before_the_end(run_dir: RunDir) -> None:
    cluster = Failing(run_dir, "engine start", MISSING)
    why, told = supervise(run_dir, cluster)
    assert sorted(rounds(run_dir)) == [["n1"], ["n2"]]
    assert "Import Error" in why
    assert ELSEWHERE not in why
    (first,) = rounds(run_dir)[0]
    assert [event for event in told if event.startswith(f"{first} is avoided until ")]
    settings = read_run(run_dir).settings
    assert not read_avoided(settings, time.time()), "both nodes say so: none is at fault"


def test_where_there_is_one_node_the_run_ends_soon_with_words(run_dir: RunDir) -> None:
    cluster = Failing(run_dir, "engine start", MISSING)
    cluster.free = NODES[:1]
    why, _ = supervise(run_dir, cluster)
    assert rounds(run_dir) == [["n1"]]
    assert "Import Error" in why
    assert why.endswith(ELSEWHERE)


@pytest.mark.parametrize("what", ["another type", "excluded", "drained", "not named"])
def test_a_node_that_the_run_can_never_have_is_no_other_node(run_dir: RunDir, what: str) -> None:
    cluster = Failing(run_dir, "engine start", MISSING)
    if what == "another type":
        cluster.free = [NODES[0], NODES[1].model_copy(update={"gpu_type": "v100"})]
        cluster.busy = [Busy(name="n3", why="8 of 8 GPUs in use", gpu_type="v100")]
    elif what == "excluded":
        cluster.free, cluster.busy = NODES[:1], [Busy(name="n2", why="", excluded=True)]
    elif what == "drained":
        cluster.free, cluster.busy = NODES[:1], [Busy(name="n2", why="drained", away=True)]
    else:
        change(run_dir, nodes="n1")
    why, _ = supervise(run_dir, cluster)
    assert rounds(run_dir) == [["n1"]]
    assert why.endswith(ELSEWHERE)


def test_the_other_node_is_tried_where_both_are_named(run_dir: RunDir) -> None:
    change(run_dir, nodes="n1,n2", max_gpus=8)
    supervise(run_dir, Failing(run_dir, "engine start", MISSING))
    assert sorted(rounds(run_dir)) == [["n1"], ["n2"]]


def test_a_node_in_use_is_waited_for_and_status_names_the_one_that_failed(
    run_dir: RunDir, on_cluster: OnCluster
) -> None:
    cluster = Failing(run_dir, "engine start", MISSING)
    cluster.free, cluster.busy = NODES[:1], [Busy(name="n2", why="8 of 8 GPUs in use")]
    told: list[str] = []

    def tell_user(event: str) -> None:
        told.append(event)
        if event.startswith("no round can start now"):
            raise Enough

    with pytest.raises(Enough):
        Supervisor(run_dir, cluster, tell=tell_user).run()
    assert rounds(run_dir) == [["n1"]]
    run = read_run(run_dir)
    on_cluster(Scheduler([SUPERVISOR]))
    (said,) = describe(run_dir, run, run.settings, 0, "")["avoided"]
    assert re.fullmatch(
        r"n1 is avoided until [-0-9: ]+: a job died of Import Error \(n1-\d of this run\)", said
    )


@pytest.fixture
def seen(tmp_path: Path) -> RunDir:
    """A round of three nodes, of which nothing is known yet."""
    made = RunDir(tmp_path / "run")
    nodes = [RoundNode(name=f"n{number}", gpu_type="h200", trials=2) for number in (1, 2, 3)]
    _files.write_record(made.round(0), Round(number=0, created=0, nodes=nodes, minutes=9))
    return made


def suspected(run_dir: RunDir, later: float = 0.0) -> list[str]:
    return sorted(suspected_nodes(run_dir, time.time() + later))


def test_a_node_is_suspected_for_a_while_and_until_one_has_answered(seen: RunDir) -> None:
    tell(seen, "n1-0", 0, state="failed", cause="engine start")
    assert suspected(seen) == ["n1"]
    assert suspected(seen, later=3600.0) == []
    tell(seen, "n2-0", 0, state="failed", cause="node")
    assert suspected(seen) == ["n1", "n2"]
    tell(seen, "n3-0", 0, state="failed", cause="engine start")
    assert suspected(seen) == ["n2"], "engines start nowhere"
    tell(seen, "n3-1", 1)
    assert suspected(seen) == []


def test_what_less_load_mends_is_no_nodes_fault(seen: RunDir) -> None:
    tell(seen, "n1-0", 0, state="failed", cause="out of memory")
    ended(seen, "n2-0", End.OUT_OF_MEMORY)
    assert suspected(seen) == []
    ended(seen, "n3-0", "hung")
    assert suspected(seen) == ["n3"]


def test_a_checkpoint_that_does_not_load_is_no_nodes_fault(seen: RunDir) -> None:
    fields: dict[str, Any] = {"said": "engine start", "category": "framework", "time": time.time()}
    loading = incident("n1-0", reason="Model Loading Error", **fields)
    write_incident(seen, loading)
    assert suspected(seen) == []
    write_incident(seen, incident("n2-0", "n2", **fields))
    assert suspected(seen) == ["n2"]


def test_a_suspected_node_is_used_last_of_all() -> None:
    def left(avoided_ones: str, suspected_ones: str, **settings: Any) -> list[str]:
        usual, here = avoided(*avoided_ones.split()), avoided(*suspected_ones.split())
        free, _ = without_avoided(
            NODES, [], Settings.model_validate(settings, extra="forbid"), usual, here
        )
        return [node.name for node in free]

    assert left("", "n1") == ["n2"]
    assert left("n2", "n1") == ["n2"], "better one that is avoided than one that failed this run"
    assert left("", "n1 n2") == ["n1", "n2"]
    assert left("n2", "n1", nodes="n1,n2") == ["n2"]
    assert left("", "n1", nodes="n1") == ["n1", "n2"]
