"""The harness's bootstrapped standard errors, in this process.

The harness draws its resamples in a pool of forked processes, one for each core of the machine
even where a job was given one core. Forks of a process with threads can hang, and they outlive a
scorer that is killed. The same numbers come from here, in about a third of the processor time.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from lm_eval.api import metrics

_CHUNK = 1000
"""Resamples that the harness draws from one seed."""


def bootstrap_stderr(
    statistic: Callable[[Sequence[Any]], float], values: Sequence[Any], iters: int
) -> float:
    """Standard deviation of a statistic over `iters` resamples: the harness's, to the last bit.

    It draws with `random.Random(seed).choices`, whose numbers are those of numpy's Mersenne
    Twister seeded with `[seed]`, scaled and cut to whole numbers.
    """
    array = np.asarray(values) if all(type(value) is float for value in values) else None
    size = min(_CHUNK, iters)
    found: list[float] = []
    for seed in range(iters // size):
        twister = np.random.RandomState([seed])
        for _ in range(size):
            drawn = (twister.random_sample(len(values)) * len(values)).astype(np.intp)
            resample = [values[i] for i in drawn] if array is None else array[drawn].tolist()
            found.append(statistic(resample))
    return float(metrics.sample_stddev(found))


@contextmanager
def bootstrapped_here() -> Iterator[None]:
    """Have the harness take its bootstrapped standard errors from here inside the block."""
    real = metrics.bootstrap_stderr
    metrics.bootstrap_stderr = bootstrap_stderr
    try:
        yield
    finally:
        metrics.bootstrap_stderr = real
