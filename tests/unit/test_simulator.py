"""The benchmarks' simulator and the ways it compares, on cases computed by hand."""

import random

import pytest
from benchmarks import _instances, _partitioners
from benchmarks._simulator import Cluster, Metric, bound, cluster, play_jobs, play_plan, scored
from tests.plans import CHECKPOINT

from coordinate_eval.coordinator.planning.plan import (
    Cost,
    Estimate,
    MetricJob,
    Plan,
    PlanCheckpoint,
    PlanEngine,
    PlanSuite,
    PlanTrial,
)
from coordinate_eval.records import Shard, Span

ONE = Cluster({"n1": 1}, load_seconds=4, start_seconds=10, metric_cpus=8)
TWO = ONE._replace(nodes={"n1": 2})


def dataset(name: str, gpu_seconds: float, items: int = 100, **more: float) -> Cost:
    return Cost.model_validate(
        {"name": name, "items": items, "gpu_seconds": gpu_seconds, **more}, extra="forbid"
    )


def by_name(*costs: Cost) -> dict[str, Cost]:
    return {cost.name: cost for cost in costs}


def whole(*costs: Cost) -> list[list[Span]]:
    return _partitioners.one_job_per_dataset(costs)


def plan_of(
    costs: dict[str, Cost], queues: dict[str, list[Span]], metrics: list[MetricJob] | None = None
) -> Plan:
    """A plan of one trial a queue, the seconds of its shards as the costs have them."""
    return Plan(
        checkpoint=PlanCheckpoint(path="", identity="", bytes=1, parameters=1),
        suite=PlanSuite(name="s", digest=""),
        engine=PlanEngine(name="vllm", args={}),
        gpus_per_trial=1,
        datasets=list(costs.values()),
        nodes=[],
        stages=[],
        trials=[
            PlanTrial(
                id=trial,
                node="n1",
                gpus=1,
                start_seconds=4,
                setup_seconds=10,
                shards=[
                    Shard(
                        dataset=s.dataset,
                        start=s.start,
                        stop=s.stop,
                        gpu_seconds=costs[s.dataset].gpu_seconds
                        * (s.stop - s.start)
                        / costs[s.dataset].items,
                        metric_cpu_seconds=0,
                    )
                    for s in spans
                ],
            )
            for trial, spans in queues.items()
        ],
        metric_jobs=metrics or [],
        estimate=Estimate(
            makespan_seconds=0, lower_bound_seconds=0, gpu_idle_fraction=0, gpu_hours=0
        ),
    )


def test_jobs_load_through_one_link() -> None:
    costs = by_name(dataset("a", 20), dataset("b", 6))
    # Both load at once, each at half the rate: 8 s. Then 10 s to start, and the longer takes 20.
    assert play_jobs(whole(*costs.values()), costs, TWO, "after") == 8 + 10 + 20


def test_a_later_load_slows_the_one_under_way() -> None:
    costs = by_name(dataset("a", 2), dataset("b", 30), dataset("c", 5))
    where = TWO._replace(start_seconds=0, load_seconds=10)
    # a and b load until 20; a ends at 22, then c has the link alone until 32, and ends at 37.
    assert play_jobs(whole(*costs.values()), costs, where, "after") == 20 + 30
    costs["b"] = dataset("b", 1)
    # Now b ends at 21, c loads from 21 to 31 and ends at 36.
    assert play_jobs(whole(*costs.values()), costs, where, "after") == pytest.approx(36)


def test_a_load_that_others_join_and_leave() -> None:
    three = Cluster({"n1": 2, "n2": 1}, load_seconds=10, start_seconds=0, metric_cpus=1)
    costs = by_name(dataset("a", 5), dataset("b", 1), dataset("c", 20), dataset("d", 1))
    # a takes n1, b the idle link of n2, c the place that is left on n1. There a and c load until
    # 20; b has loaded by 10 and ends at 11, d follows on n2 and ends at 22. c is last.
    assert play_jobs(whole(*costs.values()), costs, three, "after") == 40


def test_unlike_arrivals_share_the_link_while_they_overlap() -> None:
    costs = by_name(dataset("a", 4), dataset("b", 2), dataset("c", 1), dataset("d", 14))
    where = Cluster({"n1": 2}, load_seconds=6, start_seconds=0, metric_cpus=1)
    # a and b load until 12. b ends at 14 and c loads alone until a ends at 16, with 2 of 6 done.
    # d joins: c has its other 4 at half the rate by 24, d has had 4 then and has 2 more by 26.
    assert play_jobs(whole(*costs.values()), costs, where, "after") == pytest.approx(26 + 14)


def test_metric_holds_the_gpu_or_not() -> None:
    costs = by_name(dataset("a", 10, metric_cpu_seconds=160), dataset("b", 5))
    jobs = whole(*costs.values())
    where = ONE._replace(metric_cpus=16)
    inferred = 4 + 10 + 10
    # On 16 cores the metric takes 10 s: of the GPU, ...
    assert play_jobs(jobs, costs, where, "held") == inferred + 10 + 4 + 10 + 5
    # ... beside the job of b, which needs longer, ...
    assert play_jobs(jobs, costs, where, "overlapped") == inferred + 4 + 10 + 5
    # ... or after it.
    assert play_jobs(jobs, costs, where, "after") == inferred + 4 + 10 + 5 + 10


