"""`coordinate-eval run`: from the command line to a supervised run."""

import contextlib
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from rich.console import Console

from coordinate_eval.coordinator import checkpoint as checkpoints
from coordinate_eval.coordinator import cluster_file, files, jobs, prepare, preview, report, suite
from coordinate_eval.coordinator.build import Builder
from coordinate_eval.coordinator.cluster import Busy, Cluster, Job, State
from coordinate_eval.coordinator.config import Settings
from coordinate_eval.coordinator.display import Display
from coordinate_eval.coordinator.plan import Capacity
from coordinate_eval.coordinator.prepare import Prepared
from coordinate_eval.coordinator.run import NodeShare, Run, Submitted
from coordinate_eval.coordinator.rundir import RunDir
from coordinate_eval.coordinator.select import NoFreeGpu
from coordinate_eval.coordinator.submit import create, existing, run_id, submit_supervisor
from coordinate_eval.coordinator.supervise import Supervisor
from coordinate_eval.errors import ClusterSilent, SubmitRefused, UserError
from coordinate_eval.priors.learn import Priors
from coordinate_eval.records import Checkpoint, Suite

SILENCE_SECONDS = 60.0
"""How long a command goes on asking a scheduler that does not answer."""

T = TypeVar("T")


@dataclass(frozen=True)
class Order:
    """What the command line asks for, beside the settings."""

    checkpoint: Path
    config: Path | None = None
    tokenizer: Path | None = None
    run_dir: Path | None = None
    wait: bool = False
    dry_run: bool = False
    as_json: bool = False


def run(order: Order, settings: Settings) -> int:
    """Plan and submit, or show what would be; the exit status."""
    console = Console(stderr=order.as_json, soft_wrap=False)
    wanted = suite.load(settings.suite)
    checkpoint = checkpoints.inspect(
        order.checkpoint, config=order.config, tokenizer=order.tokenizer
    )
    kind = cluster_kind(settings)
    if kind == "file":
        if not order.dry_run:
            raise UserError(
                f"cluster file {settings.cluster} describes a cluster and is none: add --dry-run"
            )
        return _plan_on_file(order, settings, checkpoint, wanted, console)
    identity = run_id(checkpoint, wanted, settings)
    root = (order.run_dir or Path(settings.runs_dir).expanduser() / identity).absolute()
    found = None if order.dry_run else existing(root, checkpoint, wanted, settings)
    if found is not None:
        return resume(RunDir(root), wait=order.wait, as_json=order.as_json)
    with opened(kind, settings) as cluster:
        prepared, busy = _prepare(order, settings, checkpoint, wanted, cluster, console)
        exclusive = _exclusive(cluster, settings)
        if exclusive and not settings.slurm.cpu_partition:
            raise UserError(
                f"partition {settings.slurm.partition or 'by default'} gives out whole nodes: set "
                "[slurm] cpu_partition to another one for the supervisor and metric jobs"
            )
        if order.dry_run:
            _show(order, prepared, busy, console, kind, exclusive=exclusive)
            return 0
        run_dir = create(root, identity, prepared, kind, exclusive=exclusive)
        _remember(settings, identity, root)
        made = files.read_record(run_dir.run, Run)
        try:
            if kind == "ray" or order.wait:
                return supervise(run_dir, made, cluster, as_json=order.as_json, strict=True)
            submitted = submit_supervisor(run_dir, made, cluster)
        except (SubmitRefused, UserError):
            if not files.names(run_dir.job("").parent):
                shutil.rmtree(root)
                _forget(settings, identity)
            raise
    _announce(run_dir, made, submitted, as_json=order.as_json)
    return 0


def resume(run_dir: RunDir, *, wait: bool, as_json: bool) -> int:
    """Go on with a run that is there, or show its results; the exit status."""
    made = files.read_record(run_dir.run, Run)
    if _complete(run_dir):
        return show_results(run_dir, as_json=as_json)
    run_dir.cancelled.unlink(missing_ok=True)
    files.write(run_dir.resumed, "")
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
        with Display(made, console) as display:
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
    results = files.read_json(run_dir.results)
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
    from coordinate_eval.coordinator.ray_backend import RayCluster

    with contextlib.closing(RayCluster(settings.ray, settings.trial)) as cluster:
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


def _prepare(
    order: Order,
    settings: Settings,
    checkpoint: Checkpoint,
    wanted: Suite,
    cluster: Cluster,
    console: Console,
) -> tuple[Prepared, list[Busy]]:
    nodes, busy = patiently(cluster.nodes)
    length = prepare.max_length(checkpoint, settings)
    try:
        choice = prepare.choose_nodes(checkpoint, settings, nodes, busy, length)
    except NoFreeGpu:
        if not settings.queue:
            raise
        choice = prepare.queued_choice(checkpoint, settings)
    cache = Path(settings.cache_dir).expanduser()
    builder = Builder(cache, checkpoint, wanted, settings.engine.name, length)
    on = prepare.conditions(checkpoint, choice, settings.engine)
    priors = prepare.learned(settings)
    settings = prepare.with_learned_start(settings, priors, on)
    with console.status("building requests") as status:
        found, built = prepare.costs(
            wanted,
            on,
            builder,
            priors,
            build_all=not order.dry_run,
            tell=lambda name: status.update(f"building requests: {name}"),
        )
    capacity = Capacity(
        nodes=choice.nodes,
        gpus_per_trial=choice.tensor_parallel,
        engine_start_seconds=settings.trial.engine_start_seconds,
        storage_gigabits_per_node=settings.stage.gigabits_per_node,
        metric_cpus=settings.metrics.cpus,
    )
    plan = prepare.make_plan(checkpoint, wanted, settings, found, capacity)
    return Prepared(checkpoint, wanted, settings, choice, length, plan, built), busy


