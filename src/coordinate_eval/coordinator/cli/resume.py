"""`coordinate-eval resume`: continue a run, supervise it in the foreground, print its results."""

import sys

from rich.console import Console

from coordinate_eval import _files
from coordinate_eval._format import plural
from coordinate_eval.cluster import Cluster, State
from coordinate_eval.coordinator.cli.output import table_console
from coordinate_eval.coordinator.cli.progress import Display
from coordinate_eval.coordinator.cli.runs import name_for_commands
from coordinate_eval.coordinator.inputs import clusters
from coordinate_eval.coordinator.report import results as report
from coordinate_eval.coordinator.report import state
from coordinate_eval.coordinator.run import jobs, resumes
from coordinate_eval.coordinator.run.create import submit_supervisor
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, Submitted
from coordinate_eval.coordinator.supervisor.loop import Supervisor
from coordinate_eval.errors import ClusterError, CoordinateError

_ANOTHER_PROCESS = "another process on this machine"


def resume_run(run_dir: RunDir, *, wait: bool, as_json: bool, asked_again: bool = False) -> int:
    """Continue a run, or print its results if it is complete; return the exit status.

    With `asked_again` nobody has typed `resume`: the run's checkpoint was named once more, perhaps
    by cron. Why the run stopped is said first, and after `resumes.MOST_TRIES` such tries without
    progress nothing more is submitted.

    Raises:
        CoordinateError: there were too many tries.
    """
    run = _files.read_record(run_dir.run, Run)
    if state.is_complete(run_dir):
        return show_results(run_dir, as_json=as_json)
    cluster = clusters.by_name(run.cluster, run.settings)
    if cluster.local:
        if asked_again and state.is_supervised(run_dir, run, []):
            return _say_supervised(run_dir, run, _ANOTHER_PROCESS)
        _prepare(run_dir, run, supervised=False, asked_again=asked_again)
        with cluster:
            return supervise(run_dir, run, cluster, as_json=as_json)
    with cluster:
        tasks = clusters.patiently(lambda: cluster.poll(jobs.prefix(run)))
        alive = [t for t in tasks if jobs.is_supervisor(run, t.name) and t.state is not State.ENDED]
        supervised = bool(state.is_supervised(run_dir, run, tasks))
        _prepare(run_dir, run, supervised=supervised, asked_again=asked_again)
        if alive and not wait:
            return _say_supervised(run_dir, run, f"job {alive[0].job_id}")
        if supervised and asked_again and not wait:
            return _say_supervised(run_dir, run, _ANOTHER_PROCESS)
        if wait:
            # One that starts later would take over from this one.
            cluster.cancel([t.job_id for t in alive])
            return supervise(run_dir, run, cluster, as_json=as_json)
        announce(run_dir, run, submit_supervisor(run_dir, run, cluster), as_json=as_json)
    return 0


def supervise(
    run_dir: RunDir, run: Run, cluster: Cluster, *, as_json: bool, strict: bool = False
) -> int:
    """Supervise in the foreground; return the exit status."""
    console = Console(stderr=True)
    console.print(f"run {run.id}: {run_dir.root}", markup=False, highlight=False, soft_wrap=True)
    try:
        with Display(run_dir, run, console) as display:
            results = Supervisor(run_dir, cluster, strict=strict, tell=display.tell).run()
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted: the run has no supervisor now\n")
        sys.stderr.write(_what_goes_on(run_dir, run, cluster))
        raise
    if results is None:
        sys.stderr.write("another supervisor has taken over; `coordinate-eval status` shows it\n")
        return 1
    return show_results(run_dir, as_json=as_json)


def show_results(run_dir: RunDir, *, as_json: bool) -> int:
    """Print `results.json` as it is or as a table; return 0 if it is complete, else 1."""
    results = report.read_results(run_dir)
    assert results is not None, "the run has ended"
    if as_json:
        sys.stdout.write(run_dir.results.read_text())
    else:
        console = table_console()
        console.print(report.table(results))
        if not results["complete"]:
            for line in _reasons(run_dir):
                console.print(line, style="red", markup=False, highlight=False, soft_wrap=True)
        console.print(str(run_dir.results), markup=False, highlight=False, soft_wrap=True)
    return 0 if results["complete"] else 1


def announce(run_dir: RunDir, run: Run, submitted: Submitted, *, as_json: bool) -> None:
    """Print the run's directory, and the job that supervises it."""
    if as_json:
        answer = {"run": run.id, "dir": str(run_dir.root), "job": submitted.job_id}
        sys.stdout.write(_files.pretty(answer))
    else:
        sys.stdout.write(f"{run_dir.root}\n")
        sys.stderr.write(
            f"run {run.id} is supervised by job {submitted.job_id}; "
            f"`coordinate-eval status {run.id}` shows how far it is\n"
        )


def _say_supervised(run_dir: RunDir, run: Run, by: str) -> int:
    """Say who supervises a run that goes on, and return the exit status."""
    sys.stderr.write(f"run {run.id} is supervised by {by}: {run_dir.root}\n")
    return 0


def _prepare(run_dir: RunDir, run: Run, *, supervised: bool, asked_again: bool) -> None:
    """Say why the run stopped, and mark it as resumed.

    Asking again for a run that is supervised does not mark it: what failed goes on counting.

    Raises:
        CoordinateError: asking again has brought nothing too often.
    """
    if asked_again and not supervised and not run_dir.cancelled.exists():
        name = name_for_commands(run_dir, run, run.settings)
        why = "\n".join(f"  {line}" for line in _reasons(run_dir))
        tries = resumes.tries_without_progress(run_dir)
        if tries >= resumes.MOST_TRIES:
            raise CoordinateError(
                f"run {run.id} was resumed {tries} times without any progress, so it is not "
                f"resumed again:\n{why}\nRemove the cause; `coordinate-eval resume {name}` then "
                "tries once more"
            )
        number = f" (try {tries + 1} of {resumes.MOST_TRIES} without progress)" if tries else ""
        sys.stderr.write(f"run {run.id} stopped without all results:\n{why}\nresuming it{number}\n")
    run_dir.cancelled.unlink(missing_ok=True)
    if not (asked_again and supervised):
        resumes.note(run_dir, by_hand=not asked_again)


def _reasons(run_dir: RunDir) -> list[str]:
    """Return why a run stopped, a line for each reason."""
    if not state.has_ended_incomplete(run_dir):
        return [f"its supervisor is gone; logs are in {run_dir.logs}"]
    return report.reasons(_files.read_json(run_dir.results))


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
            return f"no job of it is left\n{commands}"
        said = f"jobs {ids} go on and hold {plural(held, 'GPU')}\n"
    return f"{said}{commands}  `coordinate-eval cancel {name}` ends its jobs\n"
