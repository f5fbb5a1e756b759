"""YAML with the line of every key, so that what is wrong in a file is said with its line."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from coordinate_eval.errors import UserError

_MOST_VALUES = 100_000
_MOST_DEPTH = 100  # readers of JSON stop at twice that


class Place(NamedTuple):
    """A line of a file."""

    where: str
    line: int
    what: str = "suite"


class Located(dict[str, Any]):
    """A mapping that remembers the lines of itself and of its keys."""

    def __init__(self, value: dict[str, Any], place: Place, places: dict[str, Place]) -> None:
        super().__init__(value)
        self.place, self.places = place, places

    def at(self, *keys: object) -> Place:
        """Return the line of a key, or of the nearest mapping around it."""
        place = self.places.get(str(keys[0]), self.place) if keys else self.place
        inner = self.get(str(keys[0])) if keys else None
        return inner.at(*keys[1:]) if isinstance(inner, Located) and keys[1:] else place

    def over(self, other: "Located") -> "Located":
        """Return the other mapping updated with the keys of this one."""
        return Located({**other, **self}, self.place, {**other.places, **self.places})


class LocatedList(list[Any]):
    """A list that remembers the line of each entry."""

    def __init__(self, values: list[Any], places: list[Place]) -> None:
        super().__init__(values)
        self.places = places


class Source(NamedTuple):
    """The text of a file, and where it comes from."""

    text: str
    where: str
    folder: Path
    """The folder that its paths are relative to."""
    identity: str
    """Equal for equal files, however they are named."""
    what: str = "suite"


def located(source: Source) -> Located:
    """Return the mapping in a YAML file, with the line of every key.

    Raises:
        UserError: It is malformed; names file and line.
    """
    start = Place(source.where, 1, source.what)
    try:
        loader = _Loader(source.text)
        loader.where, loader.what = source.where, source.what
        tree = loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        place = Place(source.where, line, source.what)
        raise wrong(place, error.problem or "not YAML") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # Numbers of too many digits, impossible dates, or brackets nested too deeply.
        raise wrong(start, f"not YAML: {error}") from error
    if not isinstance(tree, Located):
        raise wrong(start, f"a {source.what} must be a mapping")
    if excess := _excess(tree):
        raise wrong(start, f"it has {excess}")
    return tree


def only(tree: Located, keys: set[str], what: str) -> None:
    """Refuse unknown keys.

    Raises:
        UserError: A key is unknown; names file and line.
    """
    for key in tree:
        if key not in keys:
            known = ", ".join(sorted(keys))
            raise wrong(tree.at(key), f"unknown key {key!r} in {what}; known: {known}")


def wrong(place: Place, what: str) -> UserError:
    """Return an error with file and line."""
    return UserError(f"{place.what} {place.where}, line {place.line}: {what}")


def check_json(value: object, place: Place, what: str) -> None:
    """Check that a value survives JSON, through which jobs get it.

    Raises:
        UserError: JSON would change the value; names file and line.
    """
    why = "JSON has no such value"
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        if json.loads(text.encode()) == value:
            return
    except (TypeError, ValueError, RecursionError) as error:
        why = str(error)
    raise wrong(
        place, f"{what}: {why}; give texts, numbers, lists and mappings, and a date in quotes"
    )


class _Loader(yaml.SafeLoader):
    where = ""
    what = ""

    def place(self, node: yaml.Node) -> Place:
        return Place(self.where, node.start_mark.line + 1, self.what)


def _mapping(loader: _Loader, node: yaml.MappingNode) -> Located:
    found = Located({}, loader.place(node), {})
    for key_node, value_node in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":
            raise yaml.constructor.ConstructorError(
                None, None, "merge keys (<<) are not supported, use defaults", key_node.start_mark
            )
        key = str(loader.construct_object(key_node, deep=True))
        if key in found:
            raise yaml.constructor.ConstructorError(
                None, None, f"key {key!r} is given twice", key_node.start_mark
            )
        found[key] = loader.construct_object(value_node, deep=True)
        found.places[key] = loader.place(key_node)
    return found


def _sequence(loader: _Loader, node: yaml.SequenceNode) -> LocatedList:
    values = [loader.construct_object(child, deep=True) for child in node.value]
    return LocatedList(values, [loader.place(child) for child in node.value])


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_SEQUENCE_TAG, _sequence)


def _excess(tree: Located) -> str:
    """Return what a tree has too many of; empty if it has not.

    A value counts as often as it is used, since aliases of aliases multiply.
    """
    values: list[tuple[Any, int]] = [(tree, 1)]
    left = _MOST_VALUES
    while values:
        value, depth = values.pop()
        left -= 1
        if left < 0:
            return f"more than {_MOST_VALUES:,} values, counting aliases (*name) as often as used"
        if depth > _MOST_DEPTH:
            return f"lists or mappings nested more than {_MOST_DEPTH} deep"
        if isinstance(value, dict | list | tuple):
            inner = value.values() if isinstance(value, dict) else value
            values += [(each, depth + 1) for each in inner]
    return ""
