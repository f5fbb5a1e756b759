"""The tokenizer of a checkpoint, with each of its calls noted for whoever watches this process."""

from pathlib import Path
from typing import Any, Final

from coordinate_eval.errors import UserError
from coordinate_eval.evaluators.harness.tokenizer import load_tokenizer
from coordinate_eval.evaluators.pulse import Pulse

MOST_PER_CHARACTER: Final = 64
"""Most tokens, or characters of a chat, for one character of the input. Byte fallback gives four
tokens a character, and a compatibility decomposition eighteen characters (U+FDFA)."""

MOST_MORE: Final = 1 << 20
"""What a template may add to that: its own text."""

_LOADING, _CUTTING = b"loading the tokenizer", b"cutting a text into tokens"
_JOINING, _CHAT = b"joining tokens to a text", b"the chat template"


class WatchedTokenizer:
    """What prompts are made with of a tokenizer of transformers."""

    def __init__(self, folder: Path, pulse: Pulse) -> None:
        """Load the tokenizer.

        Raises:
            UserError: there is none, or transformers does not know its class.
        """
        self._pulse, self._folder = pulse, folder
        self._tokenizer: Any = pulse.call(_LOADING, load_tokenizer, folder)
        self.name_or_path = str(folder)
        self.bos_token_id: int | None = self._tokenizer.bos_token_id
        self.eos_token_id: int | None = self._tokenizer.eos_token_id
        self.bos_token: str | None = self._tokenizer.bos_token
        self.eos_token: str | None = self._tokenizer.eos_token

    def encode(self, text: str, **options: bool) -> list[int]:
        """Return the tokens of a text.

        Raises:
            UserError: they are more than those of any text of this length.
        """
        tokens: list[int] = self._pulse.call(_CUTTING, self._tokenizer.encode, text, **options)
        self._check_size(_CUTTING, len(tokens), len(text))
        return tokens

    def decode(self, tokens: int | list[int]) -> str:
        """Return the text of tokens."""
        text: str = self._pulse.call(_JOINING, self._tokenizer.decode, tokens)
        return text

    def apply_chat_template(self, messages: list[dict[str, str]], **options: bool) -> str:
        """Return a chat as text.

        Raises:
            TemplateError: the template refuses it.
            UserError: the text is longer than any of these messages.
        """
        render = self._tokenizer.apply_chat_template
        text: str = self._pulse.call(_CHAT, render, messages, **options)
        size = sum(len(str(value)) for message in messages for value in message.values())
        self._check_size(_CHAT, len(text), size)
        return text

    def _check_size(self, what: bytes, made: int, given: int) -> None:
        if made > MOST_MORE + MOST_PER_CHARACTER * given:
            raise UserError(
                unusable(self._folder, f"{what.decode()} makes {made:,} of {given:,} characters")
            )


def unusable(folder: Path, why: str) -> str:
    """Return what to tell the user of a tokenizer whose calls have no end."""
    return (
        f"the tokenizer in {folder} cannot be used: {why}. It is damaged or malicious: compare its "
        "tokenizer.json and its chat template with the model's, or name another folder with "
        "--tokenizer"
    )
