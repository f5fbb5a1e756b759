"""Read a reply of a judge's server: words, a refusal, or nothing."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from coordinate_eval._format import brief
from coordinate_eval.evaluators.servers.access import Access
from coordinate_eval.evaluators.servers.replies import (
    MOST_WORDS,
    Declined,
    Reply,
    TryAgain,
    check_status,
    clean,
    json_value,
    words_of,
)

_RAN_OUT = re.compile(r"could not finish the message|output limit (was|is) reached", re.IGNORECASE)
"""The error of OpenAI's servers for a model that has thought for all of its tokens."""

_CUT = ("length", "max_tokens", "max_output_tokens", "model_length")
"""`finish_reason` of what its limit has ended."""

_BROKEN = ("error", "abort")
"""`finish_reason` of a part of an answer, after a failure: of OpenRouter, vLLM and SGLang."""

_FILTERED = re.compile(r"content.?filter|safety|prohibited|blocklist|recitation|refusal|sensitive")
"""`finish_reason` of what a filter keeps back: of OpenAI's servers, and of others that speak so."""


class Completion(NamedTuple):
    """The words of a judge, and the tokens that it read and wrote."""

    words: str
    tokens: int | None
    """None if the server does not tell."""
    cut: bool = False
    """It ran out of tokens."""
    without: tuple[str, ...] = ()
    """Parameters of the question that it was not given."""


def read_reply(reply: Reply, access: Access) -> Completion:
    """Return what the reply to a question says.

    Raises as `check_status` and `read_completion` do.
    """
    if reply.status == 400 and _RAN_OUT.search(words_of(reply.text)):
        return Completion("", None, cut=True)
    check_status(reply, access)
    if reply.cut:
        read = len(reply.text) >> 10
        raise TryAgain(f"more than {read} KiB from {access.base_url}", odd=True)
    return read_completion(reply.text, access.base_url)


def read_completion(text: str, where: str) -> Completion:
    """Return what a completion says. Thinking that the server keeps apart from it is left out.

    Raises:
        TryAgain: the reply is no completion, or says nothing for no reason.
        Declined: a filter of the server, or the judge, has declined to answer.
    """
    value = json_value(text)
    choices = value.get("choices") if isinstance(value, dict) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(value, dict) or not isinstance(first, dict):
        raise TryAgain(_no_answer(text, where), odd=isinstance(choices, list))
    finish = str(first.get("finish_reason") or first.get("native_finish_reason")).lower()
    if _FILTERED.search(finish):
        raise Declined(f"its content filter (from {where})")
    if finish in _BROKEN:
        raise TryAgain(f"an answer that an error has ended from {where}", odd=True)
    cut, message = finish in _CUT, first.get("message")
    if not isinstance(message, dict):
        if not cut:
            raise TryAgain(_no_answer(text, where), odd=True)
        message = {}
    words, refusal = _text_and_refusal(message)
    if refusal and not words:
        raise Declined(brief(clean(refusal), MOST_WORDS))
    if not words and not cut:
        if message.get("tool_calls") or message.get("function_call"):
            raise Declined(f"it calls a tool, and says nothing (from {where})")
        if not isinstance(message.get("content"), str) and not _has_thinking(message):
            raise TryAgain(f"an answer without words from {where}", odd=True)
    usage = value.get("usage")
    return Completion(clean(words), _count(usage) if isinstance(usage, dict) else None, cut)


def _no_answer(text: str, where: str) -> str:
    return f"no answer but {words_of(text) or 'nothing'!r} from {where}"


def _text_and_refusal(message: Mapping[str, Any]) -> tuple[str, str]:
    """Return the text of a message, which may come in parts, and its refusal."""
    content, said, refused = message.get("content"), [], [message.get("refusal")]
    parts = content if isinstance(content, list) else [content]
    for part in parts:
        if isinstance(part, dict):
            if part.get("type", "text") in _TEXT_PARTS:
                said.append(part.get("text"))
            refused.append(part.get("refusal"))
        else:
            said.append(part)
    return _joined(said), _joined(refused)


def _joined(values: Sequence[object]) -> str:
    return "".join(value for value in values if isinstance(value, str))


def _has_thinking(message: Mapping[str, Any]) -> bool:
    """Return whether a message has nothing but thinking, which its server keeps apart."""
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    kinds = {str(part.get("type")) for part in parts if isinstance(part, dict)}
    return bool(_THINKING_PARTS & kinds) or any(message.get(name) for name in _THINKING_FIELDS)


_TEXT_PARTS = ("text", "output_text")
_THINKING_PARTS = {"thinking", "reasoning", "redacted_thinking"}
_THINKING_FIELDS = ("reasoning_content", "reasoning", "reasoning_details", "thinking")


def _count(usage: Mapping[str, object]) -> int | None:
    """Return the tokens of question and answer; None if the server does not count them."""
    tokens = 0
    for name in ("prompt_tokens", "completion_tokens"):
        count = usage.get(name)
        if not isinstance(count, int) or not 0 <= count < 1 << 40:
            return None
        tokens += count
    return tokens
