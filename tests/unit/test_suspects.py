"""Items that end engines: they are found by few engines, and nothing else is given up."""

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.random_examples import examples
from tests.run_dirs import ITEMS, SHARDS, answered, write_built

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import End
from coordinate_eval.coordinator.incidents.remedies import (
    MOST_ROUNDS,
    count_idle_rounds,
)
from coordinate_eval.coordinator.report.results import collect_results
from coordinate_eval.coordinator.run.claiming.claims import Ledger
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import (
    Round,
    RoundNode,
    TrialProgress,
    read_run,
)
from coordinate_eval.coordinator.workers import trial
from coordinate_eval.coordinator.workers.open_shards import (
    Batch,
    OpenShards,
    deadly,
    next_batch,
    read_batch,
)
from coordinate_eval.errors import EngineError


def engines(items: list[int], bad: set[int], first: Batch | None) -> tuple[set[int], list[int]]:
    """Run suspects alone, one engine after the other; what is answered, and what is given up."""
    deaths: list[Batch | None] = [first]
    answered: set[int] = set()
    for _ in range(len(items) + 12):
        left = [item for item in items if item not in answered]
        while batch := next_batch(left, deaths):
            assert set(batch) <= set(left)
            if bad & set(batch):
                deaths.append(Batch(items=batch, alone=True))
                break
            answered |= set(batch)
            left = [item for item in left if item not in answered]
        else:
            return answered, deadly(left, deaths)
    raise AssertionError(f"{len(deaths)} engines died at {items} with {bad}: {deaths}")


@given(st.data())
@examples(200)
def test_one_item_in_a_thousand_is_found(data: st.DataObject) -> None:
    items = sorted(data.draw(st.sets(st.integers(0, 2000), min_size=1, max_size=300)))
    bad = data.draw(st.sampled_from(items))
    with_it = data.draw(st.sets(st.sampled_from(items))) | {bad}
    first = data.draw(
        st.sampled_from([None, *(Batch(items=sorted(with_it), alone=a) for a in (True, False))])
    )
    assert engines(items, {bad}, first) == (set(items) - {bad}, [bad])


@given(st.sets(st.integers(0, 300), min_size=1), st.data())
@examples(100)
def test_what_passes_alone_is_not_given_up(items: set[int], data: st.DataObject) -> None:
    ordered = sorted(items)
    first = Batch(items=ordered[: data.draw(st.integers(1, len(ordered)))], alone=False)
    assert engines(ordered, set(), first) == (items, [])


def test_an_item_in_256_costs_six_engines_more() -> None:
    deaths: list[Batch | None] = [Batch(items=list(range(256)), alone=False)]
    left, sizes = list(range(256)), []
    while batch := next_batch(left, deaths):
        if 200 in batch:
            deaths.append(Batch(items=batch, alone=True))
            sizes.append(len(batch))
        else:
            left = [item for item in left if item not in batch]
    assert (sizes, left) == ([256, 32, 4, 1, 1, 1], [200])


def test_two_items_are_found() -> None:
    items = list(range(100))
    assert engines(items, {3, 77}, Batch(items=items, alone=False)) == (
        set(items) - {3, 77},
        [3, 77],
    )


@given(st.integers(4, 40), st.randoms(use_true_random=False))
@examples(100)
def test_a_shard_of_bad_items_is_given_up_with_three(count: int, dice: random.Random) -> None:
    items = list(range(count))
    bad = set(dice.sample(items, 4))
    answered, lost = engines(items, bad, None)
    assert len(lost) == 3
    assert set(lost) < bad
    assert not answered & bad


@pytest.mark.parametrize("count", [20, 79, 500])
def test_twenty_deaths_that_no_item_brings_about_lose_none(count: int) -> None:
    """Each engine answers a batch, and is killed at its next one."""
    left, deaths, answered = list(range(count)), list[Batch | None]([None]), False
    while left:
        batch = next_batch(left, deaths)
        assert batch, deaths
        answered = not answered
        if answered or len(deaths) == 20:
            left = [item for item in left if item not in batch]
        else:
            deaths.append(Batch(items=batch, alone=True))


def test_an_item_is_not_given_up_because_its_servers_are_killed() -> None:
    killed = [Batch(items=[7], alone=True, killed=True)] * 20
    assert next_batch([7], killed) == [7]
    assert next_batch([7, 8], killed) == [8]
    assert next_batch([7], [*killed, *[Batch(items=[7], alone=True)] * 3]) == []


def test_a_note_that_is_torn_tells_nothing() -> None:
    whole = Batch(items=[1, 2], alone=True).model_dump_json()
    assert read_batch(whole) == Batch(items=[1, 2], alone=True)
    for cut in range(len(whole)):
        assert read_batch(whole[:cut]) is None


@pytest.fixture
def run_dir(no_weights: None, tmp_path: Path) -> RunDir:
    """A planned run of two datasets, of two shards each; its trials need no weights."""
    made = RunDir(tmp_path / "run")
    (tmp_path / "memory").mkdir()
    write_built(made, {})
    return made


