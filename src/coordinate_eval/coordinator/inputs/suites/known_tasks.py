"""Check the names of a suite's tasks at once, without loading the harness."""

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from coordinate_eval.errors import UserError
from coordinate_eval.evaluators.harness.tasks.task_names import no_such_task, unknown
from coordinate_eval.records import Suite


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # C if it is there
    """A loader that leaves out what only the harness can read, such as `!function`."""


_Loader.add_multi_constructor("!", lambda loader, suffix, node: None)


def check_known(suite: Suite, cache: Path, folder: str = "") -> None:
    """Check the names of a suite's tasks, as far as they can be checked at once.

    They are checked if an earlier process has kept the index of the installed harness in the folder
    `cache`. Otherwise building the prompts tells. A task may be the path of a file from `folder`.

    Raises:
        UserError: a dataset's task is neither the harness's own nor in the suite's folders.
    """
    own = set(itertools.chain.from_iterable(map(_names_in, suite.include_path)))
    names = {
        d.name: d.task
        for d in suite.datasets
        if d.task is not None
        and d.task not in own
        and not (Path(folder) / Path(d.task).expanduser()).is_file()
    }
    missing, known = unknown(names.values(), cache)
    lacking = [
        no_such_task(dataset, name, [*known, *own], suite.include_path)
        for dataset, name in names.items()
        if name in missing
    ]
    if lacking:
        raise UserError("\n".join(lacking))


def _names_in(folder: str) -> Iterator[str]:
    """Yield the tasks, groups and tags that the harness would find in a folder."""
    for path in Path(folder).glob("**/*.yaml"):
        # The harness passes over what it cannot read, and says so when the task is loaded.
        with contextlib.suppress(Exception):
            config = _merged(path, frozenset())
            tags = config.get("tag") or []
            found = [config.get("task"), config.get("group")]
            found += tags if isinstance(tags, list) else [tags]
            yield from (name for name in found if isinstance(name, str))


def _merged(path: Path, above: frozenset[Path]) -> dict[str, Any]:
    """Return a task's file merged with those that it includes. Its own keys win."""
    if path in above:
        raise ValueError(f"{path} includes itself")
    config: dict[str, Any] = yaml.load(path.read_bytes(), Loader=_Loader)  # noqa: S506 - it is a safe loader
    included = config.pop("include", [])
    merged: dict[str, Any] = {}
    for each in included if isinstance(included, list) else [included]:
        merged |= _merged(path.parent / each, above | {path})
    return merged | config
