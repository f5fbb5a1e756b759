"""The shards that a trial has claimed and not yet published, and items that end engines.

When a trial dies, it leaves a note for each of its shards: the items that its engine had and had
not answered. These are the suspects. The next owner of the shard gives its engine nothing else, one
batch of suspects after the other. An answered batch is cleared. If the engine dies at a batch, that
is the next, smaller set of suspects: a set from several shards is tried as a whole, a set that was
alone in eighths. So an item among hundreds is found by about six engines, and the others are
answered.

Servers and nodes also die of what no item does. So a death at many items proves nothing, nor does
one at a single item: the others come first, and most items that were only there are then answered.
"""

import contextlib
import math
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pydantic import ValidationError

from coordinate_eval import _files
from coordinate_eval.coordinator.run import measurements
from coordinate_eval.coordinator.run.claiming.claims import AttemptWriter, Ledger
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.workers.next_shards import TimeLeft
from coordinate_eval.errors import RecordError
from coordinate_eval.records import (
    DatasetRequests,
    ItemRequests,
    Record,
    Request,
    Response,
    Shard,
    Span,
    prompt_lengths,
    seeded_order,
)

PARTS = 8
"""Batches into which suspects are split. An engine's start costs as much as several batches."""

LEAST_DEATHS = 3
"""Engines that died by themselves while they had nothing but one item, after which the item is
given up. With as many such items, the shard is."""


class Batch(Record):
    """Items that an engine had of one shard. `alone` if it had nothing else.

    `killed` if it died of SIGKILL, which somebody else sends, or the system to free memory.
    """

    items: list[int]
    alone: bool
    killed: bool = False


def read_batch(note: str) -> Batch | None:
    """Return the batch in the note of an attempt, or None if it is missing or torn."""
    try:
        return Batch.model_validate_json(note)
    except ValidationError:
        return None


def deadly(items: Iterable[int], deaths: Sequence[Batch | None]) -> list[int]:
    """Return the items that end engines for certain.

    `deaths` are the batches that engines had when they died; None for an unknown batch.
    """
    alone = _deaths_alone(batch for batch in deaths if batch is not None and not batch.killed)
    return [item for item in items if alone[item] >= LEAST_DEATHS]


def _deaths_alone(deaths: Iterable[Batch | None]) -> Counter[int]:
    """Return the deaths of engines that had nothing but one item, by item."""
    known = (batch for batch in deaths if batch is not None)
    return Counter(b.items[0] for b in known if b.alone and len(b.items) == 1)


def next_batch(unanswered: Sequence[int], deaths: Sequence[Batch | None]) -> list[int]:
    """Return the items to be answered next, and nothing else with them; none to give up the shard.

    Items that are least likely to end an engine come first, so that most are answered before it
    dies.
    """
    lost = set(deadly(unanswered, deaths))
    if len(lost) >= LEAST_DEATHS:
        return []
    left = [item for item in unanswered if item not in lost]
    every = frozenset(unanswered)
    sets = [(frozenset(batch.items), batch.alone) if batch else (every, False) for batch in deaths]
    sizes = [len(batch.items) if batch else math.inf for batch in deaths]
    groups: dict[int | None, list[int]] = {}
    for item in left:
        # An item counts to the smallest batch that an engine died at.
        mine = [number for number, (items, _) in enumerate(sets) if item in items]
        smallest = min(mine, key=lambda n: (sizes[n], not sets[n][1]), default=None)
        groups.setdefault(smallest, []).append(item)
    whole: list[list[int]] = []
    parts: list[list[int]] = []
    for number, group in groups.items():
        if number is None:
            return group
        items, alone = sets[number]
        explained = bool(items & lost) or any(other < items and sole for other, sole in sets)
        if explained or not alone:
            whole.append(group)
        else:
            parts.append(_part(group, len(items)))
    died_alone = _deaths_alone(deaths)
    parts.sort(key=lambda part: died_alone[part[0]])
    return next(iter(whole + parts), [])


def _part(group: Sequence[int], died: int) -> list[int]:
    """Return the next part of what is left of a batch of `died` items at which an engine died."""
    size = math.ceil(died / PARTS)
    if len(group) <= size:  # the others are cleared, so that it is among these
        size = math.ceil(len(group) / PARTS)
    return list(group[:size])


