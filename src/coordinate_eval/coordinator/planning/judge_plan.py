"""A judge's predicted cost, before there are questions.

The run of a judge that is a checkpoint gets a plan of its own when they are there; this one tells
before what that will be about.
"""

from collections.abc import Mapping
from pathlib import Path

from coordinate_eval.coordinator.inputs.checkpoints import checkpoint as checkpoints
from coordinate_eval.coordinator.inputs.checkpoints.judge_checkpoint import (
    DATASET,
    TASK,
    longest_answer,
    settings_of_judge,
)
from coordinate_eval.coordinator.inputs.judge import most_questions, why_not_judged
from coordinate_eval.coordinator.inputs.settings import JudgeSettings
from coordinate_eval.coordinator.planning.judging import Judging
from coordinate_eval.coordinator.planning.new_run import Inputs, new_run
from coordinate_eval.coordinator.planning.places.nodes import QUEUED_NODE, NoFreeGpu
from coordinate_eval.coordinator.planning.plan import JudgeWork, Plan
from coordinate_eval.coordinator.planning.prepare import (
    Offer,
    choose_nodes,
    prepare,
    queued_nodes,
)
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.priors.catalogue import known_work
from coordinate_eval.priors.judges import PerQuestion
from coordinate_eval.priors.observations import subject
from coordinate_eval.priors.predict import Priors
from coordinate_eval.records import Dataset, DatasetRequests, Suite

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
    plan = _plan_of_its_run(run, offer, total, _tokens(questions, each))
    return Judging(
        JudgeWork(questions=total, gpus=plan.gpus),
        dict.fromkeys(questions, plan.estimate.makespan_seconds),
        next((node.gpu_type for node in plan.nodes if node.name != QUEUED_NODE), ""),
    )


def _server_seconds(settings: JudgeSettings, answer_seconds: float) -> float:
    """Return a server's seconds for a question, of many that it is asked at once."""
    return max(answer_seconds / settings.concurrency, 60 / (settings.requests_per_minute or 1e9))


def _plan_of_its_run(run: Run, offer: Offer, questions: int, tokens: float) -> Plan:
    """Return the plan of a run in which a checkpoint answers so many questions.

    How many of the tokens it writes, the priors tell as of every run.
    """
    inner = judge_run(run, questions)
    rubrics = [dataset.rubric for dataset in run.suite.datasets if dataset.rubric is not None]
    longest = min(longest_answer(inner.max_length), max(rubric.max_tokens for rubric in rubrics))
    index = DatasetRequests(
        dataset=DATASET,
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
    try:
        chosen = choose_nodes(inner, offer)
    except NoFreeGpu:
        chosen = queued_nodes(inner, offer)
    return prepare(inner, offer, chosen, {DATASET: index}).plan


def judge_run(run: Run, questions: int) -> Run:
    """Return the run in which a checkpoint answers so many questions of another run.

    Raises:
        UserError: The checkpoint cannot be used.
    """
    checkpoint = checkpoints.inspect(Path(run.settings.judge.checkpoint or ""))
    dataset = Dataset(name=DATASET, task=TASK, items=questions, chat_template=True)
    suite = Suite(name="judge", digest="", datasets=[dataset])
    inputs = Inputs(checkpoint, suite, settings_of_judge(run.settings))
    return new_run(inputs, run.cluster, exclusive=run.exclusive, limits=run.limits)
