"""`coordinate-eval watch`: evaluate the checkpoints that appear in a folder, each once.

What was requested where nobody can submit is submitted first, also without a folder, and runs that
no job can supervise get a supervisor here.

Its run tells whether a checkpoint was asked for. Only a checkpoint that was refused, which has no
run, leaves a note in `runs_dir`, so that it is not refused for ever. Two that watch the same folder
make the same runs: a run directory appears in one rename, which one of them wins.
"""

import contextlib
import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from coordinate_eval import __version__, _files
from coordinate_eval._format import plural, quoted, visible
from coordinate_eval.clusters.protocol import TaskStatus
from coordinate_eval.coordinator.cli.inquire.alarms import tell_alarms
from coordinate_eval.coordinator.cli.inquire.curves import curve_lines
from coordinate_eval.coordinator.cli.inquire.runs import find_all, poll
from coordinate_eval.coordinator.cli.launch.resume import cancel_run, supervise_from_here
from coordinate_eval.coordinator.cli.launch.run import start_run
from coordinate_eval.coordinator.cli.launch.runnable import check_common
from coordinate_eval.coordinator.cli.launch.spooled import submit_waiting
from coordinate_eval.coordinator.cli.output import say, write_json
from coordinate_eval.coordinator.history import measured
from coordinate_eval.coordinator.inputs import clusters
from coordinate_eval.coordinator.inputs.checkpoints.checkpoint import unchanged
from coordinate_eval.coordinator.inputs.checkpoints.mixed.average import Members, ending_with
from coordinate_eval.coordinator.inputs.checkpoints.saved import (
    TRACKERS,
    Pattern,
    Saved,
    look,
    training_of,
)
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.planning.new_run import Inputs
from coordinate_eval.coordinator.report import state
from coordinate_eval.coordinator.report.state import Phase
from coordinate_eval.coordinator.run.own import place
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.coordinator.run.starting import resumes
from coordinate_eval.coordinator.run.starting.spool import Waiting
from coordinate_eval.errors import (
    ClusterError,
    ClusterSilent,
    CoordinateError,
    ForeignError,
    RecordError,
    StoreSilent,
    Unfinished,
    UserError,
)
from coordinate_eval.records import Checkpoint, CheckpointFormat, Record, Suite

MOST_ALIVE = 4
"""Most runs at once on a cluster, if the user does not say. On one machine there is one."""

_BEGINNING_SECONDS = 120.0
"""Age of a run up to which its supervisor may not be submitted yet, by another process."""

Ask = Callable[[Saved], Inputs]


class Refused(Record):
    """`.refused-<uid>/<digest>.json` in `runs_dir`: a checkpoint that was refused as it is."""

    checkpoint: str
    tries: int
    error: str


@dataclass
class _Seen:
    """A checkpoint, and what is known or done about it."""

    saved: Saved
    state: str
    run: RunDir | None = None
    alive: bool = False
    wanted: bool = False
    """A run should be started, or continued."""
    error: str = ""

    def row(self) -> dict[str, Any]:
        """Return what is shown of it."""
        return {
            "checkpoint": str(self.saved.path),
            "step": self.saved.step,
            "state": self.state,
            "run": None if self.run is None else str(self.run.root),
            "error": self.error or None,
        }


