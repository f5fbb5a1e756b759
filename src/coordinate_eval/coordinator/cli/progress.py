"""Progress of a supervision in this terminal: one line that changes; elsewhere a line each."""

import time

from rich.console import Console
from rich.status import Status

from coordinate_eval import _files
from coordinate_eval._format import plural, whole_duration
from coordinate_eval.cluster import State
from coordinate_eval.coordinator.report import first_signal, state
from coordinate_eval.coordinator.report.first_signal import FirstSignal
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.coordinator.supervisor.decide import Facts

QUIET_SECONDS = 30.0
"""Off a terminal, a line that says nothing new is printed again after this time only."""


class Display:
    """Shows the facts of a supervision as they come."""

    def __init__(self, run_dir: RunDir, run: Run, console: Console) -> None:
        self._dir, self._run, self._console = run_dir, run, console
        self._requests = state.count_requests(run_dir, run)
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
        """Show new facts, or an event that is worth a line of its own."""
        if facts is None:
            if event != self._last:
                self._console.print(event, style="yellow", markup=False, highlight=False)
                self._last = event
            return
        self._show_signal()
        what, times = "waiting for jobs to end and free their nodes", ""
        if event != "drain":
            what, times = self._line(facts)
        if self._status is not None:
            self._status.update(what + times)
        elif what != self._last or time.monotonic() - self._when > QUIET_SECONDS:
            self._console.print(what + times, highlight=False, soft_wrap=True)
            self._last, self._when = what, time.monotonic()

    def _line(self, facts: Facts) -> tuple[str, str]:
        """Return how far the run is, and in a text of its own what changes with every look."""
        local = not facts.tasks
        known = state.progress(
            self._dir,
            self._run,
            None if local else facts.tasks,
            silent=False,
            requests=self._requests,
            supervised=True,
        )
        done, total = known.responses, known.requests
        times = (
            f"; {done:,} of {plural(total, 'response')}, {whole_duration(known.elapsed_seconds)}"
        )
        if known.left_seconds is not None:
            times += f", about {whole_duration(known.left_seconds)} left"
        return f"{known.phase}: {summary(self._run, facts)}", times

    def _show_signal(self) -> None:
        """Print rough scores, once all of them are there."""
        if not self._signal_due:
            return
        known = _files.read_record_if_there(self._dir.first_signal, FirstSignal)
        if known is not None and not known.pending:
            self._signal_due = False
            self._console.print(first_signal.table(known.model_dump(mode="json")))


def summary(run: Run, facts: Facts) -> str:
    """Return the shards, datasets and trials of a run in words."""
    states = [t.state for t in facts.tasks if jobs.is_trials(run, t.name)]
    running = sum(1 for each in states if each is State.RUNNING)
    pending = sum(1 for each in states if each is State.PENDING)
    shards, datasets = len(run.shards), len(run.suite.datasets)
    words = [
        f"{shards - len(facts.unpublished)} of {plural(shards, 'shard')}",
        f"{datasets - facts.unscored} of {plural(datasets, 'dataset')} scored",
        plural(running, "trial"),
    ]
    if pending:
        words.append(f"{pending} waiting")
    if facts.answerable:
        words.append(f"{plural(len(facts.answerable), 'portion')} of questions")
    return ", ".join(words)
