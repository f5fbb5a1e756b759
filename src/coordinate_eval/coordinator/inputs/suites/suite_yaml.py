"""Suite files, merged with the suites that they extend.

A suite that `extends` another is merged with it before it is checked. The keys of its `defaults`
and datasets win, its `skip` removes inherited datasets, and its folders of tasks come after the
inherited ones, so that its tasks win too.
"""

import difflib
import fnmatch
import re
import stat
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from coordinate_eval import _user_files
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
from coordinate_eval.errors import UserError

_KEYS = {"name", "extends", "include_path", "defaults", "skip", "datasets", "aggregates"}


FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+=@,-]{0,99}")
"""Names in a suite: they become file names."""


class Merged(NamedTuple):
    """A suite merged with all suites that it extends."""

    name: str | None
    include_path: list[str]
    defaults: Located
    datasets: dict[str, Located]
    aggregates: Located


def shipped_folder() -> Path:
    """Return the folder of the shipped suites."""
    return Path(str(resources.files("coordinate_eval.evaluators") / "suites"))


def shipped() -> list[str]:
    """Return the names of the shipped suites."""
    return sorted(path.stem for path in shipped_folder().glob("*.yaml"))


def shipped_rubrics() -> list[str]:
    """Return the names of the shipped rubrics."""
    return sorted(path.stem for path in (shipped_folder() / "rubrics").glob("*.yaml"))


def find(name: str, folder: Path = Path()) -> Source:
    """Return the suite in a file, relative to `folder`, or the shipped suite with this name."""
    # A shipped suite's name means nothing else, whatever lies in the folder.
    if name in shipped():
        path = shipped_folder() / f"{name}.yaml"
        return Source(path.read_text(), name, path.parent, str(path))
    path = folder / name
    if path.suffix not in (".yaml", ".yml") and not mode(path):
        raise UserError(
            f"no suite {name!r}: give a suite file, or a shipped suite: {', '.join(shipped())}"
        )
    text = _user_files.read_text(path, "suite")
    real = path.resolve()
    # Paths in a suite that comes through a pipe are relative to the working directory.
    return Source(text, str(path), real.parent if path.is_file() else Path.cwd(), str(real))


def merged(source: Source) -> Merged:
    """Merge a suite with those that it extends.

    Raises:
        UserError: One is malformed; names file and line.
    """
    chain = _chain(source)
    folders: list[str] = []
    defaults, datasets = Located({}, Place(source.where, 1), {}), dict[str, Located]()
    aggregates = Located({}, Place(source.where, 1), {})
    for tree, folder in chain:
        folders += [f for f in _folders(tree, folder) if f not in folders]
        defaults = _mapping(tree, "defaults").over(defaults)
        aggregates = _mapping(tree, "aggregates").over(aggregates)
        for pattern, place in _strings(tree, "skip", "a list of names of inherited datasets"):
            found = matching(pattern, datasets)
            if not found:
                raise wrong(place, f"skip: {unknown('dataset', pattern, datasets)}")
            for name in found:
                del datasets[name]
        _add(tree, folder, datasets)
    title = chain[-1][0].get("name")
    if not isinstance(title, str | None):
        raise wrong(chain[-1][0].at("name"), "name must be a text")
    check_json(title, chain[-1][0].at("name"), "name")
    return Merged(title, folders, defaults, datasets, aggregates)


def _mapping(tree: Located, key: str) -> Located:
    own = tree.get(key)
    if own is None:
        return Located({}, tree.place, {})
    if not isinstance(own, Located):
        raise wrong(tree.at(key), f"{key} must be a mapping")
    return own


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """Return the names that equal or match a shell pattern such as `arc_*`."""
    return [name for name in names if name == pattern or fnmatch.fnmatchcase(name, pattern)]