MOST_LOST = 3
"""Most owners of a shard that may give it back because libraries blame their nodes. The same end of
the next owner counts against the shard."""

Identity = tuple[str, int, int, int, int]
"""The identity of a request, unique in its dataset, as `Key.identity` returns it."""


@dataclass
class _OpenShard:
    """One attempt at a shard. `unanswered` has the items of requests, by their identity."""

    shard: Shard
    writer: AttemptWriter
    unanswered: dict[Identity, int]
    tally: measurements.Tally = field(default_factory=measurements.Tally)
    predicted_seconds: float = 0.0
    pulled: set[int] = field(default_factory=set)
    """Items whose requests the engine has pulled."""

    @property
    def items(self) -> list[int]:
        """Return the items with unanswered requests, in order."""
        return sorted(set(self.unanswered.values()))

    @property
    def in_flight(self) -> list[int]:
        """Return the items with unanswered requests that the engine may have."""
        return [item for item in self.items if item in self.pulled]


class OpenShards:
    """The open shards of one trial. Each is published with the response that completes it."""

    def __init__(
        self, run_dir: RunDir, trial: str, time_left: TimeLeft, staged: Container[str] = ()
    ) -> None:
        """Begin without a shard. Datasets in `staged` are asked in their `seeded_order`."""
        self._dir, self._staged = run_dir, staged
        self._trial = trial
        self._time_left = time_left
        self._ledger = Ledger(run_dir, "outputs")
        self._open: dict[str, dict[Span, _OpenShard]] = {}
        self._dropped: dict[str, set[Identity]] = {}
        self.published = 0
        """Shards published so far."""

    def open(self, shard: Shard, attempt: int) -> list[Request]:
        """Open a claimed shard. Return its requests that no earlier attempt has answered."""
        span = shard.span
        requests = list(read_requests(self._dir, span, staged=span.dataset in self._staged))
        hashes = {r.identity(): r.prompt_hash for r in requests}
        unanswered = {request.identity(): request.item for request in requests}
        work = _OpenShard(shard, AttemptWriter(self._ledger, span, attempt), unanswered)
        self._open.setdefault(span.dataset, {})[span] = work
        for line in self._ledger.earlier_lines(span, attempt):
            with contextlib.suppress(ValueError):
                earlier = Response.model_validate_json(line)
                key = earlier.identity()
                if key in work.unanswered and hashes[key] == earlier.prompt_hash:
                    del work.unanswered[key]
                    work.writer.write(line)
        left = [r for r in requests if r.identity() in work.unanswered]
        work.predicted_seconds = shard.gpu_seconds * len(left) / max(1, len(requests))
        self._time_left.begin(work.predicted_seconds)
        if not left:
            self._publish(work)
        work.tally.items = len({r.item for r in left})
        work.tally.prompt_tokens = sum(sum(prompt_lengths(r)) for r in left)
        return left

    def store(self, response: Response, seconds: float) -> None:
        """Append a response to its shard. `seconds` is its share of the engine's time.

        Responses to dropped shards are discarded.

        Raises:
            RecordError: no open shard waits for this response.
        """
        for work in self._open.get(response.dataset, {}).values():
            if response.identity() in work.unanswered:
                work.writer.write(response.line())
                work.tally.add(response, seconds)
                del work.unanswered[response.identity()]
                if not work.unanswered:
                    self._publish(work)
                return
        if response.identity() in self._dropped.get(response.dataset, ()):
            return
        raise RecordError(
            f"the engine answered a request that it was not given: {response.identity()} of "
            f"{response.dataset}"
        )

    def check_none_left(self) -> None:
        """Check that the engine answered every request.

        Raises:
            RecordError: a request has no answer.
        """
        left = [span for works in self._open.values() for span in works]
        if left:
            raise RecordError(
                f"the engine ended without answering items {left[0].stem} of {left[0].dataset}"
            )

    def drop_published(self) -> dict[Span, list[Identity]]:
        """Drop the shards that others have published meanwhile. Return what of them is unanswered.

        The engine need not be given those requests any more, nor answer them. What storage cannot
        say now, the next look may see.
        """
        gone: dict[Span, list[Identity]] = {}
        for works in self._open.values():
            for span in list(filter(self._seems_published, works)):
                work = works.pop(span)
                self._time_left.drop(work.predicted_seconds)
                work.writer.drop()
                gone[span] = list(work.unanswered)
        for span, lost in gone.items():
            self._dropped.setdefault(span.dataset, set()).update(lost)
        return gone

    def _seems_published(self, span: Span) -> bool:
        try:
            return self._ledger.is_published(span)
        except OSError:
            return False

    def holds(self, span: Span) -> bool:
        """Return whether a shard is open here, perhaps because another trial helped and left."""
        return span in self._open.get(span.dataset, {})

    def pulled(self, span: Span, request: Request) -> None:
        """Note that the engine has a request."""
        self._open[span.dataset][span].pulled.add(request.item)

    def items_left(self, span: Span) -> list[int]:
        """Return the items of a shard that are not answered, in order; none if it is published."""
        work = self._open[span.dataset].get(span)
        return work.items if work is not None else []

    def run_alone(self, span: Span, items: Sequence[int]) -> None:
        """Note that these are the only items that the engine will have."""
        note = Batch(items=list(items), alone=True)
        self._open[span.dataset][span].writer.note_running(note.model_dump_json())

    def give_up(self, span: Span, items: Sequence[int]) -> None:
        """End the attempt at a shard that is given up, because these items end engines."""
        work = self._open[span.dataset].pop(span)
        self._time_left.drop(work.predicted_seconds)
        work.writer.give_back("given up", items)

    def give_back(self, cause: Literal["released", "lost"]) -> None:
        """End all open attempts. The next attempts use their lines."""
        for works in self._open.values():
            for work in works.values():
                self._time_left.drop(work.predicted_seconds)
                work.writer.give_back(cause)
        self._open.clear()

    def lose(self) -> None:
        """End all open attempts: their node seems to be at fault.

        A shard that was in work at several such faults may have brought them about.
        """
        spans = [span for works in self._open.values() for span in works]
        if any(self._ledger.count_lost(span) >= MOST_LOST for span in spans):
            self.die()
        else:
            self.give_back("lost")

    def die(self, *, killed: bool = False) -> None:
        """End all open attempts: one of the items that the engine had may have ended it.

        If it was `killed`, they are tried alone too, since it may have been for its memory.
        """
        works = [work for works in self._open.values() for work in works.values()]
        guilty = [work for work in works if work.in_flight]
        for work in guilty:
            note = Batch(items=work.in_flight, alone=len(guilty) == 1, killed=killed)
            work.writer.note_running(note.model_dump_json())
            work.writer.give_back("died")
        for work in works:
            if work not in guilty:
                work.writer.give_back("released")
        self._open.clear()

    def _publish(self, work: _OpenShard) -> None:
        if work.writer.publish():
            line = work.tally.to_line(work.shard.span)
            measurements.append_line(self._dir.observations(self._trial), line)
        del self._open[work.shard.dataset][work.shard.span]
        self.published += 1
        self._time_left.end(work.predicted_seconds, work.tally.gpu_seconds)


def read_requests(run_dir: RunDir, span: Span, *, staged: bool = False) -> Iterator[Request]:
    """Yield the requests of a span in item order. Only its part of the dataset's file is read.

    If the dataset is `staged`, the span is of positions in its `seeded_order`.
    """
    index = _files.read_record(run_dir.requests_index(span.dataset), DatasetRequests)
    pieces = [(span.start, span.stop)]
    if staged:
        items = seeded_order(index.task_items)[span.start : span.stop]
        pieces = [(item, item + 1) for item in sorted(items)]
    with _files.open_to_read(run_dir.requests(span.dataset)) as file:
        for start, stop in pieces:
            file.seek(index.offsets[start])
            text = file.read(index.offsets[stop] - index.offsets[start])
            for line in text.splitlines():
                yield from ItemRequests.model_validate_json(line).of_dataset(span.dataset)