def test_longest_items_and_overheads_delay_what_follows() -> None:
    costs = by_name(dataset("a", 10, floor_seconds=30, chunk_overhead_seconds=2), dataset("b", 5))
    jobs = [[Span("a", 0, 50), Span("a", 50, 100), Span("b", 0, 100)]]
    # The second half begins 5 s after the first, takes 5 + 2, and its longest item 30: the
    # engine is at b meanwhile.
    assert play_jobs(jobs, costs, ONE, "after") == 14 + 5 + 30
    costs["a"] = dataset("a", 10, chunk_overhead_seconds=2)
    assert play_jobs(jobs, costs, ONE, "after") == 14 + 5 + 7 + 5


def test_static_plans_wait_and_pulling_ones_do_not() -> None:
    prior = by_name(dataset("a", 10), dataset("b", 10), dataset("c", 9))
    queues = {
        "n1-0": [Span("a", 0, 100), Span("c", 0, 100)],
        "n1-1": [Span("b", 0, 50), Span("b", 50, 100)],
    }
    truth = prior | by_name(dataset("a", 30))
    plan = plan_of(prior, queues)
    assert play_plan(plan, truth, TWO, pulling=False) == 14 + 30 + 9
    # b is over at 24: its trial takes c from the one that is still at a.
    assert play_plan(plan, truth, TWO, pulling=True) == 14 + 30


def test_pulls_the_longest_by_the_plan() -> None:
    prior = by_name(dataset("a", 50), dataset("short", 2), dataset("long", 8), dataset("b", 1))
    queues = {
        "n1-0": [Span("a", 0, 100), Span("short", 0, 100), Span("long", 0, 100)],
        "n1-1": [Span("b", 0, 100)],
    }
    truth = prior | by_name(dataset("a", 9), dataset("short", 20), dataset("long", 10))
    # n1-1 is free at 15 and takes long until 25; n1-0 begins short, which is its own, at 23.
    assert play_plan(plan_of(prior, queues), truth, TWO, pulling=True) == 14 + 9 + 20


def test_metrics_of_a_plan_start_when_their_shards_have_landed() -> None:
    costs = by_name(dataset("a", 10, metric_cpu_seconds=80), dataset("b", 40))
    queues = {"n1-0": [Span("a", 0, 50), Span("b", 0, 100), Span("a", 50, 100)]}
    halves = [
        MetricJob(dataset="a", start=start, stop=start + 50, cpus=4, seconds=10)
        for start in (0, 50)
    ]
    once = [MetricJob(dataset="a", start=0, stop=100, cpus=8, seconds=10)]
    over = 14 + 5 + 40 + 5
    assert play_plan(plan_of(costs, queues, halves), costs, ONE, pulling=False) == over + 10
    assert play_plan(plan_of(costs, queues, once), costs, ONE, pulling=False) == over + 10


def test_metrics_take_what_fits_in_the_order_given() -> None:
    costs = by_name(*(dataset(name, 1, metric_cpu_seconds=12) for name in "abc"))
    spans = [(0.0, Span(name, 0, 100)) for name in "abc"]
    a, b, c = (Metric(span, cores) for (_, span), cores in zip(spans, (3, 2, 1), strict=True))
    # Four cores: a and c at once, b when a's are free at 4, until 10; c until 12.
    assert scored([a, b, c], spans, costs, 4) == 12
    # Of two cores, b takes both until 6, then c one until 18.
    assert scored([b, c], spans[1:], costs, 2) == 18
    # With b due late, c goes first and b waits for its core.
    late = [(1.0, b.span), (0.0, c.span)]
    assert scored([b, c], late, costs, 2) == 18
    assert scored([], spans, costs, 2) == 0


def test_a_metric_uses_a_core_an_item_and_keeps_what_it_was_given() -> None:
    costs = by_name(
        dataset("a", 1, items=2, metric_cpu_seconds=20), dataset("b", 1, metric_cpu_seconds=5)
    )
    spans = [(0.0, Span("a", 0, 2)), (0.0, Span("b", 0, 100))]
    a, b = (Metric(span, cores) for (_, span), cores in zip(spans, (4, 1), strict=True))
    assert scored([a, b], spans, costs, 4) == 10 + 5


