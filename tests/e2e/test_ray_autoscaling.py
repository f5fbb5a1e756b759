"""A Ray cluster without GPUs: its autoscaler adds nodes for a run that waits, and removes them."""

from collections.abc import Iterator

import pytest
from tests.ray_servers import TYPE, Servers
from tests.runs import Workspace, scores, until
from tests.tiny import tiny_model

NODES = 2


@pytest.fixture
def servers() -> Iterator[Servers]:
    made = Servers()
    try:
        made.start_head(most_nodes=NODES)
        yield made
    finally:
        made.stop()


def test_nodes_come_for_a_run_that_waits_and_go(user: Workspace, servers: Servers) -> None:
    suite = user.suite("tiny_choice", "tiny_sums")
    asked = ("run", tiny_model(), "--suite", suite)
    user.call("prefetch", tiny_model(), "--suite", suite)
    caller = Workspace(user.folder)
    caller.environ |= servers.environ | {
        "COORDINATE_EVAL_CLUSTER": "ray",
        "COORDINATE_EVAL_RAY_ADDRESS": servers.address,
        "COORDINATE_EVAL_TRIAL_CPUS": "1",
    }
    run = caller.folder / "on nodes to come"
    of_run = (*asked, "--run-dir", run, "--queue")
    refused = caller.call(*of_run, status=2)
    assert "name their --gpu-type" in refused.stderr
    caller.call(*of_run, "--gpu-type", TYPE.lower(), "--max-gpus", str(NODES))
    assert scores(run)
    until(lambda: not servers.names(), "the end of nodes that nobody needs")
