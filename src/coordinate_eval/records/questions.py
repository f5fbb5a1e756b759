"""A metric's questions about responses, to run a program or ask a judge, and the answers."""

from enum import StrEnum

from pydantic import Field

from coordinate_eval.records.base import Record


class QuestionKind(StrEnum):
    """The kinds of expensive work in a metric that can be done item by item."""

    PROGRAM = "program"
    JUDGE = "judge"


PYTHON = "python"
"""The language of programs, unless a question names another."""


class Question(Record):
    """One piece of expensive work for a metric, identified by its content."""

    id: str = Field(
        description="sha256 of kind, content, timeout, and language but for Python; for a judge of "
        "kind, judge and content"
    )
    kind: QuestionKind
    content: str = Field(
        description="program to run; or JSON for a judge: messages, temperature, max_tokens"
    )
    timeout_seconds: float = 0.0
    language: str = Field(default=PYTHON, description="of the program")
    judge: str = Field(default="", description="model and revision of the judge")


def judge_name(model: str, revision: str) -> str:
    """Return the name of a judge in questions."""
    return f"{model}@{revision}" if revision else model


class Answer(Record):
    """The outcome of a question."""

    id: str
    passed: bool = Field(description="the program passed, or the judge answered")
    result: str = Field(
        description="'passed', 'timed out' or 'failed: …'; or the judge's words, or why it refused"
    )
    seconds: float
    tokens: int = Field(default=0, description="that the judge read and wrote")
    kept: bool = Field(default=False, description="an earlier run had asked the judge")
    cut: bool = Field(default=False, description="the judge ran out of the tokens of an answer")
    without: list[str] = Field(
        default=[], description="parameters that the judge's server refuses, and was not given"
    )
    cpu_seconds: float = Field(default=0.0, description="CPU time of a program that timed out")
    toolchain: str = Field(default="", description="version of the compiler; empty for Python")
