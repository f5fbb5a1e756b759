"""Places where hostile programs run."""

import contextlib
from collections.abc import Iterator

import pytest

from tests.hostile.place import Places


@pytest.fixture(scope="module")
def places() -> Iterator[Places]:
    with contextlib.closing(Places()) as places:
        yield places
