"""Who spent an engine's time, when it works on many requests at once.

An engine answers the requests of several shards together, so the wall time between a shard's
first response and its last is not what the shard cost. The rule here: the time between two
answers is split among the requests being computed, in proportion to what they have to compute.
An engine with continuous batching computes whatever is in flight, pulled and not yet answered,
and what counts is what a step does for each. One that pulls ahead to sort its requests into
batches says which batch it computes; a batch's time is split by all that there is to do for each,
and what waits costs nothing. What all requests get adds up to the time in which any was in flight.
"""

import time
from collections.abc import Callable, Sequence

from coordinate_eval.priors.roofline import MAX_SEQUENCES
from coordinate_eval.records import Key, Request, RequestKind

STEP_TOKENS = 250.0
"""Tokens of a prompt that take as long to compute as a step takes to read the weights, whatever
the model: peak FLOP/s over bytes/s of current GPUs (`gpus`), for two bytes a parameter."""

WRITTEN_SHARE = 0.3
"""Part of its limit that a text is taken to have."""

_Name = tuple[object, ...]


def steps(request: Request) -> float:
    """Steps in which an engine is done with a request: one a token, one to score."""
    if request.kind is RequestKind.LOGLIKELIHOOD:
        return 1.0
    return max(1.0, WRITTEN_SHARE * request.max_tokens)


def work(request: Request, together: int) -> float:
    """What there is to compute for a request, in tokens of a prompt, `together` at once."""
    prompt = len(request.tokens) + len(request.continuation)
    if request.kind is RequestKind.LOGLIKELIHOOD:
        return prompt
    return prompt + steps(request) * (1 + STEP_TOKENS / together)


class Shares:
    """Splits the time of one engine among its requests, as they are pulled and answered.

    Args:
        clock: seconds, never going back.

    An answer costs a constant time, a batch once the time of a look at each of its requests.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._waiting: dict[_Name, Request] = {}  # pulled, and not known to be computed
        self._computed: dict[_Name, tuple[float, float]] = {}  # weight, and `_unit` at its start
        self._weights = 0.0  # of all that are computed
        self._unit = 0.0  # seconds so far of a request of weight 1 that was always computed
        self._batch: Sequence[Request] | None = None
        self._last = 0.0

    def pulled(self, request: Request) -> None:
        """The engine has taken this request."""
        if not self._waiting and not self._computed:
            self._last = self._clock()
        self._waiting[_name(request)] = request

    def answered(self, key: Key, batch: Sequence[Request] | None) -> float:
        """The engine has answered this request: its seconds; 0 for one that was not pulled.

        `batch` is what the engine computes, None for all that is in flight.
        """
        now = self._clock()
        passed, self._last = now - self._last, now
        if batch is None:
            for request in self._waiting.values():
                self._start(request, work(request, MAX_SEQUENCES) / steps(request))
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
        # Counted anew where rounding could have left something of those that are gone.
        self._weights = self._weights - weight if self._computed else 0.0
        return weight * (self._unit - began)

    def _start(self, request: Request, weight: float) -> None:
        self._computed[_name(request)] = (weight, self._unit)
        self._weights += weight


def _name(key: Key) -> _Name:
    return key.dataset, *key.identity()
