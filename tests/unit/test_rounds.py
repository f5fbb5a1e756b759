"""The time limit of a round, the first and any later one."""

import heapq
import random
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
from tests.decisions import make_run, nodes, shards
from tests.plan_examples import planned

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import JobLimits, Node, Window
from coordinate_eval.coordinator.incidents.remedies import count_short_rounds
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Round, RoundNode, TrialProgress
from coordinate_eval.coordinator.run.rounds import make_round
from coordinate_eval.coordinator.supervisor.placing.search import next_round
from coordinate_eval.errors import UserError

FACTOR = jobs.TIME_LIMIT_FACTOR


def seconds(made: Round) -> float:
    """The predicted seconds that the limit stands for, up to a minute more."""
    return made.minutes * 60 / FACTOR


def free(count: int, gpus: int = 8, gpu_type: str = "h200") -> list[Node]:
    return [
        Node(
            name=f"n{i}",
            gpus=gpus,
            free_gpus=gpus,
            gpu_type=gpu_type,
            cpus=128,
            memory_gib=1000,
        )
        for i in range(count)
    ]


def test_a_limit_is_for_a_trials_part_of_the_work() -> None:
    run = make_run()
    made = make_round(run, 1, 0, nodes(8), shards(*[60.0] * 80), ready_seconds=60, floor_seconds={})
    # Eighty minutes on eight trials, ten each, and the engine's start.
    assert made.minutes == FACTOR * (10 + 1)


def test_a_limit_is_doubled_after_each_round_without_a_response() -> None:
    settings = {"trial": {"max_minutes": 50}}
    run = make_run(settings=Settings.model_validate(settings))
    minutes = [
        next_round(run, planned(), [], shards(1.0), (free(1), []), 0, idle, trials=8).minutes
        for idle in range(4)
    ]
    assert minutes == [15, 30, 50, 50]


@pytest.mark.parametrize(("word", "short"), [("failed", 0), ("ended", 1), ("starting", 1)])
def test_only_rounds_without_an_error_were_perhaps_too_short(
    tmp_path: Path, word: str, short: int
) -> None:
    run_dir, now = RunDir(tmp_path), time.time()
    trial = TrialProgress.model_validate(
        {"trial": "n1-0", "task": "1_0.0", "node": "n1", "state": word, "started": 0, "updated": 0}
    )
    _files.write_record(run_dir.trial("n1-0"), trial)
    only = Round(number=0, created=now - 60, nodes=nodes(1), minutes=15)
    assert count_short_rounds(run_dir, make_run(), [only], now) == short
    assert count_short_rounds(run_dir, make_run(), [], now) == 0


def test_a_limit_covers_the_longest_item() -> None:
    run = make_run()
    made = make_round(
        run, 1, 0, nodes(8), shards(60.0), ready_seconds=0, floor_seconds={"a": 600, "b": 6000}
    )
    assert seconds(made) >= 600
    assert made.minutes < FACTOR * 6000 / 60


@pytest.mark.parametrize("seed", range(20))
def test_trials_that_take_the_next_free_shard_end_in_time(seed: int) -> None:
    dice = random.Random(seed)
    trials = dice.randint(1, 16)
    work = shards(*(dice.choice([1.0, 10.0, 300.0]) for _ in range(dice.randint(1, 60))))
    floor = dice.choice([0.0, 100.0, 900.0])
    made = make_round(
        make_run(), 0, 0, nodes(trials), work,
        ready_seconds=50, floor_seconds={"a": floor},
    )  # fmt: skip
    begins = [50.0] * trials
    last = 0.0
    for shard in work:
        begin = heapq.heappop(begins)
        heapq.heappush(begins, begin + shard.gpu_seconds)
        last = max(last, begin + max(shard.gpu_seconds, floor))
    assert made.minutes * 60 >= last


def test_the_first_round_has_time_for_its_plan() -> None:
    run = make_run()
    plan = planned()
    work = [shard for trial in plan.trials for shard in trial.shards]
    for makespan in (plan.estimate.makespan_seconds, 5000.0):
        made = make_round(
            run, 0, 0, nodes(8), work,
            ready_seconds=plan.ready_seconds, floor_seconds=plan.floor_seconds,
            planned_seconds=makespan,
        )  # fmt: skip
        assert seconds(made) >= makespan
    # Nor much more: a scheduler that fills gaps wants short jobs.
    makespan = plan.estimate.makespan_seconds
    made = make_round(
        run, 0, 0, nodes(8), work,
        ready_seconds=plan.ready_seconds, floor_seconds=plan.floor_seconds,
    )  # fmt: skip
    assert seconds(made) < makespan + 60


