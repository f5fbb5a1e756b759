"""A judge's predicted cost, before there are questions.

A checkpoint that judges is predicted as one engine that answers one more dataset.
"""

from collections.abc import Mapping
from pathlib import Path

from coordinate_eval._format import plural
from coordinate_eval.coordinator.inputs.checkpoints import checkpoint as checkpoints
from coordinate_eval.coordinator.inputs.checkpoints.judge_checkpoint import (
    context_of,
    longest_answer,
    settings_of_judge,
)
from coordinate_eval.coordinator.inputs.judge import most_questions, why_not_judged
from coordinate_eval.coordinator.planning.costs import dataset_cost
from coordinate_eval.coordinator.planning.judging import Judging
from coordinate_eval.coordinator.planning.offer import Offer
from coordinate_eval.coordinator.planning.places.degree import Demand
from coordinate_eval.coordinator.planning.places.nodes import (
    QUEUED_NODE,
    choose_nodes,
    keeper_gib,
    queued_nodes,
)
from coordinate_eval.coordinator.planning.plan import ChosenNodes, JudgeWork, Plan
from coordinate_eval.coordinator.planning.plan_run import rates
from coordinate_eval.coordinator.run.records import JudgePlace, Run
from coordinate_eval.errors import UserError
from coordinate_eval.priors.catalogue import known_work
from coordinate_eval.priors.roofline import WRITTEN_SHARE, Work
from coordinate_eval.records import Dataset, DatasetRequests

_QUESTIONS = "questions"
"""Name of the dataset as which a checkpoint's answers are predicted."""

QUESTION_TOKENS = 1000
"""Tokens of a question to a judge: its instructions, a question, and one or two answers."""

ANSWER_TOKENS = 400
"""Tokens of a judge's answer: some sentences, and its verdict."""

SERVER_TOKENS_PER_SECOND = 40.0
"""Tokens that a server writes in a second for one question, whatever else it is asked."""

EXCHANGE_TOKENS = QUESTION_TOKENS + ANSWER_TOKENS
"""Tokens of a question and its answer together."""


def questions_to_judge(run: Run, plan: Plan) -> dict[str, int]:
    """Return how many questions the judge of a planned run gets at most, by dataset."""
    datasets = {dataset.name: dataset for dataset in run.suite.datasets}
    items = {cost.name: cost.items for cost in plan.datasets}
    return {name: most_questions(datasets[name], items[name]) for name in run.judged}


class JudgeUnusable(UserError):
    """The checkpoint that judges cannot be used, whatever the cluster has."""


def plan_judge(run: Run, offer: Offer, built: Mapping[str, DatasetRequests]) -> Judging | None:
    """Return what the judge of a run will take; None if there is none.

    Raises:
        JudgeUnusable: Its checkpoint cannot be used.
        UserError: The judge fits on no GPU that the cluster has now.
    """
    settings = run.settings.judge
    questions = {
        dataset.name: most_questions(dataset, work.items)
        for dataset in run.suite.datasets
        if dataset.rubric is not None and not why_not_judged(dataset, settings)
        if (work := known_work(dataset, built.get(dataset.name))) is not None
    }
    total = sum(questions.values())
    if not total:
        return None
    if settings.checkpoint is None:
        each = ANSWER_TOKENS / SERVER_TOKENS_PER_SECOND / settings.concurrency
        seconds = {name: count * each for name, count in questions.items()}
        return Judging(JudgeWork(questions=total, gpus=0), seconds)
    judge = judge_of(run)
    chosen = nodes_of_judge(judge, offer)
    took = _engine_seconds(run, judge, offer, chosen, total)
    (node,) = chosen.nodes
    return Judging(
        JudgeWork(questions=total, **place_of(judge, chosen).model_dump()),
        dict.fromkeys(questions, took),
        "" if node.name == QUEUED_NODE else node.gpu_type,
    )


def judge_of(run: Run) -> Demand:
    """Return the checkpoint that judges a run, with the settings of its engine.

    Raises:
        JudgeUnusable: The checkpoint cannot be used.
    """
    try:
        checkpoint = checkpoints.inspect(Path(run.settings.judge.checkpoint or ""))
        return Demand(checkpoint, settings_of_judge(run.settings), context_of(checkpoint), [])
    except UserError as error:
        raise JudgeUnusable(str(error)) from error


def nodes_of_judge(judge: Demand, offer: Offer) -> ChosenNodes:
    """Return the node of a judge's engine, which may have to wait for its GPUs.

    Raises:
        UserError: The checkpoint fits on no GPU of the cluster, or on more than the user's limit.
    """
    try:
        nodes, gpus, _ = choose_nodes(judge, offer.nodes, offer.busy)
    except UserError:  # that no node has room now says nothing of later
        nodes, gpus, _ = queued_nodes(judge, offer.nodes, offer.busy)
    most = judge.settings.limits.gpus
    if most is not None and gpus > most:
        raise UserError(
            f"the judge {judge.checkpoint.path} takes {plural(gpus, 'GPU')}, and setting "
            f"limits.gpus is {most}: raise it, or choose a smaller judge"
        )
    return ChosenNodes([nodes[0].model_copy(update={"trials": 1})], gpus)


def place_of(judge: Demand, chosen: ChosenNodes) -> JudgePlace:
    """Return what the job needs in which a checkpoint judges."""
    return JudgePlace(
        gpus=chosen.gpus_per_trial,
        gpu_type=chosen.nodes[0].gpu_type,
        weights_gib=keeper_gib(judge.checkpoint, judge.settings),
    )


def _engine_seconds(
    run: Run, judge: Demand, offer: Offer, chosen: ChosenNodes, questions: int
) -> float:
    """Return the seconds in which one engine copies the weights, starts, and answers questions.

    How many of the tokens it writes, the priors tell as of every run.
    """
    rubrics = [dataset.rubric for dataset in run.suite.datasets if dataset.rubric is not None]
    longest = min(longest_answer(judge.max_length), max(each.max_tokens for each in rubrics))
    dataset = Dataset(name=_QUESTIONS, task=_QUESTIONS, chat_template=True)
    work = Work(
        items=questions,
        requests=questions,
        prompt_tokens=questions * QUESTION_TOKENS,
        output_tokens=questions * longest * WRITTEN_SHARE,
        longest_output_tokens=longest,
    )
    on, start, link = rates(judge.checkpoint, judge.settings, offer, chosen)
    cost = dataset_cost(dataset, work, on, offer.priors)
    copy = link.seconds(judge.checkpoint.bytes, 1)
    return copy + start + max(cost.gpu_seconds, cost.floor_seconds)
