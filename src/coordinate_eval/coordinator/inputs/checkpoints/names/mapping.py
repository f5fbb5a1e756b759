"""Read mappings from YAML: those that are shipped, and a user's own."""

import math
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final, NamedTuple

from coordinate_eval import _user_files
from coordinate_eval._format import brief
from coordinate_eval.coordinator.inputs.checkpoints import remote
from coordinate_eval.coordinator.inputs.checkpoints.formats import torch_file
from coordinate_eval.coordinator.inputs.checkpoints.names import patterns
from coordinate_eval.coordinator.inputs.yaml_file import (
    Located,
    Place,
    Source,
    located,
    only,
    wrong,
)
from coordinate_eval.errors import UserError
from coordinate_eval.records.names import KEPT, Rule, TensorMapping

_WHAT = "mapping"
_KEYS = {"trainer", "models", "names", "names_of", "left_out", "kept"}
_RULE = {
    "to",
    "with",
    "unflatten",
    "groups",
    "parts",
    "into",
    "transpose",
    "rotary",
    "rows",
    "zero",
}
_LEAST_RULES = 3  # that match names of a model
_MOST_RULES = 2_000
_MOST_LETTERS = 500
_MOST_STARS, _MOST_WAYS = 2, 1000  # in a pattern: each more multiplies the ways to match a name
_WAYS_OF_NUMBER = 6  # its digits, if another number follows them


class Written(NamedTuple):
    """A mapping as a file has it, for all types of models."""

    name: str
    trainer: str
    models: Sequence[str]
    """Types of models that it is right for; empty: any."""
    rules: Sequence[Rule]
    rules_of: Mapping[str, Sequence[Rule]]
    """Rules for a type of model, before the others."""

    def holds_for(self, kind: str) -> bool:
        """Return whether the mapping is right for a type of model."""
        return not self.models or kind in self.models

    def of(self, kind: str) -> TensorMapping:
        """Return the rules for a type of model."""
        return TensorMapping(
            trainer=self.trainer, rules=[*self.rules_of.get(kind, ()), *self.rules]
        )


def read(path: Path) -> Written:
    """Return the mapping in a user's file.

    Raises:
        UserError: It is missing or malformed; names file and line.
    """
    text = _user_files.read_text(remote.located(path), "mapping", anybodys=True)
    return parse(Source(text, str(path), path.parent, str(path), _WHAT), path.stem)


@cache
def shipped() -> Sequence[Written]:
    """Return the mappings that come with the program, by the names of their files."""
    folder = resources.files(__package__).joinpath("shipped")
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".yaml")), key=lambda f: f.name)
    return [
        parse(Source(file.read_text(encoding="utf-8"), file.name, Path(), file.name, _WHAT),
              file.name.removesuffix(".yaml"))
        for file in files
    ]  # fmt: skip


class Fit(NamedTuple):
    """The fit of a mapping to the names of a checkpoint."""

    mapping: Written
    matched: int
    left_over: Sequence[str]


def fits(names: Collection[str], kind: str | None) -> list[Fit]:
    """Return how the shipped mappings fit names, the best first; without those that do not.

    Args:
        names: of the tensors of a checkpoint.
        kind: the type of its model; None if it is not known, which counts as any.
    """
    found = []
    for each in shipped():
        kinds = [kind] if kind is not None else ["", *each.rules_of]
        keeps = any(rule.kept for rule in each.rules)
        if keeps and kind is not None and not each.holds_for(kind):
            continue  # names that are kept are those of all other models, too
        rules = [each.of(each_kind).rules for each_kind in kinds]
        matches = [(patterns.match(names, of_kind), of_kind) for of_kind in rules]
        best, of_kind = min(matches, key=lambda each: len(each[0].left_over))
        used = {member.rule for member in best.members.values()}
        used -= {number for number in used if of_kind[number].kept}
        # What is left out tells nothing, and neither do the few names that all models share.
        if len(used) >= (1 if keeps else _LEAST_RULES):
            found.append((keeps, Fit(each, len(best.members), best.left_over)))
    # What keeps names fits more than it knows.
    return [fit for _, fit in sorted(found, key=lambda each: (len(each[1].left_over), each[0]))]


def choose(names: Collection[str], kind: str, own: Path | None = None) -> TensorMapping | None:
    """Return the mapping by which names become those of Hugging Face; None if they are those.

    Args:
        names: of the tensors of a checkpoint.
        kind: the type of its model.

    Raises:
        UserError: The user's mapping is malformed or for other models; or the names are those of a
            trainer, and no mapping fits.
    """
    if own is not None:
        written = read(own)
        if not written.holds_for(kind):
            raise UserError(
                f"mapping {own} is for models of type {', '.join(written.models)}, and the config "
                f"says {kind or 'none'}"
            )
        return written.of(kind)
    for fit in fits(names, kind):
        written, _, left_over = fit
        if not left_over and written.holds_for(kind):
            return written.of(kind)
        if fit.matched * 2 > len(names):
            if not kind:
                raise UserError(
                    f"the names of the tensors are those of {written.trainer}, but the config.json "
                    "has no model_type. Give the model's, in Hugging Face's format, with --config"
                )
            why = (
                f"{len(left_over):,} of {len(names):,} are not, such as {brief(left_over[0])}"
                if written.holds_for(kind)
                else f"the mapping is for {', '.join(written.models)}, not for {kind}"
            )
            raise UserError(
                f"the names of the tensors are those of {written.trainer}, but {why}. Give a "
                "mapping of your own with --mapping FILE: docs/checkpoints.md has an example"
            )
    return None


_KEPT_NAMES: Final = [Rule(source=[KEPT], to=[KEPT])]
AS_THEY_ARE: Final = TensorMapping(trainer="files that engines do not look for", rules=_KEPT_NAMES)
"""Leaves the names of tensors: their files alone are written anew."""


