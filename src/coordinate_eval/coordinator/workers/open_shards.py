"""The shards that a trial has claimed and not yet published, and what was answered of them."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from coordinate_eval import _files
from coordinate_eval.coordinator.run import measurements
from coordinate_eval.coordinator.run.claims import AttemptWriter, Ledger
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.workers.pace import Pace
from coordinate_eval.errors import RecordError
from coordinate_eval.records import (
    DatasetRequests,
    ItemRequests,
    Request,
    Response,
    Shard,
    Span,
    prompt_lengths,
)


@dataclass
class _OpenShard:
    """One attempt at a shard. `unanswered` are identities of requests."""

    shard: Shard
    writer: AttemptWriter
    unanswered: set[tuple[str, int, int, int, int]]
    tally: measurements.Tally = field(default_factory=measurements.Tally)
    predicted_seconds: float = 0.0


class OpenShards:
    """The open shards of one trial. Each is published with the response that completes it."""

    def __init__(self, run_dir: RunDir, trial: str, pace: Pace) -> None:
        self._dir = run_dir
        self._trial = trial
        self._pace = pace
        self._ledger = Ledger(run_dir, "outputs")
        self._open: dict[str, dict[Span, _OpenShard]] = {}
        self.published = 0
        """Shards published so far."""

    def open(self, shard: Shard, attempt: int) -> list[Request]:
        """Open a claimed shard. Return its requests that no earlier attempt has answered."""
        span = shard.span
        requests = list(read_requests(self._dir, span))
        hashes = {r.identity(): r.prompt_hash for r in requests}
        work = _OpenShard(shard, AttemptWriter(self._ledger, span, attempt), set(hashes))
        self._open.setdefault(span.dataset, {})[span] = work
        for line in self._ledger.earlier_lines(span, attempt):
            with contextlib.suppress(ValueError):
                earlier = Response.model_validate_json(line)
                key = earlier.identity()
                if key in work.unanswered and hashes[key] == earlier.prompt_hash:
                    work.unanswered.discard(key)
                    work.writer.write(line)
        left = [r for r in requests if r.identity() in work.unanswered]
        work.predicted_seconds = shard.gpu_seconds * len(left) / max(1, len(requests))
        self._pace.begin(work.predicted_seconds)
        if not left:
            self._publish(work)
        work.tally.items = len({r.item for r in left})
        work.tally.prompt_tokens = sum(sum(prompt_lengths(r)) for r in left)
        return left

    def store(self, response: Response, seconds: float) -> None:
        """Append a response to its shard. `seconds` is its share of the engine's time.

        Raises:
            RecordError: no open shard waits for this response.
        """
        for span, work in self._open.get(response.dataset, {}).items():
            if span.start <= response.item < span.stop and response.identity() in work.unanswered:
                work.writer.write(response.line())
                work.tally.add(response, seconds)
                work.unanswered.discard(response.identity())
                if not work.unanswered:
                    self._publish(work)
                return
        raise RecordError(
            f"the engine answered a request that it was not given: {response.identity()} of "
            f"{response.dataset}"
        )

    def check_none_left(self) -> None:
        """Check that the engine answered every request.

        Raises:
            RecordError: it did not.
        """
        left = [span for works in self._open.values() for span in works]
        if left:
            raise RecordError(
                f"the engine ended without answering items {left[0].stem} of {left[0].dataset}"
            )

    def give_back(self, cause: Literal["released", "died"]) -> None:
        """End all open attempts. The next attempts use their lines."""
        for works in self._open.values():
            for work in works.values():
                work.writer.give_back(cause)
        self._open.clear()

    def _publish(self, work: _OpenShard) -> None:
        work.writer.publish()
        line = work.tally.to_line(work.shard.span)
        measurements.append_line(self._dir.observations(self._trial), line)
        del self._open[work.shard.dataset][work.shard.span]
        self.published += 1
        self._pace.end(work.predicted_seconds, work.tally.gpu_seconds)


def read_requests(run_dir: RunDir, span: Span) -> Iterator[Request]:
    """Yield the requests of a span. Only its part of the dataset's file is read."""
    index = _files.read_record(run_dir.requests_index(span.dataset), DatasetRequests)
    begin, end = index.offsets[span.start], index.offsets[span.stop]
    with _files.open_to_read(run_dir.requests(span.dataset)) as file:
        file.seek(begin)
        text = file.read(end - begin)
    for line in text.splitlines():
        yield from ItemRequests.model_validate_json(line).of_dataset(span.dataset)
