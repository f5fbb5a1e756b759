"""Slurm keeps what every cluster promises."""

from collections.abc import Callable
from pathlib import Path

import pytest

from coordinate_eval.slurm.cluster import SlurmCluster
from tests.cluster_contract import PROMISES, Trial


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_it_keeps_what_every_cluster_promises(
    cluster: SlurmCluster, tmp_path: Path, promise: Callable[[Trial], None]
) -> None:
    promise(Trial(cluster, tmp_path))
