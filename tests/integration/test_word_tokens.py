"""Texts have the tokens that their tokenizer gives them, also where they are cut at words."""

import itertools
import random

import pytest

pytest.importorskip("transformers")

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from coordinate_eval.evaluators.harness.prompts.word_tokens import WordTokens, cuts_at_words

GPT_4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
MISTRAL = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT_4O = MISTRAL.replace("+|[^", "+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^", 1)
GPT_4O = GPT_4O.replace(r"*|\p{N}", r"*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}", 1)
DEEPSEEK = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)


def byte_level(*, words: bool, space: bool = False) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=space, use_regex=words)


def split(*regexes: str) -> pre_tokenizers.PreTokenizer:
    parts = [pre_tokenizers.Split(Regex(regex), "isolated") for regex in regexes]
    return pre_tokenizers.Sequence([*parts, byte_level(words=False)])


CUT = {
    "GPT-2": byte_level(words=True),
    "StarCoder": pre_tokenizers.Sequence([pre_tokenizers.Digits(True), byte_level(words=True)]),
    "GPT-4": split(GPT_4),
    "Qwen 2": split(GPT_4.replace("{1,3}", "")),
    "Qwen 3": split(QWEN_3),
    "GPT-4o": split(GPT_4O),
    "Mistral": split(MISTRAL),
    "DeepSeek": split(*DEEPSEEK),
}
NOT_CUT = {
    "a space before each text": byte_level(words=True, space=True),
    "words go on": pre_tokenizers.Sequence([pre_tokenizers.Digits(True), byte_level(words=False)]),
    "a space after each word": split(r"\p{L}+ ?|\p{N}|\s+"),
    "whatever else": pre_tokenizers.Whitespace(),
    "nothing": None,
}
PIECES = [
    *"ab cdXY1239.,!?/-_'\n\t\r éßΩя́٣½²Ⅷ一龥。中文\u00a0\u3000\u2028\x1c🙂ﬁ",
    *(" ", "\n", "\n\n", "  ", "    ", "'s ", " 12", "Answer: ", "<s>", "</s>", "x y", "\t\t"),
]


def tokenizer(
    pre_tokenizer: pre_tokenizers.PreTokenizer | None,
    *added: AddedToken,
    special: str = "<s> $A",
    normalizer: normalizers.Normalizer | None = None,
) -> PreTrainedTokenizerFast:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizer or byte_level(words=False)
    if normalizer is not None:
        made.normalizer = normalizer
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    dice = random.Random(1)
    made.train_from_iterator((text(dice, 40) for _ in range(300)), trainer)
    ids = [(name, made.token_to_id(name)) for name in ("<s>", "</s>")]
    made.post_processor = processors.TemplateProcessing(single=special, special_tokens=ids)
    made.add_tokens(list(added))
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # not typed there
        tokenizer_object=made, bos_token="<s>", eos_token="</s>"
    )


def text(dice: random.Random, most: int) -> str:
    return "".join(dice.choices(PIECES, k=dice.randrange(most)))


@pytest.mark.parametrize("normalizer", [None, normalizers.NFC()], ids=["as it is", "NFC"])
@pytest.mark.parametrize("name", CUT)
def test_the_tokens_are_those_of_the_whole_text(
    name: str, normalizer: normalizers.Normalizer | None
) -> None:
    own = tokenizer(
        CUT[name], AddedToken("  ", normalized=True), AddedToken("\t\t"), normalizer=normalizer
    )
    assert cuts_at_words(own)
    tokens, dice = WordTokens(own), random.Random(name)
    for number in range(400):
        begins, ends = text(dice, 60), [text(dice, 8) for _ in range(3)]
        if number % 2:
            tokens.share(begins)
        for end, special in itertools.product(["", *ends], [True, False]):
            whole = begins + end
            assert tokens.encode(whole, special) == own.encode(whole, add_special_tokens=special)


@pytest.mark.parametrize("name", NOT_CUT)
def test_other_tokenizers_get_whole_texts(name: str) -> None:
    assert not cuts_at_words(tokenizer(NOT_CUT[name]))


@pytest.mark.parametrize(
    "added",
    [AddedToken("x y"), AddedToken("q", lstrip=True), AddedToken("q", rstrip=True)],
    ids=["has a cut", "takes the space before it", "takes the space after it"],
)
def test_added_tokens_that_reach_over_a_cut_forbid_it(added: AddedToken) -> None:
    assert not cuts_at_words(tokenizer(CUT["GPT-4"], added))
    assert not cuts_at_words(tokenizer(CUT["GPT-4"], normalizer=normalizers.Lowercase()))


def test_tokens_after_the_text_are_kept() -> None:
    own = tokenizer(CUT["GPT-4"], special="<s> $A </s>")
    tokens = WordTokens(own)
    assert tokens.encode("one two", True) == own.encode("one two")
    assert tokens.encode("one two", True)[-1] == own.eos_token_id


def test_words_beyond_those_kept_have_their_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinate_eval.evaluators.harness.prompts.word_tokens.MOST_WORDS", 3)
    own = tokenizer(CUT["GPT-2"])
    tokens = WordTokens(own)
    for words in ("a b c d e f", "a" * 500 + " b", "", "f e d c b a"):
        assert tokens.encode(words, True) == own.encode(words)
