"""Faults in a real training of four ranks under a guard: it ends with the weights of one that
nobody disturbed, bit for bit, and loses no step that was saved.

`python -m tests.scripts.training_faults` runs as many seeded schedules as are wanted.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dev_cluster import DevCluster
from tests.drills import Drill, Fault
from tests.guarded import NODES, STEPS
from tests.runs import Workspace
from tests.slurm.clusters import cluster_of
from tests.tiny import need


@pytest.fixture(scope="module")
def nodes() -> Iterator[DevCluster]:
    need("torch", "transformers")
    with cluster_of(nodes=NODES, gpus=0, cpus=4) as cluster:
        yield cluster


def test_a_training_comes_to_its_end_through_faults(nodes: DevCluster, tmp_path: Path) -> None:
    faults = (
        "rank@110 guard@115 torn@120 hang@140 controller@150 preempt@170 node@200 full_disk@220 "
        "diverge@260 nan@340"
    )
    drill = Drill(nodes, Workspace(tmp_path))
    outcome = drill.run([Fault(*_kind_and_step(each)) for each in faults.split()])
    assert outcome.causes == [
        "Killed",
        "Killed",
        "hung",
        "preempted",
        "lost a node",
        "OS Error",
        "rolled back",
        "rolled back",
    ]
    # The last eight of nine.
    curves = rf"loss of steps \d+ to {STEPS}, logarithmic\nattempt 2 .*\nattempt 3 "
    assert re.search(curves, outcome.screen)
    assert re.search(r"attempt 2 from step-(50|100)\b", outcome.screen)


def _kind_and_step(text: str) -> tuple[str, int]:
    kind, _, step = text.partition("@")
    return kind, int(step)
