"""The chat template of a checkpoint: where it is, and whether it can be used.

Tokenizers take the file `chat_template.jinja`, or else `chat_template` in `tokenizer_config.json`:
a text, or templates with names, of which the one named `default` is for chats. The template of
processors, in `chat_template.json`, stands in for both: the copies of the side files have it as
`chat_template.jinja`.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from coordinate_eval._format import brief
from coordinate_eval.coordinator.inputs.checkpoints import checkpoint_files
from coordinate_eval.evaluators.chat_rendering import Conversation, Rendered, render

IN_FILE, OF_PROCESSOR = "chat_template.jinja", "chat_template.json"
_CONFIG = "tokenizer_config.json"
_IN_CODE = ("tekken.json", "tokenizer.model.v")
"""Files of Mistral's own tokenizers, which have a template in code."""

_SYSTEM = {"role": "system", "content": "Judge with rule 7351"}
_USER = {"role": "user", "content": "What is item 2846"}
_TOKENS: Final = ("bos", "eos", "unk", "pad", "sep", "cls", "mask")


class ChatTemplate(NamedTuple):
    """The template of a checkpoint."""

    text: str = ""
    file: str = ""
    """The file that has it."""
    lack: str = ""
    """The reason why there is no template, as a clause; empty if there is one."""
    in_code: bool = False
    """A tokenizer's code has it, and nothing is known of it here."""


class Tried(NamedTuple):
    """The renderings of a question alone, and of one after a system message."""

    alone: Rendered = Rendered()
    after_system: Rendered = Rendered()


def find(files: Sequence[str]) -> ChatTemplate:
    """Return the template among the side files of a checkpoint.

    Raises:
        UserError: As for `checkpoint_files.read`.
        OSError: As for `checkpoint_files.read`.
    """
    paths = {Path(file).name: Path(file) for file in files}
    lack = ""
    for name in (IN_FILE, _CONFIG, OF_PROCESSOR):
        if name not in paths:
            continue
        content = checkpoint_files.read(paths[name])
        given: object = content.decode(errors="replace")
        if name != IN_FILE:
            found = _json_object(content)
            if "chat_template" not in found:
                continue
            given = found["chat_template"]
        text, why = _default(given)
        if text:
            return ChatTemplate(text, name)
        lack = lack or f"{name} has {why}"
        if name == IN_FILE:  # it counts, whatever others there are
            return ChatTemplate(lack=lack)
    if any(name.startswith(_IN_CODE) for name in paths):
        return ChatTemplate(in_code=True)
    if not lack and any(
        (path.parent / "additional_chat_templates").exists() for path in paths.values()
    ):
        lack = "those in additional_chat_templates are for other purposes"
    return ChatTemplate(lack=lack)


def _default(given: object) -> tuple[str, str]:
    """Return the template for chats, or why it is missing."""
    if isinstance(given, list):
        entries = [each for each in given if isinstance(each, dict)]
        given = {str(each.get("name")): each.get("template") for each in entries}
    if isinstance(given, dict):
        names = brief(", ".join(map(str, given)), 100)
        given = given.get("default")
        if given is None:
            return "", f"templates named {names}, and none named default" if names else "none"
    if given is None:
        return "", "null in its place"
    if not isinstance(given, str):
        return "", "something else than text in its place"
    return (given, "") if given.strip() else ("", "an empty one")


def try_out(template: ChatTemplate, files: Sequence[str]) -> Tried:
    """Render a question with a template, within limits, alone and after a system message."""
    conversations: list[Conversation] = [[_USER], [_SYSTEM, _USER]]
    return Tried(*render(template.text, _special_tokens(files), conversations))


def why_unusable(template: ChatTemplate, files: Sequence[str]) -> str:
    """Return why the template of a checkpoint cannot be used, in a clause; empty if it can."""
    if template.in_code:
        return ""
    if not template.text:
        return f"has no chat template{f' ({template.lack})' if template.lack else ''}"
    return unusable(template, try_out(template, files).alone)


def unusable(template: ChatTemplate, found: Rendered) -> str:
    """Return why a template that was tried cannot be used, in a clause; empty if it can."""
    if found.problem:
        return f"has a chat template that {found.problem} ({template.file})"
    if found.lacks:
        what = "the question" if found.lacks == "user" else "a system message"
        return f"has a chat template that leaves {what} out ({template.file})"
    return ""


def _special_tokens(files: Sequence[str]) -> dict[str, str]:
    """Return the special tokens by the names that templates have for them."""
    found = {f"{name}_token": "" for name in _TOKENS}
    for path in map(Path, files):
        if path.name in (_CONFIG, "special_tokens_map.json"):
            for name, token in _json_object(checkpoint_files.read(path)).items():
                text = token.get("content") if isinstance(token, dict) else token
                if name.endswith("_token") and isinstance(text, str):
                    found[name] = text
    return found


def _json_object(content: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return {}  # that is said where it is copied
    return value if isinstance(value, dict) else {}
