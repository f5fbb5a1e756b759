"""`coordinate-eval run`: plan a run and submit it, or show the plan."""

import contextlib
import json
import os
import shlex
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from coordinate_eval import _files, _owner
from coordinate_eval.clusters.protocol import Cluster, TaskStatus
from coordinate_eval.coordinator.cli import output
from coordinate_eval.coordinator.cli.launch.foreground import (
    announce,
    say_windows,
    show_results,
    supervise,
)
from coordinate_eval.coordinator.cli.launch.resume import resume_run
from coordinate_eval.coordinator.cli.launch.runnable import runnable, say_by_reason
from coordinate_eval.coordinator.cli.output import quiet_libraries, say
from coordinate_eval.coordinator.incidents.bad_nodes import read_avoided
from coordinate_eval.coordinator.inputs import cluster_file, clusters, judge
from coordinate_eval.coordinator.inputs.folders import check_new, check_writable, working_in
from coordinate_eval.coordinator.inputs.layers import flatten
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.inputs.suites import known_tasks, suite
from coordinate_eval.coordinator.planning import reviewed_plan
from coordinate_eval.coordinator.planning.context import with_context
from coordinate_eval.coordinator.planning.judge_plan import (
    judge_of,
    nodes_of_judge,
    plan_judge,
    questions_to_judge,
)
from coordinate_eval.coordinator.planning.new_run import Inputs, new_run
from coordinate_eval.coordinator.planning.places.asked_nodes import without_avoided
from coordinate_eval.coordinator.planning.places.nodes import NoFreeGpu
from coordinate_eval.coordinator.planning.plan import ChosenNodes, Plan
from coordinate_eval.coordinator.planning.plan_run import (
    Offer,
    PlannedRun,
    check_time,
    nodes_for,
    offer_of_cluster,
    offer_of_file,
    plan_run,
    queued_nodes,
)
from coordinate_eval.coordinator.report import state
from coordinate_eval.coordinator.run import containers, jobs
from coordinate_eval.coordinator.run.own import place
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, read_run
from coordinate_eval.coordinator.run.starting.create import (
    Supervised,
    create,
    existing,
    start_supervisor,
)
from coordinate_eval.errors import EngineError, RunExists, SubmitRefused, UserError

_OF_JOBS = {
    "stage", "trial", "harness", "metrics", "limits", "supervisor", "container", "slurm", "local",
    "ray", "after_run",
}  # fmt: skip
"""Settings, mostly sections, that decide how a run's jobs are submitted and what they do."""


JOIN_SECONDS = 2.0
"""Longest time between two looks at a run that another process has started."""

STARTING_SECONDS = 60.0
"""Time from the creation of a run in which it gets a supervisor."""


def start_run(
    inputs: Inputs,
    run_dir: Path | None = None,
    *,
    wait: bool = False,
    as_json: bool = False,
) -> int:
    """Start the run of these inputs, or continue it if it exists; return the exit status.

    With `wait`, or on a local cluster, the run is supervised here to its end.
    """
    settings = inputs.settings
    chosen = clusters.chosen(settings)
    if chosen is None:
        raise UserError(
            f"cluster file {settings.cluster} is only a description of a cluster: "
            "add --dry-run to plan on it"
        )
    root = _root(inputs, run_dir)
    found_run = existing(root, inputs.checkpoint, inputs.suite, settings)
    if found_run is not None:
        if inputs.reviewed is not None:
            reviewed_plan.check_run(inputs.reviewed, RunDir(root))
        if not state.is_complete(RunDir(root)):
            _say_what_is_kept(found_run, settings, root)
        return resume_run(RunDir(root), settings, wait=wait, as_json=as_json, asked_again=True)
    judge.check(settings.judge, inputs.suite, os.environ)
    containers.check(settings, chosen.name)
    _look_at_server(inputs)
    _check_folders(settings, root)
    _say_where_tasks_look(inputs)
    try:
        return _start_new(inputs, run_dir, chosen, wait=wait, as_json=as_json)
    except RunExists as error:
        say(str(error))
        return _join(RunDir(root), chosen, settings, wait=wait, as_json=as_json)


