"""The context that engines are started with: as long as the suite needs, and no longer.

An engine has to have room for the keys and values of one sequence of its whole context. Prompts are
cut to the context of the run (`max_length`), as the harness cuts them, when they are built. So an
engine's context may be shorter and change no score: every request fits into it.
"""

from collections.abc import Mapping
from typing import NamedTuple

from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.priors.catalogue import expected_context
from coordinate_eval.records import DatasetRequests

STEP = 4096
"""A context is rounded to a multiple of so many tokens, so that suites with similar prompts share
what engines compile."""


class Need(NamedTuple):
    """The tokens of context that a dataset needs."""

    tokens: int
    dataset: str
    cut: int = 0
    """Prompts longer than the context of the run, which were cut as the harness cuts them."""


def needs(run: Run, built: Mapping[str, DatasetRequests]) -> list[Need]:
    """Return the tokens that each dataset needs, most first: as built, else as predicted.

    If built requests do not tell, the longest context counts.
    """
    found = [
        Need(built[d.name].context_tokens or run.max_length, d.name, built[d.name].cut_prompts)
        if d.name in built
        else Need(expected_context(d), d.name)
        for d in run.suite.datasets
    ]
    return sorted(found, reverse=True)


def with_context(run: Run, built: Mapping[str, DatasetRequests]) -> Run:
    """Return a run whose engines have the context that its datasets need, up to `max_length`."""
    most = max((need.tokens for need in needs(run, built)), default=run.max_length)
    # Where longer contexts are computed otherwise, it stays on the side of the run's own.
    same_from = run.checkpoint.same_from
    if 0 < same_from < run.max_length:
        most = max(most, same_from + 1)
    return run.model_copy(update={"context": min(run.max_length, -(-most // STEP) * STEP)})
