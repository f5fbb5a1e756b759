"""Thinking within a judge's words, which stands before what it says: marked, and never rated.

A server with a parser for its model's thinking leaves it out of `content`. Others leave it there,
and a judge weighs ratings while it thinks. The rule is that of the harness's `think_end_token`:
what counts stands after the last mark of an end. The template of some models begins the thinking,
so that only its end is in the words; and a judge that runs out of tokens may never end it.
"""

import re
from typing import Final

_NAMES = r"(?:\w{1,20}[:_])?(?:think|thinking|thought|thoughts|reason|reasoning|scratchpad)"

_OF_REASONS = r"(?:thinking|thoughts?|reason|reasoning|scratchpad)"

_MARKS: Final = (
    (rf"<{_NAMES}>", rf"</{_NAMES}>"),  # most; also <seed:think> and <longcat_think>
    (r"\[THINK\]", r"\[/THINK\]"),  # Mistral
    (r"◁think▷", r"◁/think▷"),  # Kimi-VL
    # gpt-oss, and without its special tokens
    (r"<\|channel\|>(?:analysis|commentary)", r"<\|channel\|>final[^<]{0,40}(?:<\|constrain\|>\w+)?"
     r"<\|message\|>"),
    (r"analysis(?=[A-Z])", r"assistantfinal"),
    (r"<\|channel>thought", r"<channel\|>"),  # Gemma 4
    # Kimi K3
    (r"<\|open\|>think<\|sep\|>", r"<\|close\|>think<\|sep\|>(?:<\|open\|>response<\|sep\|>)?"),
    (r"<unused94>(?:thought)?", r"<unused95>"),  # MedGemma
    (r"<ctrl94>(?:thought)?", r"<ctrl95>"),  # Gemini
    (r"\[unused16\]", r"\[unused17\]"),  # openPangu
    (r"<\|begin_of_thought\|>", r"<\|end_of_thought\|>"),  # Sky-T1, OpenThinker
    (r"<\|START_THINKING\|>", r"<\|END_THINKING\|>(?:<\|START_RESPONSE\|>)?"),  # Command A
    (r"<\|inner_prefix\|>", r"<\|inner_suffix\|>"),  # Apertus
    (r"<\|think\|>", r"<\|/think\|>|<\|content\|>"),  # Solar Open
)  # fmt: skip
"""Marks of beginning and end that public models write."""

BEGIN: Final = "<think>"
"""Stands before words whose thinking the prompt has begun."""

_OPEN = "|".join(begin for begin, _ in _MARKS)
_BEGINS = re.compile(rf"\s*(?:<\|start\|>assistant)?(?:{_OPEN})", re.IGNORECASE)
_BEGUN = re.compile(
    rf"(?:{_OPEN}|<\|channel\|>analysis<\|message\|>|here are my reasoning steps:)\s*\Z",
    re.IGNORECASE,
)
_QUOTES = "`\"'“‘«「"
_CLOSE = "|".join([*(end for _, end in _MARKS), r"\[BEGIN FINAL RESPONSE\]"])
# The beginning of the last is in the prompts of Apriel.
_ENDS = re.compile(rf"(?<![{_QUOTES}])(?:{_CLOSE})", re.IGNORECASE)
# One in quotes is spoken of, as of a mark in the answer that is rated.
_REASONS = re.compile(
    rf"<(?P<name>{_OF_REASONS})>(?:(?!<{_OF_REASONS}>).)*</(?P=name)>\s*\Z",
    re.IGNORECASE | re.DOTALL,
)
_PHRASE = re.compile(r"\s*here(?: i|')s my thought process:", re.IGNORECASE)
_PHRASE_ENDS = re.compile(r"here(?: i|')s my response:", re.IGNORECASE)  # Granite 3.2


def spoken(words: str) -> str | None:
    """Return a judge's words after its thinking; None if it thinks and does not come to an end."""
    words = _without_reasons(words)
    marks = list(_ENDS.finditer(words))
    thinks = _BEGINS.match(words) is not None
    if _PHRASE.match(words):
        thinks = True
        marks += list(_PHRASE_ENDS.finditer(words))
    if marks:
        return words[max(mark.end() for mark in marks) :].lstrip()
    return None if thinks else words


def _without_reasons(words: str) -> str:
    """Return words without reasons in tags after them, such as those of a score that comes first.

    Other tags stay: a model whose thinking the prompt has begun may write about such marks.
    """
    found = _REASONS.search(words)
    return words[: found.start()] if found and words[: found.start()].strip() else words


def begun_before(words: str) -> bool:
    """Return whether words end a thinking whose beginning is not in them, but in the prompt."""
    return _ENDS.search(_without_reasons(words)) is not None and _BEGINS.match(words) is None


def begun_in(prompt: str) -> bool:
    """Return whether a prompt ends with the beginning of the thinking."""
    return _BEGUN.search(prompt[-200:]) is not None
