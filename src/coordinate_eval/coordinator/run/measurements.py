"""Measurements that trials, keepers and scoring jobs make while a run goes on.

A trial appends the seconds of its engine's start, and the cost of each shard, to
`observations/<trial>.jsonl`. A scoring job appends the seconds of scoring a dataset to
`observations/score-<dataset>.jsonl`. A process that copies the weights to a node appends the
seconds to `stage/<node>.jsonl`. An error while writing is ignored: later plans then know less.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field, TypeAdapter

from coordinate_eval import _files
from coordinate_eval.coordinator.run.records import TrialProgress
from coordinate_eval.priors.this_machine import storage_of
from coordinate_eval.records import Checkpoint, DatasetRequests, Record, Response, Span

T = TypeVar("T")


class EngineStarted(Record):
    """The first line of a trial's observations."""

    kind: Literal["engine"] = "engine"
    time: float
    engine_version: str
    processor: str = Field(description="model name of the CPU, and its cores")
    start_seconds: float = Field(description="from the process's start, without staging")


class ShardDone(Record):
    """The cost of one shard, without the requests that an earlier attempt had answered."""

    kind: Literal["shard"] = "shard"
    time: float
    dataset: str
    start: int
    stop: int
    items: int = Field(description="with a request that was answered here")
    requests: int = Field(description="each turn of a conversation is one")
    prompt_tokens: int = Field(description="see `DatasetRequests`")
    output_tokens: int
    scored_tokens: int
    longest_output_tokens: int = Field(description="of one request, or of all turns of one")
    gpu_seconds: float = Field(description="its share of the engine's time, see `attribute`")


class WeightsCopied(Record):
    """One copy of the weights into a node's memory, from its first byte to its last."""

    time: float = Field(ge=0, lt=1e11, description="of its end")
    seconds: float = Field(ge=1e-3, lt=1e9, description="no less, to be told from its end")
    storage: str = Field(description="see `storage_of`")


class Scored(Record):
    """The scoring of a dataset, in CPU seconds."""

    time: float = Field(ge=0, lt=1e11, description="of its end")
    items: int = Field(gt=0)
    requests: int = Field(gt=0)
    seconds: float = Field(ge=0, lt=1e9)


_LINE: TypeAdapter[EngineStarted | ShardDone] = TypeAdapter(
    Annotated[EngineStarted | ShardDone, Field(discriminator="kind")]
)


@dataclass
class Tally:
    """Adds up the responses of a shard, their tokens and their seconds."""

    items: int = 0
    prompt_tokens: int = 0
    requests: int = 0
    output_tokens: int = 0
    scored_tokens: int = 0
    longest_output_tokens: int = 0
    gpu_seconds: float = 0.0

    def add(self, response: Response, seconds: float) -> None:
        """Count a response. `seconds` is its share of the engine's time."""
        self.requests += 1 + len(response.turns)
        self.gpu_seconds += seconds
        if response.finish == "scored":
            self.scored_tokens += response.tokens
            return
        written = response.tokens + sum(turn.tokens for turn in response.turns)
        self.output_tokens += written
        self.longest_output_tokens = max(self.longest_output_tokens, written)

    def to_line(self, span: Span) -> ShardDone:
        """Return the line for this shard, which is done now."""
        return ShardDone(time=time.time(), **span._asdict(), **vars(self))


def append_line(path: Path, line: EngineStarted | ShardDone | WeightsCopied | Scored) -> None:
    """Append a line to a file. Ignore an error."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        with _files.open_to_write(path, append=True) as file:
            file.write(line.model_dump_json().encode() + b"\n")


def read_lines(path: Path) -> Iterator[EngineStarted | ShardDone]:
    """Return the lines of a trial's measurements, without torn ones; none if it never began."""
    return _whole(path, _LINE.validate_json)


def append_copy(path: Path, seconds: float | None, checkpoint: Checkpoint) -> None:
    """Append a copy of the weights that ended just now. Append nothing if `seconds` is None."""
    if seconds is not None:
        with contextlib.suppress(OSError):
            storage = storage_of(checkpoint.path)
            copied = WeightsCopied(time=time.time(), seconds=max(1e-3, seconds), storage=storage)
            append_line(path, copied)


def read_copies(path: Path) -> Iterator[WeightsCopied]:
    """Return the copies of the weights to a node, without torn lines."""
    return _whole(path, WeightsCopied.model_validate_json)


def append_scoring(path: Path, seconds: float, index: DatasetRequests) -> None:
    """Append the scoring of a whole dataset that ended just now."""
    counts = {"items": index.items, "requests": index.requests}
    append_line(path, Scored(time=time.time(), seconds=seconds, **counts))


def read_scorings(path: Path) -> Iterator[Scored]:
    """Return the scorings of a dataset, without torn lines; none if it was never scored."""
    return _whole(path, Scored.model_validate_json)


def _whole(path: Path, parsed: Callable[[bytes], T]) -> Iterator[T]:
    """Yield what the lines of a file are parsed into, without those that are torn."""
    with contextlib.suppress(OSError):
        for line in _files.whole_lines(path):
            with contextlib.suppress(ValueError):
                yield parsed(line)


LEAST_SHARE = 0.03
"""Share of the work that must be done before its pace tells more than the prediction."""

FASTEST = 0.1
"""Least pace: what is in work blurs it."""


def measured_pace(trials: Iterable[TrialProgress], done: float, whole: float) -> float:
    """Return the GPU seconds that a predicted second took; 1 while little is done."""
    if done <= LEAST_SHARE * whole:
        return 1.0
    spent = sum(max(0.0, t.updated - t.ready) for t in trials if t.ready is not None)
    return max(FASTEST, spent / done) if spent else 1.0
