"""Scoring jobs and the first signal: rough scores come first, and whatever they do is no harm."""

import errno
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.decisions import make_run
from tests.run_dirs import write_index

from coordinate_eval import _files
from coordinate_eval.coordinator.report import first_signal
from coordinate_eval.coordinator.run.claiming.work import request_indexes
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import read_run
from coordinate_eval.coordinator.workers.pull import pull
from coordinate_eval.coordinator.workers.scorer import ScoringJob
from coordinate_eval.evaluators.confined.run_files import AnswerFiles, ResponseFiles
from coordinate_eval.records import (
    Dataset,
    DatasetResults,
    Key,
    Question,
    Response,
    Shard,
)

SPANS = (("a", 0, 2, True), ("a", 2, 5, False), ("a", 5, 7, True), ("a", 7, 9, False))


class FakeEvaluator:
    """Counts items."""

    def __init__(self, part: Callable[[], None] = lambda: None) -> None:
        self._part = part
        self.parts = 0

    def questions(self, dataset: Dataset, responses: ResponseFiles) -> list[Question]:
        raise NotImplementedError

    def finish(
        self,
        dataset: Dataset,
        responses: ResponseFiles,
        answers: AnswerFiles,
        *,
        part: bool = False,
    ) -> DatasetResults:
        if part:
            self.parts += 1
            self._part()
        items = len({response.item for response in responses})
        metrics = {"acc,none": items / 10, "acc_stderr,none": 0.01}
        return DatasetResults(
            dataset=dataset.name, items=items, results={"a": metrics}, n_samples={"a": {}}
        )


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    """A run of datasets `a`, whose responses are all there, and `b`, which has failed."""
    made = RunDir(tmp_path)
    shards = [
        Shard(dataset=d, start=a, stop=b, gpu_seconds=1, metric_cpu_seconds=0, signal=s)
        for d, a, b, s in SPANS
    ]
    _files.write_record(made.run, make_run(folder=str(tmp_path), shards=shards))
    _files.write(made.dataset_error("b"), "no\n")
    write_index(made, "a", 9, versions={"a": "1"})
    for shard in shards:
        publish(made, shard)
    return made


def publish(run_dir: RunDir, shard: Shard) -> None:
    key = Key(dataset=shard.dataset, item=0, task="a", doc=0, prompt_hash="0").model_dump()
    lines = [
        Response(**key | {"item": n, "doc": n}, text="", tokens=1, finish="stop").line()
        for n in range(shard.start, shard.stop)
    ]
    _files.write(run_dir.published("outputs", shard.span), "".join(lines))


def scored(run_dir: RunDir, evaluator: FakeEvaluator) -> dict[str, Any]:
    """Run a scoring job to its end and return the first signal."""
    run = read_run(run_dir)
    job = ScoringJob(run_dir, run, evaluator, request_indexes(run_dir, run), math.inf)
    pull(run_dir, run, job, sleep=lambda _: time.sleep(0.01))
    assert _files.read_record(run_dir.dataset_results("a"), DatasetResults).items == 9
    signal = first_signal.collect(run_dir, read_run(run_dir))
    found: dict[str, Any] = signal.model_dump(mode="json", by_alias=True)
    assert found["complete"] is False
    return found


def test_the_slice_alone_makes_the_first_signal(run_dir: RunDir) -> None:
    for shard in read_run(run_dir).shards:
        if not shard.signal:
            run_dir.published("outputs", shard.span).unlink()

    def everything_else_comes() -> None:
        assert not run_dir.dataset_results("a").exists()
        for shard in read_run(run_dir).shards:
            publish(run_dir, shard)

    found = scored(run_dir, FakeEvaluator(everything_else_comes))
    assert found["datasets"]["a"]["items"] == 4
    assert found["datasets"]["a"]["of_items"] == 9
    assert found["datasets"]["a"]["estimates"]["a"]["acc,none"]["value"] == 0.4
    assert found["without"] == {"b": first_signal.NO_SLICE}
    assert found["pending"] == []


def test_what_cannot_be_scored_in_part_is_named_and_scored_whole(run_dir: RunDir) -> None:
    def fails() -> None:
        raise ZeroDivisionError("of a corpus")

    evaluator = FakeEvaluator(fails)
    found = scored(run_dir, evaluator)
    assert found["datasets"] == {}
    assert found["without"]["a"].endswith("ZeroDivisionError: of a corpus")
    assert evaluator.parts == 1


def test_storage_that_fails_for_a_while_costs_no_estimate(run_dir: RunDir) -> None:
    def fails_once() -> None:
        if evaluator.parts == 1:
            raise OSError(errno.ESTALE, "Stale file handle")

    evaluator = FakeEvaluator(fails_once)
    assert scored(run_dir, evaluator)["datasets"]["a"]["items"] == 4
    assert evaluator.parts == 2


def test_a_run_without_slices_has_no_first_signal(run_dir: RunDir) -> None:
    run = read_run(run_dir)
    plain = [shard.model_copy(update={"signal": False}) for shard in run.shards]
    _files.write_record(run_dir.run, run.model_copy(update={"shards": plain}))
    found = scored(run_dir, FakeEvaluator())
    assert (found["datasets"], found["pending"]) == ({}, [])
    assert not run_dir.estimates_folder.exists()
