"""The checkpoint that a training begins from: the newest that is complete, finite and its own.

A look at the tensors takes torch, memory and time, so a child process does it, as soon as a
checkpoint is finished: when a job dies, the answer is there.
"""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import Field

from coordinate_eval import _files, _owner
from coordinate_eval._format import brief
from coordinate_eval.checkpointing import saves
from coordinate_eval.coordinator.inputs.checkpoints import checkpoint as checkpoints
from coordinate_eval.coordinator.inputs.checkpoints import checkpoint_files, finding, guard, reading
from coordinate_eval.coordinator.inputs.checkpoints.formats import unread
from coordinate_eval.coordinator.inputs.checkpoints.formats.sources import Source
from coordinate_eval.coordinator.inputs.checkpoints.saved import (
    QUIET_SECONDS,
    Pattern,
    Saved,
    look,
)
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.training.advice import Save
from coordinate_eval.coordinator.training.guarding.child import Child
from coordinate_eval.errors import UserError
from coordinate_eval.records import Record

MOST_SECONDS = 3600.0
"""Time of a look at one checkpoint. A terabyte at a gigabyte a second takes a quarter of that."""

LIST_SECONDS = 30.0
"""Time between two lists of all checkpoints' files while a training runs: there may be 100,000."""

_MOST_CONFIG_BYTES = 4 << 20
_VOLATILE = ("transformers_version", "_name_or_path", "torch_dtype", "dtype", "use_cache")
"""Keys of a config that do not make another model."""

_OURS = (".safetensors", ".distcp", ".metadata", ".pt", ".pth", ".bin", ".ckpt")
"""Ends of names of files that are read here."""

_HIDDEN = ".coordinate-eval-guard.json"


class Health(Record):
    """`checkpoints/<digest>.json`: what a look at a checkpoint has found."""

    path: str
    state: str = Field(default="", description="digest of names, sizes and times of its files")
    step: int | None = None
    why: str = Field(default="", description="why it is not begun from; empty if nothing is wrong")
    model: str = Field(default="", description="digest of its config and tensors' shapes")
    note: str = Field(default="", description="what could not be looked at")
    time: float = 0.0
    seconds: float = 0.0


def examine(path: Path) -> Health:
    """Look at a checkpoint: is it whole, are its numbers finite, and what model is it?

    A format that nobody here reads is taken as it is, with a note.
    """
    began = time.time()
    found = Health(path=str(path))
    try:
        found = _examined(path, found)
    except (UserError, OSError, ValueError, RuntimeError, EOFError) as error:
        found = found.model_copy(update={"why": brief(error)})
    return found.model_copy(update={"time": began, "seconds": time.time() - began})


def _examined(path: Path, found: Health) -> Health:
    try:
        opened = finding.find(path)
    except UserError as error:
        if not _is_of_others(path, str(error)):
            raise
        return found.model_copy(update={"note": f"it is not read: {brief(error)}"})
    told = {"model": _model(opened.place, opened.source)}
    if find_spec("torch") is None:
        told["note"] = "without torch, its numbers are not read"
    else:
        guard.check_finite(str(path), guard.not_finite(opened.source))
        _check_config(path)
    return found.model_copy(update=told)


def _is_of_others(path: Path, said: str) -> bool:
    """Return whether files are there, and of no format that is read here, by what readers said."""
    names = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else [path.name]
    if any(name.endswith((".distcp", ".metadata")) for name in names):
        return False  # torch's own, which are read here: this one is torn
    words, _ = unread.recognized(path, names)
    if words and words in said:
        return True
    return bool(names) and not any(name.endswith(_OURS) for name in names)


def _check_config(path: Path) -> None:
    """Compare the tensors with the config beside them, where there is one.

    Raises:
        UserError: they are not the model of the config.
    """
    try:
        checkpoint = checkpoints.inspect(path)
    except UserError:
        return  # a training's own checkpoint needs no config and no tokenizer
    if why := guard.judge(checkpoint, reading.source(checkpoint)).why:
        raise UserError(why)


