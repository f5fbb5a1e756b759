"""The tokenizer of a checkpoint, with each of its calls noted for whoever watches this process.

Some tasks load the checkpoint's tokenizer themselves, and make texts until they have as many tokens
as they want. So the calls of its whole class are watched. Together they may take as long, and make
as much, as any tokenizer needs for the texts that it is given.
"""

import functools
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from coordinate_eval.evaluators import pulse as pulses
from coordinate_eval.evaluators.harness.prompts.tokenizer import load_tokenizer
from coordinate_eval.evaluators.pulse import Pulse

MOST_PER_CHARACTER: Final = 64
"""Most tokens, or characters of a chat, for one character of the input. Byte fallback gives four
tokens a character, and a compatibility decomposition eighteen characters (U+FDFA)."""

MOST_MORE: Final = 1 << 20
"""Most characters that a template adds to that: its own text."""

MOST_PER_TOKEN: Final = 64
"""Most characters of a long text for one token. A word that a vocabulary lacks is one token."""

LONG: Final = 1 << 16
"""Characters of a long text: a shorter one may be one line of dashes."""

SLOWEST: Final = 10_000.0
"""Characters that all calls get through in a CPU second, at the least. The slowest tokenizer of
transformers that we have measured, `BertJapaneseTokenizer` in Python, cuts 750,000."""

CALL_SECONDS: Final = 0.01
"""CPU seconds that a call may take besides: most take a hundredth of it."""

MOST_FAILURES: Final = 1000
"""Calls that may fail one after the other. A template that refuses a system message fails once for
each item, and is then asked without."""

_LOADING, _CUTTING = b"loading the tokenizer", b"cutting a text into tokens"
_JOINING, _CHAT = b"joining tokens to a text", b"the chat template"
_WATCHED: Final = {
    "__call__": _CUTTING,
    "encode": _CUTTING,
    "tokenize": _CUTTING,
    "decode": _JOINING,
    "batch_decode": _JOINING,
    "apply_chat_template": _CHAT,
}


class WatchedTokenizer:
    """A transformers tokenizer, as far as prompts need it."""

    def __init__(self, folder: Path, pulse: Pulse) -> None:
        """Load the tokenizer. From then on all of its class are watched in this process.

        Raises:
            UserError: there is none, or transformers does not know its class.
        """
        self.watched: Any = pulse.call(_LOADING, load_tokenizer, folder)
        _Limits(pulse).put_on(type(self.watched))
        self.name_or_path = str(folder)
        self.bos_token_id: int | None = self.watched.bos_token_id
        self.eos_token_id: int | None = self.watched.eos_token_id
        self.bos_token: str | None = self.watched.bos_token
        self.eos_token: str | None = self.watched.eos_token
        self.chat_template: object = self.watched.chat_template

    def __call__(self, texts: list[str], **options: bool) -> Mapping[str, list[list[int]]]:
        """Return the tokens of several texts, as `input_ids`."""
        made: Mapping[str, list[list[int]]] = self.watched(texts, **options)
        return made

    def encode(self, text: str, **options: bool) -> list[int]:
        """Return the tokens of a text."""
        tokens: list[int] = self.watched.encode(text, **options)
        return tokens

    def decode(self, tokens: int | list[int]) -> str:
        """Return the text of tokens."""
        text: str = self.watched.decode(tokens)
        return text

    def apply_chat_template(self, messages: list[dict[str, str]], **options: bool) -> str:
        """Return a chat as text.

        Raises:
            TemplateError: the template refuses it.
        """
        text: str = self.watched.apply_chat_template(messages, **options)
        return text


class _Limits:
    """Notes calls, and has this process ended when they take too long or make too much."""

    def __init__(self, pulse: Pulse) -> None:
        self._pulse = pulse
        self._inside = False
        self._failures = 0
        self._spent = self._allowed = 0.0

    def put_on(self, kind: type) -> None:
        """Watch a class of tokenizers."""
        for name, what in _WATCHED.items():
            method = getattr(kind, name)
            setattr(kind, name, self._watched(what, getattr(method, "unwatched", method)))

    def _watched(self, what: bytes, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*args: Any, **options: Any) -> Any:  # noqa: ANN401  as the method
            if self._inside:
                return method(*args, **options)
            began, self._inside = time.process_time(), True
            try:
                made = self._pulse.call(what, method, *args, **options)
            except Exception:
                self._failures += 1
                if self._failures > MOST_FAILURES:
                    self._pulse.end(f"{what.decode()} failed {MOST_FAILURES:,} times in a row")
                raise
            finally:
                self._inside = False
            self._failures = 0
            given = _characters([*args[1:], *options.values()])  # after the tokenizer itself
            self._check_time(what, time.process_time() - began, given)
            if not options.get("truncation"):
                self._check_size(what, _size(made), given)
            return made

        call.unwatched = method  # type: ignore[attr-defined]
        return call

    def _check_time(self, what: bytes, seconds: float, given: int) -> None:
        self._spent += seconds
        self._allowed += CALL_SECONDS + given / SLOWEST
        if self._spent > self._allowed + pulses.CPU_SECONDS:
            self._pulse.end(f"{what.decode()} takes {self._spent:.0f} seconds in all")

    def _check_size(self, what: bytes, made: int | None, given: int) -> None:
        if made is None or what == _JOINING:
            return
        few = what == _CUTTING and given > LONG and made * MOST_PER_TOKEN < given
        if few or made > MOST_MORE + MOST_PER_CHARACTER * given:
            self._pulse.end(f"{what.decode()} makes {made:,} of {given:,} characters")


def _characters(given: object) -> int:
    """Return the characters of texts and of chats; a token counts as one."""
    if isinstance(given, str):
        return len(given)
    if isinstance(given, Mapping):
        given = list(given.values())
    return sum(map(_characters, given)) if isinstance(given, list | tuple) else 1


def _size(made: object) -> int | None:
    """Return the number of tokens, or of characters of a chat; None for another kind of result."""
    if isinstance(made, str):
        return len(made)
    if isinstance(made, Mapping):
        made = made.get("input_ids")
    if not isinstance(made, list):
        return None
    return sum(map(len, made)) if made and isinstance(made[0], list) else len(made)


def unusable(folder: Path, why: str) -> str:
    """Return what to tell the user of a tokenizer whose calls have no end."""
    return (
        f"the tokenizer in {folder} cannot be used: {why}. It is damaged or malicious: compare its "
        "tokenizer.json and its chat template with the model's, or name another folder with "
        "--tokenizer"
    )
