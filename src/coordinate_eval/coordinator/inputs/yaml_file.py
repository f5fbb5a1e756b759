"""YAML files that a user names: cluster files, and policies."""

from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from coordinate_eval import _format, _user_files
from coordinate_eval.errors import UserError

try:  # libyaml's: ten times as fast, and a thousand nodes are many lines
    from yaml import CSafeLoader as _SafeLoader
except ImportError:  # PyYAML was built without it
    from yaml import SafeLoader as _SafeLoader  # type: ignore[assignment]

ModelT = TypeVar("ModelT", bound=BaseModel)

MOST_LEVELS = 20
"""Limit for lists and mappings within each other."""


class _Loader(_SafeLoader):
    """A loader that refuses a duplicate key, where PyYAML would take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key.value!r} is given twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def read(path: Path, what: str) -> object:
    """Return the document in a file; `what` names it for the user, such as "cluster file"."""
    text = _user_files.read_text(path, what, anybodys=True)
    try:
        if _too_deep(text):
            raise ValueError("it is nested too deeply")
        return yaml.load(text, _Loader)  # noqa: S506 - a safe loader
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        why = f"line {line}: {error.problem}"
    except (yaml.YAMLError, ValueError) as error:  # also numbers and dates that there are not
        why = " ".join(str(error).split())
    raise UserError(f"{what} {path} is not YAML: {why}")


def read_as(kind: type[ModelT], path: Path, what: str, key: str) -> ModelT:
    """Return the document in a file as a model of this kind, whose main key is `key`."""
    tree = read(path, what)
    if not isinstance(tree, dict):
        raise UserError(f"{what} {path}: it must be a mapping with `{key}`")
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        where = _format.plain(".".join(str(part) for part in error.errors()[0]["loc"]))
        raise UserError(f"{what} {path}: {where}: {_format.problem(error)}") from error


def _too_deep(text: str) -> bool:
    """Return whether a document is nested so deeply that libyaml may overrun its stack."""
    depth = 0
    for event in yaml.parse(text, _Loader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MOST_LEVELS:
            return True
    return False
