"""The ledger: each second of each GPU is in exactly one place, whatever the clocks say."""

import json
import math
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.random_examples import examples

from coordinate_eval.coordinator.report.time_ledger import Asked, Life, Use, rows, sum_up

PERFECT = Life(
    "n1-0", 2, copied_from=12, copied_to=18, started=15, prepared=17, staged=18, running=30,
    last=90, ended=91,
)  # fmt: skip


def spent(life: Life, *others: Life, begin: float = 0, asked: float = 10, end: float = 120) -> Any:
    """Seconds of a trial by use, in the only round of a run."""
    row = next(iter(rows(begin, [Asked(asked, [life, *others])], end)))
    found = dict.fromkeys(Use, 0.0)
    for stretch in row.stretches:
        found[stretch.use] += stretch.end - stretch.begin
    return {use.value: seconds for use, seconds in found.items() if seconds}


def test_a_trial_from_the_submission_to_the_last_score() -> None:
    assert spent(PERFECT) == {
        "waiting": 10 + 30,  # for prompts, and for scores
        "queue": 2,
        "staging": 3 + 1,  # before the trial began, and by it
        "engine start": 2 + 12,
        "requests": 60,
    }


def test_who_has_no_more_to_do_drains_until_the_last_has_answered() -> None:
    early = PERFECT._replace(last=70, ended=71)
    assert spent(early, PERFECT)["draining"] == 20
    idle = Life("n1-1", 1, started=20, ended=21)
    assert spent(idle, PERFECT) == {"waiting": 40, "queue": 10, "draining": 70}


def test_what_failed_or_was_killed_is_lost_from_its_last_response_on() -> None:
    killed = PERFECT._replace(last=50, ended=52, lost=True)
    assert spent(killed, PERFECT)["lost to faults"] == 40
    assert spent(killed, PERFECT)["requests"] == 20
    failed = Life("n1-1", 1, started=20, prepared=25, ended=60, lost=True)
    assert spent(failed, PERFECT) == {"waiting": 40, "queue": 10, "lost to faults": 70}
    assert spent(failed) == {"waiting": 10 + 60, "queue": 10, "lost to faults": 40}


def test_who_never_began_was_in_the_queue() -> None:
    never = Life("n1-1", 1)
    assert spent(never, PERFECT) == {"waiting": 40, "queue": 80}
    assert spent(never) == {"waiting": 10, "queue": 110}


def test_a_run_that_goes_on_is_at_what_it_has_not_ended() -> None:
    at = PERFECT._replace(running=None, last=None, ended=None)
    assert spent(at)["engine start"] == 2 + (120 - 18)
    answering = PERFECT._replace(ended=None)
    assert spent(answering)["requests"] == 90


def test_a_later_round_takes_over_and_the_time_before_it_was_spent_asking() -> None:
    first = PERFECT._replace(ended=92, lost=True)
    found = list(rows(0, [Asked(10, [first]), Asked(150, [PERFECT])], 200))
    assert [(r.stretches[0].begin, r.stretches[-1].end) for r in found] == [(0, 150), (150, 200)]
    assert found[0].stretches[-1].use is Use.QUEUE


def test_a_trial_that_lives_through_a_replacement_keeps_its_gpu_to_the_end() -> None:
    lives_on = PERFECT._replace(last=190, ended=191)
    lost = PERFECT._replace(last=50, ended=52, lost=True)
    never = Life("n1-2", 1)
    substitute = PERFECT._replace(copied_from=None, copied_to=None, started=110, prepared=112,
                                  staged=113, running=120, last=180, ended=181)  # fmt: skip
    found = list(rows(0, [Asked(10, [lives_on, lost, never]), Asked(100, [substitute])], 200))
    assert [(r.stretches[0].begin, r.stretches[-1].end) for r in found] == [
        (0, 200), (0, 100), (0, 100), (100, 200)
    ]  # fmt: skip
    # What was lost stays so until it is replaced: others went on.
    assert [(s.begin, s.end) for s in found[1].stretches if s.use is Use.LOST] == [(50, 100)]
    # It has no more to do when the other one still answers.
    assert found[3].stretches[-2:] == [(180, 190, Use.DRAINING), (190, 200, Use.WAITING)]


def test_the_advice_is_about_the_largest_part_that_is_no_answering() -> None:
    def advice(life: Life, asked: float = 1, end: float = 91, scoring: float = 0) -> str:
        cpu_seconds = {"metrics": 5.0, "scoring": scoring}
        return sum_up(0, [Asked(asked, [life])], end, cpu_seconds).advice

    slow = Life("a", 1, started=1, prepared=2, staged=2, running=40, last=90, ended=91)
    assert advice(slow).startswith("43% of GPU time was engine start: take fewer GPUs")
    good = slow._replace(running=3)
    assert advice(good).startswith("96% of GPU time was requests: only more")
    assert "prefetch" in advice(good, asked=80)
    assert "[metrics] cpus" in advice(good, end=500)
    assert "[harness] jobs" in advice(good, end=500, scoring=9)
    assert sum_up(0, [], 10, {}).advice == "no GPU was asked for"


times = st.one_of(st.none(), st.floats(-100, 1000))
lives = st.builds(
    Life, st.just("t"), st.integers(1, 8), *[times] * 8, lost=st.booleans()
)  # fmt: skip


@given(
    st.floats(-50, 50),
    st.lists(st.tuples(st.floats(0, 300), st.lists(lives, min_size=1, max_size=3)), max_size=4),
    st.floats(0, 500),
)
@examples(300)
def test_the_sums_are_all_of_the_time_whatever_was_recorded(
    begin: float, found: list[tuple[float, list[Life]]], lasted: float
) -> None:
    rounds = [Asked(begin + time, each) for time, each in sorted(found, key=lambda f: f[0])]
    end = begin + 300 + lasted
    for row in rows(begin, rounds, end):
        assert all(one.end == two.begin for one, two in pairwise(row.stretches))
        assert all(stretch.begin < stretch.end for stretch in row.stretches)
    whole = 0.0
    for number, round_ in enumerate(rounds):
        since = round_.time if number else begin
        for life in round_.lives:
            over = -math.inf if life.started is None else life.ended
            later = [r.time for r in rounds[number + 1 :] if over is not None and over <= r.time]
            whole += life.gpus * ((later[0] if later else end) - since)
    ledger = sum_up(begin, rounds, end, {"metrics": 1.0, "scoring": 2.0})
    assert abs(ledger.total_gpu_seconds - whole) < 0.01
    assert abs(sum(ledger.gpu_seconds.values()) - whole) < 0.01
    assert set(json.loads(ledger.model_dump_json())["gpu_seconds"]) == {use.value for use in Use}
