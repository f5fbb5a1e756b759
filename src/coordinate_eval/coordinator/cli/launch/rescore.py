"""`coordinate-eval rescore`: scores anew from the responses of a run.

No GPU is used, unless the judge is a checkpoint.
"""

import os
from collections import Counter
from collections.abc import Sequence

from coordinate_eval._format import plural
from coordinate_eval.coordinator.cli.inquire.runs import find
from coordinate_eval.coordinator.cli.launch.run import ask, begin, remember
from coordinate_eval.coordinator.cli.output import say
from coordinate_eval.coordinator.inputs import clusters, judge
from coordinate_eval.coordinator.inputs.checkpoints import judge_checkpoint
from coordinate_eval.coordinator.inputs.folders import working_in
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.inputs.suites.suite import check_tasks, narrow
from coordinate_eval.coordinator.planning.judge_plan import judge_of, nodes_of_judge, place_of
from coordinate_eval.coordinator.run.own import work_folder
from coordinate_eval.coordinator.run.records import Run, read_run
from coordinate_eval.coordinator.run.starting.rescoring import create_rescoring, rescoring
from coordinate_eval.evaluators.engines import base as engines


def rescore_run(
    name: str | None, settings: Settings, only: Sequence[str], *, wait: bool, as_json: bool
) -> int:
    """Start a run that scores the responses of a run again; return the exit status.

    With `wait`, or on a local cluster, it is supervised here to its end.

    Raises:
        UserError: there is no such run, it has no dataset with all responses, or the judge cannot
            be asked, or is a checkpoint that cannot be used or fits on no GPU. Nothing is made.
        SubmitRefused: the scheduler refuses it. Nothing is left then.
    """
    run_dir = find(name, settings)
    run = read_run(run_dir)
    check_tasks(run.suite, run.settings.trusted_users)
    suite = narrow(run.suite, only=only) if only else run.suite
    if judge.is_checkpoint(settings.judge, suite):
        settings = judge_checkpoint.named(settings, [d.rubric for d in suite.datasets if d.rubric])
    made = rescoring(run_dir, run, suite, settings)
    questions = _check_judge(made)
    made = _with_place(made)
    cluster = clusters.by_name(made.cluster, made.settings)
    found = create_rescoring(run_dir, run, made)
    remember(settings, made.id, found.root)
    say(f"run {made.id} scores the responses of run {run.id} again: {found.root}")
    if judge.is_checkpoint(made.settings.judge, made.suite):
        say(
            f"the judge {made.settings.judge.name} gets up to {plural(questions, 'question')}, "
            "and answers on GPUs that are free when they are written"
        )
    with working_in(str(work_folder(found))), cluster:
        return begin(found, made, cluster, wait=wait, as_json=as_json)


def _check_judge(made: Run) -> int:
    """Return how many questions the judge of a rescoring gets at most, if it can be asked."""
    judge.check(made.settings.judge, made.suite, os.environ)
    items = Counter[str]()
    for shard in made.shards:
        items[shard.dataset] += shard.stop - shard.start
    judged = [dataset for dataset in made.suite.datasets if dataset.rubric is not None]
    counts = {d.name: judge.most_questions(d, items[d.name]) for d in judged}
    judge.check_budget(made.settings.judge, counts)
    return sum(counts.values())


def _with_place(made: Run) -> Run:
    """Return a rescoring with what its cluster says now, which may be another place than before.

    GPUs that are busy now may be free when a judge that is a checkpoint needs them.

    Raises:
        UserError: that checkpoint cannot be used, the engine has no such arguments, or no GPU of
            the cluster holds it.
    """
    settings = made.settings
    cluster = clusters.by_name(made.cluster, settings)
    if not judge.is_checkpoint(settings.judge, made.suite):
        if cluster.local:
            return made
        with cluster:
            exclusive = clusters.patiently(cluster.whole_nodes)
            limits = clusters.patiently(cluster.limits)
        return made.model_copy(update={"exclusive": exclusive, "limits": limits})
    if settings.judge.engine_args:
        here = settings.container.image_of("judge") is None
        engines.check_args(settings.engine.name, settings.judge.engine_args, here=here)
    with cluster:
        offer = ask(cluster, settings)
    made = made.model_copy(update={"exclusive": offer.exclusive, "limits": offer.limits})
    asked = judge_of(made)
    place = place_of(asked, nodes_of_judge(asked, offer))
    return made.model_copy(update={"judge_place": place})