@dataclass
class Watch:
    """A watched folder, or none, and the way to evaluate its checkpoints."""

    folder: Path | None
    pattern: Pattern
    settings: Settings
    suite: Suite
    ask: Ask
    """Inspects a checkpoint. Raises `UserError`."""
    quiet_seconds: float
    marker: str | None = None
    """File that each finished checkpoint has. Nothing else counts then."""
    most: int | None = None
    dry: bool = False
    newest: bool = False
    """Evaluate no checkpoint that a newer one has overtaken while it waited."""
    steps: int = 1
    """Evaluate only checkpoints whose step is a multiple of this number."""
    strict: bool = False
    """Start no run without the datasets whose tasks are missing."""
    last: int = 0
    """Also evaluate the average of this many checkpoints, the last of which is the new one."""
    _local: bool = field(init=False)

    def __post_init__(self) -> None:
        chosen = clusters.chosen(self.settings)
        if chosen is None:
            raise UserError(
                f"cluster file {self.settings.cluster} is only a description of a cluster: "
                "checkpoints cannot be evaluated there"
            )
        self._local = chosen.local

    def once(self, *, as_json: bool = False) -> int:
        """Look once, and start the runs that are due, those first that were requested.

        Return the exit status.

        Raises:
            UserError: the folder cannot be read, or no checkpoint can be evaluated with this suite
                and these settings. No checkpoint counts as refused for that.
            ClusterError: the scheduler does not answer, or refuses a job.
        """
        requests, wrong = self._requests()
        for line in [] if self.dry else supervise_from_here(self.settings):
            say(line)
        seen = self._seen() if self.folder is not None else []
        self._leave_out_steps(seen)
        if self.newest:
            self._pass_over(seen)
        if any(each.wanted for each in seen):
            check_common(self.settings, self.suite, strict=self.strict)
        room = (self.most or (1 if self._local else MOST_ALIVE)) - sum(s.alive for s in seen)
        try:
            for each in (s for s in seen if s.wanted):
                if room <= 0:
                    each.state = "waiting until fewer runs are alive"
                elif self._start(each):
                    room -= 1
        finally:  # also what was started before an error is told
            if as_json:
                folder = None if self.folder is None else str(self.folder)
                rows = [s.row() for s in seen]
                waiting = [each.row() for each in requests]
                write_json({"dir": folder, "checkpoints": rows, "requests": waiting})
            elif sys.stderr.isatty() or self.dry:
                lines = [each.words() for each in requests]
                lines += [f"{quoted(each.saved.path)}: {each.state}" for each in seen]
                for line in lines if self.dry else ():
                    say(line)
                if self.folder is None:
                    say(_summary([each.state for each in requests], "request"))
                else:
                    say(_summary([each.state for each in seen], "checkpoint"))
                    if not seen:
                        say(self.pattern.hint(self.folder))
        if self.folder is not None and not self.dry:
            self._say_how_it_goes(self.folder)
        wrong = wrong or any(each.error for each in requests)
        return 2 if wrong or any(each.error for each in seen) else 0

    def _say_how_it_goes(self, folder: Path) -> None:
        """Tell people of new alarms; in a terminal, show the curves of the trainings."""
        if sys.stderr.isatty():
            for line in curve_lines(self.settings, str(folder.resolve())):
                say(line)
        for line in tell_alarms(self.settings, str(folder.resolve()), patience=0):
            say(line)

    def _requests(self) -> tuple[list[Waiting], bool]:
        """Submit what was requested elsewhere. Return all requests, and whether none can be read.

        Checkpoints of the folder are evaluated all the same.
        """
        try:
            return submit_waiting(self.settings, dry=self.dry), False
        except UserError as error:
            say(str(error))
            return [], True

    def _seen(self) -> list[_Seen]:
        """Return what is there, and what is to be done about it."""
        assert self.folder is not None
        saved = look(self.folder, self.pattern, self.marker)
        if self.last:
            saved = list(self._with_averages(saved))
        runs: dict[tuple[str, bool], list[tuple[RunDir, Run]]] = {}
        for run_dir, run in find_all(self.settings)[0]:
            if self._is_same(run):
                runs.setdefault(_known_by(run), []).append((run_dir, run))
        mine = {
            s.path: [
                (run_dir, run)
                for run_dir, run in runs.get((str(s.last.resolve()), bool(s.members)), [])
                if not s.members or self._is_average(run, len(s.members))
            ]
            for s in saved
        }
        tasks, note = poll([one for some in mine.values() for one in some], self.settings)
        if note:
            raise ClusterSilent(note)
        seen = []
        for each in saved:
            # What was changed since may be an optimizer's file, or the storage's clock is ahead.
            found = [
                (run_dir, run)
                for run_dir, run in mine[each.path]
                if each.changed <= run.created or unchanged(_last(run.checkpoint))
            ]
            with contextlib.suppress(RecordError):  # a run that is being removed
                known = tasks.get(found[0][1].nonce) if found else None
                seen.append(_of_run(each, *found[0], known) if found else self._of_none(each))
        return seen

    def _leave_out_steps(self, seen: list[_Seen]) -> None:
        """Start no run of a step that is no multiple of `steps`."""
        for each in seen:
            step = each.saved.step
            if each.wanted and each.run is None and self.steps > 1 and (step or 1) % self.steps:
                no = "its name tells no step" if step is None else f"no multiple of {self.steps}"
                each.wanted, each.state = False, f"left out: {no}"

    def _pass_over(self, seen: list[_Seen]) -> None:
        """Leave out what is older than the newest. Once that has a run, cancel others that wait."""
        newest: dict[str, _Seen] = {}  # of each training
        for each in seen:
            if not each.wanted and each.run is None:
                continue
            first = newest.setdefault(training_of(str(each.saved.path)), each)
            if each.saved.last == first.saved.last:
                continue  # its average
            why = f"overtaken by {first.saved.path.name}"
            if each.run is None:
                each.wanted, each.state = False, why
            elif each.alive and first.run is not None and not self.dry and _waits(each):
                cancel_run(each.run, why)
                each.alive, each.state = False, f"cancelled: {why}"

    def _with_averages(self, saved: list[Saved]) -> Iterator[Saved]:
        """Yield checkpoints, and after each that is finished the average of those up to it."""
        assert self.folder is not None
        finished = [each for each in saved if self._why_unfinished(each) is None]
        for each in saved:
            yield each
            of = ending_with(each, finished, self.last)
            if len(of) > 1:
                members = tuple(one.path for one in reversed(of))
                state_ = "\n".join(one.state for one in of)
                place_ = Members(list(members), []).place
                yield replace(each, path=place_, state=state_, members=members)

    def _is_average(self, run: Run, least: int) -> bool:
        """Return whether a run is of the average that is asked for, of so many members or more.

        There were more when it was started, if training has deleted some since.
        """
        shares = run.checkpoint.shares
        return least <= len(shares) <= self.last and len(set(shares)) == 1

    def _why_unfinished(self, saved: Saved) -> str | None:
        """Return why a checkpoint is not finished, None if it is."""
        if saved.lacks is not None:
            named = saved.lacks in TRACKERS
            why = f"{saved.lacks} does not name it" if named else f"it has no {saved.lacks}"
            return f"not marked as finished: {why}"
        if not saved.marked and not saved.quiet(self.quiet_seconds):
            return "being written"
        return None

    def _is_same(self, run: Run) -> bool:
        """Return whether a run is of this suite and engine, which an id tells as well."""
        was, now = run.settings, self.settings
        return (run.suite.digest, was.engine, was.trial.max_length) == (
            self.suite.digest,
            now.engine,
            now.trial.max_length,
        )

    def _of_none(self, saved: Saved) -> _Seen:
        """Decide what is to be done about a checkpoint that has no run as it is now."""
        if (why := self._why_unfinished(saved)) is not None:
            return _Seen(saved, why)
        refused = _files.read_record_if_there(self._note(saved), Refused)
        if refused is not None and refused.tries >= resumes.MOST_TRIES:
            return _Seen(saved, f"refused {refused.tries} times: {refused.error}")
        return _Seen(saved, "new", wanted=True)

    def _start(self, each: _Seen) -> bool:
        """Start or continue a run. Return whether one is alive now that was not."""
        try:
            inputs = self.ask(each.saved)
            root = place(Path(self.settings.runs_dir).expanduser().absolute(), inputs.run_id)
            if each.run is None and (root / "run.json").exists():
                # The same checkpoint under another name, or the time of its files has changed.
                each.run, each.state = RunDir(root), "evaluated before"
                return False
            if each.run is None and measured.has(self.settings.runs_dir, inputs.run_id):
                each.state = "evaluated before"  # its run was pruned
                return False
            if self.dry:
                each.state = "to be evaluated"
                return True
            with contextlib.redirect_stdout(sys.stderr):  # what a run says of itself
                status = start_run(inputs)
        except ClusterError:  # it would be so for the others, too
            each.error = "the scheduler refused it, or did not answer"
            raise
        except CoordinateError as error:
            if isinstance(error, Unfinished) and self.quiet_seconds:
                each.state = "being written"
                return False
            if each.saved.there():  # it may have been removed meanwhile
                each.state, each.error = "refused", str(error)
                # Only tries to start it count, and not against a store that does not answer.
                if not self.dry and not isinstance(error, StoreSilent):
                    self._refuse(each.saved, str(error))
                name = quoted(each.saved.path)
                words = str(error).replace(str(each.saved.path), name)
                say(words if name in words else f"{name}: {words}")
            else:
                each.state = "gone"
            return False
        each.run, each.alive = RunDir(root), not self._local
        each.state = "submitted" if each.alive else ("complete" if status == 0 else "incomplete")
        say(f"{quoted(each.saved.path)}: {each.state}: {quoted(root)}")
        return each.alive

    def _note(self, saved: Saved) -> Path:
        """Return where it is noted that a checkpoint was refused as it is.

        For another suite, with other settings, or by another version it is tried again.
        """
        asked = f"{self.suite.digest}\0{self.settings.model_dump_json()}\0{__version__}"
        what = f"{saved.path}\0{saved.state}\0{asked}"
        name = hashlib.sha256(os.fsencode(what)).hexdigest()[:32]
        return Path(self.settings.runs_dir).expanduser() / f".refused-{os.geteuid()}/{name}.json"

    def _refuse(self, saved: Saved, error: str) -> None:
        path = self._note(saved)
        before = _files.read_record_if_there(path, Refused)
        tries = 1 + (before.tries if before else 0)
        with contextlib.suppress(OSError, ForeignError):
            _files.own_folder(path.parent)
            _files.write_record(path, Refused(checkpoint=str(saved.path), tries=tries, error=error))


