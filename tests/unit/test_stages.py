"""Stages of a dataset, and their end: every item is asked once, whatever is withdrawn meanwhile."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.decisions import make_run
from tests.run_dirs import write_requests
from tests.trainings import call, run_of

from coordinate_eval import _files
from coordinate_eval.coordinator.comparison.deciding import compare_at, conclude
from coordinate_eval.coordinator.planning.dealing.packing import Piece, deal, in_stages, stage_of
from coordinate_eval.coordinator.planning.plan import Cost
from coordinate_eval.coordinator.report.results import collect_results
from coordinate_eval.coordinator.run.claiming.claims import Ledger, whole
from coordinate_eval.coordinator.run.claiming.decided import (
    Compared,
    PartScores,
    last_compared,
    look_span,
    sample,
    stopped,
    why_stopped,
)
from coordinate_eval.coordinator.run.claiming.pullers import Pullers
from coordinate_eval.coordinator.run.claiming.work import claimable, given_up
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, read_run
from coordinate_eval.coordinator.workers.open_shards import read_requests
from coordinate_eval.records import (
    Dataset,
    DatasetItems,
    DatasetResults,
    ItemRequests,
    ItemScores,
    Request,
    RequestKind,
    Shard,
    Span,
    seeded_order,
    stages,
)

task_sizes = st.lists(st.integers(1, 400), min_size=1, max_size=12)


@given(task_sizes)
def test_each_stage_has_a_share_of_every_task_and_all_stages_each_item_once(
    sizes: list[int],
) -> None:
    tasks = {f"task {n}": size for n, size in enumerate(sizes)}
    order, ends = seeded_order(tasks), stages(sum(sizes), len(sizes))
    assert sorted(order) == list(range(sum(sizes)))
    assert order == seeded_order(tasks)
    assert ends == sorted(set(ends)) and ends[-1] == len(order)
    begins = [sum(sizes[:n]) for n in range(len(sizes))]
    for end in ends:
        for begin, size in zip(begins, sizes, strict=True):
            count = sum(begin <= item < begin + size for item in order[:end])
            assert min(size, 2) <= count
            assert abs(count - size * end / len(order)) <= 2 + len(sizes)


@given(
    st.lists(st.tuples(st.integers(1, 9000), st.booleans()), min_size=1, max_size=5),
    st.integers(1, 4),
)
def test_queues_have_each_item_once_and_early_stages_first(
    shapes: list[tuple[int, bool]], trials: int
) -> None:
    costs = [
        Cost(
            name=f"d{n}", items=items, gpu_seconds=items, stages=stages(items, 1) if staged else []
        )
        for n, (items, staged) in enumerate(shapes)
    ]
    pieces = [p for n, c in enumerate(costs) for p in in_stages(c, Piece(n, 0, c.items))]
    queues = deal(costs, pieces, [0.0] * trials, 1)
    for queue in queues:
        of_queue = [stage_of(costs[piece.cost], piece.start) for piece in queue]
        assert of_queue == sorted(of_queue)
    for number, cost in enumerate(costs):
        mine = sorted((p.start, p.stop) for queue in queues for p in queue if p.cost == number)
        assert [start for start, _ in mine] == [0, *(stop for _, stop in mine[:-1])]
        assert mine[-1][1] == cost.items
        assert set(cost.stages) <= {stop for _, stop in mine}


def _staged(folder: Path, ends: list[int], parts: int) -> tuple[RunDir, list[Shard]]:
    """Return a run of a dataset "a" in these stages, of up to so many shards each."""
    shards = []
    for begin, end in zip([0, *ends], ends, strict=False):
        edges = sorted({begin + (end - begin) * n // parts for n in range(parts)} | {end})
        shards += [
            Shard(dataset="a", start=s, stop=e, gpu_seconds=1, metric_cpu_seconds=0)
            for s, e in itertools.pairwise(edges)
        ]
    run_dir = RunDir(folder)
    return run_dir, shards


def _decide(run_dir: RunDir, items: int) -> None:
    found = Compared(number=1, previous="p", verdict="better", items={"a": items})
    _files.write_record(run_dir.decided, found)


@given(
    ends=st.lists(st.integers(1, 60), min_size=2, max_size=4, unique=True).map(sorted),
    parts=st.integers(1, 4),
    data=st.data(),
)
def test_what_is_withdrawn_is_asked_in_full_and_nothing_twice(
    tmp_path_factory: pytest.TempPathFactory, ends: list[int], parts: int, data: st.DataObject
) -> None:
    run_dir, shards = _staged(tmp_path_factory.mktemp("run"), ends, parts)
    ledger = Ledger(run_dir, "outputs")
    asked: list[int] = []

    def ask(most: int | None) -> None:
        for shard in shards[:most]:
            attempt = ledger.claim(shard.span, "trial", "1")
            if attempt is not None:
                asked.extend(range(shard.start, shard.stop))
                _files.write(run_dir.published("outputs", shard.span), "")

    used = data.draw(st.sampled_from(ends[:-1]))
    done = data.draw(st.integers(sum(s.stop <= used for s in shards), len(shards)))
    ask(done)
    _decide(run_dir, used)
    ask(None)
    assert ledger.unpublished(s.span for s in shards) == []
    assert Ledger(run_dir, "results").unpublished([whole("a")])
    _files.write(run_dir.published("looks", Span("a", 0, used)), "")
    assert not Ledger(run_dir, "results").unpublished([whole("a")])
    assert sorted(asked) == list(range(shards[done - 1].stop))
    run_dir.full.touch()
    assert Ledger(run_dir, "results").unpublished([whole("a")])
    ask(None)
    assert sorted(asked) == list(range(ends[-1]))


def test_a_dataset_with_all_of_its_results_is_not_stopped(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    _decide(run_dir, 10)
    assert stopped(run_dir) == {"a": 10}
    _files.write(run_dir.dataset_results("a"), "{}")
    assert stopped(run_dir) == {}


def test_a_span_of_a_staged_dataset_is_of_its_order(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)

    def request(item: int) -> Request:
        return Request(
            dataset="a", item=item, task="x" if item < 5 else "y", doc=item, index=0,
            prompt_hash="h", kind=RequestKind.LOGLIKELIHOOD, tokens=[1], continuation=[item],
        )  # fmt: skip

    lines = [ItemRequests.of([request(item)]).line() for item in range(12)]
    sizes = {"x": 5, "y": 7}
    write_requests(run_dir, "a", lines, task_items=sizes)
    order = seeded_order(sizes)
    spans = [Span("a", 0, 5), Span("a", 5, 12)]
    for span in spans:
        read = list(read_requests(run_dir, span, staged=True))
        assert [each.item for each in read] == sorted(order[span.start : span.stop])
    plain = read_requests(run_dir, spans[0])
    assert [each.item for each in plain] == [0, 1, 2, 3, 4]


def test_looks_are_scored_as_stages_end_and_compared_when_all_are_there(tmp_path: Path) -> None:
    run_dir, shards = _staged(tmp_path, [10, 20, 40], 2)
    other = Shard(dataset="b", start=0, stop=5, gpu_seconds=1, metric_cpu_seconds=0)
    run = make_run(shards=[*shards, other], stages={"a": [10, 20, 40]}, against="/p", asks=[])
    names = {dataset.name for dataset in run.suite.datasets}
    assert names == {"a", "b"}

    def can_be_scored() -> dict[str, list[Span]]:
        found = claimable(run_dir, run, Pullers.SCORE)
        return {name: spans for name, spans in found.items() if spans}

    assert can_be_scored() == {}
    for shard in shards[:3]:
        _files.write(run_dir.published("outputs", shard.span), "")
    assert can_be_scored() == {"looks": [Span("a", 0, 10)]}
    assert look_span(run, "a", 1) == Span("a", 0, 10)
    _files.write(run_dir.published("looks", Span("a", 0, 10)), "")
    assert can_be_scored() == {}  # b has no results yet
    _files.write(run_dir.dataset_results("b"), "{}")
    assert can_be_scored() == {"comparisons": [whole("1")]}
    _decide(run_dir, 10)
    assert can_be_scored() == {}
    run_dir.decided.unlink()
    _files.write(run_dir.dataset_error("b"), "")
    assert given_up(run_dir) == {"b"}
    assert can_be_scored() == {"comparisons": [whole("1")]}


def test_comparisons_are_made_one_after_another(tmp_path: Path) -> None:
    run_dir, shards = _staged(tmp_path, [10, 20, 40], 1)
    run = make_run(shards=shards, stages={"a": [10, 20, 40]}, against="/p", asks=[])
    for shard in shards[:2]:
        _files.write(run_dir.published("outputs", shard.span), "")
        _files.write(run_dir.published("looks", Span("a", 0, shard.stop)), "")
    _files.write(run_dir.dataset_results("b"), "{}")
    for number in ("1", "2"):
        assert claimable(run_dir, run, Pullers.SCORE)["comparisons"] == [whole(number)]
        _files.write(run_dir.comparison(int(number)), "{}")
    assert claimable(run_dir, run, Pullers.SCORE)["comparisons"] == []


def test_parts_never_look_complete_when_their_decision_is_taken_back_meanwhile(
    tmp_path: Path,
) -> None:
    run_dir, shards = _staged(tmp_path, [10, 40], 1)
    run = make_run(shards=shards, stages={"a": [10, 40], "b": [10, 40]}, against="/p", asks=[])
    found = Compared(number=1, previous="p", verdict="better", items={"a": 10, "b": 10})
    _files.write_record(run_dir.decided, found)
    for name in ("a", "b"):
        results = DatasetResults(dataset=name, items=10, harness="0", results={name: {"acc": 1.0}})
        part = PartScores(results=results).line()
        _files.write(run_dir.published("looks", Span(name, 0, 10)), part)

    class Datasets(list[Dataset]):
        def __iter__(self) -> Iterator[Dataset]:
            yield from super().__iter__()
            run_dir.full.touch()  # as soon as all are read

    suite = run.suite.model_copy(update={"datasets": Datasets(run.suite.datasets)})
    told = collect_results(run_dir, run.model_copy(update={"suite": suite}))
    assert not told["complete"]
    assert told["stopped"].keys() == {"a", "b"}


def test_a_run_that_is_decided_has_its_scores_and_nothing_hides_that_it_stopped(
    tmp_path: Path,
) -> None:
    run_dir = run_of(tmp_path, 1, {}, against="/p", stages={"a": [10, 40], "b": [10, 40]})
    found = Compared(number=1, previous="p", verdict="better", items={"a": 10, "b": 10},
                     of_items={"a": 40, "b": 40})  # fmt: skip
    _files.write_record(run_dir.decided, found)
    for name in ("a", "b"):
        results = DatasetResults(
            dataset=name, items=10, harness="0",
            results={name: {"acc,none": 0.7, "acc_stderr,none": 0.01}},
        )  # fmt: skip
        part = PartScores(results=results).line()
        _files.write(run_dir.published("looks", Span(name, 0, 10)), part)
    _files.write(run_dir.results, json.dumps(collect_results(run_dir, read_run(run_dir))))
    policy = tmp_path / "policy.yaml"
    policy.write_text("rules: [{of: mean, at_least: 0.5}]")

    (row,) = json.loads(call(tmp_path, "runs", "--json").stdout)
    card = call(tmp_path, "scores", str(run_dir.root), "--output-format", "model-card").stdout
    said = call(tmp_path, "gate", str(run_dir.root), "--policy", str(policy)).output
    listed = call(tmp_path, "scores", str(run_dir.root), "--csv").stdout
    best = call(tmp_path, "best", "--by", "mean").stdout

    assert (row["datasets_scored"], row["datasets"]) == (2, 2)
    assert "Stopped early, with a part of the items: a (10 of 40), b (10 of 40)." in card
    assert "its scores are of a part of the items, because it stopped early" in said
    assert f"resume {row['run']} --full` asks the others" in said
    used = "items used: a 10 of 40, b 10 of 40"
    assert used in listed and used in best and used in said


def test_looks_at_a_sample_end_with_it_and_the_rest_is_withdrawn_from_the_beginning(
    tmp_path: Path,
) -> None:
    run_dir, shards = _staged(tmp_path, [10, 20, 40, 90], 1)
    few = Shard(dataset="b", start=0, stop=12, gpu_seconds=1, metric_cpu_seconds=0)
    rest = Shard(dataset="b", start=12, stop=50, gpu_seconds=1, metric_cpu_seconds=0)
    run = make_run(
        shards=[*shards[:-1], few, shards[-1], rest], asks=[], against="/p",
        stages={"a": [10, 20, 40, 90], "b": [12, 50]}, sampled={"a": 40, "b": 12},
    )  # fmt: skip
    found = sample(run, {})
    assert found is not None and found.items == {"a": 40, "b": 12}
    _files.write_record(run_dir.sample, found)

    def can_be_scored() -> dict[str, list[Span]]:
        there = claimable(run_dir, run, Pullers.SCORE)
        return {name: spans for name, spans in there.items() if spans}

    asked = Ledger(run_dir, "outputs").unpublished(shard.span for shard in run.shards)
    assert max(span.stop for span in asked) == 40
    for span in asked:
        _files.write(run_dir.published("outputs", span), "")
    looks = [Span("a", 0, 10), Span("b", 0, 12), Span("a", 0, 20), Span("a", 0, 40)]
    assert can_be_scored() == {"looks": looks}
    for span in looks:
        _files.write(run_dir.published("looks", span), "")
    for number in ("1", "2"):  # the third one is the last, and made when all is there
        assert can_be_scored() == {"comparisons": [whole(number)]}
        _files.write(run_dir.comparison(int(number)), "{}")
    assert can_be_scored() == {}
    assert not Ledger(run_dir, "results").unpublished([whole("a"), whole("b")])


def _measured(values: list[float], items: int) -> PartScores:
    """Return the scores of the first items of a dataset "a"."""
    mean = sum(values[:items]) / items
    results = {"a": {"acc,none": mean, "acc_stderr,none": 0.01}}
    table = ItemScores(
        task="a", filter="none", items=list(range(items)), documents="d",
        metrics={"acc": [*values[:items]]},
    )  # fmt: skip
    return PartScores(
        results=DatasetResults(dataset="a", items=items, harness="0", results=results),
        items=DatasetItems(dataset="a", tables=[table]),
    )


def _sampled(folder: Path, gain: float) -> tuple[RunDir, Run]:
    """Return a run whose sample is scored: it has gained so much since an earlier run."""
    previous = run_of(folder, 1, {})
    before = _measured([float(item % 2) for item in range(1000)], 1000)
    assert before.results is not None and before.items is not None
    _files.write_record(previous.dataset_results("a"), before.results)
    _files.write_record(previous.items("a"), before.items)
    run_dir = run_of(
        folder, 2, {}, against=str(previous.root), stages={"a": [100, 400, 1000]},
        sampled={"a": 400},
    )  # fmt: skip
    values = [float(item % 10 < 5 + 10 * gain) for item in range(1000)]
    for items in (100, 400):
        part = _measured(values, items).line()
        _files.write(run_dir.published("looks", Span("a", 0, items)), part)
    run = read_run(run_dir)
    begun = sample(run, {})
    assert begun is not None
    _files.write_record(run_dir.sample, begun)
    return run_dir, run


def test_a_decision_before_the_end_of_a_sample_stops_it(tmp_path: Path) -> None:
    run_dir, run = _sampled(tmp_path, 0.3)
    found = compare_at(run_dir, run, 1)
    assert found.verdict == "better" and found.information == pytest.approx(100 / 400)
    assert why_stopped(run_dir).startswith("better than step-1-x")
    results = collect_results(run_dir, run)
    assert results["stopped"] == {"a": {"items": 100, "of_items": 1000}}


def test_the_last_look_at_a_sample_decides_and_asks_nothing_more(tmp_path: Path) -> None:
    run_dir, run = _sampled(tmp_path, 0.0)
    assert compare_at(run_dir, run, 1).verdict == ""
    assert stopped(run_dir) == {"a": 400}
    conclude(run_dir, run)
    last = last_compared(run_dir, run)
    assert last is not None
    assert (last.number, last.information, last.verdict) == (2, 1.0, "no difference")
    assert why_stopped(run_dir).startswith("a sample of")
    results = collect_results(run_dir, run)
    assert results["compared"]["verdict"] == "no difference"
    assert results["stopped"] == {"a": {"items": 400, "of_items": 1000}}
