"""`coordinate-eval rescore`: scores anew from the responses of a run, without a GPU."""

import os
import shutil
from collections.abc import Sequence

from coordinate_eval import _files, _owner
from coordinate_eval.coordinator.cli.inquire.runs import find
from coordinate_eval.coordinator.cli.launch.foreground import announce, supervise
from coordinate_eval.coordinator.cli.launch.run import forget, remember
from coordinate_eval.coordinator.cli.output import say
from coordinate_eval.coordinator.inputs import clusters, judge
from coordinate_eval.coordinator.inputs.folders import working_in
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.inputs.suites.suite import check_tasks, narrow
from coordinate_eval.coordinator.run.create import submit_supervisor
from coordinate_eval.coordinator.run.own import work_folder
from coordinate_eval.coordinator.run.records import read_run
from coordinate_eval.coordinator.run.rescoring import create_rescoring, rescoring
from coordinate_eval.errors import SubmitRefused, UserError


def rescore_run(
    name: str | None, settings: Settings, only: Sequence[str], *, wait: bool, as_json: bool
) -> int:
    """Start a run that scores the responses of a run again; return the exit status.

    With `wait`, or on a local cluster, it is supervised here to its end.

    Raises:
        UserError: there is no such run, it has no dataset with all responses, or the judge cannot
            be asked.
        SubmitRefused: the scheduler refuses it. Nothing is left then.
    """
    run_dir = find(name, settings)
    run = read_run(run_dir)
    _owner.trust(run.settings.trusted_users)
    check_tasks(run.suite)
    suite = narrow(run.suite, only=only) if only else run.suite
    if settings.judge.checkpoint and any(dataset.rubric for dataset in suite.datasets):
        raise UserError(
            "a judge that is a checkpoint takes GPUs, and rescore takes none: give a server of it, "
            "with --judge-url and --judge-model"
        )
    made = rescoring(run_dir, run, suite, settings)
    judge.check(made.settings.judge, made.suite, os.environ)
    cluster = clusters.by_name(made.cluster, made.settings)
    found = create_rescoring(run_dir, run, made)
    remember(settings, made.id, found.root)
    say(f"run {made.id} scores the responses of run {run.id} again: {found.root}")
    with working_in(str(work_folder(found))), cluster:
        if cluster.local or wait:
            return supervise(found, made, cluster, as_json=as_json, strict=True)
        try:
            submitted = submit_supervisor(found, made, cluster)
        except SubmitRefused:
            if not (_files.names(found.jobs_folder) or found.results.exists()):
                shutil.rmtree(found.root)
                forget(settings, made.id)
            raise
    announce(found, made, submitted, as_json=as_json)
    return 0
