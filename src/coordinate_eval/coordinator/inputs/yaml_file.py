"""YAML files that a user names, with the line of every key, so that an error has its line."""

import json
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from coordinate_eval import _format, _user_files
from coordinate_eval.errors import UserError

try:  # libyaml's: ten times as fast, and a thousand nodes are many lines
    from yaml import CSafeLoader as _SafeLoader
except ImportError:  # PyYAML was built without it
    from yaml import SafeLoader as _SafeLoader  # type: ignore[assignment]

ModelT = TypeVar("ModelT", bound=BaseModel)

_MERGE = "tag:yaml.org,2002:merge"
_MOST_VALUES = 100_000
_MOST_DIGITS = 1000  # of a number: those of 1:30:00 multiply
_MOST_DEPTH = 100  # readers of JSON stop at twice that


# Also of numbers and dates that there are not, and of a value that is none of its !!tag.
_WRONG = (yaml.YAMLError, ValueError, ArithmeticError, LookupError, AttributeError, TypeError)


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
        if not keys:
            return self.place
        key = str(keys[0])
        return _within(self.get(key), keys[1:], self.places.get(key, self.place))

    def over(self, other: "Located") -> "Located":
        """Return the other mapping updated with the keys of this one."""
        return Located({**other, **self}, self.place, {**other.places, **self.places})


class LocatedList(list[Any]):
    """A list that remembers the line of each entry."""

    def __init__(self, values: list[Any], places: list[Place]) -> None:
        super().__init__(values)
        self.places = places


def _within(value: object, keys: tuple[object, ...], place: Place) -> Place:
    """Return the line of what keys lead to in a value at a place."""
    if isinstance(value, Located) and keys:
        return value.at(*keys)
    if isinstance(value, LocatedList) and keys and isinstance(keys[0], int):
        return _within(value[keys[0]], keys[1:], value.places[keys[0]])
    return place


class Source(NamedTuple):
    """The text of a file, and where it comes from."""

    text: str
    where: str
    folder: Path
    """The folder that its paths are relative to."""
    identity: str
    """Equal for equal files, however they are named."""
    what: str = "suite"


def read(path: Path, what: str) -> Any:  # noqa: ANN401 - any YAML value
    """Return the document in a file; `what` names it for the user, such as "cluster file".

    Raises:
        UserError: It cannot be read, or is no YAML; names file and line.
    """
    text = _user_files.read_text(path, what, anybodys=True)
    return document(Source(text, str(path), path.parent, str(path), what))


def read_as(kind: type[ModelT], path: Path, what: str, key: str) -> ModelT:
    """Return the document in a file as a model of this kind, whose main key is `key`."""
    tree = read(path, what)
    if not isinstance(tree, Located):
        raise UserError(f"{what} {path}: it must be a mapping with `{key}`")
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        loc = error.errors()[0]["loc"]
        where = _format.plain(".".join(str(part) for part in loc))
        raise wrong(tree.at(*loc), f"{where}: {_format.problem(error)}") from error


def located(source: Source) -> Located:
    """Return the mapping in a YAML file, with the line of every key.

    Raises:
        UserError: It is malformed; names file and line.
    """
    tree = document(source)
    if not isinstance(tree, Located):
        raise wrong(Place(source.where, 1, source.what), f"a {source.what} must be a mapping")
    return tree


def document(source: Source) -> Any:  # noqa: ANN401 - any YAML value
    """Return the document in a YAML file, its mappings with the line of every key.

    Raises:
        UserError: It is malformed; names file and line.
    """
    start = Place(source.where, 1, source.what)
    try:
        _check_size(source.text)
        loader = _Loader(source.text)
        loader.where, loader.what = source.where, source.what
        tree = loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        place = Place(source.where, line, source.what)
        raise wrong(place, f"this is not YAML: {error.problem}") from error
    except _WRONG as error:
        raise wrong(start, f"this is not YAML: {_format.brief(error)}") from error
    if _has_too_many(tree):
        most = f"more than {_MOST_VALUES:,} values"
        raise wrong(start, f"it has {most}, counting aliases (*name) as often as used")
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


class _Loader(_SafeLoader):
    where = ""
    what = ""
    merged = 0
    """Values that `<<` has taken over."""

    def place(self, node: yaml.Node) -> Place:
        return Place(self.where, node.start_mark.line + 1, self.what)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Refuse `<<` in a set: PyYAML's own merge makes sets of any size."""
        if any(key.tag == _MERGE for key, _ in node.value):
            raise wrong(self.place(node), "<< takes mappings")


def _mapping(loader: _Loader, node: yaml.MappingNode) -> Located:
    found, merged = Located({}, loader.place(node), {}), Located({}, loader.place(node), {})
    for key_node, value_node in node.value:
        value = loader.construct_object(value_node, deep=True)
        if key_node.tag == _MERGE:
            for each in value if isinstance(value, list) else [value]:
                if not isinstance(each, Located):
                    raise wrong(loader.place(key_node), "<< takes mappings")
                loader.merged += 1 + len(each)
                if loader.merged > _MOST_VALUES:
                    raise wrong(loader.place(key_node), "<< takes too many values")
                new = each.keys() - merged.keys()
                merged.update({key: each[key] for key in each if key in new})
                merged.places.update({key: each.places[key] for key in new})
            continue
        if not isinstance(key_node, yaml.ScalarNode):
            raise wrong(loader.place(key_node), "a key must be a text or a number")
        key = str(loader.construct_object(key_node, deep=True))
        if key in found:
            raise wrong(loader.place(key_node), f"key {key!r} is given twice")
        found[key] = value
        found.places[key] = loader.place(key_node)
    return found.over(merged) if merged else found


def _number(loader: _Loader, node: yaml.ScalarNode) -> Any:  # noqa: ANN401 - int or float
    if len(node.value) > _MOST_DIGITS:
        raise ValueError("no number has so many digits")
    return _SafeLoader.yaml_constructors[node.tag](loader, node)


def _sequence(loader: _Loader, node: yaml.SequenceNode) -> LocatedList:
    values = [loader.construct_object(child, deep=True) for child in node.value]
    return LocatedList(values, [loader.place(child) for child in node.value])


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_SEQUENCE_TAG, _sequence)
for _tag in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _number)


def _check_size(text: str) -> None:
    """Refuse a text before it is made into values.

    Raises:
        ValueError: It is nested so deeply that libyaml may overrun its stack, or takes minutes.
    """
    depth = 0
    for number, event in enumerate(yaml.parse(text, _Loader)):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _MOST_DEPTH:
            raise ValueError("it is nested too deeply")
        if number > 4 * _MOST_VALUES:  # a value may have a key, and two events
            raise ValueError(f"it has more than {_MOST_VALUES:,} values")


def _has_too_many(tree: object) -> bool:
    """Return whether a tree has too many values, or is nested too deeply, through its aliases.

    A value counts as often as it is used, since aliases of aliases multiply.
    """
    values, left = [tree], _MOST_VALUES
    while values and left >= 0:
        value = values.pop()
        left -= 1
        if isinstance(value, dict | list | tuple):
            values += value.values() if isinstance(value, dict) else value
    return left < 0