def trials(made: RunDir, most: int = 30) -> Iterator[TrialProgress]:
    """Run one trial after the other while there is work."""
    outputs, spans = Ledger(made, "outputs"), [shard.span for shard in SHARDS]
    for number in range(most):
        if not outputs.claimable(spans):
            return
        try:
            trial.run_trial(made, "n", number, 60)
        except EngineError:
            for held in outputs.open_claims(spans):
                outputs.revoke(held.span, held.attempt, "died")
        name = "n-0" + (f"-r{number}" if number else "")
        yield _files.read_record(made.trial(name), TrialProgress)
    raise AssertionError(f"{most} trials did not finish")


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("concurrency", [1, 7, 64])
@pytest.mark.parametrize("item", [0, 33])
def test_one_bad_item_costs_few_engines_and_only_itself(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, item: int, concurrency: int, killed: bool
) -> None:
    if killed:  # then the supervisor ends its claims, which have no note, or that of a batch
        monkeypatch.setattr(OpenShards, "die", lambda _, **__: None)
    write_built(run_dir, {"fail_at": [f"a:{item}"], "concurrency": concurrency})
    died = [done for done in trials(run_dir) if done.state == "failed"]
    assert len(died) <= 6
    assert answered(run_dir) == Counter(
        {(d, i): 1 for d in "ab" for i in range(ITEMS) if (d, i) != ("a", item)}
    )
    (bad,) = Ledger(run_dir, "outputs").unpublished(shard.span for shard in SHARDS)
    assert Ledger(run_dir, "outputs").given_up(bad) == [item]
    missing = collect_results(run_dir, read_run(run_dir))["missing"]
    assert f"item {item}: engines die at it" in missing["a"]
    assert missing["b"] == "not scored"


def test_a_resumed_run_tries_again_what_was_given_up(run_dir: RunDir) -> None:
    write_built(run_dir, {"fail_at": ["b:5"]})
    assert sum(done.state == "failed" for done in trials(run_dir)) >= 3
    for path in run_dir.root.rglob("*"):
        if path.is_file():
            os.utime(path, (time.time() - 10,) * 2)
    _files.write(run_dir.resumed, "")
    write_built(run_dir, {})
    assert [(done.state, done.suspects) for done in trials(run_dir)] == [("ended", 0)]
    assert answered(run_dir) == Counter({(d, i): 1 for d in "ab" for i in range(ITEMS)})


def test_shards_without_a_request_in_flight_are_not_suspects(run_dir: RunDir) -> None:
    write_built(run_dir, {"fail_at": ["b:39"], "concurrency": 1})
    outputs, spans = Ledger(run_dir, "outputs"), [shard.span for shard in SHARDS]
    next(trials(run_dir))
    assert outputs.suspects(spans) == {spans[-1]: 1}
    assert outputs.deaths(spans[-1], 1) == [Batch(items=[39], alone=True).model_dump_json()]


def test_what_is_no_work_s_fault_makes_no_suspects(run_dir: RunDir) -> None:
    outputs, span = Ledger(run_dir, "outputs"), SHARDS[0].span
    attempt = outputs.claim(span, "x", "1")
    assert attempt == 1
    outputs.revoke(span, attempt, "lost", End.PREEMPTED)
    assert not outputs.suspects([span])


def test_a_killed_trial_makes_all_that_it_had_suspects(run_dir: RunDir) -> None:
    """Whatever was noted, and however the dice fall, everything is answered once."""
    outputs, dice = Ledger(run_dir, "outputs"), random.Random(1)
    for shard in SHARDS:
        for _ in range(dice.randint(1, 3)):
            attempt = outputs.claim(shard.span, "x", "1")
            assert attempt is not None
            note = Batch(items=[shard.start, shard.start + 1], alone=dice.random() < 0.5)
            torn = note.model_dump_json()[: dice.randint(0, 40)]
            _files.write(run_dir.running("outputs", shard.span, attempt), torn)
            outputs.revoke(shard.span, attempt, "died")
    (done,) = trials(run_dir)
    assert done.state == "ended"
    assert done.suspects >= len(SHARDS)
    assert answered(run_dir) == Counter({(d, i): 1 for d in "ab" for i in range(ITEMS)})


def test_rounds_that_search_are_not_idle_for_a_while(run_dir: RunDir) -> None:
    run = read_run(run_dir)
    rounds = [
        Round(
            number=n,
            created=n,
            nodes=[RoundNode(name="n", gpu_type="h200", trials=1)],
            minutes=1,
        )
        for n in range(MOST_ROUNDS["alone"] + 3)
    ]

    def tell(number: int, **fields: int) -> None:
        name = "n-0" + (f"-r{number}" if number else "")
        done = TrialProgress.model_validate(
            {"trial": name, "task": "1.0", "node": "n", "state": "failed", "started": 0,
             "updated": 0, **fields}, extra="forbid"
        )  # fmt: skip
        _files.write_record(run_dir.trial(name), done)

    for each in rounds:
        _files.write_record(run_dir.round(each.number), each)
        tell(each.number, suspects=1)
    assert count_idle_rounds(run_dir, run, rounds, 99).rounds == len(rounds), "it never answered"
    tell(0, responses=1)
    os.utime(run_dir.trial("n-0"), (1, 1))  # before the other rounds
    assert count_idle_rounds(run_dir, run, rounds, 99).rounds == 2
