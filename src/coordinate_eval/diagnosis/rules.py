"""Rules and filters: those that are shipped, and a site's own, which come first."""

import functools
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from coordinate_eval import _format, _user_files
from coordinate_eval.diagnosis.needed import Index
from coordinate_eval.errors import UserError

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

    def found_in(self, said: str) -> bool:
        """Return whether the rule knows a line without its prefix."""
        return bool(_compiled(self.regex).search(said))


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
    proposed: list[Rule] = Field(default=[], max_length=MOST_RULES)
    """Of a model. They name no cause before somebody has confirmed them."""


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
    """Patterns of which one is enough."""

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
    both = merged(site, SiteRules(filters=_shipped_filters())).filters
    return Rules(reasons, [*site.rules, *known.rules], both)


def merged(first: SiteRules, second: SiteRules) -> SiteRules:
    """Return the rules and filters of both; those of the first come first."""
    return SiteRules(
        reasons={**second.reasons, **first.reasons},
        rules=[*first.rules, *second.rules],
        filters=_Filters.model_validate(
            {
                name: [*getattr(first.filters, name), *getattr(second.filters, name)]
                for name in _Filters.model_fields
            }
        ),
    )


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


def write_site(site: SiteRules) -> str:
    """Return the text of a file of rules."""
    value = site.model_dump(exclude_defaults=True)
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)


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