def _start_new(
    inputs: Inputs, run_dir: Path | None, cluster: Cluster, *, wait: bool, as_json: bool
) -> int:
    """Make the run directory and give it a supervisor: this process, or a job.

    Raises:
        RunExists: Another process has made the same run meanwhile.
        UserError: The run cannot start.
    """
    settings = inputs.settings
    with working_in(""), cluster:
        offer = ask(cluster, settings)
        inputs = runnable(inputs)
        made = new_run(
            inputs, cluster.name, offer.now, exclusive=offer.exclusive, limits=offer.limits
        )
        try:
            nodes = nodes_for(with_context(made, {}), offer, inputs.reviewed)
            check_time(made, offer, nodes, inputs.reviewed)
        except NoFreeGpu:
            if not settings.queue:
                raise
        if judge.is_checkpoint(settings.judge, inputs.suite):
            nodes_of_judge(judge_of(made), offer)
        found = _create(inputs, run_dir, made)
        _say_who_has_one(settings, made.id, found.root)
        remember(settings, made.id, found.root)
        say_windows(made)
        return begin(found, made, cluster, wait=wait, as_json=as_json)


def begin(found: RunDir, run: Run, cluster: Cluster, *, wait: bool, as_json: bool) -> int:
    """Supervise a new run here, or submit its supervisor; return the exit status.

    Raises:
        SubmitRefused, UserError: its first job is refused. Nothing is left of the run then.
    """
    try:
        if cluster.local or wait:
            return supervise(found, run, cluster, as_json=as_json, strict=True)
        supervised = start_supervisor(found, run, cluster)
    except (SubmitRefused, UserError):
        if not (_files.names(found.jobs_folder) or found.results.exists()):
            shutil.rmtree(found.root)
            forget(run.settings, run.id)
        raise
    announce(found, run, supervised, as_json=as_json)
    return 0


def _join(
    run_dir: RunDir, cluster: Cluster, settings: Settings, *, wait: bool, as_json: bool
) -> int:
    """Wait for a run that another process has just made, or say where it is, as of an own run.

    If that process ends without leaving a supervisor, this one continues the run.
    """
    run = read_run(run_dir)
    if not (wait or cluster.local):
        announce(run_dir, run, Supervised(None, "another process"), as_json=as_json)
        return 0
    with cluster:
        while not (state.is_complete(run_dir) or state.has_ended_incomplete(run_dir)):
            tasks: list[TaskStatus] = []
            if not cluster.local:
                tasks = clusters.patiently(lambda: cluster.poll(jobs.prefix(run)))
            begun = time.time() - run.created > STARTING_SECONDS
            if begun and state.is_supervised(run_dir, run, tasks) is False:
                break
            time.sleep(min(JOIN_SECONDS, run.settings.supervisor.poll_seconds))
        else:
            return show_results(run_dir, as_json=as_json)
    return resume_run(run_dir, settings, wait=wait, as_json=as_json, asked_again=True)


def show_plan(
    inputs: Inputs,
    run_dir: Path | None = None,
    *,
    as_json: bool = False,
    verbose: bool = False,
    html: Path | None = None,
    scripts: Path | None = None,
    what_if: bool = False,
    estimate: bool = False,
) -> None:
    """Show the run of these inputs as it would be planned and submitted now.

    With `estimate` nothing is built for it: the catalogue tells what is not in the cache.
    """
    # What submits a run does without them, and returns sooner.
    from coordinate_eval.coordinator.display import show

    show.check_outputs(html, scripts)
    settings, where = inputs.settings, RunDir(_root(inputs, run_dir))
    console = output.console(stderr=as_json)
    cluster = clusters.chosen(settings)
    if cluster is None:
        if inputs.reviewed is not None:
            raise UserError(
                f"cluster file {settings.cluster} is only a description of a cluster: "
                "leave out --plan"
            )
        cluster = clusters.by_name(clusters.DESCRIBED, settings)
        with quiet_libraries(verbose=verbose):
            offer, planned = _plan_described(inputs, cluster, what_if=what_if)
        if not as_json:
            left_out = suite.without_task(inputs.suite)
            left_out |= suite.without_judge(inputs.suite, settings.judge)
            say_by_reason("planned here, but left out of a run", left_out)
    else:
        with working_in(inputs.folder), cluster:
            offer, planned = _plan_now(
                inputs, cluster, console, what_if=what_if, estimate=estimate, verbose=verbose
            )
    show.show(
        planned,
        offer,
        cluster,
        where,
        console,
        as_json=as_json,
        verbose=verbose,
        html=html,
        scripts=scripts,
    )


