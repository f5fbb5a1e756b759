"""Shards of slow trials: an idle one answers them too, where that ends sooner, and once."""

import errno
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.decisions import (
    claimed,
    make_run,
)
from tests.run_dirs import ITEMS, SHARDS, answered, write_built, write_requests

from coordinate_eval import _files
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run.claiming.claims import Ledger
from coordinate_eval.coordinator.run.measurements import read_lines
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import TrialProgress
from coordinate_eval.coordinator.workers import trial
from coordinate_eval.coordinator.workers.next_shards import (
    MOST_SEEN,
    Held,
    NextShards,
    Owner,
    TimeLeft,
    choose,
)
from coordinate_eval.coordinator.workers.open_shards import OpenShards
from coordinate_eval.evaluators.engines.simulated import answer
from coordinate_eval.records import (
    ItemRequests,
    Request,
    RequestKind,
    Response,
    Shard,
    Span,
)

SHARD = Shard(dataset="a", start=0, stop=6, gpu_seconds=10, metric_cpu_seconds=0)


def held(owner: str, left: float, start: int = 0, dataset: str = "d") -> Held:
    return Held(claimed(Span(dataset, start, start + 1), owner=owner), left)


def chosen(
    *given: Held,
    owners: dict[str, Owner],
    own: float = 1.0,
    floors: dict[str, float] | None = None,
    gain: float = 30.0,
) -> list[int]:
    return [claim.span.start for claim in choose(given, owners, own, floors or {}, gain)]


def test_a_slow_owner_is_helped_and_one_that_is_as_fast_is_not() -> None:
    assert chosen(held("slow", 40), owners={"slow": Owner(3, 0)}) == [0]
    assert chosen(held("usual", 40), owners={"usual": Owner(1, 0)}) == []
    assert chosen(held("slow", 40), owners={"slow": Owner(3, 0)}, own=3) == []
    assert chosen(held("new", 40), owners={}) == []


def test_all_that_an_owner_holds_is_in_the_way_and_the_longest_comes_first() -> None:
    both = held("o", 30, 1), held("o", 50, 2)
    assert chosen(*both, owners={"o": Owner(2, 0)}) == [1, 2]
    assert chosen(*both, owners={"o": Owner(1.2, 0)}) == [1]


def test_one_that_says_nothing_needs_as_long_again() -> None:
    assert chosen(held("o", 10), owners={"o": Owner(1, 20)}) == []
    assert chosen(held("o", 10), owners={"o": Owner(1, 41)}) == [0]
    assert chosen(held("o", 10), owners={"o": Owner(1, 20)}, gain=0) == [0]


def test_the_longest_item_takes_its_time_again() -> None:
    slow = {"o": Owner(3, 0)}
    assert chosen(held("o", 20), owners=slow, floors={"d": 40}) == []
    assert chosen(held("o", 20), owners=slow, floors={"other": 40}) == [0]


@given(
    left=st.floats(0, 1e4), slowdown=st.floats(1, 100), silent=st.floats(0, 1e4),
    own=st.floats(1, 100), gain=st.floats(0, 100),
)  # fmt: skip
def test_no_second_attempt_is_expected_to_end_later(
    left: float, slowdown: float, silent: float, own: float, gain: float
) -> None:
    found = chosen(held("o", left), owners={"o": Owner(slowdown, silent)}, own=own, gain=gain)
    if found:
        assert own * left + gain <= max(slowdown * left, silent)


class Trials:
    """A run with one shard that the trial `slow` holds. It has answered two of six items."""

    def __init__(self, folder: Path, silent: float = 100.0) -> None:
        self.dir = RunDir(folder)
        self.run = make_run(shards=[SHARD], settings=Settings())
        self.ledger = Ledger(self.dir, "outputs")
        self.requests = [
            Request(
                dataset="a", item=n, task="a", doc=n, prompt_hash=f"{n}",
                kind=RequestKind.GENERATE, tokens=[1, n], max_tokens=8,
            )
            for n in range(SHARD.stop)
        ]  # fmt: skip
        lines = [ItemRequests.of([request]).line() for request in self.requests]
        write_requests(self.dir, "a", lines, generate_requests=6)
        last = time.time() - silent
        known = {"node": "n", "started": 0, "updated": last, "ready": last - 5, "last": last}
        for name in ("slow", "idle"):
            record = {"trial": name, "task": name, "state": "running", **known}
            _files.write_record(self.dir.trial(name), TrialProgress.model_validate(record))
        self.slow = OpenShards(self.dir, "slow", TimeLeft(float("inf")))
        self.idle = OpenShards(self.dir, "idle", TimeLeft(float("inf")))
        attempt = self.ledger.claim(SHARD.span, "slow", "1")
        assert attempt == 1
        self.slow.open(SHARD, attempt)
        for request in self.requests[:2]:
            self.slow.store(answer(request), 1.0)

    def claim(self, trial: str = "idle") -> tuple[Shard, int] | None:
        return NextShards(self.dir, self.run, trial, "2", TimeLeft(float("inf"))).claim_slow()

    def published(self) -> list[Response]:
        path = self.dir.published("outputs", SHARD.span)
        return [Response.model_validate_json(line) for line in _files.whole_lines(path)]

    def measured(self, trial: str) -> int:
        return sum(1 for _ in read_lines(self.dir.observations(trial)))