def test_a_second_round_asks_for_no_more_than_the_first() -> None:
    run = make_run()
    plan = planned()
    work = [shard for trial in plan.trials for shard in trial.shards]
    first = make_round(
        run, 0, 0, [RoundNode(name=n.name, gpu_type="h200", trials=4) for n in plan.nodes], work,
        ready_seconds=plan.ready_seconds, floor_seconds=plan.floor_seconds,
        planned_seconds=plan.estimate.makespan_seconds,
    )  # fmt: skip
    second = next_round(run, plan, [first], work, (free(2, gpus=4), []), 7.0, trials=8)
    assert (second.number, second.created) == (1, 7.0)
    assert [n.trials for n in second.nodes] == [4, 4]
    assert second.minutes <= first.minutes
    assert (
        next_round(run, plan, [first], work[:3], (free(2), []), 7.0, trials=8).minutes
        <= second.minutes
    )


def test_limits_stay_within_the_settings() -> None:
    run = make_run()
    most = run.settings.trial.max_minutes
    for each, minutes in ((1.0, jobs.LEAST_MINUTES), (1e6, most)):
        made = make_round(run, 0, 0, nodes(1), shards(each), ready_seconds=0, floor_seconds={})
        assert made.minutes == minutes


def asked(
    places: list[Node],
    trials: int,
    *,
    held: set[str] | None = None,
    left: int = 20,
    **limits: object,
) -> dict[str, int]:
    """Trials by node of a round, of a run with these limits that holds trials on some nodes."""
    run = make_run(settings=Settings.model_validate(limits, extra="forbid"))
    plan, work = planned(), shards(*[1.0] * left)
    made = next_round(run, plan, [], work, (places, []), 0, trials=trials, held=held or set())
    return {node.name: node.trials for node in made.nodes}


def test_a_later_round_takes_no_more_trials_than_are_missing_nor_than_shards() -> None:
    assert asked(free(4), 9) == {"n0": 8, "n1": 1}
    assert asked(free(4), 9, left=2) == {"n0": 2}
    assert asked(free(9, gpus=1), 3) == {"n0": 1, "n1": 1, "n2": 1}


def test_a_round_beside_others_stays_within_the_limits_of_the_run() -> None:
    places = free(4, gpus=2)
    assert asked(places, 3, held={"n3"}) == {"n3": 2, "n0": 1}
    assert asked(places, 6, held={"n3", "x"}, nodes="3") == {"n3": 2}
    assert asked(places, 6, held={"n3", "x"}, nodes="2") == {"n3": 2}
    assert asked(places, 6, held={"x"}, nodes="2") == {"n0": 2}
    assert asked(places, 6, held={"n0"}, nodes="n[0-1]") == {"n0": 2, "n1": 2}
    with pytest.raises(UserError):
        asked(places, 6, held={"x", "y"}, nodes="2")


def test_a_limit_counts_the_trials_of_other_rounds() -> None:
    run = make_run()
    alone, beside = (
        make_round(
            run, 1, 0, nodes(1), shards(*[60.0] * 80), ready_seconds=60, floor_seconds={}, beside=n
        )
        for n in (0, 7)
    )
    assert (alone.minutes, beside.minutes) == (FACTOR * (80 + 1), FACTOR * (10 + 1))


@pytest.mark.parametrize(("minutes", "waits"), [(5, True), (60, False), (-5, False)])
def test_no_round_begins_just_before_a_maintenance_of_all_nodes(
    minutes: float, *, waits: bool
) -> None:
    """Its jobs would wait in the queue until that is over."""
    window = Window(start=1000 + 60 * minutes, why="reservation maint")
    run = make_run(limits=JobLimits(gpu_window=window))
    with pytest.raises(UserError, match="maint") if waits else nullcontext():
        next_round(run, planned(), [], shards(1.0), (free(1), []), 1000, trials=8)


def test_a_run_stays_with_one_type_of_gpu() -> None:
    other = free(1, gpu_type="a100")
    for kind in ("h200", ""):
        run = make_run(gpu_type=kind)
        with pytest.raises(UserError):
            next_round(run, planned(), [], shards(1.0), (other, []), 0, trials=8)
        both = [*other, *free(1, gpu_type=kind)]
        made = next_round(run, planned(), [], shards(1.0), (both, []), 0, trials=8)
        (node,) = made.nodes
        assert node.gpu_type == kind