def unwrapping(names: Collection[str]) -> TensorMapping | None:
    """Return what takes the names of training wrappers off; None if there are none.

    Accelerate leaves them in safetensors, for one.
    """
    own = torch_file.own_names(names)
    if len(own) == len(names) and all(name == old for old, name in own.items()):
        return None
    return TensorMapping(trainer="a wrapper of training", rules=_KEPT_NAMES)


def parse(source: Source, name: str) -> Written:
    """Return the mapping in a text of YAML.

    Raises:
        UserError: It is malformed; names file and line.
    """
    tree = located(source)
    only(tree, _KEYS, "a mapping")
    trainer = tree.get("trainer", name)
    if not isinstance(trainer, str):
        raise wrong(tree.at("trainer"), "trainer must be a text")
    models = _texts(tree.get("models", []), tree.at("models"), "models")
    rules = _rules(tree.get("names"), tree.at("names"))
    for key, becomes in (("left_out", []), ("kept", [KEPT])):
        if texts := _texts(tree.get(key, []), tree.at(key), key):
            _check_patterns(texts, tree.at(key))
            rules.append(Rule(source=texts, to=becomes))
    by_model = tree.get("names_of", {})
    if not isinstance(by_model, dict):
        raise wrong(tree.at("names_of"), "names_of must map types of models to names")
    rules_of: dict[str, list[Rule]] = {}
    for kinds, names in by_model.items():
        for kind in kinds.replace(",", " ").split():
            rules_of.setdefault(kind, []).extend(_rules(names, tree.at("names_of", kinds)))
    return Written(name, trainer, models, rules, rules_of)


def _rules(names: Any, place: Place) -> list[Rule]:  # noqa: ANN401 - a value of YAML
    if not isinstance(names, Located) or not 0 < len(names) <= _MOST_RULES:
        raise wrong(place, "names must map names of the trainer to names of Hugging Face's model")
    return [_rule(pattern, value, names.at(pattern)) for pattern, value in names.items()]


def _rule(pattern: str, value: Any, place: Place) -> Rule:  # noqa: ANN401 - a value of YAML
    if value is None or isinstance(value, str | list):
        value = {"to": value}
    if not isinstance(value, dict) or "to" not in value:
        raise wrong(place, f"{brief(pattern)} needs a name, a list of names, or a mapping with to")
    if isinstance(value, Located):
        only(value, _RULE, "a rule")
    for key in ("transpose", "zero"):
        if not isinstance(value.get(key, False), bool):
            raise wrong(place, f"{key} must be true or false")
    rule = Rule(
        source=[pattern, *_texts(value.get("with", []), place, "with")],
        to=_texts([] if value["to"] is None else value["to"], place, "to"),
        unflatten=_text(value.get("unflatten", ""), place, "unflatten"),
        groups=_text(value.get("groups", 1), place, "groups"),
        parts=_texts(value.get("parts", []), place, "parts"),
        into=_text(value.get("into", 1), place, "into"),
        transpose=value.get("transpose", False),
        rotary=_texts(value.get("rotary", []), place, "rotary"),
        rows=_text(value.get("rows", ""), place, "rows"),
        zero=value.get("zero", False),
    )
    _check_patterns(rule.source, place)
    many, more = len(rule.source), len(rule.to)
    if unknown := [text for text in rule.to if "*" in text or _words(text) - _words(*rule.source)]:
        raise wrong(place, f"{brief(unknown[0])} has * or words that {brief(pattern)} has not")
    if rule.to and (rule.parts or many > 1) and _stacks(rule):
        raise wrong(place, f"{brief(pattern)} cannot be stacked and cut into parts at once")
    if many > 1 and (more != 1 or rule.parts):
        raise wrong(place, "several names (with) become one tensor, and are its parts themselves")
    if more > 1 and len(rule.parts) != more:
        raise wrong(place, f"{more} names (to) need {more} parts, in proportion, such as [1, 1]")
    if rule.zero and rule.to:
        raise wrong(place, "what is zero is left out: to must be null")
    if len(rule.rotary) not in (0, 1, more):
        raise wrong(place, f"rotary must be one number of heads, or {more}")
    return rule


def _check_patterns(sources: Sequence[str], place: Place) -> None:
    for text in sources:
        if text.count("*") > _MOST_STARS:
            raise wrong(place, f"{brief(text)} has more than {_MOST_STARS} *")
        words = [hole.count("|") for hole in patterns.holes(text)]
        ways = math.prod(more + 1 if more else _WAYS_OF_NUMBER for more in words)
        if len(text) > _MOST_LETTERS or ways > _MOST_WAYS:
            raise wrong(place, f"{brief(text)} has too many numbers, words or letters")


def _words(*texts: str) -> set[str]:
    """Return the alternatives of words in patterns."""
    return {hole for text in texts for hole in patterns.holes(text) if "|" in hole}


def _stacks(rule: Rule) -> bool:
    """Return whether a number of the source is in no name that it becomes."""
    wanted = {hole for text in rule.to for hole in patterns.holes(text)}
    return any(n not in wanted for text in rule.source for n in patterns.pattern(text).numbers)


def _texts(value: Any, place: Place, what: str) -> list[str]:  # noqa: ANN401 - a value of YAML
    values = value if isinstance(value, list) else [value]
    return [_text(each, place, what) for each in values]


def _text(value: Any, place: Place, what: str) -> str:  # noqa: ANN401 - a value of YAML
    if type(value) is int and value >= 0:
        return str(value)
    if isinstance(value, str) and len(value) <= _MOST_LETTERS:
        return value
    raise wrong(place, f"{what} must be a text or a number")
