"""`coordinate-eval run`: check the inputs, create the run, and give it a supervisor."""

import contextlib
import json
import os
import shlex
import shutil
import time
from pathlib import Path

from coordinate_eval import _files, _owner
from coordinate_eval.clusters.protocol import Cluster, TaskStatus
from coordinate_eval.coordinator.cli.launch.foreground import (
    announce,
    say_windows,
    show_results,
    supervise,
)
from coordinate_eval.coordinator.cli.launch.resume import resume_run
from coordinate_eval.coordinator.cli.launch.runnable import runnable
from coordinate_eval.coordinator.cli.output import say
from coordinate_eval.coordinator.incidents.bad_nodes import read_avoided
from coordinate_eval.coordinator.inputs import clusters, judge
from coordinate_eval.coordinator.inputs.folders import check_new, check_writable, working_in
from coordinate_eval.coordinator.inputs.layers import flatten
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.inputs.suites import suite
from coordinate_eval.coordinator.planning import reviewed_plan
from coordinate_eval.coordinator.planning.context import with_context
from coordinate_eval.coordinator.planning.judge_plan import (
    judge_of,
    nodes_of_judge,
)
from coordinate_eval.coordinator.planning.new_run import Inputs, new_run
from coordinate_eval.coordinator.planning.offer import Offer, offer_of_cluster
from coordinate_eval.coordinator.planning.places.asked_nodes import without_avoided
from coordinate_eval.coordinator.planning.places.nodes import NoFreeGpu
from coordinate_eval.coordinator.planning.plan_run import (
    check_time,
    nodes_for,
)
from coordinate_eval.coordinator.report import state
from coordinate_eval.coordinator.run import containers, jobs, lease
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
    "ray", "after_run", "on_alarm", "alarm_webhook_env",
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
    # The working directory changes below.
    run_dir = run_dir.absolute() if run_dir is not None else None
    root = root_of(inputs, run_dir)
    found_run = existing(root, inputs.checkpoint, inputs.suite, settings)
    if found_run is not None:
        if found_run.against != inputs.against:
            raise UserError(
                f"run directory {root} has a run with another --until-decided, or without one: "
                "choose another --run-dir"
            )
        if inputs.reviewed is not None:
            reviewed_plan.check_run(inputs.reviewed, RunDir(root))
        if not state.is_done(RunDir(root)):
            _say_what_is_kept(found_run, settings, root)
        return resume_run(RunDir(root), settings, wait=wait, as_json=as_json, asked_again=True)
    judge.check(settings.judge, inputs.suite, os.environ)
    containers.check(settings, chosen.name)
    look_at_server(inputs)
    _check_folders(settings, root)
    say_where_tasks_look(inputs)
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
        lease.take(found, made)
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
            lease.end(run)
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
        while not (state.is_done(run_dir) or state.has_ended_incomplete(run_dir)):
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


def root_of(inputs: Inputs, run_dir: Path | None) -> Path:
    """Return the run directory, in `runs_dir` unless another one is given."""
    home = Path(inputs.settings.runs_dir).expanduser()
    return (run_dir or place(home, inputs.run_id)).absolute()


def _create(inputs: Inputs, run_dir: Path | None, made: Run) -> RunDir:
    """Write the run directory, beside that of a colleague who has just made one of this name.

    Raises:
        RunExists: another process of this user has made it.
    """
    root = root_of(inputs, run_dir)
    try:
        return create(root, made, inputs.reviewed)
    except RunExists:
        beside = root_of(inputs, run_dir)
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


def say_where_tasks_look(inputs: Inputs) -> None:
    """Say on stderr that tasks do not look for data in the command's folder, if they don't."""
    if not inputs.folder and suite.has_own_tasks(inputs.suite):
        say(
            "tasks are not run in this folder, which holds the checkpoint or is not yours alone: "
            "they find only files that they name by absolute paths"
        )


def look_at_server(inputs: Inputs) -> None:
    """Ask the server of others that is the engine, if one is, what it has."""
    engine = inputs.settings.engine
    if engine.elsewhere:
        from coordinate_eval.evaluators.engines.server import look

        try:
            look(engine.args, os.environ)
        except EngineError as error:
            say(f"{error}. The run's trial asks it again, from its node")


def _check_folders(settings: Settings, root: Path) -> None:
    """Check that a run and its requests can be written. Warn if nothing can be learned from it."""
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
