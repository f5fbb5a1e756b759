"""Signal to noise of scores over a training, where both are known."""

import json
import math
import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.trainings import call, keep, row

from coordinate_eval.coordinator.history.columns import Plain
from coordinate_eval.coordinator.history.curve import Noise, deviation, noise_of
from coordinate_eval.coordinator.history.rows import Row
from coordinate_eval.coordinator.history.series import Column

SCORE = Column("a", ["a"], mean=False)


def told(
    of: Callable[[float], float], noise: float, steps: Sequence[int], seed: int = 0, **more: Any
) -> Noise:
    """What is told of a curve with normal noise."""
    draw = random.Random(seed)

    def plain(step: int) -> Plain:
        value = of(step) + draw.gauss(0, noise)
        return (value, more.get("stderr", 0.01), 1000, "acc", more.get("higher", True), "x")

    found = noise_of(SCORE, [row(step, {"a": plain(step)}) for step in steps])
    assert found is not None
    return found


EVEN = range(0, 40_000, 1000)
GROWING = [round(100 * 1.2**n) for n in range(40)]


@pytest.mark.parametrize("steps", [EVEN, GROWING])
@pytest.mark.parametrize(
    "curve",
    [
        lambda step: 0.3,
        lambda step: 0.2 + 0.4 * step / 40_000,
        lambda step: 0.2 + 0.5 * (1 - math.exp(-step / 12_000)),
    ],
)
def test_the_noise_is_that_of_neighbours_whatever_the_curve(
    steps: Sequence[int], curve: Callable[[float], float]
) -> None:
    found = [told(curve, 0.012, steps, seed) for seed in range(30)]

    assert statistics.mean(each.noise for each in found) == pytest.approx(0.012, rel=0.1)
    rise = curve(steps[-1]) - curve(steps[0])
    assert statistics.mean(each.rise for each in found) == pytest.approx(rise, abs=0.012)
    assert found[0].sampling == pytest.approx(0.01)


def test_the_ratio_is_the_rise_over_the_noise_and_falls_with_it() -> None:
    clear, noisy = (told(lambda s: 0.2 + s / 80_000, noise, EVEN) for noise in (0.004, 0.04))
    assert clear.ratio == pytest.approx(clear.rise / clear.noise)
    assert clear.ratio is not None
    assert noisy.ratio is not None
    assert clear.ratio == pytest.approx(0.4875 / 0.004, rel=0.35)
    assert noisy.ratio == pytest.approx(0.4875 / 0.04, rel=0.35)


def test_where_less_is_better_a_fall_is_a_rise() -> None:
    found = told(lambda step: 3 - step / 40_000, 0.02, EVEN, higher=False)
    assert found.rise == pytest.approx(0.975, abs=0.05)
    worse = told(lambda step: 0.5 - step / 100_000, 0.02, EVEN)
    assert worse.ratio is not None
    assert worse.ratio < 0


def test_without_noise_there_is_no_ratio() -> None:
    found = told(lambda step: 0.3, 0.0, EVEN)
    assert (found.noise, found.ratio) == (0.0, None)
    assert deviation([0, 1, 2, 3], [0.1, 0.2, 0.3, 0.4]) == 0.0


def test_steps_that_stand_twice_and_scores_that_are_no_numbers() -> None:
    def made(step: int | None, value: float) -> Row:
        score: Plain = (value, 0.01, 10, "acc", True, "x")
        return Row("/t", step, f"/t/{step}-{value}", ["r"], 0.0, {"a": score}, [], None)

    good = [made(step, 0.1 + step / 100) for step in range(6)]
    odd = [made(3, 0.9), made(2, math.nan), made(None, 0.4), *good]
    assert noise_of(SCORE, odd) == noise_of(SCORE, good)
    assert noise_of(SCORE, good[:3]) is None


def test_the_clearest_dataset_comes_first(tmp_path: Path) -> None:
    draw = random.Random(1)
    for step in range(30):
        keep(tmp_path, step, {
            "flat": 0.25 + draw.gauss(0, 0.01),
            "clear": 0.2 + step / 100 + draw.gauss(0, 0.005),
            "noisy": 0.2 + step / 100 + draw.gauss(0, 0.05),
            "new": 0.5 if step > 27 else (math.nan, 0.1, 1, "acc", True, "x"),
        })  # fmt: skip

    found = json.loads(call(tmp_path, "history", "--noise", "--json").stdout)
    rows = found["noise"]["/ckpts/seven"]
    assert found["schema"] == "coordinate-eval/history@1"
    names = [row["name"] for row in rows]
    assert (names.index("clear"), names.index("noisy"), names[-1]) == (0, len(names) - 2, "flat")
    assert rows[0]["ratio"] == pytest.approx(0.29 / 0.005, rel=0.3)
    assert rows[0]["sampling"] == pytest.approx(0.05)

    shown = call(tmp_path, "history", "--noise").output
    assert shown.index("clear") < shown.index("noisy") < shown.index("flat")
    assert "1 column with fewer than 4 scores left out" in " ".join(shown.split())
    only = call(tmp_path, "history", "--noise", "--column", "flat", "--json").stdout
    assert [row["name"] for row in json.loads(only)["noise"]["/ckpts/seven"]] == ["flat"]


@pytest.mark.parametrize("other", ["--curve", "--csv"])
def test_it_is_one_table(tmp_path: Path, other: str) -> None:
    answer = call(tmp_path, "history", "--noise", other)
    assert answer.exception is not None
    assert "--noise" in str(answer.exception)
