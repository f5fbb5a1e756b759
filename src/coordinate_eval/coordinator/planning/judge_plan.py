"""A judge's predicted cost, before there are questions.

A checkpoint that judges is predicted as a run with a single trial: its engine is one.
"""

from collections.abc import Mapping
from pathlib import Path

from coordinate_eval._format import plural
from coordinate_eval.coordinator.inputs.checkpoints import checkpoint as checkpoints
from coordinate_eval.coordinator.inputs.checkpoints.judge_checkpoint import (
    longest_answer,
    settings_of_judge,
)
from coordinate_eval.coordinator.inputs.judge import most_questions, why_not_judged
from coordinate_eval.coordinator.inputs.settings import JudgeSettings
from coordinate_eval.coordinator.planning.judging import Judging
from coordinate_eval.coordinator.planning.new_run import Inputs, new_run
from coordinate_eval.coordinator.planning.places.nodes import QUEUED_NODE, NoFreeGpu
from coordinate_eval.coordinator.planning.plan import ChosenNodes, JudgeWork, Plan
from coordinate_eval.coordinator.planning.plan_run import (
    Offer,
    nodes_for,
    plan_run,
    queued_nodes,
)
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.records import JudgePlace, Run
from coordinate_eval.errors import UserError
from coordinate_eval.priors.catalogue import known_work
from coordinate_eval.priors.judges import PerQuestion
from coordinate_eval.priors.observations import subject
from coordinate_eval.priors.predict import Priors
from coordinate_eval.records import Dataset, DatasetRequests, Suite

_QUESTIONS = "questions"
"""The only dataset of the run as which a checkpoint's answers are planned."""

QUESTION_TOKENS = 1000
"""Taken for a question to a judge: its instructions, a question, and one or two answers to it."""

ANSWER_TOKENS = 400
"""Taken for a judge's answer: some sentences, and its verdict."""

MOST_SECONDS = 1e9
"""Longest time of a judge that is planned with: thirty years."""

SERVER_TOKENS_PER_SECOND = 40.0
"""Taken for what a server writes in answer to one question, whatever else it is asked."""

GUESS = PerQuestion(ANSWER_TOKENS / SERVER_TOKENS_PER_SECOND, QUESTION_TOKENS + ANSWER_TOKENS)
"""Taken of a judge that no run has asked yet."""


def questions_to_judge(run: Run, plan: Plan) -> dict[str, int]:
    """Return how many questions the judge of a planned run gets at most, by dataset."""
    datasets = {dataset.name: dataset for dataset in run.suite.datasets}
    items = {cost.name: cost.items for cost in plan.datasets}
    return {name: most_questions(datasets[name], items[name]) for name in run.judged}


def tokens_of_judge(run: Run, plan: Plan, priors: Priors) -> int:
    """Return about how many tokens the judge of a planned run reads and writes."""
    return round(_tokens(questions_to_judge(run, plan), _per_question(run, priors)))


def _per_question(run: Run, priors: Priors) -> dict[str, PerQuestion]:
    """Return what the run's judge takes for a question, by dataset."""
    judge, engine = run.settings.judge.name, run.settings.engine.name
    return {
        dataset.name: priors.per_question(judge, subject(dataset), engine, GUESS)
        for dataset in run.suite.datasets
    }


def _tokens(questions: Mapping[str, int], each: Mapping[str, PerQuestion]) -> float:
    """Return the tokens of so many questions by dataset, and of the answers to them."""
    return sum(count * each[name].tokens for name, count in questions.items())


def plan_judge(run: Run, offer: Offer, built: Mapping[str, DatasetRequests]) -> Judging | None:
    """Return what the judge of a run will take; None if there is none.

    Args:
        run: the run that asks, without a plan.
        offer: what the cluster has, on which a checkpoint judges too.
        built: the indexes of the built requests.

    Raises:
        UserError: The judge fits on no GPU of the cluster, or its checkpoint cannot be used.
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
    each = _per_question(run, offer.priors)
    if settings.checkpoint is None:
        seconds = {
            name: min(MOST_SECONDS, count * _server_seconds(settings, each[name].seconds))
            for name, count in questions.items()
        }
        return Judging(JudgeWork(questions=total, gpus=0), seconds)
    alone = judge_run(run, total)
    chosen = judge_nodes(alone, offer)
    makespan = _makespan(run, alone, offer, chosen, _tokens(questions, each))
    (node,) = chosen.nodes
    place = place_of(alone, chosen)
    return Judging(
        JudgeWork(questions=total, **place.model_dump()),
        dict.fromkeys(questions, makespan),
        "" if node.name == QUEUED_NODE else node.gpu_type,
    )


def _server_seconds(settings: JudgeSettings, answer_seconds: float) -> float:
    """Return a server's seconds for a question, of many that it is asked at once."""
    return max(answer_seconds / settings.concurrency, 60 / (settings.requests_per_minute or 1e9))


def judge_nodes(alone: Run, offer: Offer) -> ChosenNodes:
    """Return the node of the only trial of `judge_run`, which may have to wait for its GPUs.

    Raises:
        UserError: The checkpoint fits on no GPU of the cluster, or on more than the user's limit.
    """
    try:
        nodes, gpus = nodes_for(alone, offer)
    except NoFreeGpu:
        nodes, gpus = queued_nodes(alone, offer)
    most = alone.settings.limits.gpus
    if most is not None and gpus > most:
        raise UserError(
            f"the judge {alone.checkpoint.path} takes {plural(gpus, 'GPU')}, and setting "
            f"limits.gpus is {most}: raise it, or choose a smaller judge"
        )
    return ChosenNodes([nodes[0].model_copy(update={"trials": 1})], gpus)


def place_of(alone: Run, chosen: ChosenNodes) -> JudgePlace:
    """Return what the job needs in which a checkpoint judges."""
    return JudgePlace(
        gpus=chosen.gpus_per_trial,
        gpu_type=chosen.nodes[0].gpu_type,
        weights_gib=jobs.keeper_gib(alone),
    )


def _makespan(run: Run, alone: Run, offer: Offer, chosen: ChosenNodes, tokens: float) -> float:
    """Return the seconds until a checkpoint has answered all questions.

    How many of the tokens it writes, the priors tell as of every run.
    """
    rubrics = [dataset.rubric for dataset in run.suite.datasets if dataset.rubric is not None]
    longest = min(longest_answer(alone.max_length), max(rubric.max_tokens for rubric in rubrics))
    questions = alone.suite.datasets[0].items or 0
    index = DatasetRequests(
        dataset=_QUESTIONS,
        key="",
        items=questions,
        requests=questions,
        prompt_tokens=round(tokens * QUESTION_TOKENS / GUESS.tokens),
        generate_requests=questions,
        max_output_tokens=questions * longest,
        longest_output_tokens=longest,
        asks=False,
        offsets=[],
    )
    return plan_run(alone, offer, chosen, {_QUESTIONS: index}).plan.estimate.makespan_seconds


def judge_run(run: Run, questions: int) -> Run:
    """Return a run that would take what a checkpoint takes for so many questions of another run.

    Raises:
        UserError: The checkpoint cannot be used.
    """
    checkpoint = checkpoints.inspect(Path(run.settings.judge.checkpoint or ""))
    dataset = Dataset(name=_QUESTIONS, task=_QUESTIONS, items=questions, chat_template=True)
    suite = Suite(name="judge", digest="", datasets=[dataset])
    inputs = Inputs(checkpoint, suite, settings_of_judge(run.settings))
    return new_run(inputs, run.cluster, run.created, exclusive=run.exclusive, limits=run.limits)
