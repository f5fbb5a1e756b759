"""Jobs stay within the time limits of a site, and a run within the jobs that it may have."""

from pathlib import Path

import pytest
from tests.decisions import make_run, nodes, shards
from tests.plans import CHECKPOINT, capacity
from tests.run_dirs import SHARDS, write_built

from coordinate_eval.clusters.protocol import JobLimits
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.planning import planner
from coordinate_eval.coordinator.planning.dealing.packing import Piece, cut
from coordinate_eval.coordinator.planning.plan import Cost, PlanEngine, PlanSuite
from coordinate_eval.coordinator.run.claiming.claims import Ledger
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.coordinator.run.rounds import make_round
from coordinate_eval.coordinator.workers import trial

SHORT = JobLimits(gpu_minutes=30, gpu_why="MaxTime of partition gpu", cpu_minutes=20)


def limited(limits: JobLimits = SHORT, **settings: object) -> Run:
    run = make_run(settings=Settings.model_validate(settings, extra="forbid"))
    return run.model_copy(update={"limits": limits})


def minutes(run: Run, work: float, now: float = 1000.0, short_rounds: int = 0) -> int:
    made = make_round(
        run, 0, now, nodes(1), shards(work), ready_seconds=60, floor_seconds={},
        short_rounds=short_rounds,
    )  # fmt: skip
    return made.minutes


def test_trials_ask_for_no_more_than_is_allowed() -> None:
    assert minutes(limited(), work=60) == 15
    assert minutes(limited(), work=1e6) == 30
    assert minutes(limited(), work=60, short_rounds=9) == 30
    assert minutes(limited(JobLimits(gpu_minutes=5)), work=60) == 5
    assert minutes(limited(trial={"max_minutes": 20}), work=1e6) == 20


def test_trials_end_when_all_jobs_have_to() -> None:
    until = JobLimits(gpu_minutes=30, until=1000.0 + 12.5 * 60, until_why="reservation night ends")
    assert minutes(limited(until), work=1e6) == 12
    assert minutes(limited(until), work=1e6, now=1e9) == 1


def cost(**values: object) -> Cost:
    whole = {"name": "a", "items": 100, "gpu_seconds": 7200.0, "metric_cpu_seconds": 0.0}
    return Cost.model_validate({**whole, "chunk_overhead_seconds": 1.0, **values}, extra="forbid")


def test_a_piece_is_cut_into_parts_that_a_job_has_time_for() -> None:
    whole = Piece(0, 10, 60)
    parts = list(cut(cost(), whole, 1000.0))
    assert [(part.start, part.stop) for part in parts] == [(10, 22), (22, 35), (35, 47), (47, 60)]
    assert list(cut(cost(), whole, None)) == [whole]
    assert list(cut(cost(splittable=False), whole, 1000.0)) == [whole]
    assert len(list(cut(cost(items=3), Piece(0, 0, 3), 1.0))) == 3


def test_a_plan_on_one_gpu_has_no_shard_that_is_too_long_for_its_job() -> None:
    suite, engine = PlanSuite(name="s", digest="d"), PlanEngine(name="vllm", args={})
    place = capacity(1, 1).model_copy(update={"longest_shard_seconds": 600.0})
    made = planner.plan_on_capacity(CHECKPOINT, suite, engine, [cost()], place)
    (queue,) = [trial.shards for trial in made.trials]
    assert max(shard.gpu_seconds for shard in queue) <= 600 + 72 + 1
    assert [shard.start for shard in queue[1:]] == [shard.stop for shard in queue[:-1]]
    assert sum(shard.stop - shard.start for shard in queue) == 100


@pytest.mark.usefixtures("no_weights")
def test_work_for_which_no_job_has_time_is_done_by_several(tmp_path: Path) -> None:
    """A job of one minute has no time for any shard: it begins one, and the next another."""
    run_dir = RunDir(tmp_path / "run")
    (tmp_path / "memory").mkdir()
    write_built(run_dir, {})
    outputs, spans = Ledger(run_dir, "outputs"), [shard.span for shard in SHARDS]
    for number in range(len(SHARDS)):
        left = len(outputs.unpublished(spans))
        trial.run_trial(run_dir, "n", number, 1)
        assert len(outputs.unpublished(spans)) == left - 1
    assert not outputs.unpublished(spans)
