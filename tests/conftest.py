"""What all tests share."""

import signal
from collections.abc import Iterator

import pytest

_STOPS = (signal.SIGTERM, signal.SIGUSR1)


@pytest.fixture(autouse=True)
def signals_as_they_were() -> Iterator[None]:
    """A job that ran in this process leaves no handler to the tests after it."""
    before = [signal.getsignal(number) for number in _STOPS]
    yield
    for number, handler in zip(_STOPS, before, strict=True):
        if handler is not None:
            signal.signal(number, handler)
