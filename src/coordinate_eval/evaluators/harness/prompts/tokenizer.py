"""The tokenizer of a checkpoint, loaded without running the checkpoint's own code, and watched.

Its files may be damaged or malicious: a call may not end, or may make very much of very little. So
each call is noted for another process, which ends this one. Some tasks load the tokenizer
themselves, and make texts until they have as many tokens as they want. So the calls of its whole
class are watched. Together they may take as long, and make as much, as any tokenizer needs for the
texts that it is given.
"""

import functools
import inspect
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from coordinate_eval.errors import UserError
from coordinate_eval.evaluators import own_code
from coordinate_eval.evaluators import pulse as pulses
from coordinate_eval.evaluators.around_import import around_import, hidden
from coordinate_eval.evaluators.pulse import Pulse, is_panic

_NO_ADVICE = "TRANSFORMERS_NO_ADVISORY_WARNINGS"
_ADVICE = "Put the tokenizer's files beside the weights, or name their folder with --tokenizer"


def load_tokenizer(folder: Path) -> Any:  # noqa: ANN401  one of many classes of transformers
    """Load the tokenizer of a checkpoint without running the checkpoint's own code.

    Raises:
        UserError: there is none, or transformers does not know its class.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerBase

    own_code.refuse()
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        words = f"{error}{own_code.note(folder, error)}"
        raise UserError(
            f"the tokenizer in {folder} cannot be loaded: {words}\n{_ADVICE}"
        ) from error
    code = own_code.named(folder).get("AutoTokenizer")
    if code and not _has_class(folder):
        raise UserError(
            f"the tokenizer in {folder} is code of its own ({code}), which is never run\n{_ADVICE}"
        )
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise UserError(
            f"the tokenizer in {folder} names the class {type(tokenizer).__name__}, which is no "
            f"tokenizer\n{_ADVICE}"
        )
    return tokenizer


def has_chat_template(tokenizer: Any) -> bool:  # noqa: ANN401  one of many classes
    """Return whether a tokenizer has a chat template: in a file, or in code as Mistral's.

    Of templates with names only `default` is for chats. An empty template does not count.
    """
    from transformers import PreTrainedTokenizerBase

    of_all = PreTrainedTokenizerBase.apply_chat_template
    # Its calls may be watched: then its class has a function around that of its own.
    own = inspect.unwrap(type(tokenizer).apply_chat_template) is not inspect.unwrap(of_all)
    given = tokenizer.chat_template
    return own or bool(given.get("default") if isinstance(given, dict) else given)


def tokenizers_alone() -> None:
    """Have transformers load in this process as it does where there is no PyTorch.

    It has its tokenizers there, and no models, whose modules take four times as long to import.
    PyTorch itself can be imported afterwards.
    """
    around_import("transformers", _without_torch)


@contextmanager
def _without_torch() -> Iterator[None]:
    """Hide PyTorch, and the advice to install it."""
    advice = os.environ.get(_NO_ADVICE)
    os.environ[_NO_ADVICE] = "1"
    try:
        with hidden("torch"):
            yield
    finally:
        if advice is None:
            del os.environ[_NO_ADVICE]
        else:
            os.environ[_NO_ADVICE] = advice


def _has_class(folder: Path) -> bool:
    """Return whether transformers has a class for a tokenizer whose code is not run.

    Otherwise it would take a general one, which may cut texts into other tokens. The rule is that
    of its `AutoTokenizer.from_pretrained` for a checkpoint whose code is not trusted.
    """
    import transformers
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

    name = str(own_code.json_object(folder / "tokenizer_config.json").get("tokenizer_class", ""))
    name = name.removesuffix("Fast")
    if name and (hasattr(transformers, name) or hasattr(transformers, f"{name}Fast")):
        return True
    kind = own_code.json_object(folder / "config.json").get("model_type")
    return isinstance(kind, str) and kind in TOKENIZER_MAPPING_NAMES


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
"""CPU seconds that each call may take in addition. Most calls take a hundredth of that."""

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


def load_watched(folder: Path, pulse: Pulse) -> Any:  # noqa: ANN401  as above
    """Load a tokenizer as `load_tokenizer` does, and watch all of its class in this process."""
    tokenizer = pulse.call(_LOADING, load_tokenizer, folder)
    _Limits(pulse).put_on(type(tokenizer))
    return tokenizer


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
