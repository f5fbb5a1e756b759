"""Before a training goes back: have the scores of its checkpoints fallen, and from which on?

Runs with a first signal say it in minutes, on the GPUs that the training has left. Three
checkpoints come first: the newest, the oldest and the one between. If the newest has fallen, each
further run halves what is not known. Whatever a run does, the training waits for a limited time.
"""

import contextlib
import functools
import json
import math
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from coordinate_eval import _files, _owner
from coordinate_eval._format import brief, duration
from coordinate_eval.coordinator.report.first_signal import FirstSignal, Main, main_of
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.own import place
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.training.advice import Save, next_to_evaluate
from coordinate_eval.coordinator.training.guarding.attempts import Evaluated, GuardDir, Guarded
from coordinate_eval.records import DatasetResults

MOST_SECONDS = 900.0
"""Time for all first signals before a rollback. What is known by then counts."""

CANCEL_SECONDS = 60.0
"""Time for which a guard that leaves waits until its runs are cancelled."""

_SURE = 3.0  # standard errors, over all datasets together, from which on scores have fallen
_COLLAPSED = 5.0  # standard errors of a dataset whose score has halved

Start = Callable[[Sequence[str], Path], "subprocess.Popen[bytes]"]


class FirstSignals:
    """The first signals of the checkpoints to which a training may go back.

    Args:
        guard_dir: the folder of the guard.
        guarded: the training, whose policy names the suite.
        start: starts a command whose output goes to a file.
    """

    def __init__(self, guard_dir: GuardDir, guarded: Guarded, start: Start | None = None) -> None:
        self._dir, self._guarded = guard_dir, guarded
        # Tasks may look for data at relative paths: from where the guard was begun.
        self._start = start or functools.partial(_start, guarded.folder)
        self._children: dict[Path, subprocess.Popen[bytes]] = {}
        self._cancels: list[subprocess.Popen[bytes]] = []

    def compare(self, number: int, saves: Sequence[Save], now: float) -> Evaluated | None:
        """Return from which checkpoint on the scores have fallen; None while runs go on.

        Args:
            number: the attempt that has ended.
            saves: the checkpoints before it went wrong, with what is known of their scores.
            now: the time.
        """
        saves = sorted(saves, key=lambda each: each.step)
        if not self._guarded.policy.suite or len(saves) < 2:
            return Evaluated()
        late = now - self._began(number, now) > MOST_SECONDS
        signals: dict[int, dict[str, Main]] = {}
        refused: dict[int, str] = {}
        for each in saves:
            run = self._run(number, each)
            if (signal := read_signal(run)) is not None:
                signals[each.step] = signal
            elif why := self._refused(run):
                refused[each.step] = why
        judged = judge(saves, signals)
        wanted = wanted_of(judged, signals)
        waits = [each for each in wanted if each.step not in {**signals, **refused}]
        if waits and not late:
            for each in waits:
                self._submit(self._run(number, each), each)
            return None
        self._end([self._run(number, each) for each in saves])
        return _over(judged, signals, refused, late=bool(waits))

    def close(self) -> None:
        """End submissions that go on, and let cancellations end.

        Runs that have begun come to their end by themselves.
        """
        self._end_submissions()
        for cancel in self._cancels:
            with contextlib.suppress(subprocess.TimeoutExpired):
                cancel.wait(CANCEL_SECONDS / len(self._cancels))

    def _end_submissions(self) -> None:
        for child in self._children.values():
            if child.poll() is None:
                child.kill()
            child.wait()
        self._children = {}

    def _began(self, number: int, now: float) -> float:
        path = self._dir.of_attempt(number, "evaluating")
        if not path.exists():
            _files.write(path, json.dumps({"time": now}) + "\n")
        return float(_files.read_json(path)["time"])

    def _run(self, number: int, save: Save) -> Path:
        home = Path(self._guarded.settings.runs_dir).expanduser()
        guard = f"{self._guarded.name}-{self._guarded.nonce}"
        return place(home, f"guard-{guard}-{number}-step-{save.step}")

    def _log(self, run: Path) -> Path:
        return self._dir.logs / f"{run.name}.log"

    def _submit(self, run: Path, save: Save) -> None:
        if run not in self._children and not RunDir(run).run.exists():
            argv = jobs.program(self._guarded.python)
            words = ("_evaluate", str(self._dir.root), str(save.path), str(run))
            self._children[run] = self._start([*argv, *words], self._log(run))

    def _refused(self, run: Path) -> str:
        """Return why there is no run of a checkpoint, or no signal any more; empty if there may be.

        One without a free GPU is refused at once.
        """
        child = self._children.get(run)
        if child is not None and child.poll():
            said = _files.read_end(self._log(run), 4096).decode(errors="replace").strip()
            return brief(said.splitlines()[-1].removeprefix("coordinate-eval: ")) if said else "?"
        if not RunDir(run).results.exists():
            return ""
        reason = _files.read_json(RunDir(run).results).get("reason")
        return brief(str(reason or "it ended without a signal"))

    def _end(self, runs: Sequence[Path]) -> None:
        """Cancel what goes on. The training does not wait for that."""
        self._end_submissions()
        for run in runs:
            if RunDir(run).run.exists() and not RunDir(run).results.exists():
                argv = jobs.program(self._guarded.python)
                self._cancels.append(self._start([*argv, "cancel", str(run)], self._log(run)))


