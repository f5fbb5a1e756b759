"""`coordinate-eval run`: from the command line to a supervised run."""

import contextlib
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeVar

from rich.console import Console

from coordinate_eval import _files
from coordinate_eval.coordinator.cli.create import create, existing, run_id, submit_supervisor
from coordinate_eval.coordinator.cli.progress import Display
from coordinate_eval.coordinator.cluster import Cluster, State
from coordinate_eval.coordinator.dry_run import show
from coordinate_eval.coordinator.inputs import cluster_file, suite
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.planning import arrange, reviewed_plan
from coordinate_eval.coordinator.planning.arrange import Asked, Order
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run import results as report
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, Submitted
from coordinate_eval.coordinator.supervisor.loop import Supervisor
from coordinate_eval.errors import ClusterSilent, SubmitRefused, UserError

SILENCE_SECONDS = 60.0
"""How long a command goes on asking a scheduler that does not answer."""

T = TypeVar("T")


def run(order: Order, settings: Settings) -> int:
    """Plan and submit, or show what would be; the exit status."""
    console = Console(stderr=order.as_json, soft_wrap=False)
    asked = arrange.asked(order, settings)
    kind = cluster_kind(settings)
    identity = run_id(asked.checkpoint, asked.suite, settings)
    root = (order.run_dir or Path(settings.runs_dir).expanduser() / identity).absolute()
    outputs = show.Outputs(order.as_json, order.html, order.scripts)
    if kind == "file":
        if not order.dry_run or asked.plan is not None:
            instead = "leave --plan away" if order.dry_run else "add --dry-run"
            raise UserError(
                f"cluster file {settings.cluster} describes a cluster and is none: {instead}"
            )
        offer = arrange.offer_of_file(cluster_file.load(Path(settings.cluster)))
        prepared = arrange.prepared(asked, settings, offer)
        show.show(prepared, RunDir(root), identity, "slurm", outputs, console, exclusive=False)
        return 0
    found = None if order.dry_run else existing(root, asked.checkpoint, asked.suite, settings)
    if found is not None:
        if asked.plan is not None:
            reviewed_plan.check_run(asked.plan, RunDir(root))
        return resume(RunDir(root), wait=order.wait, as_json=order.as_json)
    with opened(kind, settings) as cluster:
        offer = arrange.offer_of_cluster(patiently(cluster.nodes), settings)
        asked = _runnable(asked, anything=order.dry_run)
        with console.status("building requests") as status:
            prepared = arrange.prepared(
                asked, settings, offer, lambda name: status.update(f"building requests: {name}")
            )
        exclusive = _exclusive(cluster, settings)
        if exclusive and not settings.slurm.cpu_partition:
            raise UserError(
                f"partition {settings.slurm.partition or 'by default'} gives out whole nodes: set "
                "[slurm] cpu_partition to another one for the supervisor and metric jobs"
            )
        if order.dry_run:
            show.show(prepared, RunDir(root), identity, kind, outputs, console, exclusive=exclusive)
            return 0
        run_dir = create(root, identity, prepared, kind, exclusive=exclusive)
        _remember(settings, identity, root)
        made = _files.read_record(run_dir.run, Run)
        try:
            if kind == "ray" or order.wait:
                return supervise(run_dir, made, cluster, as_json=order.as_json, strict=True)
            submitted = submit_supervisor(run_dir, made, cluster)
        except (SubmitRefused, UserError):
            if not _files.names(run_dir.job("").parent):
                shutil.rmtree(root)
                _forget(settings, identity)
            raise
    _announce(run_dir, made, submitted, as_json=order.as_json)
    return 0


