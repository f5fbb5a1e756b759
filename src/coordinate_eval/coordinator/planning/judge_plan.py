"""The plan of a judge that is a checkpoint.

Its run begins when the questions are there. It gets a plan of its own then; this one tells before
what that will be about.
"""

from pathlib import Path

from coordinate_eval.coordinator.inputs.checkpoints import checkpoint as checkpoints
from coordinate_eval.coordinator.inputs.checkpoints.judge_checkpoint import (
    DATASET,
    TASK,
    longest_answer,
    settings_of_judge,
)
from coordinate_eval.coordinator.planning.inputs import Inputs, new_run
from coordinate_eval.coordinator.planning.plan import Plan
from coordinate_eval.coordinator.planning.prepare import (
    Offer,
    choose_nodes,
    prepare,
    questions_to_judge,
)
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.records import Dataset, DatasetRequests, Suite

QUESTION_TOKENS = 1000
"""Taken for a question to a judge: its instructions, a question, and one or two answers to it."""

ANSWER_TOKENS = 400
"""Taken for a judge's answer: some sentences, and its verdict."""


def tokens_of_judge(run: Run, plan: Plan) -> int:
    """Return about how many tokens the judge of a planned run reads and writes."""
    return sum(questions_to_judge(run, plan).values()) * (QUESTION_TOKENS + ANSWER_TOKENS)


def plan_judge(run: Run, plan: Plan, offer: Offer) -> Plan | None:
    """Return what the run of a judge comes to on what a cluster has now; None if there is none.

    Args:
        run: the run that asks, with its plan.
        plan: this plan.
        offer: what the cluster has. The GPUs of the plan are free again when the judge begins.

    Raises:
        NoFreeGpu: No GPU is free now.
        UserError: The judge fits on no GPU of the cluster, or its checkpoint cannot be used.
    """
    questions = sum(questions_to_judge(run, plan).values())
    if run.settings.judge.checkpoint is None or not questions:
        return None
    inner = judge_run(run, questions)
    rubrics = [dataset.rubric for dataset in run.suite.datasets if dataset.rubric is not None]
    longest = min(longest_answer(inner.max_length), max(rubric.max_tokens for rubric in rubrics))
    index = DatasetRequests(
        dataset=DATASET,
        key="",
        items=questions,
        requests=questions,
        prompt_tokens=questions * QUESTION_TOKENS,
        generate_requests=questions,
        max_output_tokens=questions * longest,
        longest_output_tokens=longest,
        asks=False,
        runs_text="",
        offsets=[],
    )
    return prepare(inner, offer, choose_nodes(inner, offer), {DATASET: index}).plan


def judge_run(run: Run, questions: int) -> Run:
    """Return the run in which a checkpoint answers so many questions of another run.

    Raises:
        UserError: The checkpoint cannot be used.
    """
    checkpoint = checkpoints.inspect(Path(run.settings.judge.checkpoint or ""))
    dataset = Dataset(name=DATASET, task=TASK, items=questions)
    suite = Suite(name="judge", digest="", datasets=[dataset])
    inputs = Inputs(checkpoint, suite, settings_of_judge(run.settings))
    return new_run(inputs, run.cluster, exclusive=run.exclusive, limits=run.limits)
