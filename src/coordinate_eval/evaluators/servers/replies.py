"""A reply of a server: an answer, a reason to ask again, or one to ask no more.

Nothing in it is trusted: not its size, its shape, or its headers.
"""

import contextlib
import email.utils
import json
import os
import re
import zlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from coordinate_eval._format import brief
from coordinate_eval.errors import ServerRefuses, with_causes
from coordinate_eval.evaluators.servers.access import Access

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
    """The server will never answer this question. The text has its words."""


class TooMuch(Declined):
    """The question, with the answer that it asks for, is too long for the server."""


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
        Declined: the server will never answer this question.
        ServerRefuses: it would answer no question.
    """
    status, words = reply.status, words_of(reply.text)
    said = f"{words or 'no reason given'} (HTTP {status} from {access.base_url})"
    if 200 <= status < 300:
        return
    if status in (400, 403) and _AGAINST_POLICY.search(words):
        raise Declined(said)
    if status in (401, 403):
        # Some servers repeat a part of the key.
        raise ServerRefuses(
            f"{access.who} at {access.base_url} refuses the key (HTTP {status}): set the variable "
            f"that [{access.section}] api_key_env names, and export it"
        )
    if status == 404 or (status == 400 and _NO_SUCH_MODEL.search(reply.text)):
        raise unknown_model(access, said)
    if status in _REFUSED or (status == 400 and _TOO_LONG.search(words)):
        raise TooMuch(said)
    if 300 <= status < 400:
        to = brief(reply.headers.get("location", "somewhere else"), MOST_WORDS)
        raise ServerRefuses(
            f"{access.who} at {access.base_url} sends its questions to {to} (HTTP {status}), and "
            f"the key is not sent there: set [{access.section}] base_url to where it is"
        )
    if status in _ASK_AGAIN or status >= 500:
        later = retry_after(reply.headers.get("retry-after", ""))
        raise TryAgain(said, retry_after=later, busy=status in (429, 503))
    raise ServerRefuses(f"{access.who} answers no such questions: {said}")


def unknown_model(access: Access, said: str) -> ServerRefuses:
    """Return the error of a server that does not have the model."""
    return ServerRefuses(
        f"{access.who} at {access.base_url} has no model {brief(access.model, 200)!r}: {said}. "
        f"Set [{access.section}] base_url up to and with /v1 and resume the run, or "
        "start a new one with a model that it has"
    )


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


def json_value(text: str) -> Any:  # noqa: ANN401 - any JSON value
    """Return a JSON value, None for a text that is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def clean(text: str) -> str:
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
    return clean(str(error)[: 10 * MOST_WORDS])


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
    for each in with_causes(error):
        if isinstance(each, OSError) and each.errno and each.errno > 0:
            return os.strerror(each.errno).lower()
        if isinstance(each, OSError) and each.strerror:  # of a name that is not known
            return brief(each.strerror, MOST_WORDS).lower()
    return f"{brief(error, MOST_WORDS) or 'a broken connection'} ({type(error).__name__})"
