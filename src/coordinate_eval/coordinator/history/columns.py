"""The scores of many runs, dataset by dataset: in memory, and in the pack.

Ten thousand runs of 63 datasets have 630,000 scores. As arrays, they are read, chosen and averaged
without an object for each. `Scores` shows the scores of one run in them.
"""

import json
import math
import sys
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple


class Score(NamedTuple):
    """The main score of a dataset."""

    value: float
    stderr: float | None
    items: int
    metric: str
    higher_is_better: bool
    asked: str
    """Digest of what was asked and how it was scored. Scores with one digest can be compared."""


Plain = tuple[float, float | None, int, str, bool, str]
ASKED: Final = 5
"""The place of `asked` in a `Score` that is a plain tuple."""


def error_of(score: Score) -> float:
    """Return the standard error of a score from its items; 0 if it is not known."""
    return item_error(score.value, score.stderr, score.items)


def item_error(value: float, stderr: float | None, items: int) -> float:
    """Return the standard error of a score from its items; 0 if it is not known.

    All right or all wrong is no certainty: such a score has the error that it has with one more
    item right and one more wrong.
    """
    if value in (0, 1) and not stderr and items > 0:
        middle = (value * items + 1) / (items + 2)
        return math.sqrt(middle * (1 - middle) / items)
    return stderr if stderr is not None and math.isfinite(stderr) else 0.0


class Scored(NamedTuple):
    """The scores of a dataset, one for each run."""

    values: "array[float]"
    stderrs: "array[float] | None"
    items: "array[int]"
    metric: str
    higher_is_better: bool
    asked: str

    def score(self, line: int) -> Plain:
        """Return the score of a run."""
        error = None if self.stderrs is None else self.stderrs[line]
        values = (self.values[line], error, self.items[line])
        return (*values, self.metric, self.higher_is_better, self.asked)

    def of(self, pick: "Picker") -> "Scored":
        """Return the scores of some of the runs."""
        errors = None if self.stderrs is None else array("d", pick(self.stderrs))
        values, items = array("d", pick(self.values)), array("q", pick(self.items))
        return self._replace(values=values, stderrs=errors, items=items)


Columns = Mapping[str, Scored]
"""Dataset → the scores of runs that have the same datasets and were asked the same."""


Picker = Callable[[Sequence[Any]], Sequence[Any]]


def picker(columns: Columns, lines: Sequence[int]) -> Picker:
    """Return a function that returns the values of some of the runs, of those of all."""
    count = next((len(each.values) for each in columns.values()), 0)
    if len(lines) == 1:
        return lambda values: [values[lines[0]]]
    if len(lines) == count and list(lines) == list(range(count)):
        return lambda values: values
    return itemgetter(*lines)


class Scores(Mapping[str, Plain]):
    """The scores of one run, in columns: dataset → score."""

    __slots__ = ("_plain", "columns", "line")

    def __init__(self, columns: Columns, line: int) -> None:
        """Show a line of columns."""
        self.columns = columns
        self.line = line
        self._plain: dict[str, Plain] | None = None

    def __getitem__(self, dataset: str) -> Plain:
        """Return the score of a dataset."""
        if self._plain is None:
            self._plain = {name: each.score(self.line) for name, each in self.columns.items()}
        return self._plain[dataset]

    def document(self) -> dict[str, dict[str, Any]]:
        """Return the scores with the names of their parts."""
        line = self.line
        return {
            name: {
                "value": each.values[line],
                "stderr": None if each.stderrs is None else each.stderrs[line],
                "items": each.items[line],
                "metric": each.metric,
                "higher_is_better": each.higher_is_better,
                "asked": each.asked,
            }
            for name, each in self.columns.items()
        }

    def __contains__(self, dataset: object) -> bool:
        """Return whether a dataset has a score."""
        return dataset in self.columns

    def __iter__(self) -> Iterator[str]:
        """Yield the datasets."""
        return iter(self.columns)

    def __len__(self) -> int:
        """Return the number of datasets."""
        return len(self.columns)


def in_columns(scores: Mapping[str, Plain]) -> Scores:
    """Return scores as a line of columns, of their own if they are in none."""
    return scores if isinstance(scores, Scores) else Scores(columns_of([scores]), 0)


def columns_of(every: Sequence[Mapping[str, Plain]]) -> Columns:
    """Return the columns of scores with one `form`."""
    found = {}
    for name, scores in zip(
        every[0], zip(*(each.values() for each in every), strict=True), strict=True
    ):
        values, errors, items, *_ = zip(*scores, strict=True)
        known = None if errors[0] is None else array("d", errors)
        found[name] = Scored(array("d", values), known, array("q", items), *scores[0][3:])
    return found


def form(scores: Mapping[str, Plain]) -> tuple[Any, ...]:
    """Return what scores have in common that can be in the same columns."""
    return (*scores, *((each[1] is None, each[3:]) for each in scores.values()))


class Alike(NamedTuple):
    """Records of runs whose scores are in the same columns."""

    files: Sequence[str]
    shared: Mapping[str, Any]
    """Fields with the same value in all of these records."""
    own: Mapping[str, Sequence[Any]]
    """Fields with a value for each record."""
    columns: Columns


def packed(records: Sequence[Alike], version: str) -> bytes:
    """Return records as the content of a file. `load` reads it with the same `version`.

    Raises:
        OverflowError: a number of items has more than 64 bits.
    """
    index = []
    arrays: list[bytes] = []
    for each in records:
        heads = []
        for name, column in each.columns.items():
            arrays += [column.values.tobytes(), column.items.tobytes()]
            arrays += [] if column.stderrs is None else [column.stderrs.tobytes()]
            heads.append([name, column.stderrs is not None, *column[3:]])
        index.append([each.files, each.shared, each.own, heads])
    content = b"".join([json.dumps(index).encode(), b"\n", *arrays])
    return _first_line(version, content) + content


def load(content: bytes, version: str) -> list[Alike]:
    """Return the records in the content of a file, none if it is torn or of another version."""
    end = content.find(b"\n") + 1
    rest = memoryview(content)[end:]
    if content[:end] != _first_line(version, rest):
        return []
    place = content.find(b"\n", end) + 1
    index = json.loads(content[end:place])

    def taken(code: str, count: int) -> "array[Any]":
        nonlocal place
        found = array(code)
        found.frombytes(memoryview(content)[place : (place := place + count * found.itemsize)])
        return found

    records = []
    for files, shared, own, heads in index:
        columns = {}
        for name, has_errors, *told in heads:
            values, items = taken("d", len(files)), taken("q", len(files))
            columns[name] = Scored(
                values, taken("d", len(files)) if has_errors else None, items, *told
            )
        records.append(Alike(files, shared, own, columns))
    return records


def _first_line(version: str, content: bytes | memoryview) -> bytes:
    return f"{version} {sys.byteorder} {zlib.crc32(content):08x}\n".encode()
