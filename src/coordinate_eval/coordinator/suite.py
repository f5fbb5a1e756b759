"""Suites: YAML in, `Suite` out, with the line of what is wrong."""

import hashlib
import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import ConfigDict, ValidationError

from coordinate_eval.errors import UserError
from coordinate_eval.records import Dataset, Suite

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+=@,-]{0,99}")
_DEFAULTS = {
    "num_fewshot",
    "gen_kwargs",
    "limit",
    "repeats",
    "chat_template",
    "system_instruction",
    "fewshot_as_multiturn",
    "think_end_token",
    "metadata",
}
_KEYS = {"name", "include_path", "defaults", "datasets"}


class _StrictDataset(Dataset):
    model_config = ConfigDict(extra="forbid")


class _Located(dict[str, Any]):
    """A mapping that remembers on which line it and each of its keys began."""

    line: int
    lines: dict[str, int]


class _Loader(yaml.SafeLoader):
    pass


def _mapping(loader: _Loader, node: yaml.MappingNode) -> _Located:
    found = _Located()
    found.line = node.start_mark.line + 1
    found.lines = {}
    for key_node, value_node in node.value:
        key = str(loader.construct_object(key_node, deep=True))
        if key in found:
            raise yaml.constructor.ConstructorError(
                None, None, f"{key!r} stands twice", key_node.start_mark
            )
        found[key] = loader.construct_object(value_node, deep=True)
        found.lines[key] = key_node.start_mark.line + 1
    return found


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def shipped() -> list[str]:
    """Names of the suites that come with the program."""
    folder = resources.files("coordinate_eval.evaluators") / "suites"
    return sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith("yaml"))


def load(name: str) -> Suite:
    """The suite of a file, or a shipped one by its name.

    Raises:
        UserError: there is none, or it is malformed; with file and line.
    """
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or _exists(path):
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"suite {name}: cannot be read: {error}") from error
        return parse(text, where=str(path), folder=path.resolve().parent)
    if name not in shipped():
        raise UserError(
            f"no suite {name!r}: it is neither a file nor one of {', '.join(shipped())}"
        )
    resource = resources.files("coordinate_eval.evaluators") / "suites" / f"{name}.yaml"
    return parse(resource.read_text(), where=name, folder=Path())


def parse(text: str, *, where: str, folder: Path) -> Suite:
    """A suite's text; `folder` is what its include paths are relative to.

    Raises:
        UserError: with `where` and the line.
    """
    tree = _tree(text, where)
    _only(tree, _KEYS, where, "a suite")
    defaults = tree.get("defaults") or _located({}, tree.line)
    if not isinstance(defaults, _Located):
        raise _wrong(where, tree.lines["defaults"], "defaults must be a mapping")
    _only(defaults, _DEFAULTS, where, "defaults")
    entries = tree.get("datasets")
    if not isinstance(entries, list) or not entries:
        raise _wrong(where, tree.lines.get("datasets", tree.line), "datasets must be a list")
    datasets = [_dataset(entry, defaults, where, tree.lines["datasets"]) for entry in entries]
    _unique(entries, where)
    include_path = [str(folder / p) for p in _strings(tree, "include_path", where)]
    for place in include_path:
        if not Path(place).is_dir():
            raise _wrong(where, tree.lines["include_path"], f"no folder {place}")
    content = [include_path, [d.model_dump(mode="json") for d in datasets]]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    name = str(tree.get("name") or Path(where).stem)
    return Suite(name=name, digest=digest, include_path=include_path, datasets=datasets)


def _tree(text: str, where: str) -> _Located:
    try:
        tree = yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise _wrong(where, line, error.problem or "not YAML") from error
    except yaml.YAMLError as error:
        raise _wrong(where, 1, f"not YAML: {error}") from error
    if not isinstance(tree, _Located):
        raise _wrong(where, 1, "a suite is a mapping with `datasets`")
    return tree


def _dataset(entry: object, defaults: _Located, where: str, line: int) -> Dataset:
    if isinstance(entry, str):
        entry = _located({"name": entry, "task": entry}, line)
    if not isinstance(entry, _Located):
        raise _wrong(where, line, "each dataset is a mapping with `name` and `task`")
    try:
        dataset = _StrictDataset.model_validate({**defaults, **entry})
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0]) if first["loc"] else ""
        at = entry.lines.get(key, defaults.lines.get(key, entry.line))
        name = ".".join(str(part) for part in first["loc"])
        raise _wrong(where, at, f"{name}: {first['msg']}") from error
    if not _NAME.fullmatch(dataset.name):
        at = entry.lines.get("name", entry.line)
        raise _wrong(
            where, at, f"name {dataset.name!r}: letters, digits and _ . + = @ , - only, please"
        )
    for key, least in (("items", 1), ("limit", 1), ("repeats", 1), ("num_fewshot", 0)):
        value = getattr(dataset, key)
        if value is not None and value < least:
            at = entry.lines.get(key, defaults.lines.get(key, entry.line))
            raise _wrong(where, at, f"dataset {dataset.name}: {key} is {value}, at least {least}")
    if dataset.task is None and (dataset.items is None or dataset.prior is None):
        raise _wrong(
            where, entry.line, f"dataset {dataset.name} needs a task, or items and a prior"
        )
    return Dataset.model_validate(dataset.model_dump())


def _unique(entries: list[Any], where: str) -> None:
    seen: dict[str, int] = {}
    for entry in entries:
        name = entry if isinstance(entry, str) else entry["name"]
        line = getattr(entry, "line", 0)
        # Case-insensitively: names become files, and some shared storage folds case.
        if name.lower() in seen:
            raise _wrong(where, line, f"dataset {name} stands twice")
        seen[name.lower()] = line


def _only(tree: _Located, keys: set[str], where: str, what: str) -> None:
    for key in tree:
        if key not in keys:
            known = ", ".join(sorted(keys))
            raise _wrong(where, tree.lines[key], f"unknown key {key!r} in {what}; known: {known}")


def _strings(tree: _Located, key: str, where: str) -> list[str]:
    value = tree.get(key) or []
    value = [value] if isinstance(value, str) else value
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise _wrong(where, tree.lines[key], f"{key} must be a list of folders")
    return value


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long, or with a NUL: no path at all
        return False


def _located(value: dict[str, Any], line: int) -> _Located:
    found = _Located(value)
    found.line, found.lines = line, {}
    return found


def _wrong(where: str, line: int, what: str) -> UserError:
    return UserError(f"suite {where}, line {line}: {what}")
