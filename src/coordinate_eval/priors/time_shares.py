"""The split of an engine's time among the requests that it computes at once.

An engine answers requests of several shards together, so the wall time between the first and the
last response of a shard is not its cost. Instead, the time between two answers is split among the
requests that are being computed, in proportion to their work. An engine with continuous batching
computes all requests that are pulled and not yet answered; their work is that of one step. What a
prompt shares with the one before it is no work (`records.computed_before`), and neither is what a
later turn of a conversation shares with those before it. An engine that sorts requests into batches
names the batch that it computes; their work is all that they need, and waiting requests cost
nothing. The shares of all requests add up to the time in which any request was in flight.
"""

import time
from collections.abc import Callable, Iterable, Sequence

from coordinate_eval.priors.roofline import WRITTEN_SHARE
from coordinate_eval.records import (
    Key,
    Request,
    RequestKind,
    computed_before,
    computed_by_turns,
    prompt_lengths,
)

STEP_TOKENS = 250.0
"""Prompt tokens that take as long to compute as a step takes to read the weights, for any model:
peak FLOP/s over bytes/s of current GPUs (`gpus`), at two bytes per parameter."""

_Name = tuple[object, ...]


def steps(request: Request) -> float:
    """Return the steps that a request takes: one per token of each turn, or one to score it."""
    if request.kind is RequestKind.LOGLIKELIHOOD:
        return 1.0
    return request.turns * max(1.0, WRITTEN_SHARE * request.max_tokens)


def work(request: Request, together: int, shared: int = 0) -> float:
    """Return the work of a request, in prompt tokens, with `together` requests at once.

    `shared` tokens of its prompts need not be computed. A request is some work in any case.
    """
    prompt = max(1, sum(prompt_lengths(request)) - shared)
    if request.kind is RequestKind.LOGLIKELIHOOD:
        return prompt
    return prompt + steps(request) * (1 + STEP_TOKENS / together)


class Shares:
    """Shares of one engine's time among its requests.

    Recording an answer takes constant time; a new batch takes time in proportion to its size.

    Args:
        sequences: Most requests that an engine with continuous batching runs at once.
    """

    def __init__(self, sequences: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._sequences = sequences
        self._clock = clock
        self._pulled: Request | None = None
        # Pulled and not yet being computed, with the tokens shared with the request before.
        self._waiting: dict[_Name, tuple[Request, int]] = {}
        self._computed: dict[_Name, tuple[float, float]] = {}  # weight, and `_unit` at its start
        self._weights = 0.0  # of all requests being computed
        self._unit = 0.0  # seconds so far of a request of weight 1 that is always computed
        self._batch: Sequence[Request] | None = None
        self._last = 0.0

    def pulled(self, request: Request) -> None:
        """Record that the engine has pulled this request."""
        if not self._waiting and not self._computed:
            self._last = self._clock()
        shared = computed_before(request, self._pulled) + computed_by_turns(request)
        self._waiting[_name(request)] = request, shared
        self._pulled = request

    def answered(self, key: Key, batch: Sequence[Request] | None) -> float:
        """Record that the engine has answered this request; return its seconds.

        Return 0 for a request that was not pulled. `batch` is the batch that the engine computes,
        or None if it computes all requests in flight.
        """
        now = self._clock()
        passed, self._last = now - self._last, now
        if batch is None:
            for request, shared in self._waiting.values():
                self._start(request, work(request, self._sequences, shared) / steps(request))
            self._waiting.clear()
        elif batch is not self._batch:
            for request in batch:
                if self._waiting.pop(_name(request), None) is not None:
                    self._start(request, work(request, len(batch)))
        self._batch = batch
        if not self._computed:
            return 0.0
        self._unit += passed / self._weights
        weight, began = self._computed.pop(_name(key), (0.0, 0.0))
        # Reset when nothing is computed, so that rounding errors do not add up.
        self._weights = self._weights - weight if self._computed else 0.0
        return weight * (self._unit - began)

    def dropped(self, dataset: str, identities: Iterable[tuple[object, ...]]) -> None:
        """Record that nobody waits for these requests any more."""
        now = self._clock()
        if self._computed:
            self._unit += (now - self._last) / self._weights
        self._last = now
        for identity in identities:
            name = (dataset, *identity)
            self._waiting.pop(name, None)
            weight, _ = self._computed.pop(name, (0.0, 0.0))
            self._weights = self._weights - weight if self._computed else 0.0

    def _start(self, request: Request, weight: float) -> None:
        self._computed[_name(request)] = (weight, self._unit)
        self._weights += weight


def _name(key: Key) -> _Name:
    return key.dataset, *key.identity()
