"""Comparisons have the numbers of published methods on the same items."""

import numpy as np
import pytest
from benchmarks.agreement import ROWS, largest, pair

# The bootstrap has no n - 1, NeMo no Student's distribution, and one row has the added item.
CLOSE = {"the same ": 1e-2, "half of the interval": 2e-2, "as shown": 2e-2}


@pytest.mark.parametrize("quantity", ROWS)
def test_a_quantity_is_that_of_its_reference(quantity: str) -> None:
    row = ROWS[quantity]
    draw = np.random.default_rng(5)
    pairs = [pair(draw, *((60, 5) if row.clustered else (300, 1)), gain) for gain in (0, 0.1, 0.3)]
    _, part = largest(row, pairs)
    assert part < CLOSE.get(quantity.removeprefix(" "), 1e-9)