@pytest.mark.parametrize("first", ["idle", "slow"])
def test_whoever_is_first_publishes_and_is_measured(tmp_path: Path, first: str) -> None:
    run = Trials(tmp_path)
    assert run.claim() == (SHARD, 2)
    left = run.idle.open(SHARD, 2)
    assert left == run.requests[2:]
    trials = {"idle": run.idle, "slow": run.slow}
    other = "slow" if first == "idle" else "idle"
    for name in (first, other):
        for request in run.requests[2:]:
            trials[name].store(answer(request), 1.0)
        trials[name].check_none_left()
        assert sorted(run.published(), key=lambda r: r.item) == list(map(answer, run.requests))
    assert (run.measured(first), run.measured(other)) == (1, 0)
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("first", ["idle", "slow"])
def test_whoever_is_overtaken_drops_what_is_left(tmp_path: Path, first: str) -> None:
    run = Trials(tmp_path)
    assert run.claim() == (SHARD, 2)
    run.idle.open(SHARD, 2)
    trials = {"idle": run.idle, "slow": run.slow}
    other = trials.pop("slow" if first == "idle" else "idle")
    (winner,) = trials.values()
    assert winner.drop_published() == other.drop_published() == {}
    for request in run.requests[2:]:
        winner.store(answer(request), 1.0)
    assert winner.drop_published() == {}
    left = [request.identity() for request in run.requests[2:]]
    assert other.drop_published() == {SHARD.span: left}
    assert not other.holds(SHARD.span)
    other.store(answer(run.requests[2]), 1.0)  # what an engine had answered by then
    other.check_none_left()
    assert sorted(run.published(), key=lambda r: r.item) == list(map(answer, run.requests))
    assert not list(tmp_path.rglob("*.part"))
    assert not run.ledger.suspects([SHARD.span])


def test_what_storage_cannot_say_is_seen_by_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Trials(tmp_path)
    assert run.claim() == (SHARD, 2)
    left = [request.identity() for request in run.idle.open(SHARD, 2)]
    for request in run.requests[2:]:
        run.slow.store(answer(request), 1.0)

    def stale(path: Path, **_: object) -> bool:
        raise OSError(errno.ESTALE, "Stale file handle", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "exists", stale)
        assert run.idle.drop_published() == {}
        assert run.idle.holds(SHARD.span)
    assert run.idle.drop_published() == {SHARD.span: left}


@pytest.mark.parametrize("first", ["idle", "slow"])
def test_whoever_is_overtaken_goes_on_though_storage_cannot_remove_its_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    run = Trials(tmp_path)
    assert run.claim() == (SHARD, 2)
    left = [request.identity() for request in run.idle.open(SHARD, 2)]
    winner, other = (run.idle, run.slow) if first == "idle" else (run.slow, run.idle)
    for request in run.requests[2:]:
        winner.store(answer(request), 1.0)

    def stale(path: Path, **_: object) -> None:
        raise OSError(errno.ESTALE, "Stale file handle", str(path))

    monkeypatch.setattr(Path, "unlink", stale)
    assert other.drop_published() == {SHARD.span: left}
    assert not other.holds(SHARD.span)
    other.store(answer(run.requests[2]), 1.0)
    other.check_none_left()
    assert sorted(run.published(), key=lambda r: r.item) == list(map(answer, run.requests))