def unknown(what: str, name: str, names: Iterable[str]) -> str:
    """Return a message that a name is unknown, with similar names."""
    known = list(names)
    near = difflib.get_close_matches(name, known, n=4, cutoff=0.5)
    some = ", ".join(near[:-1]) + " or " if len(near) > 1 else ""
    hint = f"; did you mean {some}{near[-1]}?" if near else ""
    return f"there is no {what} {name!r}{hint}"


def _chain(source: Source) -> list[tuple[Located, Path]]:
    """Return a suite and all that it extends, with their folders; the innermost one first."""
    chain: list[tuple[Located, Path]] = []
    seen: list[str] = []
    while True:
        tree = located(source)
        only(tree, _KEYS, "a suite")
        chain.append((tree, source.folder))
        seen.append(source.identity)
        name = tree.get("extends")
        if name is None:
            if "skip" in tree:
                raise wrong(tree.at("skip"), "skip removes inherited datasets and needs extends")
            return chain[::-1]
        if not isinstance(name, str):
            raise wrong(tree.at("extends"), "extends must be the name or the file of one suite")
        try:
            source = find(name, source.folder)
        except UserError as error:
            raise wrong(tree.at("extends"), f"extends: {error}") from error
        if source.identity in seen:
            circle = " → ".join(Path(part).name for part in [*seen, source.identity])
            raise wrong(tree.at("extends"), f"extends is circular: {circle}")


def _add(tree: Located, folder: Path, datasets: dict[str, Located]) -> None:
    """Add the datasets of one tree to those it inherits, or change them."""
    entries = tree.get("datasets", LocatedList([], []) if "extends" in tree else None)
    if not isinstance(entries, LocatedList) or not (entries or "extends" in tree):
        raise wrong(tree.at("datasets"), "datasets must be a list")
    inherited = {name.lower(): name for name in datasets}
    own: dict[str, Place] = {}
    for value, place in zip(entries, entries.places, strict=True):
        entry = value
        if isinstance(value, str):
            entry = Located({"name": value, "task": value}, place, {})
        if not isinstance(entry, Located):
            raise wrong(place, "a dataset must be a mapping with `name` and `task`")
        name = entry.get("name")
        if not isinstance(name, str):
            raise wrong(entry.at("name"), "a dataset needs a name, which must be a text")
        # Names become file names, and some shared storage ignores case.
        if name.lower() in own:
            raise wrong(place, f"dataset {name} is listed twice, first {_said(own[name.lower()])}")
        own[name.lower()] = place
        before = datasets.get(inherited.get(name.lower(), ""))
        if before is not None and (isinstance(value, str) or name not in datasets):
            raise wrong(
                place,
                f"dataset {name} is listed twice, first {_said(before.place)}: to change it, give "
                f"its name, {before['name']}, and the keys to change",
            )
        if isinstance(rubric := entry.get("rubric"), str) and rubric not in shipped_rubrics():
            entry["rubric"] = str(folder / rubric)
        datasets[name] = entry.over(before) if before is not None else entry


def _said(place: Place) -> str:
    return f"in {place.where}, line {place.line}"


def _folders(tree: Located, folder: Path) -> list[str]:
    found = []
    for name, place in _strings(tree, "include_path", "a list of folders"):
        found.append(str(folder / name))
        if not stat.S_ISDIR(mode(Path(found[-1]))):
            raise wrong(place, f"no folder {found[-1]}")
    return found


def _strings(tree: Located, key: str, what: str) -> list[tuple[str, Place]]:
    """Return the texts of a key, which has one or a list, with their lines."""
    value = tree.get(key)
    if isinstance(value, str):
        return [(value, tree.at(key))]
    entries = LocatedList([], []) if value is None else value
    if not isinstance(entries, LocatedList) or not all(isinstance(v, str) for v in entries):
        raise wrong(tree.at(key), f"{key} must be {what}")
    return list(zip(entries, entries.places, strict=True))


def mode(path: Path) -> int:
    """Return the mode of what is at a path, 0 if nothing can be there: it is too long, say."""
    try:
        return path.stat().st_mode
    except (OSError, ValueError):
        return 0
