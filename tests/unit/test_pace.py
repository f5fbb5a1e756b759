"""A trial begins only shards that its engine, at its pace so far, finishes in time."""

from coordinate_eval.coordinator.workers.next_shards import TimeLeft


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_shard_must_end_before_the_deadline() -> None:
    clock = Clock()
    pace = TimeLeft(1100.0, clock)
    assert pace.in_time(99)
    assert not pace.in_time(100)
    clock.now = 1050
    assert not pace.in_time(50)


def test_what_was_begun_comes_first() -> None:
    pace = TimeLeft(1100.0, Clock())
    pace.begin(60)
    assert pace.in_time(39)
    assert not pace.in_time(41)
    pace.end(60, took=60)
    assert pace.in_time(99)


def test_what_was_given_back_comes_no_more() -> None:
    pace = TimeLeft(1100.0, Clock())
    pace.begin(60)
    pace.drop(60)
    assert pace.in_time(99)


def test_a_slow_engine_is_expected_to_stay_slow() -> None:
    pace = TimeLeft(1100.0, Clock())
    pace.begin(10)
    pace.end(10, took=30)
    assert pace.in_time(33)
    assert not pace.in_time(34)


def test_a_fast_engine_is_not_trusted() -> None:
    pace = TimeLeft(1100.0, Clock())
    pace.begin(10)
    pace.end(10, took=1)
    assert not pace.in_time(100)


def test_shards_that_overlap_do_not_look_slow() -> None:
    """A hundred in flight together: each took long from begin to end, and little of the engine."""
    pace = TimeLeft(1100.0, Clock())
    for _ in range(100):
        pace.begin(0.5)
    for _ in range(100):
        pace.end(0.5, took=0.5)
    assert pace.in_time(99)
