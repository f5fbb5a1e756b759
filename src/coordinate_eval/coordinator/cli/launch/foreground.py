"""A run in this terminal: supervise it, show its progress, print its results."""

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console

from coordinate_eval import _files
from coordinate_eval._clock import SystemClock
from coordinate_eval._format import plural, visible_json
from coordinate_eval.clusters.protocol import Cluster, State
from coordinate_eval.coordinator.cli import output
from coordinate_eval.coordinator.cli.inquire import status_screen
from coordinate_eval.coordinator.cli.inquire.runs import name_for_commands
from coordinate_eval.coordinator.cli.output import (
    Ticker,
    first_signal_table,
    out,
    say,
    table_console,
    write_json,
)
from coordinate_eval.coordinator.display.run_page import write_report
from coordinate_eval.coordinator.report import first_signal, missing, state
from coordinate_eval.coordinator.report import results as report
from coordinate_eval.coordinator.report.first_signal import FirstSignal
from coordinate_eval.coordinator.run import jobs, supervision
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, read_run
from coordinate_eval.coordinator.run.starting.create import Supervised
from coordinate_eval.errors import ClusterError, UserError

if TYPE_CHECKING:
    from coordinate_eval.coordinator.supervisor.values import Facts


class Display:
    """The display of a supervision's facts as they come."""

    def __init__(self, run_dir: RunDir, run: Run, console: Console) -> None:
        self._dir, self._console = run_dir, console
        self._ticker = Ticker(console, "starting")
        self._learn(run)
        self._event = ""

    def __enter__(self) -> Self:
        self._ticker.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._ticker.__exit__()

    def show(self, facts: "Facts") -> None:
        """Show how far the run is."""
        if not self._run.planned:
            self._learn(read_run(self._dir))
        self._show_signal()
        self._ticker.update(*self._line(facts))

    def tell(self, event: str) -> None:
        """Print an event on a line of its own, unless it is empty."""
        if event and event != self._event:
            self._console.print(event, style="yellow", markup=False, highlight=False)
            self._event = event

    def draining(self) -> None:
        """Show that the run has ended and waits for its last jobs."""
        self._show_signal()
        self._ticker.update("waiting for jobs to end and free their nodes")

    def _learn(self, run: Run) -> None:
        """Keep what does not change once the run is planned."""
        self._run = run
        self._requests = state.count_requests(self._dir, run)
        self._signal_due = bool(first_signal.slices(run))

    def _line(self, facts: "Facts") -> tuple[str, str]:
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
        detail = "; ".join(supervision.all_in_words(facts.tasks)) or known.detail
        shown = {**known.model_dump(), "detail": detail, "trials_by_state": known.trials}
        datasets = len(self._run.suite.datasets)
        scoring = sum(ledger == "results" for ledger, _ in facts.open_claims)
        scored = status_screen.scored_words(datasets - facts.unscored, datasets, scoring)
        return status_screen.line(shown, scored)

    def _show_signal(self) -> None:
        """Print rough scores, once all of them are there."""
        if not self._signal_due:
            return
        known = _files.read_record_if_there(self._dir.first_signal, FirstSignal)
        if known is not None and not known.pending:
            self._signal_due = False
            self._console.print(first_signal_table(known.model_dump(mode="json")))


def supervise(
    run_dir: RunDir, run: Run, cluster: Cluster, *, as_json: bool, strict: bool = False
) -> int:
    """Supervise in the foreground; return the exit status."""
    console = output.console(stderr=True)
    console.print(f"run {run.id}: {run_dir.root}", markup=False, highlight=False, soft_wrap=True)
    try:
        with Display(run_dir, run, console) as display:
            results = _supervise(run_dir, run, cluster, display, strict=strict)
    except BaseException as error:
        with contextlib.suppress(OSError):  # nobody reads it: a terminal or a pipe was closed
            if isinstance(error, KeyboardInterrupt | SystemExit):
                say("\ninterrupted: the run has no supervisor now")
                say(_what_goes_on(run_dir, run, cluster).removesuffix("\n"))
        if cluster.local:
            _leave_this_machine(run_dir, run, cluster)
        raise
    if results is None:
        say("another supervisor has taken over; `coordinate-eval status` shows it")
        return 1
    if not (report.is_done(results) or read_run(run_dir).planned or run_dir.cancelled.exists()):
        # Nothing was started on a GPU: what the user gave cannot work.
        raise UserError("\n".join(missing.build_errors(run_dir) or [results["reason"]]))
    return show_results(run_dir, as_json=as_json)


