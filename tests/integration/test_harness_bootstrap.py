"""Bootstrapped standard errors are the harness's own, to the last bit."""

import multiprocessing
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

pytest.importorskip("lm_eval")

from lm_eval.api import metrics

from coordinate_eval.evaluators.harness.session import bootstrap_stderr, bootstrapped_here


def share(pairs: Sequence[Any]) -> float:
    return float(sum(a == b for a, b in pairs) / len(pairs))


@pytest.mark.parametrize(
    ("statistic", "draw", "iters"),
    [
        (metrics.perplexity, lambda dice: -9 * dice.random(), 3000),
        (metrics.median, lambda dice: dice.randrange(10), 1000),
        (share, lambda dice: (dice.randrange(2), dice.randrange(2)), 2500),
        (metrics.nanmean, lambda dice: dice.choice([float("nan"), 0.0, 1.0]), 100),
    ],
)
def test_standard_errors_are_those_of_the_harness(
    statistic: Callable[[Sequence[Any]], float],
    draw: Callable[[random.Random], Any],
    iters: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dice = random.Random(7)
    values = [draw(dice) for _ in range(41)]
    monkeypatch.setenv("DISABLE_MULTIPROC", "1")
    assert bootstrap_stderr(statistic, values, iters) == metrics.bootstrap_stderr(
        statistic, values, iters
    )


def test_the_harness_starts_no_processes_in_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a pool of processes was started")

    monkeypatch.setattr(multiprocessing, "Pool", refuse)
    before = metrics.bootstrap_stderr
    with bootstrapped_here():
        error = metrics.stderr_for_metric(metrics.perplexity, 1000)
        assert error is not None
        assert error([-1.0, -2.0, -4.0]) > 0
    assert metrics.bootstrap_stderr is before