def _runnable(asked: Asked, *, anything: bool) -> Asked:
    """What of the suite can be run; the rest is named on stderr, with the reason.

    `anything`: a suite of which nothing can be run is left as it is, to be shown.
    """
    if anything and not any(d.task for d in asked.suite.datasets):
        return asked
    kept, left_out = suite.runnable(asked.suite)
    by_reason: dict[str, list[str]] = {}
    for name, why in left_out.items():
        by_reason.setdefault(why, []).append(name)
    if left_out:
        said = "; ".join(f"{', '.join(names)} ({why})" for why, names in by_reason.items())
        sys.stderr.write(f"left out of suite {asked.suite.name}: {said}\n")
    return replace(asked, suite=kept, left_out=left_out)


def resume(run_dir: RunDir, *, wait: bool, as_json: bool) -> int:
    """Go on with a run that is there, or show its results; the exit status."""
    made = _files.read_record(run_dir.run, Run)
    if _complete(run_dir):
        return show_results(run_dir, as_json=as_json)
    run_dir.cancelled.unlink(missing_ok=True)
    _files.write(run_dir.resumed, "")
    with opened(made.cluster, made.settings) as cluster:
        if made.cluster == "ray":
            return supervise(run_dir, made, cluster, as_json=as_json)
        tasks = patiently(lambda: cluster.poll(jobs.prefix(made)))
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
        _announce(run_dir, made, submit_supervisor(run_dir, made, cluster), as_json=as_json)
    return 0


def supervise(
    run_dir: RunDir, made: Run, cluster: Cluster, *, as_json: bool, strict: bool = False
) -> int:
    """Supervise in the foreground; the exit status."""
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
    """Print `results.json`, as it is or as a table; 0 when it is complete."""
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


def cluster_kind(settings: Settings) -> Literal["slurm", "ray", "file"]:
    """What the settings name, or what this machine has."""
    if settings.cluster == "slurm":
        return "slurm"
    if settings.cluster == "ray":
        return "ray"
    if settings.cluster == "auto":
        from coordinate_eval.slurm.cluster import slurm_configured

        return "slurm" if slurm_configured() else "ray"
    return "file"


@contextlib.contextmanager
def opened(kind: str, settings: Settings) -> Iterator[Cluster]:
    """The cluster of this kind for the length of a block."""
    if kind == "slurm":
        from coordinate_eval.slurm.cluster import SlurmCluster

        yield SlurmCluster(settings.slurm)
        return
    from coordinate_eval.coordinator.ray_cluster import RayCluster

    with contextlib.closing(RayCluster(settings.ray, settings.trial.memory_gib)) as cluster:
        yield cluster


def patiently(ask: Callable[[], T]) -> T:
    """Ask the scheduler, again with back-off while it is silent.

    Raises:
        ClusterSilent: it did not answer for `SILENCE_SECONDS`.
    """
    end, pause = time.monotonic() + SILENCE_SECONDS, 1.0
    while True:
        try:
            return ask()
        except ClusterSilent:
            if time.monotonic() + pause > end:
                raise
            sys.stderr.write(f"the scheduler does not answer, next try in {pause:g} s\n")
            time.sleep(pause)
            pause = min(2 * pause, 15.0)


def _exclusive(cluster: Cluster, settings: Settings) -> bool:
    """Whether the GPU partition gives out whole nodes only."""
    from coordinate_eval.slurm.cluster import SlurmCluster

    if not isinstance(cluster, SlurmCluster):
        return False
    return patiently(lambda: cluster.partition_is_exclusive(settings.slurm.partition))


def _announce(run_dir: RunDir, made: Run, submitted: Submitted, *, as_json: bool) -> None:
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


def _remember(settings: Settings, identity: str, root: Path) -> None:
    """Let a run that lies elsewhere be found by its id."""
    link = Path(settings.runs_dir).expanduser() / identity
    if link.absolute() != root:
        link.parent.mkdir(parents=True, exist_ok=True)
        if link.is_symlink():
            link.unlink()
        if not link.exists():
            link.symlink_to(root)


def _forget(settings: Settings, identity: str) -> None:
    link = Path(settings.runs_dir).expanduser() / identity
    if link.is_symlink():
        link.unlink()
