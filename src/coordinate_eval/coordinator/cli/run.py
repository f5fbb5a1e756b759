"""`coordinate-eval run`: from the command line to a supervised run."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from coordinate_eval import _files
from coordinate_eval.coordinator import clusters
from coordinate_eval.coordinator.cli.create import create, existing, run_id, submit_supervisor
from coordinate_eval.coordinator.cli.resume import announce, resume, supervise
from coordinate_eval.coordinator.dry_run import show
from coordinate_eval.coordinator.inputs import cluster_file, suite
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.planning import arrange, reviewed_plan
from coordinate_eval.coordinator.planning.arrange import Asked, Order
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.errors import SubmitRefused, UserError


def run(order: Order, settings: Settings) -> int:
    """Plan and submit, or show what would be; the exit status."""
    console = Console(stderr=order.as_json, soft_wrap=False)
    asked = arrange.asked(order, settings)
    chosen = clusters.chosen(settings)
    identity = run_id(asked.checkpoint, asked.suite, settings)
    root = (order.run_dir or Path(settings.runs_dir).expanduser() / identity).absolute()
    outputs = show.Outputs(order.as_json, order.html, order.scripts)
    if chosen is None:
        if not order.dry_run or asked.plan is not None:
            instead = "leave out --plan" if order.dry_run else "add --dry-run to plan on it"
            raise UserError(
                f"cluster file {settings.cluster} is only a description of a cluster: {instead}"
            )
        offer = arrange.offer_of_file(cluster_file.load(Path(settings.cluster)))
        prepared = arrange.prepared(asked, settings, offer)
        described = clusters.by_name(clusters.DESCRIBED, settings)
        show.show(prepared, RunDir(root), identity, described, outputs, console, exclusive=False)
        return 0
    found = None if order.dry_run else existing(root, asked.checkpoint, asked.suite, settings)
    if found is not None:
        if asked.plan is not None:
            reviewed_plan.check_run(asked.plan, RunDir(root))
        return resume(RunDir(root), wait=order.wait, as_json=order.as_json)
    with chosen as cluster:
        offer = arrange.offer_of_cluster(clusters.patiently(cluster.nodes), settings)
        asked = _runnable(asked, anything=order.dry_run)
        with console.status("building requests") as status:
            prepared = arrange.prepared(
                asked, settings, offer, lambda name: status.update(f"building requests: {name}")
            )
        exclusive = clusters.patiently(cluster.whole_nodes)
        if order.dry_run:
            where = RunDir(root)
            show.show(prepared, where, identity, cluster, outputs, console, exclusive=exclusive)
            return 0
        run_dir = create(root, identity, prepared, cluster.name, exclusive=exclusive)
        _remember(settings, identity, root)
        made = _files.read_record(run_dir.run, Run)
        try:
            if cluster.local or order.wait:
                return supervise(run_dir, made, cluster, as_json=order.as_json, strict=True)
            submitted = submit_supervisor(run_dir, made, cluster)
        except (SubmitRefused, UserError):
            if not _files.names(run_dir.jobs_folder):
                shutil.rmtree(root)
                _forget(settings, identity)
            raise
    announce(run_dir, made, submitted, as_json=order.as_json)
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
