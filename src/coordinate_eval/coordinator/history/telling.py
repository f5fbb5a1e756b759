"""Tell people of alarms: by a command, by a webhook, each alarm once.

What was told is noted afterwards, in the folder of the history. Whoever is killed in between, or
cannot send, leaves the alarm to the next one who looks: at the end of a run, or in `watch`.
"""

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from coordinate_eval import _files, _notices
from coordinate_eval._format import plural
from coordinate_eval.coordinator.history import measured
from coordinate_eval.coordinator.history.alarms import Alarm
from coordinate_eval.coordinator.history.series import Series
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.errors import CoordinateError
from coordinate_eval.records import Record

SCHEMA = "coordinate-eval/alarms@1"

TURN_SECONDS = 2 * (_notices.COMMAND_SECONDS + _notices.WEBHOOK_SECONDS)
"""Age at which the turn of a process that tells is over: it was killed."""

_MOST_TOLD = 1000  # alarms of a training that are remembered

Way = Callable[[str], str]
"""Sends a text. Returns what went wrong."""


class ToldAlarm(Record):
    """An alarm that somebody was told of."""

    kind: str
    what: str
    runs: list[str]
    """Runs of the first and of the last checkpoint that it was true of."""
    ways: list[str]


class Told(Record):
    """`alarms-<digest>.json` in the folder of the history: of what a training's people know."""

    alarms: Sequence[ToldAlarm] = ()
    problems: Mapping[str, str] = {}
    """Way → why alarms are not told by it."""


def document(raised: Sequence[Alarm]) -> dict[str, Any]:
    """Return alarms as `alarms --json` prints them, and as people are told of them."""
    return {
        "schema": SCHEMA,
        "text": "\n".join(map(line, raised)),
        "alarms": [
            {
                "kind": each.kind,
                "what": each.what,
                "training": each.row.training,
                "checkpoint": each.row.checkpoint,
                "step": each.row.step,
                "run": each.row.runs[0],
                "until": each.last.checkpoint,
                "words": each.words,
                "last_good": each.good.checkpoint if each.good else None,
                "last_good_step": each.good.step if each.good else None,
            }
            for each in raised
        ],
    }


def line(alarm: Alarm) -> str:
    """Return an alarm in one line."""
    good = f"; the last good one is {alarm.good.checkpoint}" if alarm.good else ""
    until = "" if alarm.last == alarm.row else f", until {alarm.last.name}"
    return f"{alarm.row.checkpoint}: {alarm.what}: {alarm.kind}: {alarm.words}{until}{good}"


def ways(settings: Settings, environment: Mapping[str, str]) -> dict[str, Way]:
    """Return the ways in which the user wants to be told, by the name of their setting."""
    found: dict[str, Way] = {}
    if command := settings.on_alarm:
        found["on_alarm"] = lambda text: _notices.call(command, text, environment)
    if name := settings.alarm_webhook_env:
        address = environment.get(name, "")
        unset = f"the environment variable {name} is not set"
        found["alarm_webhook_env"] = lambda text: _notices.post(address, text) if address else unset
    return found


def tell(
    runs_dir: str,
    found: Series,
    raised: Sequence[Alarm],
    by: Mapping[str, Way],
    *,
    patience: float = TURN_SECONDS,
) -> list[str]:
    """Tell people of the alarms of one training that they do not know. Return what went wrong.

    Args:
        by: how they are told.
        patience: seconds to wait for another process that tells of this training.

    Raises:
        ForeignError: the folder of the history is not the user's own.
        OSError: it cannot be written.
    """
    if not raised or not by:
        return []
    path = _path(runs_dir, found)
    with _turn(path, patience) as mine:
        if not mine:
            return []
        told = _read(path)
        known = [_known(told, found, alarm) for alarm in raised]
        problems = {}
        for way, send in by.items():
            new = [n for n, each in enumerate(known) if way not in each.ways]
            text = json.dumps(document([raised[n] for n in new])) + "\n"
            if new and (problem := send(text)):
                problems[way] = problem
                continue
            for n in new:
                known[n] = known[n].model_copy(update={"ways": [*known[n].ways, way]})
            _write(path, told, known, problems)
        _write(path, told, known, problems)
    return [f"{way}: {problem}" for way, problem in problems.items()]