@pytest.mark.usefixtures("no_weights")
def test_a_trial_that_is_overtaken_answers_what_nobody_else_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would need hours for the shard that another one publishes meanwhile."""
    monkeypatch.setattr(trial, "LOOK_SECONDS", 0.0)
    (tmp_path / "memory").mkdir()
    times = tmp_path / "times.json"
    times.write_text('{"b": {"seconds_per_request": 1000}}')
    run_dir = RunDir(tmp_path / "run")
    write_built(run_dir, {"times": str(times), "concurrency": 3 * ITEMS})
    outputs, slow = Ledger(run_dir, "outputs"), [s.span for s in SHARDS if s.dataset == "b"]
    other = OpenShards(run_dir, "m-0", TimeLeft(float("inf")))
    store = OpenShards.store

    def overtake(self: OpenShards, response: Response, seconds: float) -> None:
        store(self, response, seconds)
        for span in slow:
            if self is not other and outputs.open_claims([span]):
                outputs.revoke(span, 1, "doubled")
                assert outputs.claim(span, "m-0", "1") == 2
                shard = next(shard for shard in SHARDS if shard.span == span)
                for request in other.open(shard, 2):
                    store(other, answer(request), 1.0)

    monkeypatch.setattr(OpenShards, "store", overtake)
    assert trial.run_trial(run_dir, "n", 0, 60) == 0
    assert answered(run_dir) == Counter({(d, i): 1 for d in "ab" for i in range(ITEMS)})
    ended = _files.read_record(run_dir.trial("n-0"), TrialProgress)
    assert (ended.state, ended.shards) == ("ended", len(SHARDS) - len(slow))


def test_a_shard_has_one_second_attempt(tmp_path: Path) -> None:
    run = Trials(tmp_path)
    assert run.claim() is not None
    assert run.claim() is None
    assert run.claim("third") is None
    assert run.ledger.claimable([SHARD.span]) == []


def test_a_shard_of_a_usual_trial_its_own_or_a_dangerous_one_has_none(tmp_path: Path) -> None:
    assert Trials(tmp_path / "usual", silent=1).claim() is None
    assert Trials(tmp_path / "own").claim("slow") is None
    run = Trials(tmp_path / "dangerous")
    run.ledger.revoke(SHARD.span, 1, "died")
    assert run.ledger.claim(SHARD.span, "slow", "1") == 2
    assert run.claim() is None


def test_while_much_is_left_nobody_looks(tmp_path: Path) -> None:
    run = Trials(tmp_path)
    more = [SHARD.model_copy(update={"start": n, "stop": n + 1}) for n in range(6, 6 + MOST_SEEN)]
    run.run = run.run.model_copy(update={"shards": [SHARD, *more]})
    assert run.claim() is None


@pytest.mark.usefixtures("no_weights")
def test_one_that_was_helped_by_a_trial_that_left_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its shard can be claimed again, and it has that in work already."""
    (tmp_path / "memory").mkdir()
    run_dir = RunDir(tmp_path / "run")
    write_built(run_dir, {"concurrency": 2 * ITEMS - 1})  # the last request comes later
    outputs, helped = Ledger(run_dir, "outputs"), SHARDS[0].span
    store = OpenShards.store

    def help_first(self: OpenShards, response: Response, seconds: float) -> None:
        if outputs.open_claims([helped]):
            outputs.revoke(helped, 1, "doubled")
            assert outputs.claim(helped, "m-0", "1") == 2
            outputs.revoke(helped, 2, "released")
        store(self, response, seconds)

    monkeypatch.setattr(OpenShards, "store", help_first)
    order = [*SHARDS, SHARDS[0]]  # those that are planned, then those that are free
    monkeypatch.setattr(NextShards, "in_order", lambda _: iter(order))
    assert trial.run_trial(run_dir, "n", 0, 60) == 0
    assert answered(run_dir) == Counter({(d, i): 1 for d in "ab" for i in range(ITEMS)})


def test_who_dies_at_a_shard_after_it_was_helped_makes_it_a_suspect(tmp_path: Path) -> None:
    run = Trials(tmp_path)
    run.slow.pulled(SHARD.span, run.requests[3])
    assert run.claim() == (SHARD, 2)
    assert not run.ledger.suspects([SHARD.span])
    run.slow.die()
    assert run.ledger.suspects([SHARD.span]) == {SHARD.span: 1}


@pytest.mark.parametrize("silent", [0.0, 1e6])
@pytest.mark.usefixtures("no_weights")
def test_a_trial_that_finds_nothing_free_helps_a_slow_one_and_no_other(
    tmp_path: Path, silent: float
) -> None:
    (tmp_path / "memory").mkdir()
    run_dir = RunDir(tmp_path / "run")
    write_built(run_dir, {})
    outputs, slow = Ledger(run_dir, "outputs"), SHARDS[0].span
    assert outputs.claim(slow, "m-0", "1") == 1
    last = time.time() - silent
    known = {"node": "m", "state": "running", "started": last, "updated": last, "last": last}
    record = {"trial": "m-0", "task": "1", "ready": last, **known}
    _files.write_record(run_dir.trial("m-0"), TrialProgress.model_validate(record))
    assert trial.run_trial(run_dir, "n", 0, 60) == 0
    left = outputs.unpublished(shard.span for shard in SHARDS)
    if silent:
        assert left == []
        assert answered(run_dir) == Counter({(d, i): 1 for d in "ab" for i in range(ITEMS)})
    else:
        assert left == [slow]
        assert [held.attempt for held in outputs.open_claims([slow])] == [1]