def _model(place: Path, source: Source) -> str:
    """Return a digest that two checkpoints of one training share."""
    config: dict[str, Any] = {}
    folder = place if place.is_dir() else place.parent
    with contextlib.suppress(UserError, OSError):
        config = checkpoint_files.read_json(folder / "config.json", _MOST_CONFIG_BYTES)
    shapes = {name: list(tensor.shape) for name, tensor in sorted(source.tensors.items())}
    told = {name: value for name, value in config.items() if name not in _VOLATILE}
    text = json.dumps([told, shapes], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Choice(Record):
    """A checkpoint to begin from; an empty path where there is none."""

    path: str = ""
    step: int = 0
    passed_over: tuple[str, ...] = Field(default=(), description="newer ones, with the reasons")
    refused: str = Field(default="", description="why the training must not begin at all")


class Candidates:
    """The checkpoints of a training, and what looks at them have found.

    Args:
        folder: the folder that the training fills.
        pattern: the names of checkpoints in it.
        kept: the folder of what was found.
        python: that looks.
        look_at: starts a look at a path, which ends with a line of JSON on stdout.
    """

    def __init__(
        self,
        folder: Path,
        pattern: str | None,
        kept: Path,
        python: str,
        look_at: Callable[[Sequence[str]], Child] = lambda argv: Child(argv, MOST_SECONDS),
    ) -> None:
        self._folder, self._pattern, self._kept = folder, Pattern(pattern), kept
        self._python, self._start = python, look_at
        self._looking: tuple[Child, Saved] | None = None
        self._lists_at = 0.0

    def newest_step(self, since: float = 0.0) -> int | None:
        """Return the step of the newest checkpoint that was written since, finished by its name."""
        return next((e.step or 0 for e in self._finished() if e.written >= since), None)

    def go_on(self, spoiled: Sequence[tuple[int, float]] = ()) -> None:
        """Look at the newest finished checkpoint, if nobody has, while the training runs.

        Where it is healthy, the `Saver` of the training keeps it from now on.

        Args:
            spoiled: as for `choose`.
        """
        if self._is_looking() or time.monotonic() < self._lists_at:
            return
        self._lists_at = time.monotonic() + LIST_SECONDS
        left = (each for each in self._finished() if not _is_spoiled(each, spoiled))
        still = (each for each in left if each.marked or each.quiet(QUIET_SECONDS))
        newest = next(still, None)
        if newest is None:
            return
        health = self._health(newest)
        if health is None:
            self._begin(newest)
        elif not health.why:
            _keep(newest)

    def saves(self, spoiled: Sequence[tuple[int, float]] = ()) -> list[Save]:
        """Return the checkpoints to which a training may go back."""
        return [
            Save(each.step or 0, each.path)
            for each in self._finished()
            if not _is_spoiled(each, spoiled)
        ]

    def why_unfit(self, path: Path) -> str:
        """Return why a checkpoint is not begun from; empty where no look has found a reason."""
        found = next((each for each in self._finished() if each.path == path), None)
        health = self._health(found) if found is not None else None
        return health.why if health is not None else ""

    def refuse(self, path: Path, why: str) -> None:
        """Begin no more from a checkpoint, as it is, that a training could not load."""
        for saved in self._finished():
            if saved.path == path:
                found = Health(path=str(path), why=why, step=saved.step, time=time.time())
                found = found.model_copy(update={"state": _state(saved)})
                _files.write_record(self._path(saved), found)

    def choose(self, spoiled: Sequence[tuple[int, float]] = ()) -> Choice | None:
        """Return the newest healthy checkpoint; None while a look at one goes on.

        Args:
            spoiled: steps from which on checkpoints do not count, and until when they were saved.
        """
        if self._is_looking():
            return None
        passed: list[str] = []
        known = self._known()
        first = min(known, key=lambda each: each.time, default=None)
        other = ""
        for saved in self._finished():
            step = saved.step or 0
            if _is_spoiled(saved, spoiled):
                passed.append(f"{saved.path.name}: the training went wrong before it")
                continue
            if why := self._whose(saved):
                passed.append(f"{saved.path.name}: {why}")
                continue
            health = self._health(saved)
            if health is None:
                self._begin(saved)
                return None
            if not saved.there():
                continue
            if health.why:
                passed.append(f"{saved.path.name}: {health.why}")
                continue
            if first and health.model != first.model and first.model and health.model:
                other = (
                    f"{saved.path} is of another training than {first.path}: their tensors or "
                    f"configs differ. Name the folder of this training alone with --checkpoints"
                )
                passed.append(f"{saved.path.name}: of another training than {first.path}")
                continue
            _keep(saved)
            return Choice(path=str(saved.path), step=step, passed_over=tuple(passed))
        return Choice(passed_over=tuple(passed), refused=other)

    def close(self) -> None:
        """End a look that goes on."""
        if self._looking is not None:
            self._looking[0].close()
            self._looking = None

    def _finished(self) -> Iterator[Saved]:
        with contextlib.suppress(UserError):  # the folder is not there yet
            yield from (each for each in look(self._folder, self._pattern) if not each.lacks)

    def _whose(self, saved: Saved) -> str:
        """Return whose a checkpoint is, if anybody's who might run code by it: pickles do.

        What the folder's owner has put there is as good as the user's own.
        """
        with contextlib.suppress(OSError):
            owner = self._folder.stat().st_uid
            parts = [saved.path, *(saved.path.iterdir() if saved.path.is_dir() else ())]
            for part in parts:
                if not _owner.is_trusted(user := part.lstat().st_uid, owner):
                    who = _owner.name_of(user)
                    return f"{part.name} belongs to {who}, who is none of your `trusted_users`"
        return ""

    def _path(self, saved: Saved) -> Path:
        return self._kept / f"{hashlib.sha256(str(saved.path).encode()).hexdigest()[:16]}.json"

    def _health(self, saved: Saved) -> Health | None:
        found = _files.read_record_if_there(self._path(saved), Health)
        return found if found is not None and found.state == _state(saved) else None

    def _known(self) -> list[Health]:
        found = (_files.read_record_if_there(p, Health) for p in _files.records_in(self._kept))
        return [each for each in found if each is not None and each.model and not each.why]

    def _begin(self, saved: Saved) -> None:
        argv = [*jobs.program(self._python), "_examine_checkpoint", str(saved.path)]
        self._looking = self._start(argv), saved

    def _is_looking(self) -> bool:
        """Return whether a look goes on. Keep what one that has ended has found."""
        if self._looking is None:
            return False
        child, saved = self._looking
        if (answer := child.answer()) is None:
            return True
        self._looking = None
        try:
            found = Health.model_validate_json(answer.said)
        except ValueError:
            note = f"it is not read: the process that looked at it ended with {answer.status}"
            found = Health(path=str(saved.path), note=note, time=time.time())
        update = {"state": _state(saved), "step": saved.step}
        _files.write_record(self._path(saved), found.model_copy(update=update))
        return False


def _keep(saved: Saved) -> None:
    with contextlib.suppress(OSError):  # of another user, or a full disk
        saves.call_good(saved.path)


def _is_spoiled(saved: Saved, spoiled: Sequence[tuple[int, float]]) -> bool:
    step = saved.step or 0
    return any(step >= first and saved.written <= until for first, until in spoiled)


def _state(saved: Saved) -> str:
    return hashlib.sha256(saved.state.encode()).hexdigest()[:16]


def claim(folder: Path, root: Path) -> str:
    """Note in the folder of checkpoints who guards its training. Return another guard's folder.

    Two guards with different `runs_dir`, or of two users, would find each other nowhere else.
    Another user's note counts as it stands: their guard's folder is closed. Return an empty text
    where there is no other guard, or the folder cannot be written.
    """
    place, text = folder / _HIDDEN, json.dumps({"guard": str(root)}) + "\n"
    with contextlib.suppress(OSError):
        if _files.create(place, text):
            return ""
    with contextlib.suppress(OSError):
        if (user := place.lstat().st_uid) not in (os.geteuid(), 0):
            return (
                f"{place} of {_owner.name_of(user)}, who may remove that file if no guard is alive"
            )
    with contextlib.suppress(OSError, UserError, ValueError, TypeError, KeyError):
        other = str(json.loads(_files.read(place))["guard"])
        there = other != str(root) and (Path(other) / "guard.json").exists()
        if there and not (Path(other) / "over.json").exists():
            return other
    with contextlib.suppress(OSError):
        _files.write(place, text)
    return ""


def unclaim(folder: Path, root: Path) -> None:
    """Remove the note of a guard that is over. Other users cannot see that it is."""
    place = folder / _HIDDEN
    with contextlib.suppress(OSError, UserError, ValueError, TypeError, KeyError):
        if json.loads(_files.read(place))["guard"] == str(root):
            place.unlink()
