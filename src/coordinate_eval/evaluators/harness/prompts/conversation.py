"""Conversations: further questions of a document, and the text between an answer and the next.

A task names them in its `metadata`, and may let a document have its own way of writing:

- `follow_ups`: the field of a document with the list of further user messages.
- `sampling`: the field with generation arguments, which are merged over those of the task.
- `turn_template`: a Jinja text of one turn, with `question`, such as
  "\\n\\nUser: {{question}}\\n\\nAssistant:". It is used where there is no chat template.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.task import Task
from lm_eval.utils import apply_template

from coordinate_eval.evaluators.harness.prompts.generation_arguments import LIMITS

Message = Mapping[str, str]
"""A message of a chat: its `role` and its `content`."""

Chat = Callable[[Sequence[Message]], str]
"""A function that returns a chat as text, with the beginning of the next answer."""


@dataclass(frozen=True)
class Conversation:
    """A task's settings for the turns of its documents."""

    follow_ups: str | None = None
    sampling: str | None = None
    turn_template: str | None = None

    @classmethod
    def of(cls, task: Task) -> "Conversation":
        """Return what the `metadata` of a task says.

        Raises:
            ValueError: it is not text, or the task does not generate.
        """
        metadata = getattr(task.config, "metadata", None)
        given = metadata if isinstance(metadata, dict) else {}
        found = {key: given[key] for key in cls.__annotations__ if given.get(key) is not None}
        for key, value in found.items():
            if not isinstance(value, str):
                raise ValueError(f"{key} in its metadata is not text: {value!r}")
        if found and task.OUTPUT_TYPE != "generate_until":
            raise ValueError(f"its metadata has {', '.join(found)}, but it generates no text")
        return cls(**found)

    def questions(self, document: Mapping[str, Any]) -> list[str]:
        """Return the follow-ups of a document.

        Raises:
            ValueError: they are not a list of texts.
        """
        found = _field(document, self.follow_ups) or []
        if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
            raise ValueError(f"field {self.follow_ups!r} (follow_ups) is no list of texts: {found}")
        return found

    def arguments(self, given: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, Any]:
        """Return generation arguments with those of a document.

        A document's limit replaces the task's by whatever name. Its temperature says whether it is
        sampled, unless it has `do_sample` too.

        Raises:
            ValueError: those of the document are no mapping.
        """
        own = _field(document, self.sampling) or {}
        if not isinstance(own, dict):
            raise ValueError(f"field {self.sampling!r} (sampling) is no mapping: {own!r}")
        # A table has the keys of all rows in each.
        own = {key: value for key, value in own.items() if value is not None}
        replaced = LIMITS if LIMITS & own.keys() else frozenset[str]()
        replaced |= {"do_sample"} if "temperature" in own else set()
        return {key: value for key, value in given.items() if key not in replaced} | own

    def complete(self, instance: Instance, chat: Chat | None) -> None:
        """Give an instance its document's generation arguments, and the text between its turns.

        Raises:
            ValueError: the document or the template does not suit a conversation.
        """
        if self.sampling is not None:
            context, given = instance.args
            instance.arguments = context, self.arguments(given, instance.doc)
        if self.follow_ups is not None:
            instance.arguments += (self._between(self.questions(instance.doc), chat),)

    def _between(self, questions: Sequence[str], chat: Chat | None) -> list[str]:
        if chat is not None:
            return between_turns(chat, questions)
        if questions and self.turn_template is None:
            raise ValueError(
                "it has follow_ups: set chat_template, or turn_template in its metadata"
            )
        return [apply_template(self.turn_template, {"question": each}) for each in questions]

    def plain_chat(
        self, chat_history: Sequence[Message], add_generation_prompt: bool = True
    ) -> str:
        """Return a chat as plain text, each question in the task's own `turn_template`."""
        text = ""
        for message in chat_history:
            content = message["content"]
            if message["role"] == "user":
                text += apply_template(self.turn_template, {"question": content})
            else:
                text += f" {content}" if text else content
        return text.lstrip()


def between_turns(chat: Chat, questions: Sequence[str]) -> list[str]:
    """Return, for each question, what a chat has between the answer before it and its own answer.

    That is the text which a chat template puts there: the end of an assistant's message, the
    question, and the beginning of the next answer.

    Raises:
        ValueError: the template leaves out or changes earlier answers.
    """
    asked: list[Message] = [{"role": "user", "content": "Hello"}]
    found = []
    for number, question in enumerate(questions):
        answer = hashlib.sha256(f"{number} {question}".encode()).hexdigest()
        asked += [{"role": "assistant", "content": answer}, {"role": "user", "content": question}]
        _, *after = chat(asked).split(answer)
        if len(after) != 1:
            raise ValueError(
                f"the chat template shows an earlier answer {len(after)} times, not once and as it "
                "was, so that a conversation cannot go on after it; set chat_template: false, and "
                "turn_template in the task's metadata"
            )
        found += after
    return found


def _field(document: Mapping[str, Any], name: str | None) -> Any:  # noqa: ANN401  what a document has
    if name is None:
        return None
    if name not in document:
        raise ValueError(f"its documents have no field {name!r}, which its metadata names")
    return document[name]
