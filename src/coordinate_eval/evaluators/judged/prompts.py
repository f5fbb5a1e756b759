"""Questions to a judge: the messages of a rubric, filled in with a document and its answers.

A rubric is the user's own. Documents and answers are not: they are values in its templates, never
templates, and what they make of one has a limit of size and time.
"""

import hashlib
import json
import re
import string
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateError, TemplateSyntaxError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from coordinate_eval.errors import UserError
from coordinate_eval.records import Message, Question, QuestionKind, Rubric

MOST_CHARACTERS = 4_000_000
"""Longest message to a judge: more than any judge reads."""

MOST_SECONDS = 10.0
"""Most CPU time to fill in a message, which mostly takes less than a millisecond."""

PLACEHOLDER = "(an answer)"
"""Stands for an answer where prompts are tried before there are any."""

_UNBOUNDED = re.compile(r"\{|\d{5}")
"""A width or precision of `str.format` that a value gives, or of many digits."""


class _Environment(ImmutableSandboxedEnvironment):
    """A sandbox in which a text of a document that is a template of `str.format` is bounded, too.

    Its fields are looked up as those of a template are; a width could still fill all memory.
    """

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:  # noqa: ANN401  as there
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            for _, _, form, _ in string.Formatter().parse(value.__self__):
                if form and _UNBOUNDED.search(form):
                    raise ValueError(f"{form[:100]!r} is no width that a text may have")
        return wrapped


_ENVIRONMENT = _Environment(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True)


class TooLong(Exception):
    """A message exceeds its limit of size or time."""


def check_template(text: str) -> None:
    """Check the syntax of a template.

    Raises:
        ValueError: It is wrong; has the line in the template, where there is one.
    """
    try:
        _ENVIRONMENT.from_string(text)
    except TemplateSyntaxError as error:
        raise ValueError(f"line {error.lineno} of it: {error.message}") from error
    except RecursionError as error:
        raise ValueError("too many brackets or operators within each other") from error


def names_in(text: str) -> set[str]:
    """Return the values that a template of right syntax may use, also where it does so at times."""
    return meta.find_undeclared_variables(_ENVIRONMENT.parse(text))


class Prompts:
    """The compiled messages of a rubric."""

    def __init__(self, rubric: Rubric) -> None:
        """Compile the templates."""
        self._rubric = rubric
        self._templates = {
            name: [(message.role, _ENVIRONMENT.from_string(message.content)) for message in prompt]
            for name, prompt in rubric.prompts.items()
        }

    def filled(self, where: str, fields: Mapping[str, Any]) -> dict[str, list[Message]]:
        """Return the messages of each prompt. One whose last message is blank is not asked.

        Raises:
            TooLong: a message exceeds its limits.
            UserError: the templates need what the document lacks.
        """
        found = {}
        for name, templates in self._templates.items():
            try:
                messages = [
                    Message(role=role, content=_rendered(template, fields))
                    for role, template in templates
                ]
            except TooLong:
                raise
            except Exception as error:  # a template calls methods of values, such as str.format
                raise UserError(
                    f"rubric {self._rubric.name!r} cannot make its prompt {name!r} of {where}: "
                    f"{_why(error)}"
                ) from error
            if messages[-1].content.strip():
                found[name] = messages
        return found


def judge_question(judge: str, rubric: Rubric, messages: Sequence[Message]) -> Question:
    """Return the question that asks a judge these messages."""
    content = {
        "messages": [message.model_dump() for message in messages],
        "temperature": rubric.temperature,
        "max_tokens": rubric.max_tokens,
    }
    return question_of(judge, json.dumps(content, ensure_ascii=False, separators=(",", ":")))


def question_of(judge: str, content: str) -> Question:
    """Return the question to a judge with this content. Its id is a hash of both."""
    known_by = json.dumps([QuestionKind.JUDGE.value, judge, content], separators=(",", ":"))
    return Question(
        id=hashlib.sha256(known_by.encode()).hexdigest(),
        kind=QuestionKind.JUDGE,
        content=content,
        judge=judge,
    )


def rubric_digest(rubric: Rubric) -> str:
    """Return 16 hex digits of the sha256 of a rubric."""
    return hashlib.sha256(rubric.model_dump_json().encode()).hexdigest()[:16]


def _rendered(template: Template, fields: Mapping[str, Any]) -> str:
    until = time.thread_time() + MOST_SECONDS
    pieces, left = [], MOST_CHARACTERS
    for piece in template.generate(fields):
        pieces.append(piece)
        left -= len(piece)
        if left < 0 or time.thread_time() > until:
            raise TooLong
    # Half a pair of UTF-16, which JSON may hold, is no text that can be sent.
    return "".join(pieces).encode("utf-8", "replace").decode()


def _why(error: Exception) -> str:
    if isinstance(error, KeyError):  # of str.format, in a template that is data
        return f"{error} is undefined"
    words = " ".join(str(error).split())
    return words if isinstance(error, TemplateError) else f"{type(error).__name__}: {words}"