def _root(inputs: Inputs, run_dir: Path | None) -> Path:
    """Return the run directory, in `runs_dir` unless another one is given."""
    home = Path(inputs.settings.runs_dir).expanduser()
    return (run_dir or place(home, inputs.run_id)).absolute()


def _create(inputs: Inputs, run_dir: Path | None, made: Run) -> RunDir:
    """Write the run directory, beside that of a colleague who has just made one of this name.

    Raises:
        RunExists: another process of this user has made it.
    """
    root = _root(inputs, run_dir)
    try:
        return create(root, made, inputs.reviewed)
    except RunExists:
        beside = _root(inputs, run_dir)
        if beside == root:
            raise
        return create(beside, made, inputs.reviewed)


def _say_who_has_one(settings: Settings, identity: str, root: Path) -> None:
    """Say on stderr that a colleague has a run of this id, if this one had to be beside it."""
    there = Path(settings.runs_dir).expanduser() / identity
    if root.parent != there.parent.absolute() or root.name == identity:
        return
    with contextlib.suppress(FileNotFoundError):  # nobody has: this one's name was asked for
        owner = there.lstat().st_uid
        if owner == os.geteuid():
            return
        say(
            f"{_owner.name_of(owner)} has a run of the same checkpoint and suite, which "
            f"`coordinate-eval status {shlex.quote(str(there))}` shows. This one is yours: {root}"
        )


def ask(cluster: Cluster, settings: Settings) -> Offer:
    """Return what the cluster has now; a scheduler that is busy is asked again for a while."""
    nodes, busy = clusters.patiently(cluster.nodes)
    now = time.time()
    found = without_avoided(nodes, busy, settings, read_avoided(settings, now))
    exclusive = clusters.patiently(cluster.whole_nodes)
    limits = clusters.patiently(cluster.limits)
    return offer_of_cluster(cluster.name, found, settings, now, exclusive=exclusive, limits=limits)


def _nodes_or_none_yet(
    run: Run, offer: Offer, reviewed: Plan | None = None, tell: Callable[[str], None] = say
) -> ChosenNodes:
    """Return the nodes of a plan to look at. Where no GPU is free now, say so and return any."""
    try:
        return nodes_for(run, offer, reviewed)
    except NoFreeGpu as error:
        if reviewed is not None:
            raise
        words = str(error).splitlines()[0] if run.settings.queue else str(error)
        tell(f"{words}\nthis plan is for when GPUs are free")
        return queued_nodes(run, offer)


def _plan_described(inputs: Inputs, cluster: Cluster, *, what_if: bool) -> tuple[Offer, PlannedRun]:
    """Plan on what a cluster file describes. Nothing is built for that."""
    described = cluster_file.load(Path(inputs.settings.cluster))
    offer = offer_of_file(cluster.name, described, time.time())
    inputs = _with_counted_items(inputs)
    run = new_run(inputs, cluster.name, offer.now, exclusive=offer.exclusive)
    run = with_context(run, {})
    chosen, judging = _nodes_or_none_yet(run, offer), plan_judge(run, offer, {})
    return offer, plan_run(run, offer, chosen, {}, judging=judging, what_if=what_if)


