"""The number of random examples: a few by `make test`, many by `make test-long`."""

import os

from hypothesis import HealthCheck, settings

LONG = os.environ.get("TEST_LONG") == "1"
"""Set by `make test-long`."""

FACTOR = 30 if LONG else 1


def examples(count: int, *, steps: int = 50) -> settings:
    """Return settings for `count` random examples, `FACTOR` times as many in a long run.

    A short run has the same examples each time: what a change breaks is told from what it meets.

    Args:
        count: examples of a short run.
        steps: steps in an example of a state machine.
    """
    return settings(
        max_examples=count * FACTOR,
        stateful_step_count=steps,
        derandomize=not LONG,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
