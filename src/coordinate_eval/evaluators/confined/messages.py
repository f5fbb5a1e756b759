"""The messages between those who ask processes of the harness and these: JSON, a line each.

A process reads a `Setup` on standard input. `Command`s come over a pipe, and each is answered with
one `Reply` over another. Responses and answers are files, which a process gets opened.

What the model wrote may run inside such a process. A reply is therefore data, checked by the one
who asked: its size, its shape, and that it concerns nothing but the dataset it was asked about.
"""

import itertools
import math
from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, FailFast, Field, JsonValue, ValidationError

from coordinate_eval.errors import RecordError
from coordinate_eval.records import (
    Dataset,
    DatasetRequests,
    DatasetResults,
    ItemScores,
    Message,
    Question,
    Record,
    Rubric,
)

MOST_REPLY_BYTES = 4 << 20
"""Longest reply: the scores of a group of a thousand tasks take a tenth of it."""

MOST_LONG_REPLY_BYTES = 256 << 20
"""Longest reply with questions, or with the offsets of what was built: thirty thousand programs of
some kilobytes each."""

MOST_ITEMS_BYTES = 32 << 20
"""Longest reply with the scores of items. As records, they take up to twenty times the bytes."""

MOST_QUESTIONS = 200_000
"""Most questions of one reply. As records, small ones take thirty times the bytes that say them."""

MOST_VERDICTS = 500_000
"""Most samples that are shown of a dataset: documents, times the filters of their task."""

SAMPLES_AT_ONCE = 64
"""Samples in one reply. One may have a prompt of a million characters, four times."""

MOST_ERROR_CHARACTERS = 20_000


class Setup(Record):
    """The first line: what a process needs before its first command."""

    tokenizer: str = Field(description="folder with the checkpoint's tokenizer")
    include_path: list[str] = Field(description="the user's folders of tasks")
    engine: str
    max_length: int
    kept_tasks: str = Field(
        default="", description="file in which the index of the harness's tasks is kept"
    )
    folder: str = Field(
        default="", description="where tasks' relative paths begin, if it is not where it starts"
    )
    judge_model: str = Field(default="", description="who is asked about answers; empty if nobody")
    judge_revision: str = ""
    baselines: str = Field(default="", description="folder with the answers of baselines")
    memory_bytes: int = Field(default=0, description="most memory of its processes; 0: any")
    models: bool = Field(default=True, description="tasks may load models with transformers")
    mirrors: dict[str, str] = Field(
        default={}, description="read-only cache → writable folder to be filled with links to it"
    )


class Work(StrEnum):
    """The methods of an evaluator."""

    BUILD = "build"
    LOAD = "load"
    QUESTIONS = "questions"
    FINISH = "finish"
    ITEM_SCORES = "item_scores"
    VERDICTS = "verdicts"
    SAMPLES = "samples"


class Command(Record):
    """One call of a method of the evaluator."""

    number: int = 0
    work: Work
    dataset: Dataset
    requests: str = Field(default="", description="new file for what is built")
    index: DatasetRequests | None = Field(default=None, description="of load")
    positions: list[int] = Field(default=[], description="of verdicts: of samples")
    part: bool = Field(default=False, description="only some items have responses")


class LoggedVerdict(Record):
    """The scores of one document, for one of its task's filters."""

    item: int
    task: str = Field(description="as the dataset's results call it")
    filter: str
    metrics: dict[str, float] = Field(description="those that are numbers")
    doc_hash: str = Field(description="the harness's hash of the document")


class LoggedSample(Record):
    """The harness's notes on one document, for one of its task's filters."""

    item: int
    task: str = Field(description="as the dataset's results call it")
    words: list[str] = Field(description="verdicts on its programs, or its judge's words")
    content: str = Field(description="JSON, as in the harness's own files of samples")


class Outcome(Record):
    """Base of all replies.

    A list is refused at its first wrong element. Reporting every error would exhaust memory.
    """

    number: int
    error: str = Field(default="", description="that was raised")


class Seen(Outcome):
    """Fields of a reply to a command for verdicts or samples."""

    verdicts: Annotated[list[LoggedVerdict], FailFast()] = Field(
        default=[], max_length=MOST_VERDICTS
    )
    samples: Annotated[list[LoggedSample], FailFast()] = Field(
        default=[], max_length=SAMPLES_AT_ONCE
    )


class Asked(Outcome):
    """Fields of a reply to a command for questions."""

    questions: Annotated[list[Question], FailFast()] = Field(default=[], max_length=MOST_QUESTIONS)


class Scored(Outcome):
    """Fields of a reply to a command for the scores of items."""

    item_scores: Annotated[list[ItemScores], FailFast()] = Field(default=[], max_length=10_000)


class Reply(Asked, Seen, Scored):
    """The method's return value, or the error that it raised."""

    names: Annotated[list[str], FailFast()] = Field(
        default=[], description="tasks and groups that have scores: of load"
    )
    modules: Annotated[list[str], FailFast()] = Field(
        default=[], description="modules that were imported meanwhile: of load"
    )
    results: DatasetResults | None = None
    built: DatasetRequests | None = None
    cpu_seconds: float = Field(
        default=0.0,
        ge=0,
        allow_inf_nan=False,
        description="that the process took since its last reply, or since it began",
    )
    offline: bool = Field(default=False, description="the error is a `DataMissing`: of build")


def read_reply(line: bytes, command: Command) -> Reply:
    """Return the reply in a line."""
    try:
        # Of a long line, whatever else it has is not looked at.
        if command.work is Work.QUESTIONS:
            reply = Reply.model_construct(**dict(Asked.model_validate_json(line)))
        elif command.work is Work.ITEM_SCORES:
            reply = Reply.model_construct(**dict(Scored.model_validate_json(line)))
        elif command.work in (Work.VERDICTS, Work.SAMPLES):
            reply = Reply.model_construct(**dict(Seen.model_validate_json(line)))
        else:
            reply = Reply.model_validate_json(line)
    except ValidationError as error:
        raise disturbed(command.dataset, "what its process said is not a reply") from error
    if reply.number != command.number:
        raise disturbed(command.dataset, "its process answered another command")
    return reply


def disturbed(dataset: Dataset, what: str) -> RecordError:
    """Return the error about a reply that is not what it should be."""
    return RecordError(
        f"dataset {dataset.name!r}: {what}. Its scoring was disturbed, perhaps by what "
        "the model wrote: it has no scores"
    )


MOST_TIMEOUT_SECONDS = 3600.0
"""Longest time that a question may ask for one program."""


def check_names(results: DatasetResults, names: set[str], dataset: Dataset) -> None:
    """Check that scores concern nothing but the tasks and groups of the dataset."""
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
    """Check that scores of items concern nothing but the tasks and items of the dataset."""
    for table in tables:
        if table.task not in names:
            raise disturbed(dataset, f"its process told of {table.task[:100]!r}")
        if table.items and not (table.items[0] >= 0 and table.items[-1] < items):
            raise disturbed(dataset, "its process gave scores of items that it does not have")


def check_questions(questions: list[Question], dataset: Dataset, judge: str) -> None:
    """Check that questions are what a metric may ask: programs, or a rubric's of its judge.

    Each must have its own id. Programs have a time that can be waited for.
    """
    if dataset.rubric is not None:
        for question in questions:
            _check_judged(question, dataset.rubric, dataset, judge)
        return
    # This module has no heavy imports.
    from coordinate_eval.evaluators.harness.code_eval import program_question
    from coordinate_eval.evaluators.sandbox.toolchains import LANGUAGES

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
    """Check that verdicts concern nothing but the tasks of the dataset."""
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