def _plan_now(
    inputs: Inputs,
    cluster: Cluster,
    console: Console,
    *,
    what_if: bool,
    estimate: bool,
    verbose: bool,
) -> tuple[Offer, PlannedRun]:
    """Plan on what the cluster has now, building the requests of all datasets before.

    An `estimate` takes those that are built, and figures of the catalogue for the others. A suite
    of which nothing can be run is planned too.
    """
    from coordinate_eval.coordinator.prompts.building import build_all
    from coordinate_eval.coordinator.prompts.request_cache import builder_of

    settings = inputs.settings
    judge.check(settings.judge, inputs.suite, os.environ)
    containers.check(settings, cluster.name)
    _look_at_server(inputs)
    if not estimate:
        check_writable(settings, "cache_dir")
        _say_where_tasks_look(inputs)
    offer = ask(cluster, settings)
    if any(dataset.task for dataset in inputs.suite.datasets):
        inputs = runnable(inputs)
    if estimate:
        inputs = _with_counted_items(inputs)
    run = new_run(inputs, cluster.name, offer.now, exclusive=offer.exclusive, limits=offer.limits)
    run = with_context(run, {})
    chosen = _nodes_or_none_yet(run, offer, inputs.reviewed)
    with console.status("building requests") as status, quiet_libraries(verbose=verbose):
        wanted = [dataset for dataset in run.suite.datasets if dataset.task]
        if estimate:
            builder = builder_of(run)
            built = {d.name: found for d in wanted if (found := builder.find(d)) is not None}
        else:
            built = build_all(
                partial(builder_of, run),
                wanted,
                processes=len(os.sched_getaffinity(0)),
                tell=lambda progress: status.update(escape(f"building requests: {progress}")),
            )
        indexes = {name: each.index for name, each in built.items()}
        expected, run = run, with_context(run, indexes)
        if run.context != expected.context:
            chosen = _nodes_or_none_yet(run, offer, inputs.reviewed, tell=lambda _: None)
        planned = plan_run(
            run,
            offer,
            chosen,
            indexes,
            inputs.reviewed,
            judging=plan_judge(run, offer, indexes),
            what_if=what_if,
        )
    counts = questions_to_judge(planned.run, planned.plan)
    judge.check_budget(settings.judge, counts)
    return offer, planned


def _with_counted_items(inputs: Inputs) -> Inputs:
    """Return inputs for a plan for which nothing is built."""
    return replace(inputs, suite=known_tasks.with_counted_items(inputs.suite, inputs.folder))


def _say_where_tasks_look(inputs: Inputs) -> None:
    """Say on stderr that tasks do not look for data in the command's folder, if they don't."""
    if not inputs.folder and suite.has_own_tasks(inputs.suite):
        say(
            "tasks are not run in this folder, which holds the checkpoint or is not yours alone: "
            "they find only files that they name by absolute paths"
        )


def _look_at_server(inputs: Inputs) -> None:
    """Ask the server of others that is the engine, if one is, what it has.

    Raises:
        UserError: it cannot be the engine of this run.
    """
    engine = inputs.settings.engine
    if engine.elsewhere:
        from coordinate_eval.evaluators.engines.server import look

        try:
            look(engine.args, os.environ)
        except EngineError as error:
            say(f"{error}. The run's trial asks it again, from its node")


def _check_folders(settings: Settings, root: Path) -> None:
    """Check that a run and its requests can be written, and warn if nothing can be learned from it.

    Raises:
        UserError: `runs_dir` or `cache_dir` cannot be written, or the run directory cannot be made.
    """
    check_writable(settings, "cache_dir")
    if root.is_relative_to(Path(settings.runs_dir).expanduser().absolute()):
        check_writable(settings, "runs_dir")
    else:
        check_new(root)
    try:
        check_writable(settings, "priors_dir")
    except UserError as error:
        say(f"nothing will be learned from this run: {error}")


def _say_what_is_kept(run: Run, settings: Settings, root: Path) -> None:
    """Say on stderr which settings of a run differ from the ones that are asked for now."""
    kept, now = (flatten(each.model_dump(mode="json")) for each in (run.settings, settings))
    names = [name for name in kept if name.split(".")[0] in _OF_JOBS and kept[name] != now[name]]
    if names:
        listed = ", ".join(f"{name} = {json.dumps(kept[name])}" for name in names)
        say(
            f"run {run.id} keeps the settings it was created with: {listed}. For other settings "
            f"give another --run-dir, or cancel the run and delete {root}"
        )


def remember(settings: Settings, identity: str, root: Path) -> None:
    """Link a run that lies elsewhere into `runs_dir`, where it is found by its id."""
    link = place(Path(settings.runs_dir).expanduser(), identity)
    if link.absolute() == root:
        return
    try:
        link.parent.mkdir(parents=True, exist_ok=True)
        if link.is_symlink():
            link.unlink()
        if not link.exists():
            link.symlink_to(root)
    except OSError as error:  # such as another user's link of that name
        say(f"the run is found by its directory only: {link} cannot be made ({error.strerror})")


def forget(settings: Settings, identity: str) -> None:
    """Remove the link of a run."""
    link = place(Path(settings.runs_dir).expanduser(), identity)
    if link.is_symlink():
        link.unlink()
