"""A reply of a judge's server: an answer, a reason to ask again, or one to ask no more.

Nothing in it is trusted: not its size, its shape, or its headers.
"""

import contextlib
import email.utils
import json
import os
import re
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from coordinate_eval._format import brief
from coordinate_eval.errors import JudgeRefuses
from coordinate_eval.evaluators.judged.access import Access

MOST_WORDS: Final = 300
"""Characters of the server's own words within a message."""

_TOO_LONG = re.compile(
    r"context.{0,3}(length|window|size)|maximum.{0,40}(token|length)|too (long|large|many tokens)"
    r"|exceed.{0,40}(token|length|context)|max_model_len",
    re.IGNORECASE | re.DOTALL,
)
_AGAINST_POLICY = re.compile(
    r"content.{0,3}(policy|filter|management)|moderation|flagged|usage polic|safety",
    re.IGNORECASE | re.DOTALL,
)
_NO_SUCH_MODEL = re.compile(
    r"model_not_found|invalid_model|unknown model|(no such|invalid) model"
    r"|model.{0,200}(does not exist|not (found|exist|available))",
    re.IGNORECASE | re.DOTALL,
)
_RAN_OUT = re.compile(r"could not finish the message|output limit (was|is) reached", re.IGNORECASE)
"""The error of OpenAI's servers for a model that has thought for all of its tokens."""

_CUT = ("length", "max_tokens", "max_output_tokens", "model_length")
"""`finish_reason` of what its limit has ended."""

_BROKEN = ("error", "abort")
"""`finish_reason` of a part of an answer, after a failure: of OpenRouter, vLLM and SGLang."""

_FILTERED = re.compile(r"content.?filter|safety|prohibited|blocklist|recitation|refusal|sensitive")
"""`finish_reason` of what a filter keeps back: of OpenAI's servers, and of others that speak so."""

_AGAINST_NAME = re.compile(
    r"unsupported|(not|n't|no longer) (be )?support|deprecat|un(known|recogni[sz]ed|expected)"
    r"|extra|not (permitted|allowed)|instead|cannot be (set|used|specified)|不支持",
    re.IGNORECASE,
)
_AGAINST_VALUE = re.compile(
    r"\bonly\b|invalid|illegal|\bmust\b|should|has to|strictly|less than|greater than"
    r"|range|fixed|default|必须|非法|无效|范围|取值",
    re.IGNORECASE,
)
_NEAR = 120
"""Characters between the name of a parameter and what is wrong with it."""

_ASK_AGAIN = frozenset({408, 409, 425, 429})
_REFUSED = frozenset({413, 422})

_COMPRESSED = frozenset({"gzip", "x-gzip", "deflate"})
_ANY_HEADER = zlib.MAX_WBITS | 32
"""Lets zlib find out which of them it is."""


class TryAgain(Exception):
    """No usable answer this time. An `odd` one is whole, and will hardly be another one later."""

    def __init__(
        self, why: str, *, retry_after: float | None = None, busy: bool = False, odd: bool = False
    ) -> None:
        super().__init__(why)
        self.retry_after, self.busy, self.odd = retry_after, busy, odd


class Declined(Exception):
    """The judge will never answer this question. The text has its words."""


class TooMuch(Declined):
    """The question, with the answer that it asks for, is too long for the judge."""


@dataclass(frozen=True)
class Reply:
    """A reply without the key, which some servers repeat."""

    status: int
    headers: Mapping[str, str]
    text: str
    cut: bool
    """It was longer than is read."""


def real_status(status: int, text: str) -> int:
    """Return the status of a reply: that of the error in it, where a server says 200 besides.

    OpenRouter's and others' errors have a numeric `code`.
    """
    value = json_value(text) if status == 200 and '"error"' in text else None
    error = value.get("error") if isinstance(value, dict) and not value.get("choices") else None
    code = error.get("code") if isinstance(error, dict) else None
    return code if type(code) is int and 400 <= code < 600 else status


async def read_bounded(chunks: AsyncIterator[bytes], most_bytes: int) -> tuple[bytes, bool]:
    """Return the bytes up to a number, and whether there were more."""
    content = bytearray()
    async for chunk in chunks:
        content += chunk
        if len(content) > most_bytes:
            return bytes(content[:most_bytes]), True
    return bytes(content), False


def is_compressed(headers: Mapping[str, str]) -> bool:
    """Return whether a reply is compressed in a way that can be read."""
    return headers.get("content-encoding", "").strip().lower() in _COMPRESSED


def decompressed(content: bytes, most_bytes: int) -> tuple[bytes, bool]:
    """Return the decompressed bytes up to a number, and whether there were more.

    A few of them may stand for gigabytes. What is not compressed stays as it is.
    """
    try:
        found = zlib.decompressobj(_ANY_HEADER).decompress(content, most_bytes + 1)
    except zlib.error:
        return content, False
    return found[:most_bytes], len(found) > most_bytes


