"""What a waiting person sees: one line that changes on a terminal, lines elsewhere."""

import time

from rich.console import Console
from rich.status import Status

from coordinate_eval import _files
from coordinate_eval.coordinator.cluster import State
from coordinate_eval.coordinator.run import first_signal, jobs
from coordinate_eval.coordinator.run.first_signal import FirstSignal
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.coordinator.supervisor.decide import Facts

QUIET_SECONDS = 30.0
"""Off a terminal, a line that says nothing new is left out for so long."""


class Display:
    """Shows the facts of a supervision as they come."""

    def __init__(self, run_dir: RunDir, run: Run, console: Console) -> None:
        self._dir, self._run, self._console = run_dir, run, console
        self._signal_due = bool(first_signal.slices(run))
        self._status: Status | None = None
        self._last = ""
        self._when = 0.0

    def __enter__(self) -> "Display":
        if self._console.is_terminal:
            self._status = self._console.status("starting")
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def tell(self, facts: Facts | None, event: str) -> None:
        """Called by the supervisor with new facts, or an event worth a line."""
        if facts is None:
            if event != self._last:
                self._console.print(event, style="yellow", markup=False, highlight=False)
                self._last = event
            return
        self._show_signal()
        line = "leaving the nodes" if event == "drain" else summary(self._run, facts)
        if self._status is not None:
            self._status.update(line)
        elif line != self._last or time.monotonic() - self._when > QUIET_SECONDS:
            self._console.print(line, highlight=False)
            self._last, self._when = line, time.monotonic()

    def _show_signal(self) -> None:
        """Rough scores, once all there are."""
        if not self._signal_due:
            return
        known = _files.read_record_if_there(self._dir.first_signal, FirstSignal)
        if known is not None and not known.pending:
            self._signal_due = False
            self._console.print(first_signal.table(known.model_dump(mode="json")))


def summary(run: Run, facts: Facts) -> str:
    """How far a run is, in one line."""
    shards = len(run.shards)
    datasets = len(run.suite.datasets)
    states = [t.state for t in facts.tasks if jobs.is_trials(run, t.name)]
    running = sum(1 for state in states if state is State.RUNNING)
    pending = sum(1 for state in states if state is State.PENDING)
    trials = f"{running} trials" + (f", {pending} waiting" if pending else "")
    unanswered = f", {len(facts.answerable)} portions of questions" if facts.answerable else ""
    return (
        f"{shards - len(facts.unpublished)} of {shards} shards, "
        f"{datasets - facts.unscored} of {datasets} datasets scored, {trials}{unanswered}"
    )