def test_the_bound_is_the_longest_of_all_that_cannot_be_shortened() -> None:
    a, b = dataset("a", 30), dataset("b", 10, items=1)
    assert bound([a, b], TWO) == 14 + 20
    assert bound([a.model_copy(update={"splittable": False}), b], TWO) == 14 + 30
    long = dataset("c", 1, floor_seconds=60)
    assert bound([a, b, long], TWO) == 14 + 60
    code = dataset("d", 8, items=8, metric_cpu_seconds=800)
    # Two engines answer d in 4 s, and the program of the last item takes 100 s on its core.
    assert bound([a, b, code], TWO) == 14 + 4 + 100
    assert bound([code.model_copy(update={"items": 1})], TWO) == 14 + 8 + 800
    more = dataset("e", 8, metric_cpu_seconds=800)
    # All of e's metric on eight cores, after its first item; and then half of that on top.
    assert bound([more], TWO) == 14 + 0.08 + 100
    assert bound([more, dataset("f", 8, metric_cpu_seconds=400)], TWO) == 14 + 0.08 + 150


@pytest.mark.parametrize("seed", range(12))
def test_agrees_with_the_plans_own_replay(seed: int) -> None:
    costs, capacity = _instances.random_instance(random.Random(seed), (1, 20), (1, 40))
    plan = _instances.planned(costs, capacity)
    where = cluster(capacity, CHECKPOINT.bytes)
    static = play_plan(plan, {c.name: c for c in costs}, where, pulling=False)
    if all(job.cpus <= job.stop - job.start for job in plan.metric_jobs):
        assert static == pytest.approx(plan.estimate.makespan_seconds)
    assert bound(costs, where) <= static * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_partitioners_deal_every_item_once(seed: int) -> None:
    rng = random.Random(seed)
    costs, capacity = _instances.random_instance(rng, (1, 40), (1, 40))
    engines = sum(node.trials for node in capacity.nodes)
    answers = {cost.name: rng.choice((0, 4)) for cost in costs}
    for jobs in (
        _partitioners.one_job_per_dataset(costs),
        _partitioners.equal_shards(costs, engines),
        _partitioners.by_size(costs, answers),
        _partitioners.by_workers(costs),
        _partitioners.by_workers(costs, engines),
    ):
        spans = sorted(span for job in jobs for span in job)
        for cost in costs:
            mine = [span for span in spans if span.dataset == cost.name]
            assert [span.start for span in mine] == [0, *(span.stop for span in mine[:-1])]
            assert mine[-1].stop == cost.items
            assert cost.splittable or len(mine) == 1


def test_sizes_as_opencompass_takes_them() -> None:
    costs = [
        dataset("mmlu", 1, items=14_042),
        dataset("gsm8k", 1, items=1_319),
        dataset("piqa", 1, items=1_838),
        dataset("humaneval", 1, items=164),
    ]
    jobs = _partitioners.by_size(costs, {"mmlu": 4, "gsm8k": 0, "piqa": 2, "humaneval": 0})
    # mmlu has 56,168: two parts. gsm8k has 20 x 10 x 1,319 = 263,800: 7 parts of 189 items, of
    # which each counts as 40,000. piqa and humaneval share a task of 3,676 + 3,280.
    assert [len(job) for job in jobs] == [1] * 9 + [2]
    assert jobs[0] == [Span("mmlu", 0, 7_021)]
    assert jobs[2] == [Span("gsm8k", 0, 189)]
    assert jobs[-1] == [Span("piqa", 0, 1_838), Span("humaneval", 0, 164)]


def test_workers_as_opencompass_deals_them() -> None:
    costs = [dataset("a", 1, items=20), dataset("b", 1, items=100), dataset("c", 1, items=5)]
    jobs = _partitioners.by_workers(costs, num_worker=4)
    # a: 16 and 4; b: four of 25; c: 5. Dealt round.
    assert jobs == [
        [Span("a", 0, 16), Span("b", 50, 75)],
        [Span("a", 16, 20), Span("b", 75, 100)],
        [Span("b", 0, 25), Span("c", 0, 5)],
        [Span("b", 25, 50)],
    ]


def test_instances_are_the_same_from_the_same_seed() -> None:
    one, other = (_instances.random_instance(random.Random(5)) for _ in range(2))
    assert one == other
    assert sum(n.gpus for n in _instances.random_capacity(random.Random(1), 64).nodes) <= 64
    assert len(_instances.random_costs(random.Random(1), 7)) == 7
    drawn = _instances.drawn(random.Random(1), _instances.told(one.costs, 0.0))
    assert [c.gpu_seconds for c in drawn] == [c.gpu_seconds for c in one.costs]


def test_a_scoring_follows_the_last_response_and_metric_of_its_dataset() -> None:
    slow = Cost(name="slow", items=2, gpu_seconds=2, metric_cpu_seconds=4, score_seconds=3)
    other = Cost(name="other", items=1, gpu_seconds=1, score_seconds=2)
    truth = {"slow": slow, "other": other}
    complete = [(1.0, Span("slow", 0, 1)), (5.0, Span("slow", 1, 2)), (6.0, Span("other", 0, 1))]
    metrics = [Metric(Span("slow", 0, 1), 1), Metric(Span("slow", 1, 2), 1)]
    # The second metric ends at 7, its dataset's scoring at 10; on one core the other waits for it.
    assert scored(metrics, complete, truth, 2) == 10
    assert scored(metrics, complete, truth, 1) == 12
