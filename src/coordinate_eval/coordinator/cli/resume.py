"""`coordinate-eval resume`: continue a run, supervise it in the foreground, print its results."""

import shlex
import sys

from rich.console import Console

from coordinate_eval import _files
from coordinate_eval.coordinator import clusters
from coordinate_eval.coordinator.cli.progress import Display
from coordinate_eval.coordinator.cluster import Cluster, State
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run import results as report
from coordinate_eval.coordinator.run.create import submit_supervisor
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, Submitted
from coordinate_eval.coordinator.supervisor.loop import Supervisor


def resume(run_dir: RunDir, *, wait: bool, as_json: bool) -> int:
    """Continue a run, or print its results if it is complete; return the exit status."""
    made = _files.read_record(run_dir.run, Run)
    if _complete(run_dir):
        return show_results(run_dir, as_json=as_json)
    run_dir.cancelled.unlink(missing_ok=True)
    _files.write(run_dir.resumed, "")
    with clusters.by_name(made.cluster, made.settings) as cluster:
        if cluster.local:
            return supervise(run_dir, made, cluster, as_json=as_json)
        tasks = clusters.patiently(lambda: cluster.poll(jobs.prefix(made)))
        alive = [
            t for t in tasks if jobs.is_supervisor(made, t.name) and t.state is not State.ENDED
        ]
        if alive and not wait:
            message = f"run {made.id} is supervised by job {alive[0].job_id}: {run_dir.root}"
            sys.stderr.write(message + "\n")
            return 0
        if wait:
            # One that starts later would take over from this one.
            cluster.cancel([t.job_id for t in alive])
            return supervise(run_dir, made, cluster, as_json=as_json)
        announce(run_dir, made, submit_supervisor(run_dir, made, cluster), as_json=as_json)
    return 0


def supervise(
    run_dir: RunDir, made: Run, cluster: Cluster, *, as_json: bool, strict: bool = False
) -> int:
    """Supervise in the foreground; return the exit status."""
    console = Console(stderr=True)
    console.print(f"run {made.id}: {run_dir.root}", markup=False, highlight=False, soft_wrap=True)
    try:
        with Display(run_dir, made, console) as display:
            results = Supervisor(run_dir, cluster, strict=strict, tell=display.tell).run()
    except KeyboardInterrupt:
        again = f"coordinate-eval resume {shlex.quote(str(run_dir.root))}"
        sys.stderr.write(f"\ninterrupted; `{again}` goes on where it was\n")
        raise
    if results is None:
        sys.stderr.write("another supervisor has taken over; `coordinate-eval status` shows it\n")
        return 1
    return show_results(run_dir, as_json=as_json)


def show_results(run_dir: RunDir, *, as_json: bool) -> int:
    """Print `results.json` as it is or as a table; return 0 if it is complete, else 1."""
    text = run_dir.results.read_text()
    results = _files.read_json(run_dir.results)
    if as_json:
        sys.stdout.write(text)
    else:
        console = Console()
        console.print(report.table(results))
        for failure in results["failures"]:
            console.print(failure, style="red", markup=False, highlight=False)
        console.print(str(run_dir.results), markup=False, highlight=False, soft_wrap=True)
    return 0 if results["complete"] else 1


def announce(run_dir: RunDir, made: Run, submitted: Submitted, *, as_json: bool) -> None:
    """Print the run's directory, and the job that supervises it."""
    if as_json:
        answer = {"run": made.id, "dir": str(run_dir.root), "job": submitted.job_id}
        sys.stdout.write(_files.pretty(answer))
    else:
        sys.stdout.write(f"{run_dir.root}\n")
        sys.stderr.write(
            f"run {made.id} is supervised by job {submitted.job_id}; "
            f"`coordinate-eval status {made.id}` shows how far it is\n"
        )


def _complete(run_dir: RunDir) -> bool:
    return run_dir.results.exists() and bool(_files.read_json(run_dir.results)["complete"])
