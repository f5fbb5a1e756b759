"""Regular expressions that may be found in a line, known without searching each.

A log has millions of lines and there are a hundred rules. Most of these need a word like "quota",
and each word is known by four letters of it. So a rule is tried only on lines that have these.
"""

import importlib
import re
from collections.abc import Sequence
from typing import Any

LETTERS = 4
"""Characters by which a word is known."""

_COMMON = "etaoinsrlhdcumfpgywbvkxqjz"

# What `re.compile` makes of an expression first. It is not public: without it, or where it changes,
# a rule has no words, and is tried on each line.
_parser: Any = importlib.import_module("re._parser")


class Index:
    """Patterns by the letters that a line must have."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._by_letters: dict[str, list[int]] = {}
        self._always: list[int] = []
        for number, pattern in enumerate(patterns):
            words = needed_words(pattern)
            for letters in {rarest(word) for word in words or ()}:
                self._by_letters.setdefault(letters, []).append(number)
            if words is None:
                self._always.append(number)
        self._known = frozenset(self._by_letters)

    def candidates(self, line: str) -> list[int]:
        """Return the patterns that may be found in a line, in their order."""
        low = line.lower()
        there = {low[at : at + LETTERS] for at in range(len(low) - LETTERS + 1)} & self._known
        if not there:
            return self._always
        return sorted({*self._always, *(n for letters in there for n in self._by_letters[letters])})


def rarest(word: str) -> str:
    """Return the letters of a word that few other words have."""
    choices = [word[at : at + LETTERS] for at in range(len(word) - LETTERS + 1)]
    return max(choices, key=lambda letters: sum(map(_rareness, letters)))


def _rareness(letter: str) -> int:
    at = _COMMON.find(letter)
    return at if at >= 0 else len(_COMMON)


def needed_words(pattern: str) -> frozenset[str] | None:
    """Return words in small letters, of which a line that the pattern is found in has one.

    None if there are no such words, or if they cannot be found out.
    """
    try:
        found = _words(list(_parser.parse(pattern)))
    except (re.error, AttributeError, TypeError, ValueError, RecursionError):
        return None
    return found if found and min(map(len, found)) >= LETTERS else None


def _words(items: Sequence[Any]) -> frozenset[str] | None:
    """Return the best words of a sequence: those whose shortest is longest."""
    choices: list[frozenset[str]] = []
    run: list[Any] = []
    for item in items:
        if _letter(item):
            run.append(item)
            continue
        more = _inner(item, run)
        if more:
            choices.append(more)
        elif run:
            choices.append(_joined(run))
        if str(item[0]) != "AT":  # a place, such as the end of a word, takes no character
            run = []
    if run:
        choices.append(_joined(run))
    return max(choices, key=lambda words: min(map(len, words)), default=None)


def _inner(item: Any, before: list[Any]) -> frozenset[str] | None:  # noqa: ANN401 - not public
    """Return the words of a group, of alternatives or of what is repeated, after some letters."""
    kind, value = str(item[0]), item[1]
    if kind == "SUBPATTERN":
        return _words([*before, *value[-1]])
    if kind == "BRANCH":
        each = [_words([*before, *branch]) for branch in value[1]]
        known = [words for words in each if words]
        return frozenset().union(*known) if len(known) == len(each) else None
    if kind in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT") and value[0] >= 1:
        return _words([*before, *value[2]])
    return None


def _letter(item: Any) -> str:  # noqa: ANN401 - not public
    """Return the letter that an item stands for, in either case; empty if it may be several."""
    kind, value = str(item[0]), item[1]
    if kind == "LITERAL":
        return chr(value).lower()
    if kind == "IN" and all(str(each[0]) == "LITERAL" for each in value):
        letters = {chr(each[1]).lower() for each in value}
        return letters.pop() if len(letters) == 1 else ""
    return ""


def _joined(run: list[Any]) -> frozenset[str]:
    return frozenset({"".join(map(_letter, run))})
