"""The words that trainers put before their numbers, and what lines and tags say by them.

`patterns.yaml` has those of known trainers. A line of JSON, a dict of Python and a tag of
TensorBoard have such words as well. Each expression takes time in proportion to the line.
"""

import functools
import math
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from coordinate_eval import _format
from coordinate_eval.coordinator.inputs import yaml_file
from coordinate_eval.errors import UserError

VALUES = ("loss", "gradient_norm", "tokens_per_second")
"""The fields of a point that lines have, and tags of TensorBoard."""

MOST_STEP = 10**13

_Words = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=200)], ...],
    BeforeValidator(lambda given: (given,) if isinstance(given, str) else given),
    AfterValidator(lambda words: tuple(word.lower() for word in words)),
    Field(max_length=50),
]

_OTHERS = re.compile(  # what comes before the losses of anything but the training
    r"""(?:\b|_)(?:val|eval|valid|validation|test|dev|aux|z|mtp(?:[_ ]\d{1,3})?|per)"""
    r"""["']?\s?(?:[:=]\s?\{\s?)?["']?$"""
)
_BETWEEN = r"""["']?\s{0,20}[:=]?\s{0,20}(?:["'\[]|tensor\()?"""
_COUNT = re.compile(_BETWEEN + r"(\d{1,3}(?:,\d{3})+|\d{1,15})(?:\.0{1,9})?(?!\w|[.,]\d)")
_OF = re.compile(r"\s{0,20}(?:/|of\s)\s{0,20}(\d{1,3}(?:,\d{3})+|\d{1,15})(?!\w|[.,]\d)")
_TOTAL = ("total_steps", "max_steps", "total_iterations", "total_iters", "train_iters", "num_steps")
"""Words before the number of all steps, beside the step that a line is of."""

_FEW = re.compile(_BETWEEN + r"(\d{1,12})(?!\w)")
_NUMBER = re.compile(
    _BETWEEN + r"([-+]?(?:(?:\d{1,3}(?:,\d{3})+|\d{1,20})(?:\.\d{0,30})?(?:e[-+]?\d{1,4})?"
    r"|\.\d{1,30}|nan|inf(?:inity)?))(?!\w)"
)
_BAR = re.compile(  # of tqdm, with Lightning's epoch; of rich
    r"^\s{0,8}(?:epoch\s(\d{1,9})(?:/\d{1,9})?[:,][^|]{0,80})?\s{0,8}\d{1,3}%\|[^|]{0,400}\|\s{0,20}"
    r"(\d{1,12})/(\d{1,12})\s\["
    r"|^\s{0,8}epoch\s(\d{1,9})/\S{1,12}\s{1,8}[━╸╺─ ]{1,200}(\d{1,12})/(\d{1,12})\s"
)

_DESCRIBED = re.compile(
    r"^(?!.{0,80}epoch)[^|%]{1,80}:\s{0,8}(?=\d{1,3}%\|.{0,999}\b(?:train_)?loss[=:])"
)
"""The words that tqdm writes before a bar. Only the training's own bar has a loss behind it."""


