"""Whether a training is alive and well: silence, losses and pace, by the guard's own clock."""

import math
import os
from collections.abc import Sequence
from pathlib import Path

from coordinate_eval.coordinator.training.guarding.attempts import What
from coordinate_eval.coordinator.training.guarding.policy import Policy
from coordinate_eval.coordinator.training.guarding.vitals import (
    Vitals,
    files_of,
    look,
    saved_at,
    wrong,
)
from coordinate_eval.coordinator.training.points import Point

POLICY = Policy(silent_steps=10, silent_seconds=60, first_step_seconds=600, slow_seconds=300)


def looks(
    seconds: float, count: int, every: int = 1, begin: Vitals | None = None, loss: float = 1.0
) -> Vitals:
    """Look every so many seconds at a training that takes so many steps meanwhile."""
    found = begin or Vitals()
    now, step = found.looked or 0.0, found.last_step or 0
    for _ in range(count):
        now, step = now + seconds, step + every
        found = look(found, [Point(step, loss=loss)], step, now)
    return found


def silent(found: Vitals, seconds: float, times: int, signs: Sequence[int] = ()) -> Vitals:
    for number in range(times):
        sign = signs[number] if signs else found.signs
        found = look(found, [], sign, (found.looked or 0.0) + seconds)
    return found


def test_a_training_hangs_that_is_silent_for_many_times_its_usual_step() -> None:
    alive = looks(30, 20)
    assert alive.step_seconds == 30
    assert wrong(silent(alive, 30, 9), POLICY) is None
    found = wrong(silent(alive, 30, 11), POLICY)
    assert found is not None and found.what is What.HUNG
    assert "since step 20" in found.why


def test_a_fast_training_is_given_the_least_silence() -> None:
    alive = looks(0.1, 50)
    assert wrong(silent(alive, 10, 5), POLICY) is None
    assert wrong(silent(alive, 10, 7), POLICY) is not None


def test_before_the_first_step_only_a_long_silence_is_a_hang() -> None:
    loading = silent(look(Vitals(), [], 5, 0.0), 100, 5, signs=range(5, 500, 90))
    assert wrong(loading, POLICY) is None
    assert wrong(silent(loading, 100, 7), POLICY) is not None


def test_lines_without_steps_are_a_hang_later() -> None:
    alive = looks(1, 20)
    lines = silent(alive, 30, 19, signs=range(1000, 5000, 100))
    assert wrong(lines, POLICY) is None
    found = wrong(silent(alive, 30, 21, signs=range(1000, 5000, 100)), POLICY)
    assert found is not None and "no step" in found.why


def test_a_line_that_says_a_step_too_high_is_no_progress_and_no_hang() -> None:
    alive = looks(1, 20)
    spoiled = look(alive, [Point(123_456, loss=1.0)], 21, (alive.looked or 0.0) + 1)
    again = look(spoiled, [Point(21, loss=1.0)], 22, (spoiled.looked or 0.0) + 1)
    assert again.last_step == 21
    found = looks(1, 2000, begin=again)
    assert wrong(found, POLICY) is None
    assert found.last_step == 2021


def test_a_save_is_a_sign_of_life(tmp_path: Path) -> None:
    before = saved_at(tmp_path)
    assert saved_at(tmp_path) == before
    os.utime(tmp_path, ns=(0, 1))
    (tmp_path / "step-1").mkdir()
    assert saved_at(tmp_path) > 1
    assert saved_at(tmp_path / "nothing") == 0


def test_a_guard_that_was_stopped_itself_and_clocks_that_jump_count_little() -> None:
    alive = looks(1, 20)
    slept = look(alive, [], alive.signs, 1_000_000.0)
    assert slept.silent <= 120
    back = look(slept, [], alive.signs, 0.0)
    assert back.silent == slept.silent


def test_losses_that_are_no_numbers_are_wrong_when_they_last() -> None:
    alive = looks(1, 5)
    once = looks(1, 1, begin=alive, loss=math.nan)
    assert wrong(looks(1, 1, begin=once), POLICY) is None
    found = wrong(looks(1, 3, begin=alive, loss=math.inf), POLICY)
    assert found is not None and found.what is What.NOT_FINITE
    assert "since step 6" in found.why


def test_a_pace_that_falls_by_a_third_for_a_while_is_slow() -> None:
    alive = looks(10, 60)
    little = looks(12, 60, begin=alive)
    assert wrong(little, POLICY) is None
    found = wrong(looks(16, 60, begin=alive), POLICY)
    assert found is not None and found.what is What.SLOW
    assert wrong(looks(10, 60, begin=looks(16, 60, begin=alive)), POLICY) is None


def test_logs_are_the_jobs_own_and_those_that_the_policy_names(tmp_path: Path) -> None:
    for name in ("rank-0.log", "rank-1.log", "other"):
        (tmp_path / name).touch()
    found = files_of(["rank-*.log", "events"], str(tmp_path), ["/logs/train.log"])
    assert sorted(path.name for path in found) == [
        "events",
        "rank-0.log",
        "rank-1.log",
        "train.log",
    ]
