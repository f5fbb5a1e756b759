"""Messages to a judge, made of documents that nobody vouches for."""

import pytest

from coordinate_eval.errors import UserError
from coordinate_eval.evaluators.judged.prompts import Prompts
from coordinate_eval.records import Message, Rubric


def filled(template: str, answer: str) -> str:
    """Return what a rubric whose instructions are a field of the document tells the judge."""
    message = Message(role="user", content="{{ template.format(answer=answer) }}")
    rubric = Rubric(name="r", prompts={"p": [message]}, patterns=["(.)"])
    fields = {"template": template, "answer": answer}
    return Prompts(rubric).filled("a document", fields)["p"][0].content


@pytest.mark.parametrize(
    "template",
    [
        "{answer.__class__}",
        "{answer.__class__.__mro__}",
        "{answer[0].__class__}",
        "{answer:>999999999}",
        "{answer!r:>99999999999}",
        "{answer:{answer}}",
        "{0}",
        "{answer",
    ],
)
def test_instructions_of_a_document_can_only_name_its_fields(template: str) -> None:
    with pytest.raises(UserError, match="cannot make its prompt 'p' of a document"):
        filled(template, "999999999")


@pytest.mark.parametrize("answer", ["{answer}", "{{ 7 * 7 }}", "{% for %}", "{", "}}", "%s", "\0"])
def test_an_answer_is_no_template(answer: str) -> None:
    assert filled("A {answer:>3} B", answer) == f"A {answer:>3} B"


def test_halves_of_characters_are_replaced() -> None:
    assert filled("{answer}", "a\ud800") == "a?"
