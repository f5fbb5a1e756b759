"""The spool: runs that were asked for where nobody can submit them.

A training job in a container has no `sbatch`. What it asks for becomes a file in
`runs_dir/.spool-<uid>/`. Whoever of the user can submit takes it from there: `watch`, or the
supervisor of another run.

Whoever creates `<name>.<n>.json` holds attempt n at submitting `<name>.json`, as claims are made in
a run. An attempt ends with the error that its holder writes into it, or after `HELD_SECONDS`: then
its holder was killed. Neither has to be exact: two that submit the same run make one, because a run
directory appears in one rename.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from coordinate_eval import _files
from coordinate_eval._clock import growing
from coordinate_eval._format import plural, whole_duration
from coordinate_eval.coordinator.inputs.checkpoints.mixed.average import Members
from coordinate_eval.coordinator.run.own import is_own
from coordinate_eval.errors import (
    ClusterSilent,
    CoordinateError,
    ForeignError,
    RecordError,
    SubmitLater,
    UserError,
)
from coordinate_eval.records import Record, Suite, schema

MOST_REFUSALS = 8
"""Refusals after which a run is no longer submitted: two hours with the pauses between them."""

HELD_SECONDS = 600.0
"""Time after which an attempt that has not ended was killed. To submit takes a few seconds."""

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 60.0, 3600.0
"""Pauses between two attempts: each is twice as long as the one before."""

_LEFT_SECONDS = 86400.0
"""Age at which the draft of a killed writer is removed."""

_NAME = re.compile(r"(?P<name>.+-[0-9a-f]{16})(?:\.(?P<number>[1-9][0-9]{0,8}))?\.json", re.DOTALL)


class Spooled(Record):
    """`<name>.json`: a run that was asked for, as the command had it when it was called."""

    schema_: Literal["coordinate-eval/spooled@1"] = schema("coordinate-eval/spooled@1")
    checkpoint: str = Field(description="absolute path, where it was asked for")
    identity: str = Field(description="of the checkpoint")
    folder_inode: int = Field(
        description="of the folder with the checkpoint, by which it is known under another path"
    )
    suite: Suite
    settings: dict[str, Any] = Field(
        description="settings that the caller gave, by dotted name; others are the submitter's"
    )
    step: int | None = None
    model_config_file: str | None = None
    tokenizer: str | None = None
    mapping: str | None = None
    base: str | None = None
    members: list[str] = Field(default=[], description="of an average that no file names")
    weights: list[float] = Field(default=[], description="of these members")
    run_dir: str | None = None
    strict: bool = False
    folder: str = Field(description="working directory of the caller")

    @property
    def what(self) -> Path | Members:
        """Return the checkpoint, as it was given."""
        if self.members:
            return Members(list(map(Path, self.members)), self.weights)
        return Path(self.checkpoint)

    def outside(self, mounts: Iterable[tuple[str, str]]) -> "Spooled":
        """Return this request with every path as it is outside of a container with these mounts.

        Args:
            mounts: a path outside, and the one by which the container sees it.
        """
        # The longest place in the container is the one that is mounted there.
        places = sorted(mounts, key=lambda mount: -len(mount[1]))

        def moved(value: Any) -> Any:  # noqa: ANN401 - any JSON value
            if isinstance(value, Mapping):
                return {key: moved(each) for key, each in value.items()}
            if isinstance(value, list):
                return [moved(each) for each in value]
            for source, target in places if isinstance(value, str) else ():
                if value == target or value.startswith(target.rstrip("/") + "/"):
                    return source.rstrip("/") + value[len(target.rstrip("/")) :]
            return value

        return Spooled.model_validate(moved(self.model_dump(mode="json", by_alias=True)))


class Attempt(Record):
    """`<name>.<n>.json`: one attempt to submit a run of the spool."""

    host: str
    pid: int
    token: str = Field(description="of this attempt alone")
    begun: float
    ended: float | None = None
    error: str = ""
    failures: int = Field(default=0, description="in a row, this one included")
    refusals: int = Field(default=0, description="those of them that do not pass by themselves")


@dataclass
class Waiting:
    """A run in the spool, and how far its submission is."""

    path: Path
    spooled: Spooled | None = None
    number: int = 0
    """Number of the last attempt; 0 before the first."""
    last: Attempt | None = None
    state: str = "requested"
    error: str = ""
    due: bool = False
    run: Path | None = None

    def row(self) -> dict[str, Any]:
        """Return what is shown of it."""
        return {
            "request": str(self.path),
            "checkpoint": self.spooled.checkpoint if self.spooled else None,
            "step": self.spooled.step if self.spooled else None,
            "state": self.state,
            "run": str(self.run) if self.run else None,
            "error": self.error or None,
        }

    def words(self) -> str:
        """Return a line for people."""
        name = self.spooled.checkpoint if self.spooled else str(self.path)
        return f"{name}: {self.state}" + (f": {self.error}" if self.error else "")

    def take(self, now: float) -> bool:
        """Claim the next attempt. Return whether this process holds it."""
        last = self.last or Attempt(host="", pid=0, token="", begun=0)
        mine = {"host": os.uname().nodename, "pid": os.getpid(), "token": _files.token()}
        attempt = last.model_copy(update={**mine, "begun": now, "ended": None})
        if not _files.create(self._attempt(self.number + 1), attempt.model_dump_json()):
            self.state = "being submitted"
            return False
        self.number, self.last = self.number + 1, attempt
        if self.path.exists():
            return True
        self._forget()  # somebody has submitted it between the look and the claim
        self.state = "submitted"
        return False

    def failed(self, error: Exception, now: float) -> None:
        """Note why this process's attempt has failed. The run stays in the spool."""
        assert self.last is not None, "it was taken"
        passes = isinstance(error, ClusterSilent | SubmitLater)
        self.last = self.last.model_copy(
            update={
                "ended": now,
                "error": str(error),
                "failures": self.last.failures + 1,
                "refusals": self.last.refusals + (not passes),
            }
        )
        _files.write_record(self._attempt(self.number), self.last)
        self.judge(now)

    def done(self) -> None:
        """Remove this request from the spool: it has a run, or needs none."""
        self.path.unlink(missing_ok=True)
        self._forget()

    def judge(self, now: float) -> None:
        """Decide from the last attempt whether the next one is due."""
        last = self.last
        if last is None:
            self.due = True
            return
        since = last.begun if last.ended is None else last.ended
        if last.ended is None:
            here = last.host == os.uname().nodename
            is_dead = here and not Path(f"/proc/{last.pid}").exists()
            self.due = now - since > HELD_SECONDS or is_dead
            self.state = "requested" if self.due else "being submitted"
            return
        self.error = last.error
        if _files.modified(self.path) > _files.modified(self._attempt(self.number)):
            self.last, self.due = last.model_copy(update={"failures": 0, "refusals": 0}), True
        elif last.refusals >= MOST_REFUSALS:
            self.state = f"given up after {plural(last.refusals, 'refusal')}"
            self.error += f"\nAsk for it again, or remove {self.path}"
        else:
            pause = growing(_FIRST_PAUSE_SECONDS, last.failures - 1, _LONGEST_PAUSE_SECONDS)
            left = since + pause - now
            self.due = left <= 0
            again = "now" if self.due else f"in {whole_duration(left)}"
            self.state = f"not submitted, next try {again}"

    def _attempt(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name.removesuffix('.json')}.{number}.json")

    def _forget(self) -> None:
        for number in range(1, self.number + 1):
            self._attempt(number).unlink(missing_ok=True)


