"""The messages between those who ask processes of the harness and these: JSON, a line each.

A process reads a `Setup` on standard input. `Command`s come over a pipe, and each is answered with
one `Reply` over another. Responses and answers are files, which a process gets opened.

What the model wrote may run inside such a process. A reply is therefore data, checked by the one
who asked: its size and its shape here, what it is about in `checks.py`.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import FailFast, Field, ValidationError

from coordinate_eval.errors import RecordError
from coordinate_eval.records import (
    Dataset,
    DatasetRequests,
    DatasetResults,
    ItemScores,
    Question,
    Record,
)

MOST_REPLY_BYTES = 4 << 20
"""Longest reply: the scores of a group of a thousand tasks take a tenth of it."""

MOST_LONG_REPLY_BYTES = 256 << 20
"""Longest reply with questions, with the offsets of what was built, or with the scores of items:
thirty thousand programs of some kilobytes each."""

MOST_QUESTIONS = 200_000
"""Most questions of one reply. As records, small ones take thirty times the bytes that say them."""

MOST_VERDICTS = 500_000
"""Most documents, times the filters of their task, of which samples are shown."""

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
    FINISH_PART = "finish_part"
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

    A list is refused at its first wrong element: to note each takes two hundred times its bytes.
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

    item_scores: Annotated[list[ItemScores], FailFast()] = Field(default=[])


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
    """Return the reply in a line.

    Raises:
        RecordError: it is no reply to this command.
    """
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
