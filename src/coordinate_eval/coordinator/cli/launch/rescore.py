"""`coordinate-eval rescore`: scores anew from the responses of a run.

No GPU is used, unless the judge is a checkpoint.
"""

import os
from collections import Counter

import typer

from coordinate_eval._format import plural
from coordinate_eval.coordinator.cli.inquire.runs import find
from coordinate_eval.coordinator.cli.launch.run import ask, begin, remember
from coordinate_eval.coordinator.cli.options import common
from coordinate_eval.coordinator.cli.output import say
from coordinate_eval.coordinator.inputs import clusters, judge
from coordinate_eval.coordinator.inputs.checkpoints import judge_checkpoint
from coordinate_eval.coordinator.inputs.folders import working_in
from coordinate_eval.coordinator.inputs.layers import load as load_settings
from coordinate_eval.coordinator.inputs.suites.suite import check_tasks, narrow
from coordinate_eval.coordinator.planning.judge_plan import judge_of, nodes_of_judge, place_of
from coordinate_eval.coordinator.run.own import work_folder
from coordinate_eval.coordinator.run.records import Run, read_run
from coordinate_eval.coordinator.run.starting.rescoring import create_rescoring, rescoring
from coordinate_eval.evaluators.engines import base as engines


def rescore_command(
    run: common.RunName = None,
    only: common.Only = None,
    judge_url: common.JudgeUrl = None,
    judge_model: common.JudgeModel = None,
    wait: common.Wait = False,
    as_json: common.Json = False,
    settings_file: common.SettingsFile = None,
) -> None:
    """Score the responses of a run again, in a run of its own beside it.

    For another version of the harness, a corrected filter or metric, or another judge. No GPU is
    used, unless that judge is a checkpoint. Scores and differences are in the new run's results;
    the old ones stay. A dataset whose prompts would be different now is refused.
    """
    settings, _ = load_settings(
        {"judge.base_url": judge_url, "judge.model": judge_model}, settings_file
    )
    run_dir = find(run, settings)
    old = read_run(run_dir)
    check_tasks(old.suite, old.settings.trusted_users)
    suite = narrow(old.suite, only=only) if only else old.suite
    if judge.is_checkpoint(settings.judge, suite):
        settings = judge_checkpoint.named(settings, [d.rubric for d in suite.datasets if d.rubric])
    made = rescoring(run_dir, old, suite, settings)
    questions = _check_judge(made)
    made = _with_place(made)
    cluster = clusters.by_name(made.cluster, made.settings)
    found = create_rescoring(run_dir, old, made)
    remember(settings, made.id, found.root)
    say(f"run {made.id} scores the responses of run {old.id} again: {found.root}")
    if judge.is_checkpoint(made.settings.judge, made.suite):
        say(
            f"the judge {made.settings.judge.name} gets up to {plural(questions, 'question')}, "
            "and answers on GPUs that are free when they are written"
        )
    with working_in(str(work_folder(found))), cluster:
        raise typer.Exit(begin(found, made, cluster, wait=wait, as_json=as_json))


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
        engines.by_name(settings.engine.name).check_args(settings.judge.engine_args, here=here)
    with cluster:
        offer = ask(cluster, settings)
    made = made.model_copy(update={"exclusive": offer.exclusive, "limits": offer.limits})
    asked = judge_of(made)
    place = place_of(asked, nodes_of_judge(asked, offer))
    return made.model_copy(update={"judge_place": place})
