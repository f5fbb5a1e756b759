"""What a reply may say: nothing but what the dataset that was asked about can have."""

import itertools
import math

from pydantic import ConfigDict, JsonValue, ValidationError

from coordinate_eval.evaluators.confined.messages import (
    LoggedSample,
    LoggedVerdict,
    disturbed,
)
from coordinate_eval.records import (
    Dataset,
    DatasetResults,
    ItemScores,
    Message,
    Question,
    Record,
    Rubric,
)

MOST_TIMEOUT_SECONDS = 3600.0
"""Longest time that a question may ask for one program."""


def check_names(results: DatasetResults, names: set[str], dataset: Dataset) -> None:
    """Check that scores concern nothing but the tasks and groups of the dataset.

    Raises:
        RecordError: scores name something else.
    """
    tables = (
        results.results,
        results.groups,
        results.group_subtasks,
        results.higher_is_better,
        results.n_shot,
        results.n_samples,
        results.versions,
    )
    members = itertools.chain.from_iterable(results.group_subtasks.values())
    foreign = sorted(set(members).union(*tables) - names)
    if results.dataset != dataset.name:
        foreign.insert(0, results.dataset)
    if foreign:
        raise disturbed(dataset, f"its process gave scores of {foreign[0][:100]!r}")


def check_item_scores(
    tables: list[ItemScores], names: set[str], items: int, dataset: Dataset
) -> None:
    """Check that scores of items concern nothing but the tasks and items of the dataset.

    Raises:
        RecordError: scores name something else.
    """
    for table in tables:
        if table.task not in names:
            raise disturbed(dataset, f"its process told of {table.task[:100]!r}")
        if table.items and not (table.items[0] >= 0 and table.items[-1] < items):
            raise disturbed(dataset, "its process gave scores of items that it does not have")


def check_questions(questions: list[Question], dataset: Dataset, judge: str) -> None:
    """Check that questions are what a metric may ask: programs, or a rubric's of its judge.

    Each must have its own id. Programs have a time that can be waited for.

    Raises:
        RecordError: a question is something else.
    """
    if dataset.rubric is not None:
        for question in questions:
            _check_judged(question, dataset.rubric, dataset, judge)
        return
    # This module has no heavy imports.
    from coordinate_eval.evaluators.harness.code_eval import program_question
    from coordinate_eval.evaluators.sandbox.languages import LANGUAGES

    for question in questions:
        seconds = question.timeout_seconds
        if not (math.isfinite(seconds) and 0 < seconds <= MOST_TIMEOUT_SECONDS):
            raise disturbed(dataset, f"a program of its metric asks for {seconds:g} seconds")
        if question.language not in LANGUAGES:
            raise disturbed(dataset, "a program of its metric is in an unknown language")
        if question != program_question(question.content, seconds, question.language):
            raise disturbed(dataset, "a question of its metric has another one's id")


def _check_judged(question: Question, rubric: Rubric, dataset: Dataset, judge: str) -> None:
    from coordinate_eval.evaluators.judged.prompts import MOST_CHARACTERS, question_of

    if question != question_of(judge, question.content):
        raise disturbed(
            dataset, "a question of its metric is not one to the judge, or has another id"
        )
    try:
        asked = _Asked.model_validate_json(question.content)
    except ValidationError as error:
        raise disturbed(dataset, "a question to the judge is malformed") from error
    roles = [[message.role for message in prompt] for prompt in rubric.prompts.values()]
    if (
        [message.role for message in asked.messages] not in roles
        or (asked.temperature, asked.max_tokens) != (rubric.temperature, rubric.max_tokens)
        or any(len(message.content) > MOST_CHARACTERS for message in asked.messages)
    ):
        raise disturbed(dataset, "a question to the judge is not one of its rubric")


class _Message(Message):
    model_config = ConfigDict(extra="forbid")


class _Asked(Record):
    """The content of a question to a judge."""

    model_config = ConfigDict(extra="forbid")

    messages: list[_Message]
    temperature: float
    max_tokens: int


def check_verdicts(verdicts: list[LoggedVerdict], names: set[str], dataset: Dataset) -> None:
    """Check that verdicts concern nothing but the tasks of the dataset.

    Raises:
        RecordError: verdicts name something else.
    """
    foreign = {verdict.task for verdict in verdicts} - names
    if foreign:
        raise disturbed(dataset, f"its process told of {min(foreign)[:100]!r}")


def check_samples(
    samples: list[LoggedSample], verdicts: list[LoggedVerdict], dataset: Dataset
) -> None:
    """Check that samples are those of the verdicts, and have what the harness's own have.

    Raises:
        RecordError: they are others, or lack something.
    """
    asked = [(verdict.item, verdict.task) for verdict in verdicts]
    if [(sample.item, sample.task) for sample in samples] != asked:
        raise disturbed(dataset, "its process told of other samples")
    try:
        for sample in samples:
            _HarnessSample.model_validate_json(sample.content)
    except ValidationError as error:
        raise disturbed(dataset, "a sample is not one of the harness's") from error


class _HarnessSample(Record):
    """The fields of a line in the harness's own files of samples, without those of metrics."""

    doc_id: int
    doc: JsonValue
    target: str
    arguments: dict[str, dict[str, JsonValue]]
    resps: list[JsonValue]
    filtered_resps: list[JsonValue]
    filter: str
    metrics: list[str]
    doc_hash: str
    prompt_hash: str
    target_hash: str