def _leave_this_machine(run_dir: RunDir, run: Run, cluster: Cluster) -> None:
    """End the jobs of a run that has not ended, and remove what killed ones left in memory.

    The jobs would end with this command anyhow. What a killed one held, nobody else would remove.
    """
    from coordinate_eval.coordinator.supervisor.ending import drain, sweep

    poll_seconds, clock = run.settings.supervisor.poll_seconds, SystemClock()
    try:
        drain(run, cluster, poll_seconds, lambda: None, clock)
    finally:  # also if somebody interrupts it again
        sweep(run, run_dir, cluster, poll_seconds, clock, note=say)


def _supervise(
    run_dir: RunDir, run: Run, cluster: Cluster, display: Display, *, strict: bool
) -> dict[str, Any] | None:
    """Supervise a run. Return its results."""
    # A command that only submits does without it, and returns sooner.
    from coordinate_eval.coordinator.cli.launch.spooled import Taker
    from coordinate_eval.coordinator.supervisor.after_run import AfterRun
    from coordinate_eval.coordinator.supervisor.loop import Supervisor

    after_run, taker = AfterRun(run_dir, run), Taker(run_dir, run)

    def show(facts: "Facts") -> None:
        display.show(facts)
        taker.look()

    def ended(results: dict[str, Any]) -> None:
        display.tell(write_report(run_dir, results))
        after_run.begin()
        display.draining()

    supervisor = Supervisor(
        run_dir, cluster, strict=strict, show=show, tell=display.tell, ended=ended
    )
    with after_run, taker:
        results = supervisor.run()
        display.tell(after_run.wait())
    return results


def show_results(run_dir: RunDir, *, as_json: bool) -> int:
    """Print `results.json` as it is, or the screen of its run; return 0 if it is done, else 1."""
    results = report.read_results(run_dir)
    assert results is not None, "the run has ended"
    if as_json:
        sys.stdout.write(visible_json(_files.read(run_dir.results).decode()))
    else:
        # A command that only submits does without it, and returns sooner.
        from coordinate_eval.coordinator.cli.inquire import status

        run = read_run(run_dir)
        shown = status.describe(run_dir, run, run.settings, state.count_requests(run_dir, run))
        status_screen.show(shown, table_console())
        out(str(run_dir.results))
    return 0 if report.is_done(results) else 1


def say_windows(run: Run) -> None:
    """Say on stderr that jobs are cut or wait because others have reserved all nodes, if so."""
    for line in jobs.before_windows(run, time.time()):
        say(line)


def announce(run_dir: RunDir, run: Run, supervised: Supervised, *, as_json: bool) -> None:
    """Print the run's directory, and the job or process that supervises it."""
    if as_json:
        answer = {"run": run.id, "dir": str(run_dir.root), "job": supervised.job}
        write_json({**answer, "state": "submitted", "request": None})
    else:
        sys.stdout.write(f"{run_dir.root}\n")
        say(
            f"run {run.id} is supervised by {supervised.words}; "
            f"`coordinate-eval status {run.id}` shows how far it is"
        )


def reasons_why_stopped(run_dir: RunDir) -> list[str]:
    """Return why a run stopped, a line for each reason."""
    if not state.has_ended_incomplete(run_dir):
        return [f"its supervisor is gone; logs are in {run_dir.logs}"]
    return missing.reasons(report.read_results(run_dir))


def _what_goes_on(run_dir: RunDir, run: Run, cluster: Cluster) -> str:
    """Return the lines that say which jobs hold GPUs, and which commands continue or end them."""
    name = name_for_commands(run_dir, run, run.settings)
    commands = f"  `coordinate-eval resume {name}` continues it from where it stopped\n"
    if cluster.local:
        return commands
    try:
        tasks = cluster.poll(jobs.prefix(run))
    except ClusterError as error:
        said = f"its jobs may still hold GPUs: {error}\n"
    else:
        gpus = {s.job.name: s.job.gpus for s in jobs.read_submitted(run_dir)}
        alive = [t for t in tasks if t.state is not State.ENDED]
        held = sum(gpus.get(t.name, 0) for t in alive if t.state is State.RUNNING)
        ids = ", ".join(dict.fromkeys(t.job_id for t in alive))
        if not alive:
            return f"none of its jobs is left\n{commands}"
        said = f"jobs {ids} go on and hold {plural(held, 'GPU')}\n"
    return f"{said}{commands}  `coordinate-eval cancel {name}` ends its jobs\n"
