"""`coordinate-eval run --dry-run`: plan a run as it would be planned now, and show the plan."""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from coordinate_eval.clusters.protocol import Cluster
from coordinate_eval.coordinator.cli import output
from coordinate_eval.coordinator.cli.launch.run import (
    ask,
    look_at_server,
    root_of,
    say_where_tasks_look,
)
from coordinate_eval.coordinator.cli.launch.runnable import runnable, say_by_reason
from coordinate_eval.coordinator.cli.output import quiet_libraries, say
from coordinate_eval.coordinator.display import show
from coordinate_eval.coordinator.inputs import cluster_file, clusters, judge
from coordinate_eval.coordinator.inputs.folders import check_writable, working_in
from coordinate_eval.coordinator.inputs.suites import known_tasks, suite
from coordinate_eval.coordinator.planning.context import with_context
from coordinate_eval.coordinator.planning.judge_plan import plan_judge, questions_to_judge
from coordinate_eval.coordinator.planning.new_run import Inputs, new_run
from coordinate_eval.coordinator.planning.offer import Offer, offer_of_file
from coordinate_eval.coordinator.planning.places.nodes import NoFreeGpu
from coordinate_eval.coordinator.planning.plan import ChosenNodes, Plan
from coordinate_eval.coordinator.planning.plan_run import (
    PlannedRun,
    nodes_for,
    plan_run,
    queued_nodes,
)
from coordinate_eval.coordinator.prompts.building import build_all
from coordinate_eval.coordinator.prompts.request_cache import builder_of
from coordinate_eval.coordinator.run import containers
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.errors import UserError


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
    show.check_outputs(html, scripts)
    settings, where = inputs.settings, RunDir(root_of(inputs, run_dir))
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
            left_out = suite.left_out(inputs.suite, settings.judge)
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
    settings = inputs.settings
    judge.check(settings.judge, inputs.suite, os.environ)
    containers.check(settings, cluster.name)
    look_at_server(inputs)
    if not estimate:
        check_writable(settings, "cache_dir")
        say_where_tasks_look(inputs)
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
