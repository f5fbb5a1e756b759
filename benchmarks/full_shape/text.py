"""Made-up prose with the statistics that prompts have, and a tokenizer that learned it.

Words are drawn by Zipf's law (rank r has a share of about 1/r; G. K. Zipf, 1949) from a fixed
inventory, and the tokenizer is byte-level BPE, so that a word costs about 1.3 tokens, as English
does with the tokenizers of today's models (OpenAI's rule of thumb: 100 tokens are 75 words).
"""

import itertools
import random
from functools import cache
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

_INVENTORY = 40_000
_POOL_WORDS = 400_000
VOCABULARY = 16_000
_SENTENCE_WORDS = 14
_SAMPLE_WORDS = 50_000
_ONSETS = ("b", "br", "d", "f", "g", "h", "j", "k", "l", "m", "n", "p", "pl", "r", "s", "st", "t")
_NUCLEI = ("a", "e", "i", "o", "u", "ai", "ea", "ou")
_CODAS = ("", "", "", "l", "n", "r", "s", "nd")
_NUMBERS = 0.03
"""Share of the words that are ordinal numbers."""

_PHRASES = """
Question: What is it?\nAnswer: The answer is so.\n\nQ: A: B. C. D. E.\nArticle:\n\nProblem:\n
Final Answer: The final answer is $.\n\nSolution: Is the answer correct? yes no maybe, right? Yes,
No, Maybe, English:\nFrench:\nYou are given a text. Answer or sum it up.\n\nText:\n\n
"""
"""What the templates of tasks say, which a tokenizer knows as well as any prose."""


class Text:
    """A source of made-up prose. The same seed gives the same texts in the same order."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)  # noqa: S311  # texts, not secrets

    def passage(self, tokens: float) -> str:
        """Return about this many tokens of prose, at least one word."""
        pool = _pool()
        count = max(1, round(tokens / _tokens_per_word()))
        begin = self.dice.randrange(max(1, len(pool) - count))
        return " ".join(pool[begin : begin + count])

    def about(self, tokens: float) -> float:
        """Return a length around this mean: lognormal, σ = 0.4."""
        return tokens * self.dice.lognormvariate(-0.08, 0.4)


@cache
def tokenizer() -> Any:  # noqa: ANN401  # a `tokenizers.Tokenizer`, which has no types
    """Return the tokenizer, learned from these texts in about a second."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    pool = _pool()
    lines = (" ".join(pool[start : start + 1000]) for start in range(0, len(pool), 1000))
    made.train_from_iterator(itertools.chain(lines, [_PHRASES] * 1000), trainer)
    return made


@cache
def _tokens_per_word() -> float:
    """Return the tokens of a word and the space before it, on average."""
    sample = _pool()[:_SAMPLE_WORDS]
    return len(tokenizer().encode(" ".join(sample)).ids) / len(sample)


@cache
def _pool() -> list[str]:
    """Return words in the order of a long text, with capitals and full stops."""
    dice = random.Random(0)  # noqa: S311  # as above
    # Frequent words are short, with exceptions.
    words = sorted((_word(dice) for _ in range(_INVENTORY)), key=lambda w: len(w) * dice.random())
    shares = itertools.accumulate(1 / rank for rank in range(1, _INVENTORY + 1))
    drawn = dice.choices(words, cum_weights=list(shares), k=_POOL_WORDS)
    left = 0
    for place, word in enumerate(drawn):
        if dice.random() < _NUMBERS:
            # Never a bare number, which the harness takes for one where it is all of a text.
            drawn[place] = f"{dice.randrange(1000)}th"
        if left == 0:
            drawn[place] = word.capitalize()
            left = dice.randrange(_SENTENCE_WORDS // 2, 2 * _SENTENCE_WORDS)
        left -= 1
        if left == 0:
            drawn[place] += "."
    return drawn


def _word(dice: random.Random) -> str:
    syllables = dice.choices((1, 2, 3, 4), (2, 4, 4, 2))[0]
    return "".join(
        dice.choice(_ONSETS) + dice.choice(_NUCLEI) + dice.choice(_CODAS) for _ in range(syllables)
    )