def _plan_on_file(
    order: Order, settings: Settings, checkpoint: Checkpoint, wanted: Suite, console: Console
) -> int:
    described = cluster_file.load(Path(settings.cluster))
    nodes, busy = described.free()
    length = prepare.max_length(checkpoint, settings)
    choice = prepare.choose_nodes(checkpoint, settings, nodes, busy, length)
    cache = Path(settings.cache_dir).expanduser()
    builder = Builder(cache, checkpoint, wanted, settings.engine.name, length)
    # What others have run here says nothing of a cluster that is only described.
    on = prepare.conditions(checkpoint, choice, settings.engine)
    found, _ = prepare.costs(wanted, on, builder, Priors(), build_all=False)
    capacity = Capacity(
        nodes=choice.nodes,
        gpus_per_trial=choice.tensor_parallel,
        engine_start_seconds=described.engine_start_seconds,
        storage_gigabits_per_node=described.storage_gigabits_per_node,
        metric_cpus=described.cores_for_metrics,
    )
    plan = prepare.make_plan(checkpoint, wanted, settings, found, capacity)
    prepared = Prepared(checkpoint, wanted, settings, choice, length, plan, {})
    _show(order, prepared, busy, console, "slurm", exclusive=False)
    return 0


def _show(
    order: Order,
    prepared: Prepared,
    busy: list[Busy],
    console: Console,
    kind: str,
    *,
    exclusive: bool,
) -> None:
    """The plan: one JSON document, or tables and the submissions word by word."""
    if order.as_json:
        sys.stdout.write(prepared.plan.model_dump_json(by_alias=True, indent=1) + "\n")
        return
    console.print(preview.render(prepared.plan, [f"not used: {b.name}: {b.why}" for b in busy]))
    for job in planned_jobs(order, prepared, kind, exclusive=exclusive):
        console.print()
        if kind == "slurm":
            from coordinate_eval.slurm.scripts import submission

            text = submission(job, prepared.settings.slurm).text()
        else:
            text = f"{job.count} × {' '.join(job.argv)}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)


def planned_jobs(order: Order, prepared: Prepared, kind: str, *, exclusive: bool) -> list[Job]:
    """Every job that the plan leads to, as it would be submitted."""
    from coordinate_eval.coordinator.submit import first_round, frozen

    identity = run_id(prepared.checkpoint, prepared.suite, prepared.settings)
    root = order.run_dir or Path(prepared.settings.runs_dir).expanduser() / identity
    run_dir = RunDir(root.absolute())
    made = frozen(identity, prepared, "ray" if kind == "ray" else "slurm", exclusive=exclusive)
    round_ = first_round(prepared, made)
    found = [] if kind == "ray" else [jobs.supervisor_job(made, run_dir, 1)]
    for share in round_.shares:
        found += _node_jobs(made, run_dir, share, round_.minutes)
    if prepared.plan.metric_jobs:
        count = min(prepared.settings.metrics.cpus, len(prepared.plan.metric_jobs))
        found.append(jobs.metric_job(made, run_dir, 0, count))
    return found


def _node_jobs(made: Run, run_dir: RunDir, share: NodeShare, minutes: int) -> list[Job]:
    if made.exclusive:
        return [jobs.node_job(made, run_dir, 0, share, minutes)]
    return [
        jobs.keeper_job(made, run_dir, 0, share, minutes),
        jobs.trials_job(made, run_dir, 0, share, minutes),
    ]


def _exclusive(cluster: Cluster, settings: Settings) -> bool:
    """Whether the GPU partition gives out whole nodes only."""
    from coordinate_eval.slurm.cluster import SlurmCluster

    if not isinstance(cluster, SlurmCluster):
        return False
    return patiently(lambda: cluster.partition_is_exclusive(settings.slurm.partition))


def _announce(run_dir: RunDir, made: Run, submitted: Submitted, *, as_json: bool) -> None:
    if as_json:
        answer = {"run": made.id, "dir": str(run_dir.root), "job": submitted.job_id}
        sys.stdout.write(files.pretty(answer))
    else:
        sys.stdout.write(f"{run_dir.root}\n")
        sys.stderr.write(
            f"run {made.id} is supervised by job {submitted.job_id}; "
            f"`coordinate-eval status {made.id}` shows how far it is\n"
        )


def _complete(run_dir: RunDir) -> bool:
    return run_dir.results.exists() and bool(files.read_json(run_dir.results)["complete"])


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