def untold(
    runs_dir: str, found: Series, raised: Sequence[Alarm], settings: Settings
) -> Iterator[str]:
    """Yield which alarms of one training people were not told of, and why."""
    told = _read(_path(runs_dir, found)) if raised else Told()
    for way in ways(settings, {}):
        count = sum(way not in _known(told, found, alarm).ways for alarm in raised)
        if count:
            why = told.problems.get(way, "no run has ended since")
            yield f"{plural(count, 'alarm')} not told by {way}: {why}"


def _path(runs_dir: str, found: Series) -> Path:
    of = found.rows[0].training if found.rows else ""
    digest = hashlib.sha256(os.fsencode(of)).hexdigest()[:16]
    return measured.folder(runs_dir) / f"alarms-{digest}.json"


def _read(path: Path) -> Told:
    with contextlib.suppress(CoordinateError, OSError):  # a torn file: rather tell twice
        return _files.read_record_if_there(path, Told) or Told()
    return Told()


def _known(told: Told, found: Series, alarm: Alarm) -> ToldAlarm:
    """Return what was told of an alarm, with the runs that it is about now.

    Checkpoints between those that an alarm was told of may be evaluated later, and the first ones
    fall out of view. So an alarm is known if it has any run in common with one that was told.
    """
    places = {row.checkpoint: place for place, row in enumerate(found.rows)}
    rows = found.rows[places[alarm.row.checkpoint] : places[alarm.last.checkpoint] + 1]
    its = {run for row in rows for run in row.runs}
    ways = {
        way
        for each in told.alarms
        if (each.kind, each.what) == (alarm.kind, alarm.what) and its & set(each.runs)
        for way in each.ways
    }
    runs = [*alarm.row.runs, *alarm.last.runs]
    return ToldAlarm(kind=alarm.kind, what=alarm.what, runs=runs, ways=sorted(ways))


def _write(path: Path, told: Told, known: Sequence[ToldAlarm], problems: Mapping[str, str]) -> None:
    """Note what was told, also of alarms that are true no longer."""
    now = [each for each in known if each.ways]
    of = {(each.kind, each.what, run) for each in now for run in each.runs}
    others = [
        each
        for each in told.alarms
        if not any((each.kind, each.what, run) in of for run in each.runs)
    ]
    _files.write_record(path, Told(alarms=[*others, *now][-_MOST_TOLD:], problems=problems))


@contextlib.contextmanager
def _turn(notes: Path, patience: float) -> Iterator[bool]:
    """Be the only process that tells of a training, if no other does within so many seconds.

    Turns are numbered files beside `notes`, and the last one counts: nobody has to remove what
    somebody else may have replaced meanwhile. Its holder writes that it is over.
    """
    _files.own_folder(notes.parent)
    give_up = time.monotonic() + patience
    while (mine := take_turn(notes, last_turn(notes))) is None and time.monotonic() < give_up:
        time.sleep(1)
    try:
        yield mine is not None
    finally:
        if mine is not None:
            _files.write(mine, _turn_text(0.0))


def last_turn(notes: Path) -> int:
    """Return the number of the last turn, 0 before the first one."""
    return max(_turns(notes), default=0)


def take_turn(notes: Path, last: int) -> Path | None:
    """Take the turn after this one, if that is over. Return its file, None if another has it."""
    if last and not _is_over(_turn_file(notes, last)):
        return None
    mine = _turn_file(notes, last + 1)
    if not _files.create(mine, _turn_text(time.time())) or last_turn(notes) > last + 1:
        return None
    for number in _turns(notes):
        if number <= last:
            _turn_file(notes, number).unlink(missing_ok=True)
    return mine


def _turns(notes: Path) -> list[int]:
    """Return the numbers of the turns whose files are there."""
    pattern = re.compile(rf"{re.escape(notes.stem)}(?:\.(\d{{1,18}}))?\.turn")
    found = (pattern.fullmatch(path.name) for path in notes.parent.iterdir())
    return [int(each[1] or 1) for each in found if each]


def _turn_file(notes: Path, number: int) -> Path:
    return notes.with_suffix(".turn" if number == 1 else f".{number}.turn")


def _turn_text(since: float) -> str:
    return f"{since} {_files.token()}\n"


def _is_over(turn: Path) -> bool:
    """Return whether a turn has ended, or whoever had it was killed: a torn one is old."""
    try:
        since = float(_files.read(turn).partition(b" ")[0])
    except ValueError:
        return True
    except FileNotFoundError:  # there is a later one
        return False
    return not abs(time.time() - since) <= TURN_SECONDS