def _waits(each: _Seen) -> bool:
    """Return whether a run waits and has no response."""
    waits = each.state in (Phase.QUEUED, Phase.BUILDING, Phase.WAITING)
    return waits and each.run is not None and not _files.names(each.run.root / "outputs")


def _known_by(run: Run) -> tuple[str, bool]:
    """Return the path of a run's checkpoint, of an average that of its last one, and which it is.

    When training deletes the first ones of an average, its run still is that of the last one.
    """
    average = run.checkpoint.format is CheckpointFormat.AVERAGE
    return _last(run.checkpoint).path, average


def _last(checkpoint: Checkpoint) -> Checkpoint:
    average = checkpoint.format is CheckpointFormat.AVERAGE
    return checkpoint.parts[-1] if average else checkpoint


def _of_run(saved: Saved, run_dir: RunDir, run: Run, tasks: list[TaskStatus] | None) -> _Seen:
    """Decide what is to be done about a checkpoint that has a run."""
    phase = state.phase_of(run_dir, run, tasks, silent=False)
    seen = _Seen(saved, phase.value, run_dir)
    young = time.time() - run.created < _BEGINNING_SECONDS
    seen.alive = not phase.ended or (phase is Phase.UNSUPERVISED and young)
    if phase in (Phase.INCOMPLETE, Phase.UNSUPERVISED) and not seen.alive:
        tries = resumes.tries_without_progress(run_dir)
        if tries < resumes.MOST_TRIES:
            seen.wanted = True
        else:
            seen.state = f"{phase.value}, resumed {tries} times without progress"
    return seen


def _summary(states: list[str], noun: str) -> str:
    """Return one line for people: how many checkpoints or requests are in which state."""
    counts: dict[str, int] = {}
    for state_ in states:
        what = state_.partition(":")[0]
        counts[what] = counts.get(what, 0) + 1
    listed = ", ".join(f"{number} {what}" for what, number in counts.items())
    return visible(plural(len(states), noun) + (f": {listed}" if listed else ""))
