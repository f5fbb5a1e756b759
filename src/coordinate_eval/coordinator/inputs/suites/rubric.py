"""Rubrics: how a judge rates answers, read from YAML with the line of each error."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from coordinate_eval import _format, _user_files
from coordinate_eval.coordinator.inputs.suites.suite_yaml import (
    shipped_folder,
    shipped_rubrics,
    unknown,
)
from coordinate_eval.coordinator.inputs.yaml_file import (
    Located,
    LocatedList,
    Place,
    Source,
    check_json,
    located,
    only,
    wrong,
)
from coordinate_eval.errors import ForeignError, UserError
from coordinate_eval.records import Message, Rubric

_KEYS = set(Rubric.model_fields) - {"name"}
_MESSAGE_KEYS = set(Message.model_fields)


def load(name: str, place: Place) -> Rubric:
    """Return the rubric in a file, or the shipped rubric with this name.

    Raises:
        UserError: There is none, or it is malformed; names file and line.
    """
    if name in shipped_rubrics():
        path = shipped_folder() / "rubrics" / f"{name}.yaml"
        return parse(path.read_text(encoding="utf-8"), where=name, name=name)
    path = Path(name)
    if path.suffix not in (".yaml", ".yml") and not path.exists():
        raise wrong(
            place,
            f"{unknown('rubric', path.name, shipped_rubrics())}; give a rubric file, or a shipped "
            f"rubric: {', '.join(shipped_rubrics())}",
        )
    try:
        text = _user_files.read_text(path, "rubric")
    except ForeignError:
        raise
    except UserError as error:
        raise wrong(place, str(error)) from error
    return parse(text, where=str(path), name=path.stem)


def parse(text: str, *, where: str, name: str) -> Rubric:
    """Parse a rubric's text.

    Raises:
        UserError: It is malformed; names `where` and the line.
    """
    tree = located(Source(text, where, Path(), where, "rubric"))
    only(tree, _KEYS, "a rubric")
    for key, value in tree.items():
        check_json(value, tree.at(key), key)
    given = {**tree, "name": name, "prompts": _prompts(tree), "patterns": _patterns(tree)}
    try:
        rubric = Rubric.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(str(part) for part in first["loc"])
        raise wrong(tree.at(*first["loc"]), f"{at}: {_format.problem(error)}") from error
    _check(rubric, tree)
    return Rubric.model_validate(rubric.model_dump())  # plain values, which know no lines


def _check(rubric: Rubric, tree: Located) -> None:
    if rubric.scale is not None:
        if rubric.labels:
            raise wrong(tree.at("labels"), "give a scale or labels, not both")
        if rubric.scale[0] >= rubric.scale[1]:
            raise wrong(tree.at("scale"), "scale: the least rating comes first")
    for name, messages in rubric.prompts.items():
        lacking = _lacking_answer(messages, pair=rubric.pair)
        if lacking:
            raise wrong(
                tree.at("prompts", name), f"prompt {name} lacks {lacking}, which the judge rates"
            )
    if any(not values for values in rubric.labels.values()):
        raise wrong(tree.at("labels"), "labels: each stands for at least one value")
    if rubric.style_control and not rubric.pair:
        raise wrong(tree.at("style_control"), "style_control compares two answers: it needs a pair")
    if rubric.pair:
        if rubric.aggregation != "mean":
            raise wrong(tree.at("aggregation"), "the aggregation of a pair is the mean of battles")
        if not rubric.labels:
            raise wrong(tree.place, "a pair needs labels: the shares of battles that side A wins")
        if not all(0 <= value <= 1 for values in rubric.labels.values() for value in values):
            raise wrong(tree.at("labels"), "labels of a pair are shares of battles, from 0 to 1")
        if rubric.id is None:
            raise wrong(
                tree.place,
                "a pair needs `id`: the field of a document by which a baseline's answer is found",
            )


def _lacking_answer(messages: Sequence[Message], *, pair: bool) -> str:
    """Return which answer a prompt does not have, by its name in templates; empty if none."""
    from coordinate_eval.evaluators.judged.prompts import names_in

    used = set[str]().union(*(names_in(message.content) for message in messages))
    wanted = {"answer_a": "answers_a", "answer_b": "answers_b"} if pair else {"answer": "answers"}
    return next((f"{{{{ {a} }}}}" for a, turns in wanted.items() if not {a, turns} & used), "")


def _prompts(tree: Located) -> dict[str, list[dict[str, Any]]]:
    """Return the prompts; a text stands for one message of the user."""
    prompts = tree.get("prompts")
    if not isinstance(prompts, Located) or not prompts:
        raise wrong(tree.at("prompts"), "prompts must be a mapping of names to prompts")
    return {name: _prompt(name, prompts) for name in prompts}


def _prompt(name: str, prompts: Located) -> list[dict[str, Any]]:
    given = prompts[name]
    if isinstance(given, str):
        given = LocatedList([{"role": "user", "content": given}], [prompts.at(name)])
    if not isinstance(given, LocatedList) or not given:
        raise wrong(prompts.at(name), f"prompt {name} must be a text or a list of messages")
    for message, place in zip(given, given.places, strict=True):
        if isinstance(message, Located):
            only(message, _MESSAGE_KEYS, "a message")
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, str) or message.get("role") not in _ROLES:
            raise wrong(
                place, f"a message of prompt {name} needs a role ({', '.join(_ROLES)}) and content"
            )
        _check_template(content, place, name)
    return list(given)


_ROLES = ("system", "user", "assistant")


def _check_template(content: str, place: Place, name: str) -> None:
    from coordinate_eval.evaluators.judged.prompts import check_template

    try:
        check_template(content)
    except ValueError as error:
        raise wrong(place, f"the template of prompt {name}: {error}") from error


def _patterns(tree: Located) -> list[str]:
    """Return the patterns; one may stand without a list."""
    given = tree.get("patterns")
    if isinstance(given, str):
        given = LocatedList([given], [tree.at("patterns")])
    if not isinstance(given, LocatedList) or not given:
        raise wrong(tree.at("patterns"), "patterns must be a list of regular expressions")
    for pattern, place in zip(given, given.places, strict=True):
        try:
            groups = re.compile(pattern).groups
        except (re.error, TypeError, RecursionError, OverflowError) as error:
            raise wrong(place, f"pattern {pattern!r}: {error}") from error
        if not groups:
            raise wrong(place, f"pattern {pattern!r} needs a group, whose text is the verdict")
    return list(given)
