"""The number of random examples: a few by `make test`, many by `make test-long`."""

import os

from hypothesis import HealthCheck, settings

LONG = os.environ.get("TEST_LONG") == "1"
"""Set by `make test-long`."""

FACTOR = 30 if LONG else 1


def examples(count: int, *, steps: int = 50) -> settings:
    """Return settings for `count` random examples, `FACTOR` times as many in a long run.

    `steps` is the number of steps in an example of a state machine.
    """
    return settings(
        max_examples=count * FACTOR,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
