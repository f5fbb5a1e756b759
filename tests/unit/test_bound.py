"""The lower bound against the best of all schedules of small instances, metrics included."""

import random
import statistics
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import search
from tests.plan_examples import capacity_of, plan_of
from tests.random_examples import examples
from tests.search import Answered, Dataset

from coordinate_eval.coordinator.planning.lower_bound import lower_bound
from coordinate_eval.coordinator.planning.plan import Cost

LOOSE = 1.08
"""Estimate over bound from which on one of them is looked at."""

DATASETS = st.lists(
    st.builds(
        Dataset,
        items=st.integers(1, 3),
        gpu=st.floats(1, 10),
        metric=st.one_of(st.just(0.0), st.floats(0, 40)),
        overhead=st.sampled_from([0.0, 0.5, 3.0]),
        floor=st.sampled_from([0.0, 4.0, 12.0]),
        splittable=st.booleans(),
        score=st.just(0.0),
    ),
    min_size=1,
    max_size=4,
)

SCORED = st.lists(
    st.builds(
        Dataset,
        items=st.integers(1, 2),
        gpu=st.floats(1, 10),
        metric=st.sampled_from([0.0, 5.0]),
        overhead=st.sampled_from([0.0, 0.5]),
        floor=st.sampled_from([0.0, 12.0]),
        splittable=st.booleans(),
        score=st.one_of(st.just(0.0), st.floats(0.1, 20)),
    ),
    min_size=1,
    max_size=3,
)

READY = st.lists(st.sampled_from([1.0, 1.5, 6.0]), min_size=1, max_size=3)


def costs_of(datasets: Sequence[Dataset]) -> list[Cost]:
    return [
        Cost(
            name=f"d{number}",
            items=each.items,
            gpu_seconds=each.gpu,
            metric_cpu_seconds=each.metric,
            chunk_overhead_seconds=each.overhead,
            floor_seconds=each.floor,
            splittable=each.splittable,
            score_seconds=each.score,
        )
        for number, each in enumerate(datasets)
    ]


@given(st.one_of(DATASETS, SCORED), READY, st.integers(1, 2))
@examples(150)
def test_no_schedule_at_all_beats_the_bound(
    datasets: list[Dataset], ready: list[float], cpus: int
) -> None:
    best = search.least_makespan(datasets, ready, cpus)
    bound = lower_bound(costs_of(datasets), min(ready), len(ready), cpus)
    assert bound <= best * (1 + 1e-9)


@given(DATASETS, st.integers(1, 3), st.integers(1, 2))
@examples(100)
def test_no_plan_beats_the_best_schedule(datasets: list[Dataset], trials: int, cpus: int) -> None:
    best = search.least_makespan(datasets, [0.0] * trials, cpus)
    made = plan_of(costs_of(datasets), capacity_of(trials, gigabits=1e12, cpus=cpus))
    assert made.estimate.makespan_seconds >= best * (1 - 1e-9)


ANSWERED = st.lists(
    st.builds(Answered, st.sampled_from([0.0, 1.0, 2.5, 7.0]), st.floats(0, 9)),
    max_size=4,
)


@given(ANSWERED, st.integers(1, 3))
@examples(60)
def test_the_search_leaves_out_no_better_way_to_run_metrics(
    done: list[Answered], cpus: int
) -> None:
    best = min(search.every_metric_plan(done, cpus), default=0.0)
    assert search.metrics_end(done, cpus) == pytest.approx(best)


def test_a_search_by_hand() -> None:
    # One trial: 4 s of answers in halves, then 6 s; a metric of 5 s follows each half.
    metric = Dataset(items=2, gpu=4, metric=10, overhead=1)
    plain = Dataset(items=1, gpu=6)
    # 2 s, then metrics from 2 to 7 and from 7 to 12; the trial ends at 2 + 3 + 6.
    assert search.least_makespan([metric, plain], [0.0], 1) == pytest.approx(12)
    # A floor after everything else would put off the end.
    floor = Dataset(items=1, gpu=1, floor=9)
    assert search.least_makespan([plain, floor], [0.0], 1) == pytest.approx(9)
    assert search.least_makespan([plain, floor], [0.0, 4.0], 1) == pytest.approx(9)


def test_what_no_trial_can_begin_with_is_in_the_bound() -> None:
    # Whichever of two comes last on the only trial, something of its floor or metric follows.
    long_items = [Dataset(items=3, gpu=6, floor=12), Dataset(items=1, gpu=4, floor=12)]
    assert lower_bound(costs_of(long_items), 0.0, 1, 1) == pytest.approx(16)
    metrics = [Dataset(items=1, gpu=10, metric=4), Dataset(items=1, gpu=9, metric=3)]
    assert lower_bound(costs_of(metrics), 0.0, 1, 1) == pytest.approx(22)


def test_scoring_follows_what_it_waits_for_in_the_bound() -> None:
    # Either of two scorings is last: that of 3 s follows all 10 s of answers.
    scored = [Dataset(items=1, gpu=6, score=5), Dataset(items=1, gpu=4, score=3)]
    assert lower_bound(costs_of(scored), 0.0, 1, 1) == pytest.approx(13)
    assert search.least_makespan(scored, [0.0], 1) == pytest.approx(14)
    # On one core, all metrics and scorings follow the first response.
    metrics = [Dataset(items=1, gpu=2, metric=6, score=4), Dataset(items=1, gpu=2, metric=6)]
    assert lower_bound(costs_of(metrics), 0.0, 2, 1) == pytest.approx(18)
    # On two cores, the metrics take 6 s; the scoring follows its own.
    assert lower_bound(costs_of(metrics), 0.0, 2, 2) == pytest.approx(10)


def test_small_plans_and_bounds_are_near_the_best_schedule() -> None:
    """The search says which is loose where a plan is far above its bound."""
    plans, bounds, loose = [], [], []
    for seed in range(80):
        rng = random.Random(seed)
        datasets, trials, cpus = drawn(rng), rng.randint(1, 3), rng.randint(1, 2)
        best = search.least_makespan(datasets, [0.0] * trials, cpus)
        made = plan_of(costs_of(datasets), capacity_of(trials, gigabits=1e12, cpus=cpus))
        plans.append(made.estimate.makespan_seconds / best)
        bounds.append(best / made.estimate.lower_bound_seconds)
        if plans[-1] * bounds[-1] > LOOSE:
            loose.append(f"{seed}: plan {plans[-1]:.2f} × best, best {bounds[-1]:.2f} × bound")
    said = "\n".join(loose)
    assert statistics.median(plans) <= 1.001, said
    assert statistics.median(bounds) <= 1.001, said
    assert max(plans) <= 1.2, said
    assert max(bounds) <= 1.25, said
    assert len(loose) <= 8, said


def drawn(rng: random.Random) -> list[Dataset]:
    """Two to four datasets of whose seconds a cut costs a part, as real ones do."""
    return [
        Dataset(
            items=rng.randint(1, 4),
            gpu=rng.uniform(1, 10),
            metric=rng.choice((0.0, 0.0, rng.uniform(0, 30))),
            overhead=rng.choice((0.0, 0.1, 0.5)),
            floor=rng.choice((0.0, 0.0, 4.0, 12.0)),
            splittable=rng.random() < 0.7,
        )
        for _ in range(rng.randint(2, 4))
    ]