class Pattern(BaseModel):
    """The words before each number with which a trainer reports a step."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1, max_length=100)
    line: Annotated[str, AfterValidator(str.lower)] = Field(default="", max_length=200)
    step: _Words = ()
    loss: _Words = ()
    gradient_norm: _Words = ()
    tokens_per_second: _Words = ()
    not_a_number: _Words = ()
    later: bool = False
    every: int | None = Field(default=None, ge=1, le=10**9)

    def step_in(self, line: str) -> int | None:
        """Return the step that a line names. The line is in small letters."""
        text = _found(self.step, _COUNT, line)
        return None if text is None else int(text.replace(",", ""))

    def total_in(self, line: str) -> int | None:
        """Return the number of all steps that a line with a step names, as in `step 5/100`."""
        match = _matched(self.step, _COUNT, line)
        after = _OF.match(line, match.end()) if match is not None else None
        text = after[1] if after is not None else _found(_TOTAL, _COUNT, line)
        return None if text is None else int(text.replace(",", ""))

    def values_in(self, line: str) -> dict[str, float]:
        """Return what a line says by the names of `VALUES`. The line is in small letters."""
        found = {
            name: float(text.replace(",", ""))
            for name in VALUES
            if (text := _found(getattr(self, name), _NUMBER, line)) is not None
        }
        if "loss" not in found and int(_found(self.not_a_number, _FEW, line) or 0):
            found["loss"] = math.nan
        return found


def read_patterns(path: Path | None = None) -> tuple[Pattern, ...]:
    """Return the patterns of a user's file, then the shipped ones.

    Raises:
        UserError: the file is no list of patterns; says where.
    """
    if path is None:
        return _shipped()
    tree = yaml_file.read(path, "patterns file")
    if isinstance(tree, dict):
        tree = [tree]
    if not isinstance(tree, list):
        raise UserError(f"patterns file {path}: it must be a list of patterns")
    try:
        own = tuple(Pattern.model_validate(each) for each in tree)
    except ValidationError as error:
        where = _format.plain(".".join(str(part) for part in error.errors()[0]["loc"]))
        raise UserError(f"patterns file {path}: {where}: {_format.problem(error)}") from error
    for each in own:
        if not (each.step or each.loss):
            raise UserError(f"patterns file {path}: {each.name!r} needs `step`, `loss` or both")
    return (*own, *_shipped())


def value_of_tag(tag: str, patterns: Sequence[Pattern]) -> tuple[int, str] | None:
    """Return how well a tag of TensorBoard fits, lower is better, and which value it is."""
    return _tags(tuple(patterns)).get(tag.lower())


def bar_in(line: str) -> tuple[int, int] | None:
    """Return the step that a progress bar shows, and the steps that it goes to.

    Lightning's bar begins again with each epoch. All epochs are as long as the present one.
    """
    if (match := _BAR.search(_DESCRIBED.sub("", line))) is None:
        return None
    epoch, step, total = (
        int(part or 0) for part in (match.groups()[:3] if match[2] else match.groups()[3:])
    )
    if not 0 < total <= MOST_STEP:
        return None
    return epoch * total + step, (epoch + 1) * total


def _found(words: tuple[str, ...], number: re.Pattern[str], line: str) -> str | None:
    """Return the number after the first of these words that a line has."""
    match = _matched(words, number, line)
    return None if match is None else match[1]


def _matched(words: tuple[str, ...], number: re.Pattern[str], line: str) -> re.Match[str] | None:
    """Return where the number after the first of these words is in a line."""
    for word in words:
        at = line.find(word)
        while at >= 0:
            starts = not (word[0].isalnum() or word[0] == "_") or at == 0 or _starts(line, at)
            if starts and (match := number.match(line, at + len(word))):
                return match
            at = line.find(word, at + 1)
    return None


def _starts(line: str, at: int) -> bool:
    """Return whether a word at this place is whole, and of the training."""
    before = line[at - 1]
    return not (before.isalnum() or before in "_/.-" or _OTHERS.search(line[max(0, at - 24) : at]))


@functools.lru_cache(8)
def hints(patterns: tuple[Pattern, ...]) -> tuple[bytes, ...]:
    """Return texts of which each line that says anything has one, in small letters."""
    words = {"%|", "━"}
    for each in patterns:
        words.update(each.loss, each.not_a_number)
        if each.later:
            words.update(each.step, each.gradient_norm, each.tokens_per_second)
        if not each.loss:
            words.update([each.line] if each.line else each.step)
    shortest = [w for w in words if not any(other in w for other in words - {w})]
    return tuple(word.encode() for word in shortest)


@functools.lru_cache(8)
def _tags(patterns: tuple[Pattern, ...]) -> dict[str, tuple[int, str]]:
    known: dict[str, tuple[int, str]] = {}
    for name in VALUES:
        words = [word for pattern in patterns for word in getattr(pattern, name)]
        for rank, word in enumerate(words):
            known.setdefault(word.strip("'\"").lower(), (rank, name))
    return known


@functools.cache
def _shipped() -> tuple[Pattern, ...]:
    text = resources.files(__package__).joinpath("patterns.yaml").read_text(encoding="utf-8")
    entries: Any = yaml.safe_load(text)
    return tuple(Pattern.model_validate(each) for each in entries)
