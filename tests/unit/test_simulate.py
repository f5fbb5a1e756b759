"""The simulated plan, and the time that one job per dataset would take."""

from dataclasses import replace

import pytest

from coordinate_eval.coordinator.display.summary import (
    JobConditions,
    longest_first,
    one_job_each,
)
from coordinate_eval.coordinator.planning.plan import (
    Cost,
    Estimate,
    MetricJob,
    Plan,
    PlanCheckpoint,
    PlanEngine,
    PlanNode,
    PlanSuite,
    PlanTrial,
)
from coordinate_eval.coordinator.planning.simulate import JobBar, Timeline, simulate
from coordinate_eval.records import Shard


def shard(dataset: str, start: int, stop: int, seconds: float) -> Shard:
    return Shard(dataset=dataset, start=start, stop=stop, gpu_seconds=seconds, metric_cpu_seconds=0)


def by_hand(metric_jobs: list[MetricJob]) -> Plan:
    """Two trials, ready after 2 + 3 seconds; `tail` takes 20 s for its longest item."""
    shards = [
        [shard("tail", 0, 5, 4), shard("code", 0, 4, 6)],
        [shard("code", 4, 10, 9)],
    ]
    return Plan(
        checkpoint=PlanCheckpoint(path="/c", identity="i", bytes=1, parameters=1),
        suite=PlanSuite(name="s", digest="d"),
        engine=PlanEngine(name="vllm", args={}),
        gpus_per_trial=1,
        datasets=[
            Cost(name="tail", items=5, gpu_seconds=4, floor_seconds=20),
            Cost(name="code", items=10, gpu_seconds=15, metric_cpu_seconds=30),
        ],
        nodes=[PlanNode(name="n", gpus=2, gpu_type="")],
        stages=[],
        trials=[
            PlanTrial(id=f"n-{i}", node="n", gpus=1, start_seconds=2, setup_seconds=3, shards=mine)
            for i, mine in enumerate(shards)
        ],
        metric_jobs=metric_jobs,
        estimate=Estimate(
            makespan_seconds=0, lower_bound_seconds=0, gpu_idle_fraction=0, gpu_hours=0
        ),
    )


def simulated(plan: Plan, metric_cpus: int) -> Timeline:
    return simulate(plan.datasets, plan.trials, plan.metric_jobs, plan.score_jobs, metric_cpus)


def test_shards_follow_one_another_and_a_long_item_ends_later() -> None:
    drawn = simulated(by_hand([]), 1)
    first, second = drawn.trials
    assert first.ready == 5
    assert [(b.begin, b.end, b.complete) for b in first.shards] == [(5, 9, 25), (9, 15, 15)]
    assert (first.idle_from, first.end) == (15, 25)
    assert [(b.begin, b.end, b.complete) for b in second.shards] == [(5, 14, 14)]
    assert (drawn.gpus_end, drawn.end) == (25, 25)


def test_metric_jobs_begin_in_the_order_listed_as_cores_allow() -> None:
    late = MetricJob(dataset="code", start=0, stop=10, cpus=2, seconds=15)  # both shards: 15
    wide = MetricJob(dataset="code", start=4, stop=10, cpus=3, seconds=6)  # from 14 on
    small = MetricJob(dataset="code", start=4, stop=10, cpus=1, seconds=7)  # from 14 on
    drawn = simulated(by_hand([late, wide, small]), 3)
    # At 14 only `wide` and `small` may begin, and `wide` leaves no core.
    assert drawn.metrics == [
        JobBar(late, 20, 35),
        JobBar(wide, 14, 20),
        JobBar(small, 20, 27),
    ]
    assert drawn.end == 35
    assert [tuple(step) for step in drawn.cores()] == [(0, 0), (14, 3), (20, 3), (27, 2), (35, 0)]


def test_what_can_never_run_is_said() -> None:
    wide = MetricJob(dataset="code", start=0, stop=4, cpus=4, seconds=1)
    with pytest.raises(ValueError, match="more than 3 cores"):
        simulated(by_hand([wide]), 3)
    for nowhere in (("code", 10, 12), ("code", 9, 11), ("other", 0, 1)):
        name, start, stop = nowhere
        job = MetricJob(dataset=name, start=start, stop=stop, cpus=1, seconds=1)
        with pytest.raises(ValueError, match="no shard has"):
            simulated(by_hand([job]), 3)


def test_one_job_each_by_hand() -> None:
    costs = [
        Cost(name="a", items=10, gpu_seconds=10),
        Cost(name="b", items=10, gpu_seconds=20, metric_cpu_seconds=40),
        Cost(name="c", items=2, gpu_seconds=5, floor_seconds=30),
    ]
    one_node = JobConditions(slots=[2], load_seconds=4, engine_start_seconds=1, cores=4)
    # a and b share the link: both loaded at 8; a ends at 19, c loads alone until 23 and ends at
    # 54; b ends at 8 + 1 + 20 + 10.
    assert one_job_each(costs, one_node) == pytest.approx(54)
    # c (30) and b (30) first, loaded at 8: both end at 39; a ends at 39 + 4 + 1 + 10.
    assert [c.name for c in longest_first(costs, 4)] == ["b", "c", "a"]
    assert one_job_each(longest_first(costs, 4), one_node) == pytest.approx(54)
    # A load that fills half of the link: two take no longer than one. a and b end at 15 and 35,
    # c ends at 15 + 4 + 1 + 30.
    wide = replace(one_node, link_seconds=2)
    assert one_job_each(costs, wide) == pytest.approx(50)
    assert one_job_each(costs, replace(one_node, link_seconds=4)) == pytest.approx(54)
    # Nodes of their own: nobody shares a link.
    apart = JobConditions(slots=[1, 1, 1], load_seconds=4, engine_start_seconds=1, cores=4)
    assert one_job_each(costs, apart) == pytest.approx(35)
