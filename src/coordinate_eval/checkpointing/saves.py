"""A folder of saves: `step-N` is a finished one, and hidden names are drafts and leftovers.

    step-N/                  a checkpoint of torch.distributed.checkpoint; appears in one rename
    step-N/.saver.json       its record: number, the save before it, its files with their sizes
    .step-N.TOKEN.tmp/       a draft that the Saver with this token writes
    .step-N.TOKEN.old/       a save of the same step, until a newer one has replaced it
    .step-N.RANDOM.gone/     what is being deleted
    .saver.json              the token of the Saver that may write here: the last that was made
    .good                    the save to which a guard would go back: rotation keeps it

Saves are numbered in the order in which they were made, because a training that went back saves
smaller steps after larger ones. `after` is the number of the save that training went on from: what
has a number between both is of a course that training has left. Without a record, as when another
program has saved `step-N`, a save counts as older than all with one, and is never deleted.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import socket
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from coordinate_eval.errors import SaveError

RECORD: Final = ".saver.json"
_GOOD: Final = ".good"
RESUME_FROM: Final = "COORDINATE_EVAL_RESUME_FROM"
"""Variable with the path of the checkpoint that training starts from, in place of the newest."""

_SCHEMA: Final = "coordinate-eval/save@1"
_METADATA: Final = ".metadata"
_STEP = re.compile(r"step-(0|[1-9][0-9]{0,15})")
_RECORD_DRAFT = re.compile(r"\.(?:saver\.json|good)\.[0-9a-f]{8}\.tmp")
_LEFT = re.compile(r"\.step-([0-9]{1,16})\.([0-9a-f]{16})\.(tmp|old|gone)")
_LEASES: Final = ".coordinate-eval-"
_MOST_BYTES: Final = 64 << 20


@dataclass(frozen=True)
class Save:
    """A finished save."""

    path: Path
    step: int
    number: int = 0
    after: int = 0
    recorded: bool = False
    """A Saver has made it, and may delete it."""


def latest(folder: str | os.PathLike[str]) -> Path | None:
    """Return the newest finished save of a folder, None if there is none.

    The newest is the one that was made last: after a training went back, that is not the one with
    the largest step.
    """
    newest = newest_whole(Path(folder))
    return newest.path if newest else None


def newest_whole(folder: Path) -> Save | None:
    """Return the newest save whose files are all there, None if there is none."""
    return next(filter(_is_whole, finished(folder)), None)


def chosen(folder: Path) -> Save | None:
    """Return the save to start from; None where training starts from nothing.

    That is the save of `RESUME_FROM`. An empty value says to start from nothing, as where a guard
    found fault with all saves. Without the variable, it is the newest of the folder.

    Raises:
        SaveError: `RESUME_FROM` names no finished checkpoint, or its name tells no step.
    """
    named = os.environ.get(RESUME_FROM)
    if named is None:
        return newest_whole(folder)
    if not named:
        return None
    path = Path(named)
    save = _read(path)
    if save is None:
        raise SaveError(
            f"{RESUME_FROM}={named} is no finished checkpoint of torch.distributed.checkpoint "
            "whose name ends with its step: name a folder such as step-1000 that has .metadata"
        )
    if not _is_whole(save):
        raise SaveError(f"{RESUME_FROM}={named} is damaged: files are missing or cut. Name another")
    # Numbers of another folder say nothing here.
    return save if path.absolute().parent == folder.absolute() else Save(path, save.step)


def finished(folder: Path) -> list[Save]:
    """Return the finished saves of a folder, the newest first."""
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        names = [entry.name for entry in entries if _STEP.fullmatch(entry.name)]
        found = [save for name in names if (save := _read(folder / name))]
        return sorted(found, key=lambda save: (save.number, save.step), reverse=True)
    return []


def _read(path: Path) -> Save | None:
    """Return the save at a path, None if it is not finished or tells no step."""
    if not (path / _METADATA).is_file():
        return None
    record = _record(path)
    if record is not None:
        return Save(path, record["step"], record["number"], record["after"], recorded=True)
    step = re.search(r"([0-9]{1,16})$", path.name)
    return Save(path, int(step[1])) if step else None


def _record(path: Path) -> dict[str, Any] | None:
    """Return the record of a save or a draft, None if it has none."""
    found = _load(path / RECORD)
    if found.get("schema") != _SCHEMA or not isinstance(found.get("files"), dict):
        return None
    return found if all(type(found.get(k)) is int for k in ("step", "number", "after")) else None


def _load(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file, an empty one if there is none that can be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return {}
            found = json.loads(file.read(_MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_whole(save: Save) -> bool:
    """Return whether all files of a save have the sizes that its record tells."""
    files = (_record(save.path) or {"files": {}})["files"]
    try:
        return all(
            "/" not in name and (save.path / name).stat().st_size == size
            for name, size in files.items()
        )
    except (OSError, ValueError):
        return False


class Folder:
    """The folder that one Saver fills, as its process of rank 0 sees it."""

    def __init__(self, path: Path) -> None:
        """Take the folder over from whoever wrote here before, and remove what a crash has left.

        Raises:
            OSError: it cannot be made or written.
        """
        self.path, self.token = path, secrets.token_hex(8)
        path.mkdir(parents=True, exist_ok=True)
        told = {"token": self.token, "host": socket.gethostname(), "process": os.getpid()}
        _write(path / RECORD, {**told, "job": os.environ.get("SLURM_JOB_ID"), "began": time.time()})
        self._remove_left()
        newest = next(iter(finished(path)), None)
        self.last_number = newest.number if newest else 0
        self.after, self.saved = self.last_number, -1

    def went_to(self, save: Save | None) -> None:
        """Note the save that training goes on from; None if it begins from nothing."""
        self.saved = -1
        if save is None:
            self.after = 0
        elif save.number:
            self.after = save.number

    def begin(self, step: int) -> Path | None:
        """Make the draft of a save, and return it; None if the last save has the same step.

        Raises:
            OSError: it cannot be made.
            SaveError: another Saver has taken the folder over, or the name is taken.
        """
        if step == self.saved:
            return None
        self._check_owner()
        taken = self.path / f"step-{step}"
        if os.path.lexists(taken) and _record(taken) is None:
            raise SaveError(f"{taken} is there, and no Saver has made it: move it away")
        draft = self._hidden(step, "tmp")
        _delete(draft)  # of an earlier try
        draft.mkdir()
        self.last_number += 1
        told = {"schema": _SCHEMA, "step": step, "number": self.last_number, "after": self.after}
        _write(draft / RECORD, {**told, "files": {}})
        return draft

    def publish(self, draft: Path, step: int, sizes: dict[str, int]) -> Path:
        """Give a draft its name when all its files are there.

        Args:
            sizes: the least bytes of each file, as its ranks have told.

        Raises:
            OSError: it cannot be renamed.
            SaveError: files of a rank are missing, or another Saver has taken the folder over.
        """
        files = {}
        for name, least in sizes.items():
            size = (draft / name).stat().st_size if (draft / name).exists() else -1
            if size < least:
                raise SaveError(
                    f"{draft / name} does not have what its rank has written: is {self.path} "
                    "one folder that all nodes share?"
                )
            files[name] = size
        files[_METADATA] = (draft / _METADATA).stat().st_size
        record = _record(draft)
        assert record is not None, "begin has written it"
        _write(draft / RECORD, {**record, "files": files})
        self._check_owner()
        path, old = self.path / f"step-{step}", self._hidden(step, "old")
        if os.path.lexists(path):
            path.rename(old)
        draft.rename(path)
        _sync(self.path)
        _delete(old)
        self.after, self.saved = record["number"], step
        return path

    def discard(self, step: int) -> None:
        """Remove the draft of a save that failed."""
        _delete(self._hidden(step, "tmp"))

    def rotate(self, keep: int) -> None:
        """Delete all saves of Savers but the newest `keep` of this course, and those in use.

        In use are the one that a guard calls good, and those that a run is evaluating.
        """
        left, limit, good = keep, None, _load(self.path / _GOOD).get("save")
        for save in finished(self.path):
            on_course = limit is None or save.number <= limit
            if on_course:
                limit = save.after
                if left and _is_whole(save):
                    left -= 1
                    continue
            if save.recorded and save.path.name != good and not is_leased(save.path):
                if save.path.is_symlink() or save.path.stat().st_uid != os.geteuid():
                    continue
                _delete(save.path)

    def _hidden(self, step: int, kind: str) -> Path:
        return self.path / f".step-{step}.{self.token}.{kind}"

    def _check_owner(self) -> None:
        owner = _load(self.path / RECORD)
        if owner.get("token") != self.token:
            who = f"process {owner.get('process')} on {owner.get('host')}" if owner else "somebody"
            raise SaveError(
                f"{self.path} belongs to another Saver since: {who} has taken it over. End one of "
                "both trainings, or give each a folder of its own"
            )

    def _remove_left(self) -> None:
        """Remove what Savers of this user left when they were killed."""
        with os.scandir(self.path) as entries:
            ours = [e for e in entries if e.stat(follow_symlinks=False).st_uid == os.geteuid()]
        for entry in ours:
            path, found = Path(entry.path), _LEFT.fullmatch(entry.name)
            if (
                found
                and entry.is_dir(follow_symlinks=False)
                and (found[3] == "gone" or _made(path))
            ):
                step = self.path / f"step-{found[1]}"
                if found[3] == "old" and not step.exists():
                    path.rename(step)
                else:
                    _delete(path)
            elif _RECORD_DRAFT.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                path.unlink(missing_ok=True)


def _made(draft: Path) -> bool:
    """Return whether a Saver has made a draft: it has its record, or nothing else yet."""
    return bool(_record(draft)) or all(_RECORD_DRAFT.fullmatch(p.name) for p in draft.iterdir())


def _delete(path: Path) -> None:
    """Delete a folder, if it is there, under a name that tells a later Saver to go on with it."""
    step = path.name.lstrip(".").removeprefix("step-").partition(".")[0]
    gone = path.with_name(f".step-{step}.{secrets.token_hex(8)}.gone")
    with contextlib.suppress(FileNotFoundError):
        path.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def call_good(path: Path) -> None:
    """Have rotation keep a save, in place of the one that was called good before.

    Do nothing in a folder that no Saver fills. The save itself stays as it is, so that nobody who
    watches it takes it for a new one.

    Raises:
        OSError: the folder cannot be written.
    """
    place = path.parent / _GOOD
    if (path.parent / RECORD).is_file() and _load(place).get("save") != path.name:
        _write(place, {"save": path.name})


def is_leased(path: Path) -> bool:
    """Return whether a run that evaluates a save has its lease (coordinator/run/lease.py)."""
    with contextlib.suppress(OSError), os.scandir(path.parent) as entries:
        for entry in entries:
            if entry.name.startswith(_LEASES) and entry.is_dir(follow_symlinks=False):
                places = {str(path.absolute()), str(path.resolve())}
                leases = Path(entry.path).iterdir()
                if any(
                    Path(f"{lease}/files{place}").is_dir() for lease in leases for place in places
                ):
                    return True
    return False


def _write(path: Path, value: object) -> None:
    """Write a JSON file in one step that survives a crash."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with draft.open("x") as file:
            json.dump(value, file)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
