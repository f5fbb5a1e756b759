"""Nodes that failed a run are avoided by later rounds and runs, for a while."""

import os
import time
from pathlib import Path

import pytest
from tests.incidents import avoided, ended, tell

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import Busy, End, Node
from coordinate_eval.coordinator.incidents.bad_nodes import (
    LONGEST_SECONDS,
    Broken,
    avoid,
    avoided_folder,
    broken_nodes,
    read_avoided,
)
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.planning.places.asked_nodes import without_avoided
from coordinate_eval.coordinator.run.jobs import trial_id
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import ANY_NODE, Round, RoundNode

HOUR = 3600.0


def node(name: str) -> Node:
    return Node(name=name, gpus=8, free_gpus=8, gpu_type="h200", cpus=128, memory_gib=1000)


NODES = [node("n1"), node("n2"), node("n3")]


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "run")
    nodes = [RoundNode(name=each.name, gpu_type="h200", trials=2) for each in NODES]
    _files.write_record(made.round(0), Round(number=0, created=0, nodes=nodes, minutes=9))
    return made


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(cache_dir=str(tmp_path / "cache"))


def test_a_node_is_broken_only_if_others_are_not(run_dir: RunDir) -> None:
    tell(run_dir, "n1-0", 0, state="failed", cause="engine start")
    tell(run_dir, "n2-0", 0, state="failed", cause="engine start")
    assert broken_nodes(run_dir) == []
    tell(run_dir, "n2-0", 5)
    assert broken_nodes(run_dir) == [Broken("n1", "an engine did not start", "n1-0")]
    _files.write(run_dir.resumed, "")
    os.utime(run_dir.resumed, (time.time() + 1,) * 2)
    assert broken_nodes(run_dir) == []


def test_what_an_item_or_the_scheduler_does_is_no_nodes_fault(run_dir: RunDir) -> None:
    tell(run_dir, "n2-0", 5)
    tell(run_dir, "n1-0", 0, state="failed", cause="other")
    tell(run_dir, "n1-1", 0)
    for trial, how in (("n1-1", End.PREEMPTED), ("n3-0", End.CANCELLED), ("n3-1", End.UNKNOWN)):
        ended(run_dir, trial, how)
    assert broken_nodes(run_dir) == []


def test_a_node_that_answers_is_broken_if_it_hung_or_went_down(run_dir: RunDir) -> None:
    for trial in ("n1-0", "n2-0", "n3-0"):
        tell(run_dir, trial, 5)
    tell(run_dir, "n3-1", 0, state="failed", cause="node")
    assert broken_nodes(run_dir) == []
    ended(run_dir, "n1-1", "hung")
    ended(run_dir, "n2-1", End.NODE_FAILED)
    assert [(each.node, each.why) for each in broken_nodes(run_dir)] == [
        ("n1", "a trial hung"),
        ("n2", "the node went down"),
    ]


def test_what_hangs_on_several_nodes_that_answer_is_no_nodes_fault(run_dir: RunDir) -> None:
    tell(run_dir, "n1-0", 5)
    tell(run_dir, "n2-0", 5)
    ended(run_dir, "n1-1", "hung")
    ended(run_dir, "n2-1", "hung")
    ended(run_dir, "n3-0", "hung")
    assert [each.node for each in broken_nodes(run_dir)] == ["n3"]


def test_a_trial_that_stood_in_the_queue_is_laid_to_the_node_where_it_began(
    run_dir: RunDir,
) -> None:
    nodes = [RoundNode(name=ANY_NODE, gpu_type="h200", trials=2)]
    _files.write_record(run_dir.round(1), Round(number=1, created=0, nodes=nodes, minutes=9))
    first, second = (trial_id(ANY_NODE, index, 1) for index in range(2))
    tell(run_dir, first, 5, node="n2")
    tell(run_dir, second, 0, node="n1", state="failed", cause="engine start")
    assert [each.node for each in broken_nodes(run_dir)] == ["n1"]


