"""Answers of a baseline, with which a judge compares others, as JSON lines of several shapes."""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import Field
from pydantic_core import from_json

from coordinate_eval.errors import UserError
from coordinate_eval.records import Record

_IDS = ("id", "uid", "question_id")


class BaselineAnswer(Record):
    """A line of `baselines/<dataset>.jsonl`: the answers to one question, one for each turn."""

    id: str = Field(default="", description="of the question; empty while that is not known")
    item: int | None = Field(
        default=None, description="position of the question, where it has no id"
    )
    of_items: int = Field(
        default=0, description="items of the dataset in which it has that position"
    )
    answers: list[str] = Field(min_length=1)


def read_baseline(lines: Iterable[str | bytes], where: str) -> list[BaselineAnswer]:
    """Return the answers in the lines of a file.

    A line names its question by `id`, `uid` or `question_id`. It has an `answer`, or the `answers`
    of all turns, or else the `messages` or `choices` of Arena-Hard's and MT-Bench's own files.

    Raises:
        UserError: a line is malformed, or a question has two; names the line.
    """
    found: dict[str, BaselineAnswer] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            answer = _answer(from_json(line))
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise UserError(
                f"baseline {where}, line {number}: it needs an id, uid or question_id, and an "
                "answer or answers, which are text"
            ) from error
        if answer.id in found:
            raise UserError(f"baseline {where}, line {number}: a second answer to {answer.id!r}")
        found[answer.id] = answer
    return list(found.values())


def _answer(entry: Mapping[str, Any]) -> BaselineAnswer:
    identifier = next((entry[name] for name in _IDS if name in entry), None)
    if isinstance(identifier, bool) or not isinstance(identifier, str | int):
        raise ValueError("the id is no text or number")
    return BaselineAnswer(id=str(identifier), answers=_answers(entry))


def _answers(entry: Mapping[str, Any]) -> list[Any]:
    if "answers" in entry:
        return list(entry["answers"])
    if "answer" in entry:
        return [entry["answer"]]
    if "messages" in entry:
        said = [each["content"] for each in entry["messages"] if each["role"] == "assistant"]
        return [each["answer"] if isinstance(each, Mapping) else each for each in said]
    turns = entry["choices"][0]["turns"]
    return [each["content"] if isinstance(each, Mapping) else each for each in turns]
