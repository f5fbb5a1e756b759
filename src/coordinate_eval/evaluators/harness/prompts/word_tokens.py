"""The tokens of texts, put together from those of their words.

A tokenizer cuts a text into pieces by a regular expression before it looks anything up, and most
of today's expressions never join a letter or a digit to white space after it. A text may then be
cut there, and each part has the tokens that it has in the whole. Words recur: looking their
tokens up takes a fifth of the CPU time of cutting the text anew.

`cuts_at_words` compares each alternative of the expression with a list of alternatives that never
join so. These are from GPT-2, GPT-4, Llama 3, Qwen, Mistral and DeepSeek. None has a
class that holds both a letter or digit and white space, but before a single first letter; and
none looks back, or ahead from a letter or digit. So a match that begins before the cut ends at it
or before, whatever follows; and matches after the cut depend on nothing before it.
"""

import inspect
import itertools
import json
import re
from functools import lru_cache
from typing import Any, Final

CUT: Final = re.compile(r"(?<=[A-Za-z0-9\u4e00-\u9fa5])(?=[ \n])")
"""Places between a letter or digit and the white space after it."""

LONGEST_WORD: Final = 100
"""Characters of a word whose tokens are kept."""

MOST_WORDS: Final = 200_000
"""Words whose tokens are kept at once: about 50 MB."""

_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASES = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*",
)
_LETTERS: Final = (
    {r" ?\p{L}+"},
    {r"[^\r\n\p{L}\p{N}]?\p{L}+"},
    {r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"},
    {r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"},
    {*_CASES},
    {f"{case}(?i:'s|'t|'re|'ve|'m|'ll|'d)?" for case in _CASES},
)
"""Sets of alternatives. Each set covers all letters."""
_NUMBERS: Final = {r" ?\p{N}+", r"\p{N}", r"\p{N}+", r"\p{N}{1,2}", r"\p{N}{1,3}"}
"""Alternatives. Each covers all digits."""
_OTHERS: Final = {
    *("'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "(?i:'s|'t|'re|'ve|'m|'ll|'d)"),
    *(r"\s+(?!\S)", r"\s+", r"\s*[\r\n]+", r"\s*[\r\n]"),
    *(r" ?[^\s\p{L}\p{N}]+", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}]+[\r\n/]*"),
    *(r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*", r" ?[\p{P}\p{S}]+[\r\n]*"),
    *(r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+""", "[一-龥\u3040-ゟ゠-ヿ]+"),
}
_GPT_2: Final = {"'s", "'t", r" ?\p{L}+", r" ?\p{N}+", r" ?[^\s\p{L}\p{N}]+", r"\s+(?!\S)", r"\s+"}
_KNOWN: Final = re.compile(
    "|".join(rf"{re.escape(one)}(?=\||\Z)" for one in {*_OTHERS, *_NUMBERS}.union(*_LETTERS))
)


class WordTokens:
    """Makes the tokens of texts. They are those of the tokenizer's own `encode`."""

    def __init__(self, tokenizer: Any) -> None:  # noqa: ANN401  of transformers
        """Prepare it for a tokenizer."""
        self._tokenizer = tokenizer
        self._first = _first_tokens(tokenizer) if cuts_at_words(tokenizer) else None
        self._whole = lru_cache(maxsize=8)(self._encode)  # the choices have one context
        self._known: dict[str, list[int]] = {}
        self._shared = self._head = ""
        self._head_tokens: list[int] = []

    def share(self, text: str) -> None:
        """Keep the tokens of a text with which the next ones begin."""
        if self._first is None or text == self._shared:
            return
        self._shared, self._head, self._head_tokens = text, "", []
        *head, last = CUT.split(text)
        if head:
            # What follows the last place to cut may go on with other tokens in a longer text.
            self._head_tokens = self._of(head)
            self._head = text[: len(text) - len(last) + 1]

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Return the tokens of a text."""
        if self._first is None:
            return list(self._whole(text, add_special_tokens))
        first = self._first if add_special_tokens else []
        if self._head and text.startswith(self._head):
            rest = text[len(self._head) - 1 :]
            return [*first, *self._head_tokens, *self._of(CUT.split(rest))]
        return [*first, *self._of(CUT.split(text))]

    def _encode(self, text: str, add_special_tokens: bool) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))

    def _of(self, words: list[str]) -> list[int]:
        """Return the tokens of words that follow each other."""
        known = self._known
        if len(known) > MOST_WORDS:
            known.clear()
        lacking = {word for word in words if word not in known}
        if not lacking:
            return list(itertools.chain.from_iterable(map(known.__getitem__, words)))
        new = dict(zip(lacking, self._cut(list(lacking)), strict=True))
        known.update((word, made) for word, made in new.items() if len(word) <= LONGEST_WORD)
        return [token for word in words for token in (new[word] if word in new else known[word])]

    def _cut(self, words: list[str]) -> list[list[int]]:
        made: list[list[int]] = self._tokenizer(
            words,
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
        )["input_ids"]
        return made


def cuts_at_words(tokenizer: Any) -> bool:  # noqa: ANN401  one of many classes of transformers
    """Return whether a tokenizer of transformers has the same tokens for a text cut at `CUT`."""
    from transformers import PreTrainedTokenizerFast

    kind = type(tokenizer)
    usual = isinstance(tokenizer, PreTrainedTokenizerFast) and all(
        inspect.unwrap(getattr(kind, name))
        is inspect.unwrap(getattr(PreTrainedTokenizerFast, name))
        for name in ("__call__", "encode", "_encode_plus")
    )
    if not usual:
        return False
    backend = tokenizer.backend_tokenizer
    return (
        all(map(_is_apart, backend.get_added_tokens_decoder().values()))
        and all(part["type"] == "NFC" for part in _parts(backend.normalizer, "normalizers"))
        and _cuts(_parts(backend.pre_tokenizer, "pretokenizers"))
        and not getattr(backend.model, "dropout", None)
    )


def _is_apart(added: Any) -> bool:  # noqa: ANN401  tokenizers has no types here
    """Return whether an added token takes no notice of the text around it, and has no cut."""
    takes = added.lstrip or added.rstrip or added.single_word
    return not takes and not CUT.search(added.content)


def _parts(component: Any, of_sequence: str) -> list[dict[str, Any]]:  # noqa: ANN401  as above
    """Return a component of a tokenizer as it is in tokenizer.json, as a list."""
    if component is None:
        return []
    described = json.loads(component.__getstate__())
    parts: list[dict[str, Any]] = described.get(of_sequence, [described])
    return parts


def _cuts(parts: list[dict[str, Any]]) -> bool:
    """Return whether pre-tokenizers, one after the other, cut texts at `CUT`."""
    found: set[str] = set()
    for part in parts:
        match part:
            case {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated"}:
                alternatives = _KNOWN.findall(regex)
                if "|".join(alternatives) != regex:
                    return False
                found.update(alternatives)
            case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": regex}:
                found.update(_GPT_2 if regex else ())
            case {"type": "Digits"}:
                found.add(r"\p{N}")
            case _:
                return False
    return any(letters <= found for letters in _LETTERS) and not found.isdisjoint(_NUMBERS)


def _first_tokens(tokenizer: Any) -> list[int] | None:  # noqa: ANN401  as above
    """Return the special tokens before every text, None if there are others elsewhere."""
    plain = list(tokenizer.encode("a", add_special_tokens=False))
    whole = list(tokenizer.encode("a", add_special_tokens=True))
    more = len(whole) - len(plain)
    return whole[:more] if more >= 0 and whole[more:] == plain else None