def read_signal(run: Path) -> dict[str, Main] | None:
    """Return the main score of each dataset of a first signal; None until it is complete.

    A suite that is too small for slices has its whole scores as soon.
    """
    found = _files.read_record_if_there(RunDir(run).first_signal, FirstSignal)
    scores: dict[str, Main | None] = {}
    if found is not None and not found.pending:
        scores = {name: each.main for name, each in found.datasets.items()}
    elif RunDir(run).results.exists():
        for path in _files.records_in(RunDir(run).results_folder):
            if (whole := _files.read_record_if_there(path, DatasetResults)) is not None:
                scores[path.stem] = main_of(whole)
    return {name: main for name, main in scores.items() if main is not None} or None


def judge(saves: Sequence[Save], signals: Mapping[int, Mapping[str, Main]]) -> list[Save]:
    """Return checkpoints with what first signals say: each is compared with all older ones.

    Scores fall once. Where those of a later checkpoint are healthy, a lower one was noise.
    """
    healthy: list[Mapping[str, Main]] = []
    found = []
    for each in saves:
        signal = signals.get(each.step)
        if signal is not None and any(is_worse(signal, older) for older in healthy):
            found.append(replace(each, scores="fallen"))
        elif signal is not None:
            healthy.append(signal)
            found.append(each if each.scores == "fallen" else replace(each, scores="healthy"))
        else:
            found.append(each)
    last = max((e.step for e in found if e.scores == "healthy" and e.step in signals), default=-1)
    noisy = {e.step for e in saves if e.scores != "fallen" and e.step in signals and e.step < last}
    return [replace(each, scores="healthy") if each.step in noisy else each for each in found]


def is_worse(now: Mapping[str, Main], older: Mapping[str, Main]) -> bool:
    """Return whether scores have fallen: over all datasets together, or one of them to half."""
    fell = [_fell(now[name], older[name]) for name in now.keys() & older.keys()]
    if not fell:
        return False
    together = sum(each.errors for each in fell) / math.sqrt(len(fell))
    return together > _SURE or any(each.errors > _COLLAPSED and each.half for each in fell)


class _Fall(NamedTuple):
    errors: float
    """The number of standard errors by which the score is worse."""
    half: bool


def _fell(now: Main, older: Main) -> _Fall:
    sign = 1 if now.higher_is_better else -1
    # All right or all wrong has no error by itself, and says no more than its items.
    noise = math.hypot(*(max(each.stderr or 0.0, 1 / each.items) for each in (now, older)))
    half = now.value < older.value / 2 if sign > 0 else now.value > 2 * older.value
    if not math.isfinite(now.value):
        return _Fall(math.inf, half=True)
    return _Fall(sign * (older.value - now.value) / noise, half)


def wanted_of(judged: Sequence[Save], signals: Mapping[int, object]) -> list[Save]:
    """Return the checkpoints whose first signals are to come next; none if all is known.

    The first three are waited for together: one alone has none to be compared with.
    """
    first = {at: judged[at] for at in (0, len(judged) // 2, len(judged) - 1)}
    missing = [each for each in first.values() if each.step not in signals]
    following = next_to_evaluate(judged)
    if missing and (following is not None or len(missing) < len(first)):
        return missing
    return [] if following is None else [following]


def _over(
    judged: Sequence[Save],
    signals: Mapping[int, object],
    refused: Mapping[int, str],
    *,
    late: bool,
) -> Evaluated:
    fallen = next((each for each in judged if each.scores == "fallen"), None)
    healthy = [
        e.step for e in judged if e.scores == "healthy" and (not fallen or e.step < fallen.step)
    ]
    parts = [f"step {e.step}: {e.scores}" for e in judged if e.step in signals]
    parts += [f"step {step}: {why}" for step, why in refused.items()]
    if late:
        parts.append(f"the others gave no answer within {duration(MOST_SECONDS)}")
    onset = None
    if fallen is not None:  # of what is not known, the safe side counts
        onset = healthy[-1] + 1 if healthy else fallen.step
    return Evaluated(onset=onset, words=f"first signals: {', '.join(parts)}")


def _start(folder: str, argv: Sequence[str], log: Path) -> "subprocess.Popen[bytes]":
    with os.fdopen(_owner.open_log(log), "ab") as said:
        return subprocess.Popen(
            argv, cwd=folder, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT
        )
