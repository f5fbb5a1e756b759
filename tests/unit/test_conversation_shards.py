"""Conversations in a shard: none is published half, and none is held twice."""

from pathlib import Path

import pytest
from tests.run_dirs import write_requests

from coordinate_eval import _files
from coordinate_eval.coordinator.run.claiming.claims import Ledger
from coordinate_eval.coordinator.run.measurements import ShardDone, read_lines
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.workers.next_shards import TimeLeft
from coordinate_eval.coordinator.workers.open_shards import OpenShards
from coordinate_eval.errors import EngineError
from coordinate_eval.evaluators.engines.simulated import SimulatedEngine, answer
from coordinate_eval.records import (
    ItemRequests,
    Request,
    RequestKind,
    Response,
    Shard,
)

SHARD = Shard(dataset="talk", start=0, stop=6, gpu_seconds=1, metric_cpu_seconds=0)


def ask(item: int) -> Request:
    return Request(
        dataset="talk", item=item, task="talk", doc=item, prompt_hash=f"{item}",
        kind=RequestKind.GENERATE, tokens=[1, item], max_tokens=8,
        follow_ups=[[5, 6]] * (item % 3),
    )  # fmt: skip


REQUESTS = list(map(ask, range(SHARD.stop)))


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "run")
    lines = [ItemRequests.of([request]).line() for request in REQUESTS]
    write_requests(made, "talk", lines, requests=12, generate_requests=12)
    return made


def published(run_dir: RunDir) -> list[Response]:
    path = run_dir.published("outputs", SHARD.span)
    return [Response.model_validate_json(line) for line in _files.whole_lines(path)]


@pytest.mark.parametrize("torn", [0, 1, 60])
def test_a_killed_trial_leaves_whole_conversations_to_the_next(run_dir: RunDir, torn: int) -> None:
    ledger = Ledger(run_dir, "outputs")
    attempt = ledger.claim(SHARD.span, "first", "1")
    assert attempt is not None
    first = OpenShards(run_dir, "first", TimeLeft(float("inf")))
    engine = SimulatedEngine(args={"fail_after": 3, "concurrency": 1})
    with pytest.raises(EngineError):
        for response in engine.run(iter(first.open(SHARD, attempt))):
            first.store(response, 1.0)
    part = run_dir.unpublished("outputs", SHARD.span, attempt)
    whole = part.read_bytes()
    if torn:  # killed while it wrote the line of the conversation with three turns
        part.write_bytes(whole[:-torn])
    ledger.revoke(SHARD.span, attempt, "died")

    again = ledger.claim(SHARD.span, "second", "2")
    assert again is not None
    second = OpenShards(run_dir, "second", TimeLeft(float("inf")))
    left = second.open(SHARD, again)
    assert left == REQUESTS[2 if torn else 3 :]
    for request in left:
        assert not published(run_dir)
        second.store(answer(request), 1.0)
    assert sorted(published(run_dir), key=lambda r: r.item) == list(map(answer, REQUESTS))
    second.check_none_left()
    (done,) = (
        line for line in read_lines(run_dir.observations("second")) if isinstance(line, ShardDone)
    )
    assert done.requests == sum(request.turns for request in left)