def check_status(reply: Reply, access: Access) -> None:
    """Check the status of a reply.

    Raises:
        TryAgain: the same question may be answered next time.
        Declined: the judge will never answer this question.
        JudgeRefuses: it would answer no question.
    """
    status, words = reply.status, words_of(reply.text)
    said = f"{words or 'no reason given'} (HTTP {status} from {access.base_url})"
    if 200 <= status < 300:
        return
    if status in (400, 403) and _AGAINST_POLICY.search(words):
        raise Declined(said)
    if status in (401, 403):
        # Some servers repeat a part of the key.
        raise JudgeRefuses(
            f"the judge at {access.base_url} refuses the key (HTTP {status}): set the variable "
            f"that [{access.section}] api_key_env names, and export it"
        )
    if status == 404 or (status == 400 and _NO_SUCH_MODEL.search(reply.text)):
        raise unknown_model(access, said)
    if status in _REFUSED or (status == 400 and _TOO_LONG.search(words)):
        raise TooMuch(said)
    if 300 <= status < 400:
        to = brief(reply.headers.get("location", "somewhere else"), MOST_WORDS)
        raise JudgeRefuses(
            f"the judge at {access.base_url} sends its questions to {to} (HTTP {status}), and the "
            f"key is not sent there: set [{access.section}] base_url to where it is"
        )
    if status in _ASK_AGAIN or status >= 500:
        later = retry_after(reply.headers.get("retry-after", ""))
        raise TryAgain(said, retry_after=later, busy=status in (429, 503))
    raise JudgeRefuses(f"the judge answers no such questions: {said}")


def unknown_model(access: Access, said: str) -> JudgeRefuses:
    """Return the error of a judge that does not have the model."""
    return JudgeRefuses(
        f"the judge at {access.base_url} has no model {brief(access.model, 200)!r}: {said}. "
        f"Set [{access.section}] base_url up to and with /v1 and resume the run, or "
        "start a new one with a model that it has"
    )


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
        raise Declined(brief(_clean(refusal), MOST_WORDS))
    if not words and not cut:
        if message.get("tool_calls") or message.get("function_call"):
            raise Declined(f"it calls a tool, and says nothing (from {where})")
        if not isinstance(message.get("content"), str) and not _has_thinking(message):
            raise TryAgain(f"an answer without words from {where}", odd=True)
    usage = value.get("usage")
    return Completion(_clean(words), _count(usage) if isinstance(usage, dict) else None, cut)


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


def is_refused_parameter(reply: Reply, name: str, *, value: bool) -> bool:
    """Return whether a server refuses a question because of a parameter that it names.

    Servers word that in many ways. With `value`, what it says may be about the parameter's value.
    """
    if reply.status < 400 or reply.status in (401, 403, 404, 429):
        return False
    about = _error_in(reply.text)
    if value and isinstance(about, dict) and str(about.get("param")).rpartition(".")[2] == name:
        return True
    words = _said(about)
    return any(
        _AGAINST_NAME.search(near) or (value and _AGAINST_VALUE.search(near))
        for found in re.finditer(rf"(?<![A-Za-z_]){name}(?![A-Za-z_])", words, re.IGNORECASE)
        for near in [words[max(0, found.start() - _NEAR) : found.end() + _NEAR]]
    )


def _count(usage: Mapping[str, object]) -> int | None:
    """Return the tokens of question and answer, None if a server's figures are none."""
    tokens = 0
    for name in ("prompt_tokens", "completion_tokens"):
        count = usage.get(name)
        if not isinstance(count, int) or not 0 <= count < 1 << 40:
            return None
        tokens += count
    return tokens


def json_value(text: str) -> Any:  # noqa: ANN401 - any JSON value
    """Return a JSON value, None for a text that is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _clean(text: str) -> str:
    """Return a text without halves of characters, which no file can hold."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def words_of(text: str) -> str:
    """Return what a server says is wrong, on one line and bounded."""
    return brief(_said(_error_in(text)), MOST_WORDS)


def _error_in(text: str) -> Any:  # noqa: ANN401  any JSON value, or the text
    value = json_value(text)
    return value.get("error", value) if isinstance(value, dict) else text


def _said(error: object) -> str:
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error
    return _clean(str(error)[: 10 * MOST_WORDS])


def retry_after(text: str) -> float | None:
    """Return the seconds of `Retry-After`: a number, or a date (RFC 9110, section 10.2.3)."""
    if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text.strip()):
        return float(text)
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        date = email.utils.parsedate_to_datetime(text)
        date = date if date.tzinfo else date.replace(tzinfo=UTC)
        return max(0.0, (date - datetime.now(UTC)).total_seconds())
    return None


def reason_of(error: Exception) -> str:
    """Return what went wrong with a connection: the system's words if there are some."""
    for each in _chain(error):
        if isinstance(each, OSError) and each.errno and each.errno > 0:
            return os.strerror(each.errno).lower()
        if isinstance(each, OSError) and each.strerror:  # of a name that is not known
            return brief(each.strerror, MOST_WORDS).lower()
    return f"{brief(error, MOST_WORDS) or 'a broken connection'} ({type(error).__name__})"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and what caused it, groups included."""
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            for each in error.exceptions:
                yield from _chain(each)
        error = error.__cause__ or error.__context__
