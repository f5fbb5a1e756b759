"""Rules and filters: those that are shipped, and a site's own, which come first.

A log has millions of lines and there are a hundred rules. Most rules need a word like "quota", and
four letters stand for each word. So a rule is tried only on lines that have these letters.
"""

import functools
import importlib
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from coordinate_eval import _format, _user_files
from coordinate_eval.errors import UserError

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
    """Return words, in small letters, that a line with this pattern must have one of.

    None if the pattern needs no such words, or if its words cannot be found.
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


Category = Literal["infrastructure", "framework", "script", "slurm", "unknown"]
Kind = Literal["decisive", "root", "plain", "end", "echo", "last"]
Then = Literal["node", "load", "wait", "stop"]

MOST_RULES = 2000
"""Rules of a site, at most; likewise filters."""

MOST_PATTERN = 4000
"""Characters of a pattern."""

_DIGIT = re.compile(r"\d")


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Reason(_Strict):
    """A reason's meaning, and what to do about it."""

    category: Category
    then: Then
    cure: str = Field(max_length=1000)


class Rule(_Strict):
    """A pattern of a line, and the reason that it names; the rest as the reason has it."""

    name: str = Field(max_length=100)
    reason: str = Field(max_length=100)
    pattern: str = Field(default="", max_length=MOST_PATTERN)
    exception: list[str] = []
    kind: Kind = "root"
    reads: Literal["log", "end"] = "log"
    category: Category | None = None
    then: Then | None = None
    cure: str | None = Field(default=None, max_length=1000)

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if bool(self.pattern) == bool(self.exception):
            raise ValueError(f"rule {self.name!r} must have either a pattern or an exception")
        _compiled(self.regex)
        return self

    @property
    def regex(self) -> str:
        """Return the regular expression that is searched in a line without its prefix."""
        if self.pattern:
            return self.pattern
        names = "|".join(re.escape(name) for name in self.exception)
        # Ray says RayTaskError(ValueError), and torch ModuleAttributeError.
        return rf"^(?:[\w.]{{1,200}}[.(])?\w{{0,80}}?(?:{names})\)?(?::|$)"


class _Shipped(_Strict):
    reasons: dict[str, Reason]
    rules: list[Rule]


class _Filters(_Strict):
    """Patterns of lines that name no cause."""

    progress: list[str] = Field(default=[], max_length=MOST_RULES)
    success: list[str] = Field(default=[], max_length=MOST_RULES)
    startup: list[str] = Field(default=[], max_length=MOST_RULES)
    harmless: list[str] = Field(default=[], max_length=MOST_RULES)

    @model_validator(mode="after")
    def _compiles(self) -> Self:
        for name in _Filters.model_fields:
            for pattern in getattr(self, name):
                _compiled(pattern)
        return self


class SiteRules(_Strict):
    """A site's own file: reasons, rules and filters."""

    reasons: dict[str, Reason] = Field(default={}, max_length=MOST_RULES)
    rules: list[Rule] = Field(default=[], max_length=MOST_RULES)
    filters: _Filters = _Filters()


class Rules:
    """Everything that a log is read with."""

    def __init__(
        self, reasons: Mapping[str, Reason], rules: Sequence[Rule], filters: "_Filters"
    ) -> None:
        self.reasons = reasons
        self.all = rules
        """In their order: the first that is found counts."""
        self.of_lines = [(rule, _compiled(rule.regex)) for rule in rules if rule.reads == "log"]
        self._ends = [(rule, _compiled(rule.regex)) for rule in rules if rule.reads == "end"]
        self._index = Index([rule.regex for rule, _ in self.of_lines])
        self._progress = _Any(filters.progress)
        self._success = _Any(filters.success)
        self._startup = _Any(filters.startup)
        self._harmless = _Any(filters.harmless)

    def find(self, said: str) -> Rule | None:
        """Return the first rule that is found in a line without its prefix."""
        for number in self._index.candidates(said):
            rule, pattern = self.of_lines[number]
            if pattern.search(said):
                return rule
        return None

    def find_end(self, end: str) -> Rule | None:
        """Return the first rule that is found in Slurm's words."""
        return next((rule for rule, pattern in self._ends if pattern.search(end)), None)

    def is_progress(self, said: str) -> bool:
        """Return whether a line says that work goes on. All such lines have a number."""
        return bool(_DIGIT.search(said)) and self._progress.found_in(said)

    def is_success(self, said: str) -> bool:
        """Return whether a line says that a program has done its work."""
        return self._success.found_in(said)

    def is_startup(self, said: str) -> bool:
        """Return whether a line is what programs say when they begin."""
        return self._startup.found_in(said)

    def is_harmless(self, said: str) -> bool:
        """Return whether a line looks like an error and ends no job, as a site's profile says."""
        return self._harmless.found_in(said)

    def of(self, rule: Rule) -> Reason:
        """Return what to do about what a rule has found."""
        reason = self.reasons[rule.reason]
        given = {name: getattr(rule, name) for name in ("category", "then", "cure")}
        return reason.model_copy(update={k: v for k, v in given.items() if v is not None})


class _Any:
    """Patterns that a line is searched for: one match is enough."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [_compiled(each) for each in patterns]
        self._index = Index(patterns)

    def found_in(self, said: str) -> bool:
        return any(self._patterns[n].search(said) for n in self._index.candidates(said))


@functools.cache
def shipped() -> Rules:
    """Return the rules and filters that are shipped."""
    return with_site(SiteRules())


def with_site(site: SiteRules) -> Rules:
    """Return the shipped rules and filters after a site's own.

    Raises:
        UserError: a rule names a reason that nobody describes.
    """
    known = _shipped()
    reasons = {**known.reasons, **site.reasons}
    for rule in site.rules:
        if rule.reason not in reasons:
            raise UserError(
                f"rule {_format.brief(rule.name, 100)!r} names the reason "
                f"{_format.brief(rule.reason, 100)!r}, which is none: take one of "
                f"{', '.join(reasons)}, or describe it under `reasons`"
            )
    filters = {
        name: [*getattr(site.filters, name), *getattr(_shipped_filters(), name)]
        for name in _Filters.model_fields
    }
    return Rules(reasons, [*site.rules, *known.rules], _Filters.model_validate(filters))


def read_site(path: Path) -> SiteRules:
    """Return a site's rules; none where there is no file. It must be the user's own or root's.

    Raises:
        UserError: the file cannot be used; says where and why.
    """
    try:
        text = _user_files.read_text(path, "rules file")
    except UserError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return SiteRules()
        raise
    try:
        return SiteRules.model_validate(_yaml(text) or {})
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise UserError(
            f"rules file {path}: {where or 'the file'}: {_format.problem(error)}"
        ) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UserError(f"rules file {path} is no YAML: {_format.brief(error, 300)}") from error


def _yaml(text: str) -> Any:  # noqa: ANN401 - any YAML value
    return yaml.safe_load(text)


@functools.cache
def _shipped() -> _Shipped:
    return _Shipped.model_validate(_yaml(_resource("rules.yaml")))


@functools.cache
def _shipped_filters() -> _Filters:
    return _Filters.model_validate(_yaml(_resource("filters.yaml")))


def _resource(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{pattern[:200]!r} is no regular expression: {error}") from error
