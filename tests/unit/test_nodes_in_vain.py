"""A node on which no trial began the last time is asked for again only if there is no other."""

from pathlib import Path

import pytest
from tests.decisions import make_run, shards
from tests.plan_examples import planned

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import Node
from coordinate_eval.coordinator.incidents.remedies import count_idle_rounds
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run.jobs import trial_id
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import (
    ANY_NODE,
    Round,
    RoundNode,
    StageProgress,
    TrialProgress,
)
from coordinate_eval.coordinator.run.rounds import UNAVAILABLE_SECONDS, nodes_in_vain
from coordinate_eval.coordinator.supervisor.placing.search import next_round


def places(**gpus: int) -> list[Node]:
    return [
        Node(name=name, gpus=8, free_gpus=free, gpu_type="h200", cpus=128, memory_gib=1000)
        for name, free in gpus.items()
    ]


def asked(
    free: list[Node], vain: set[str], *, queue: bool = False, **settings: object
) -> list[str]:
    run, left = (
        make_run(settings=Settings.model_validate(settings, extra="forbid")),
        shards(*[1.0] * 20),
    )
    made = next_round(run, planned(), [], left, (free, []), 0, trials=4, vain=vain, queue=queue)
    return [node.name for node in made.nodes]


def test_another_node_is_taken_though_it_has_less_room() -> None:
    assert asked(places(n1=8, n2=4), set()) == ["n1"]
    assert asked(places(n1=8, n2=4), {"n1"}) == ["n2"]
    assert asked(places(n1=8, n2=2), {"n1"}) == ["n2"]


def test_the_same_node_is_taken_if_there_is_no_other() -> None:
    assert asked(places(n1=8, n2=0), {"n1"}) == ["n1"]
    assert asked(places(n1=8, n2=8), {"n1"}, nodes="n1") == ["n1"]
    assert asked(places(n1=8, n2=4), {"n1", "n2"}) == ["n1"]


def test_a_run_that_may_queue_keeps_its_place_rather_than_ask_for_the_same_node() -> None:
    assert asked(places(n1=8), {"n1"}, queue=True) == [ANY_NODE]
    assert asked(places(n1=8, n2=0), {"n1"}, queue=True) == [ANY_NODE]
    assert asked(places(n1=8, n2=4), {"n1"}, queue=True) == ["n2"]
    assert asked(places(n1=8), set(), queue=True) == ["n1"]


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path)


def make_round(run_dir: RunDir, number: int, created: float, *names: str) -> None:
    nodes = [RoundNode(name=name, gpu_type="h200", trials=2) for name in names]
    made = Round(number=number, created=created, nodes=nodes, minutes=30)
    _files.write_record(run_dir.round(number), made)


def begin(run_dir: RunDir, number: int, node: str) -> None:
    """Have the second trial of a node begin."""
    name = trial_id(node, 1, number)
    values = {"trial": name, "task": "7_1", "node": node, "state": "staging"}
    found = TrialProgress.model_validate(values | {"started": 0, "updated": 0})
    _files.write_record(run_dir.trial(name), found)


def test_the_last_round_of_each_node_counts(run_dir: RunDir) -> None:
    make_round(run_dir, 0, 100, "n1", "n2", "n3")
    begin(run_dir, 0, "n1")
    assert nodes_in_vain(run_dir, 0) == {"n2", "n3"}
    make_round(run_dir, 1, 200, "n1", "n2")
    begin(run_dir, 1, "n2")
    assert nodes_in_vain(run_dir, 0) == {"n1", "n3"}
    assert nodes_in_vain(run_dir, 150) == {"n1"}


@pytest.mark.parametrize(
    ("seconds", "copied", "counts"),
    [
        (UNAVAILABLE_SECONDS - 1, False, True),
        (UNAVAILABLE_SECONDS, False, False),
        (UNAVAILABLE_SECONDS, True, True),  # its keeper failed
    ],
)
def test_a_round_that_waited_for_a_node_which_went_down_does_not_count(
    run_dir: RunDir, seconds: float, *, copied: bool, counts: bool
) -> None:
    make_round(run_dir, 0, 100, "n1")
    if copied:
        stage = StageProgress(state="failed", done_bytes=0, total_bytes=1, started=0, updated=0)
        _files.write_record(run_dir.stage(0, "n1"), stage)
    found = [Round(number=0, created=100, nodes=[RoundNode(name="n1", gpu_type="", trials=1)],
                   minutes=30)]  # fmt: skip
    idle = count_idle_rounds(run_dir, make_run(), found, 100 + seconds)
    assert idle.rounds == counts