def test_a_keeper_that_fails_counts(run_dir: RunDir) -> None:
    tell(run_dir, "n2-0", 5)
    ended(run_dir, "keeper-0-n1", "error", node="n1")
    (broken,) = broken_nodes(run_dir)
    assert (broken.node, broken.evidence) == ("n1", "keeper-0-n1")


def test_a_node_is_avoided_ever_longer_and_not_for_ever(settings: Settings) -> None:
    now = 1e6
    first = avoid(settings, "n1", "a trial hung", "r:n1-0", now)
    assert first is not None
    assert first.until == now + HOUR
    assert avoid(settings, "n1", "a trial hung", "r:n1-0", now + 60) is None, "the same"
    assert read_avoided(settings, now + HOUR - 1) == {"n1": first}
    assert read_avoided(settings, now + HOUR) == {}
    for number, hours in ((1, 2), (2, 4), (3, 8), (4, 16), (5, 24), (6, 24)):
        again = avoid(settings, "n1", "a trial hung", f"r:n1-{number}", now)
        assert again is not None
        assert (again.until - now) / HOUR == hours
    later = now + 3 * LONGEST_SECONDS
    forgiven = avoid(settings, "n1", "a trial hung", "s:n1-0", later)
    assert forgiven is not None
    assert forgiven.until == later + HOUR


def test_two_runs_that_tell_of_the_same_failures_again_and_again_add_nothing(
    settings: Settings,
) -> None:
    avoid(settings, "n1", "a trial hung", "a:n1-0", 0.0)
    last = avoid(settings, "n1", "a trial hung", "b:n1-0", 0.0)
    assert last is not None
    for evidence in ("a:n1-0", "b:n1-0") * 3:
        assert avoid(settings, "n1", "a trial hung", evidence, 30.0) is None
    assert read_avoided(settings, 30.0) == {"n1": last}


def test_files_that_cannot_be_used_are_passed_over(settings: Settings) -> None:
    avoid(settings, "n1", "it hung", "e", 0.0)
    folder = avoided_folder(settings)
    (folder / "n2.json").write_text("{torn")
    (folder / "n3.json").write_text((folder / "n1.json").read_text())
    assert read_avoided(settings, 1.0).keys() == {"n1"}
    assert folder.stat().st_mode & 0o077 == 0


def test_avoided_nodes_count_as_busy() -> None:
    free, busy = without_avoided(NODES, [], Settings(), avoided("n1", "gone"))
    assert [each.name for each in free] == ["n2", "n3"]
    (out,) = busy
    assert (out.name, out.excluded) == ("n1", False)
    assert (out.gpus, out.gpu_type) == (NODES[0].gpus, NODES[0].gpu_type)
    assert out.why.startswith("avoided until 20")
    assert out.why.endswith(": it hung")


def test_where_there_is_no_other_node_none_is_avoided() -> None:
    every = avoided("n1", "n2", "n3")
    assert without_avoided(NODES, [], Settings(), every) == (NODES, [])
    excluded = [Busy(name="n4", why="drained", excluded=True)]
    assert without_avoided(NODES, excluded, Settings(), every) == (NODES, excluded)
    drained = [Busy(name="n4", why="drained: fan", away=True)]
    assert without_avoided(NODES, drained, Settings(), every) == (NODES, drained)
    in_use = [Busy(name="n4", why="8 of 8 GPUs in use")]
    assert without_avoided(NODES, in_use, Settings(), every)[0] == []


def test_a_node_that_the_user_names_is_used() -> None:
    named = Settings(nodes="n[1-2]")
    assert without_avoided(NODES, [], named, avoided("n1")) == (NODES, [])
    assert [n.name for n in without_avoided(NODES, [], Settings(nodes="2"), avoided("n1"))[0]] == [
        "n2",
        "n3",
    ]
