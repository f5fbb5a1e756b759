"""Read how far a training is: from logs, JSON lines, TensorBoard, `trainer_state.json`.

Each look goes on where the one before has ended. The place is a record, so that a process that is
restarted goes on as well. A look reads a bounded number of bytes of each file. Where a training
writes more than that between two looks, the end counts, and a note says what was passed over.
"""

import hashlib
import json
import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from coordinate_eval import _files
from coordinate_eval._format import plural
from coordinate_eval.coordinator.training import event_files
from coordinate_eval.coordinator.training.patterns import (
    MOST_STEP,
    Pattern,
    bar_in,
    hints,
    read_patterns,
    value_of_tag,
)
from coordinate_eval.coordinator.training.points import Point
from coordinate_eval.diagnosis.lines import clean
from coordinate_eval.errors import CoordinateError
from coordinate_eval.records import Record

MOST_BYTES = 64 << 20
"""Bytes of a file that a look reads, by default."""

_MOST_LINE = 1 << 16
_MOST_SECONDS = 10.0  # of a file, in a look
_CHUNK = 1 << 18
_ALL = 1 << 50
_MOST_FILES = 2000
_HEAD = 256
_RECENT = 8  # steps, within which the ranks of one log may be apart
_SILENT = 1 << 20  # bytes without a step, after which a note says so

_BREAK = re.compile(rb"[\r\n]")
_EVENTS = "events.out.tfevents."
_TIME = re.compile(r"(20\d\d-[01]\d-[0-3]\d)[t ]([0-2]\d:[0-5]\d:[0-6]\d)")


class FilePosition(Record):
    """The place in a file where the next look goes on, and what is understood so far."""

    inode: int = 0
    head: str = ""
    """A digest of the first bytes: another file may get the same inode."""
    head_bytes: int = 0
    offset: int = 0
    long_line: bool = False
    """The offset is within a line whose beginning was read."""
    pattern: int | None = None
    carried: int | None = None
    """The step of an earlier line, which the next values are of."""
    total: int = 0
    """Steps that the training's progress bar goes to."""
    goes_to: int = 0
    """Steps that the training goes to, by what its last report is counted in; 0 if unknown."""
    counted: int = 0
    """The steps that reports without one are counted to."""
    recent: tuple[int, ...] = ()
    points: int = 0
    silent: int = 0
    """Bytes since the last point."""


class Position(Record):
    """The places where the next look goes on, in all files of a training."""

    files: Mapping[str, FilePosition] = {}
    leader: str | None = None
    """The file whose points count. Other ranks repeat them."""


class Look(NamedTuple):
    """The news since the look before."""

    points: Sequence[Point]
    position: Position
    notes: Sequence[str]
    """Notes for a person about the reading, such as a log without steps."""
    total: int = 0
    """Steps that the training goes to, as it says itself; 0 if it does not say it."""


def look(
    sources: Sequence[Path],
    position: Position | None = None,
    patterns: Sequence[Pattern] | None = None,
    *,
    most_bytes: int = MOST_BYTES,
) -> Look:
    """Return what a training has reported since an earlier look.

    Args:
        sources: the logs of one attempt of a training, of all ranks: text, JSON lines,
            `trainer_state.json`, TensorBoard's files or folders of them. The first that reports a
            loss counts; of the others, only losses that are no finite numbers.
        position: that of the look before; None begins.
        patterns: from `read_patterns`; the shipped ones if None.
        most_bytes: of each file. More is not read: the newest counts.
    """
    before = position or Position()
    known = tuple(read_patterns() if patterns is None else patterns)
    files, leader, points = dict(before.files), before.leader, list[Point]()
    notes: list[str] = []
    for source in sources:
        try:
            paths = _event_files(source) if source.is_dir() else [source]
        except OSError as error:
            notes.append(f"{source} cannot be read: {error.strerror or error}")
            continue
        new: list[Point] = []
        for path in paths:
            reader = _Reader(path, files.get(str(path), FilePosition()), known, notes)
            files[str(path)] = reader.read(most_bytes)
            new += reader.points
        names = [str(source)]
        if leader not in [str(each) for each in sources] and any(
            each.loss is not None for each in new
        ):
            leader = names[0]
        if leader in (None, *names):
            points += new
        else:
            points += [p for p in new if p.loss is not None and not math.isfinite(p.loss)]
    of_leader = [files[leader]] if leader in files else files.values()
    total = max((each.goes_to for each in of_leader), default=0)
    return Look(points, Position(files=files, leader=leader), notes, total)


def _event_files(folder: Path) -> list[Path]:
    """Return TensorBoard's files in a folder, the oldest first."""
    found: list[tuple[float, Path]] = []
    for root, folders, names in os.walk(folder):
        folders.sort()
        for name in names:
            if name.startswith(_EVENTS):
                path = Path(root, name)
                said = name.removeprefix(_EVENTS).partition(".")[0]
                found.append((float(said) if said.isdecimal() else path.stat().st_mtime, path))
        if len(found) > _MOST_FILES:
            break
    return [path for _, path in sorted(found)]