def put(runs_dir: Path, spooled: Spooled) -> Path:
    """Write a run into the user's spool, once. Return its file."""
    text = spooled.model_dump_json(by_alias=True, indent=1) + "\n"
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(spooled.checkpoint).name).strip("-.")[-40:]
    path = _own_spool(runs_dir) / f"{stem or 'checkpoint'}-{digest}.json"
    try:
        _files.own_folder(path.parent)
        try:
            os.utime(path)  # whoever asks again has it tried again
        except FileNotFoundError:
            _files.create(path, text)
    except OSError as error:
        raise UserError(
            f"nothing is submitted from {os.uname().nodename}, and a request for it cannot be "
            f"written to {path.parent}: {error.strerror}"
        ) from error
    return path


def waiting(runs_dir: Path, now: float) -> Iterator[Waiting]:
    """Yield the runs in the user's spools, in the order of the requests.

    Root in a container may be the user outside, so that every spool of the user counts, whatever
    its number.

    Raises:
        ForeignError: the user's spool is another user's, or others can write to it.
    """
    try:
        spools = {path for path in runs_dir.glob(".spool-*") if is_own(path)}
        mine = _own_spool(runs_dir)
        for spool in sorted(spools | ({mine} if os.path.lexists(mine) else set())):
            yield from _waiting_in(_files.own_folder(spool), now)
    except OSError as error:
        raise UserError(f"the spool in {runs_dir} cannot be read: {error.strerror}") from error


def about(runs_dir: Path, now: float) -> list[str]:
    """Return a line for each run in the user's spools, or why they cannot be read."""
    try:
        return [f"request {each.path.name}: {each.words()}" for each in waiting(runs_dir, now)]
    except UserError as error:
        return [str(error)]


def _own_spool(runs_dir: Path) -> Path:
    return runs_dir / f".spool-{os.geteuid()}"


def _waiting_in(spool: Path, now: float) -> Iterator[Waiting]:
    found: dict[str, int] = {}
    attempts: dict[str, int] = {}
    for file in _files.names(spool):
        if match := _NAME.fullmatch(file):
            numbers = attempts if match["number"] else found
            name, number = match["name"], int(match["number"] or 0)
            numbers[name] = max(number, numbers.get(name, 0))
        elif file.endswith(".tmp") and _files.modified(spool / file) < now - _LEFT_SECONDS:
            (spool / file).unlink(missing_ok=True)
    for name in attempts.keys() - found.keys():  # of one that was killed while it removed them
        Waiting(spool / f"{name}.json", number=attempts[name])._forget()
    for name in sorted(found, key=lambda name: _files.modified(spool / f"{name}.json")):
        each = Waiting(spool / f"{name}.json", number=attempts.get(name, 0))
        try:
            each.spooled = _read(each.path)
        except FileNotFoundError:  # it has just been submitted
            continue
        except (RecordError, ForeignError, OSError) as error:
            each.state, each.error = "not read", str(error)
        else:
            with contextlib.suppress(CoordinateError, FileNotFoundError):
                if each.number:
                    each.last = _files.read_record(each._attempt(each.number), Attempt)
            each.judge(now)
        yield each


def _read(path: Path) -> Spooled:
    try:
        return Spooled.model_validate_json(_files.read(path))
    except ValidationError as error:
        raise RecordError(
            "it is torn, or another version of coordinate-eval wrote it: let that version submit "
            f"it, or remove {path}"
        ) from error