class _Reader:
    """A reader of what is new in one file."""

    def __init__(
        self, path: Path, position: FilePosition, patterns: Sequence[Pattern], notes: list[str]
    ) -> None:
        self.points: list[Point] = []
        self._path, self._patterns, self._notes = path, patterns, notes
        self._hints = hints(tuple(patterns))
        self._was = position
        self._state: dict[str, Any] = position.model_dump()
        self._step: int | None = None  # of the values that follow
        self._values: dict[str, float] = {}
        self._written: float | None = None
        self._now = time.time()
        self._until = time.monotonic() + _MOST_SECONDS

    def read(self, most: int) -> FilePosition:
        """Read at most so many bytes, and return where the next look goes on."""
        try:
            with _files.open_to_read(self._path) as file:
                if self._path.suffix == ".json":
                    self._read_state(file)
                else:
                    self._go_on(file, most)
        except FileNotFoundError:
            pass  # a log that is not there yet
        except (OSError, CoordinateError) as error:
            self._notes.append(f"{self._path} cannot be read: {error}")
        self._flush()
        state = self._state
        state["points"] += len(self.points)
        return FilePosition.model_validate(state)

    def _go_on(self, file: BinaryIO, most: int) -> None:
        status = os.fstat(file.fileno())
        state = self._state
        head = file.read(_HEAD)
        same = state["inode"] in (0, status.st_ino) and status.st_size >= state["offset"]
        same = same and _digest(head[: state["head_bytes"]]) == state["head"]
        if state["inode"] and not same:
            self._rest_of_rotated(most)
            state |= {"offset": 0, "long_line": False}
        state |= {"inode": status.st_ino, "head": _digest(head), "head_bytes": len(head)}
        self._read(file, status.st_size, most)

    def _rest_of_rotated(self, most: int) -> None:
        """Read the end of the file that had this name before, where it has another name now."""
        try:
            with os.scandir(self._path.parent) as entries:
                named = [e for e in entries if e.name.startswith(self._path.name)]
            old = next((e for e in named if e.inode() == self._state["inode"]), None)
            if old is None or old.name == self._path.name:
                return
            with _files.open_to_read(Path(old.path)) as file:
                self._read(file, os.fstat(file.fileno()).st_size, most)
        except (OSError, CoordinateError):
            return

    def _read(self, file: BinaryIO, size: int, most: int) -> None:
        state = self._state
        if size - state["offset"] > most and not self._path.name.startswith(_EVENTS):
            passed = size - most - state["offset"]
            self._notes.append(
                f"{self._path}: {passed / 1e6:,.0f} MB were passed over: the log grows faster than "
                "it is read, and the newest lines count"
            )
            state |= {"offset": size - most, "long_line": True}
        file.seek(state["offset"])
        if self._path.name.startswith(_EVENTS):
            self._read_events(file, min(size, state["offset"] + most))
        else:
            self._read_lines(file, size)
        if not state["points"] and not self.points and state["silent"] > _SILENT:
            self._notes.append(
                f"{self._path}: no step is in {state['silent'] / 1e6:,.0f} MB of it: describe its "
                "lines in a patterns file, or name the training's TensorBoard folder"
            )

    def _read_lines(self, file: BinaryIO, size: int) -> None:
        state, rest = self._state, b""
        while time.monotonic() < self._until and (
            chunk := file.read(min(_CHUNK, max(0, size - state["offset"] - len(rest))))
        ):
            before = len(self.points)
            *lines, rest = _BREAK.split(rest + chunk)
            for line in lines:
                state["offset"] += len(line) + 1
                if not state["long_line"] and line:
                    self._take(line[:_MOST_LINE])
                state["long_line"] = False
            if len(rest) > _MOST_LINE:
                # What is behind such a beginning is passed over, so that a line needs no end.
                if not state["long_line"]:
                    self._take(rest[:_MOST_LINE])
                state["offset"] += len(rest)
                state["long_line"], rest = True, b""
            grown = len(self.points) > before
            state["silent"] = 0 if grown else state["silent"] + len(chunk)

    def _take(self, content: bytes) -> None:
        """Understand a line."""
        small = content.lower()
        for hint in self._hints:
            if hint in small:
                break
        else:
            return
        line, state = clean(small), self._state
        if "|" in line or "━" in line:
            bar = bar_in(line)
            # A bar of an evaluation within the training is shorter.
            if bar is not None and bar[1] >= state["total"]:
                state["carried"], state["total"] = bar
        order = range(len(self._patterns))
        if state["pattern"] is not None and state["pattern"] < len(self._patterns):
            order = [state["pattern"], *order]  # type: ignore[assignment]
        for number in order:
            pattern = self._patterns[number]
            if pattern.line not in line:
                continue
            values = pattern.values_in(line)
            if pattern.loss and not (values or pattern.later):
                continue
            step = pattern.step_in(line)
            if pattern.later and step is not None:
                state["carried"], state["pattern"] = step, number
                state["goes_to"] = pattern.total_in(line) or 0
                self._begin(step, line)
                return
            if pattern.loss and "loss" not in values and not (pattern.later and values):
                continue
            if not pattern.loss and step is None:
                continue
            if step is not None:
                state["goes_to"] = pattern.total_in(line) or 0
            else:
                step = self._step_of_report(pattern)
            if step is None:
                continue
            if pattern.loss:
                state["pattern"] = number
            self._begin(step, line)
            for name, value in values.items():
                self._keep(name, value)
            return

    def _step_of_report(self, pattern: Pattern) -> int | None:
        """Return the step of values that come without one: of a line before, or counted."""
        state = self._state
        if state["carried"] is not None:
            state["goes_to"] = state["total"] or state["goes_to"]
            return int(state["carried"])
        if pattern.every is None:
            return None
        if not state["counted"]:
            self._notes.append(
                f"{self._path}: its lines have no steps, so that each counts as "
                f"{plural(pattern.every, 'step')}: turn the progress bar on, or name the "
                "training's TensorBoard folder or trainer_state.json instead"
            )
        state["counted"] += pattern.every
        return int(state["counted"])

    def _begin(self, step: int, line: str) -> None:
        if step != self._step:
            self._flush()
            self._step = step
        if self._written is None:
            self._written = _time_in(line, self._now)

    def _keep(self, name: str, value: float) -> None:
        known = self._values.get(name)
        if known is None or (math.isfinite(known) and not math.isfinite(value)):
            self._values[name] = value

    def _flush(self) -> None:
        """Add the point of the step that ends, unless it is only another rank's word."""
        step, values, written = self._step, self._values, self._written
        self._step, self._values, self._written = None, {}, None
        if step is None or step > MOST_STEP:
            return
        if values.get("loss") == 0 and not math.isfinite(values.get("gradient_norm", 0.0)):
            values["loss"] = math.nan  # Trainer leaves losses out that are NaN
        recent: tuple[int, ...] = tuple(self._state["recent"])
        if step in recent and math.isfinite(values.get("loss", 0.0)):
            return
        if (
            values
            or self._state["pattern"] is None
            or not self._patterns[self._state["pattern"]].later
        ):
            self.points.append(Point(step, **values, written=written or self._now))
            self._state["recent"] = (*recent, step)[-_RECENT:]

    def _read_events(self, file: BinaryIO, size: int) -> None:
        best: dict[str, int] = {}
        try:
            for end, found in event_files.scalars(file, size):
                self._state["offset"] = end
                for each in found:
                    fit = value_of_tag(each.tag, self._patterns)
                    if fit is None or not 0 <= each.step <= MOST_STEP:
                        continue
                    rank, name = fit
                    if rank > best.setdefault(name, rank):
                        continue  # another tag says it better
                    best[name] = rank
                    if each.step != self._step:
                        self._flush()
                        self._step, self._written = each.step, each.written
                    self._keep(name, each.value)
        except event_files.Damaged:
            self._notes.append(
                f"{self._path} is damaged at byte {self._state['offset']:,}: the rest is not read"
            )

    def _read_state(self, file: BinaryIO) -> None:
        """Read the history in a `trainer_state.json`, which is written anew at each save."""
        try:
            told = json.loads(_files.read_bounded(file, self._path))
            reports = [each for each in told["log_history"] if isinstance(each, dict)]
            if isinstance(total := told.get("max_steps"), int) and 0 < total <= MOST_STEP:
                self._state["goes_to"] = total
        except (ValueError, TypeError, KeyError, RecursionError):
            self._notes.append(f"{self._path} has no `log_history`")
            return
        last = max(self._state["recent"], default=-1)
        for each in reports:
            step, loss = each.get("step"), each.get("loss")
            if isinstance(step, int) and step > last and isinstance(loss, int | float):
                self._flush()
                self._step, self._values = step, {"loss": float(loss)}
                if isinstance(norm := each.get("grad_norm"), int | float):
                    self._values["gradient_norm"] = float(norm)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _time_in(line: str, now: float) -> float:
    """Return the time that a line says, by this machine's clock; now if it says none."""
    if match := _TIME.search(line[:200]):
        try:
            said = time.mktime(time.strptime(f"{match[1]} {match[2]}", "%Y-%m-%d %H:%M:%S"))
        except (ValueError, OverflowError):
            return now
        return min(said, now)
    return now


def all_points(
    attempts: Sequence[Path], patterns: Sequence[Pattern] | None = None
) -> tuple[list[Point], list[str]]:
    """Return all that the attempts of a training have reported, and notes about the reading.

    Args:
        attempts: a log, TensorBoard folder or `trainer_state.json` of each, in their order.
    """
    points: list[Point] = []
    notes: list[str] = []
    for each in attempts:
        position: Position | None = None
        whole = False
        while not whole:
            began = time.monotonic()
            found = look([each], position, patterns, most_bytes=_ALL)
            position = found.position
            points += found.points
            notes += found.notes
            whole = time.monotonic() - began < _MOST_SECONDS  # else it was cut off
    return points, list(dict.fromkeys(notes))
