"""The harness's own index of its tasks: the kept one, or one made now and kept."""

from pathlib import Path

import lm_eval.tasks
from lm_eval.tasks._index import Entry, Kind, TaskIndex

from coordinate_eval.evaluators.harness.tasks import task_names
from coordinate_eval.evaluators.harness.tasks.task_names import KeptTasks

_FOLDER = Path(lm_eval.tasks.__file__).parent


def own_tasks(kept_file: Path | None) -> dict[str, Entry]:
    """Return the tasks, groups and tags that the harness comes with, by name.

    They are as `TaskIndex.build` returns them, without their configuration: the harness reads that
    again for each task that it loads.

    Args:
        kept_file: where an earlier process may have kept them, and this one does otherwise.
    """
    kept = task_names.read(kept_file, _FOLDER) if kept_file else None
    if kept is not None:
        return {row[0]: _entry(*row) for row in kept.entries}
    state = task_names.state_of(_FOLDER)
    made: dict[str, Entry] = TaskIndex.build([_FOLDER])
    if kept_file:
        rows = [_row(entry) for entry in made.values()]
        task_names.keep(kept_file, KeptTasks(state=state, entries=rows))
    return made


def _row(entry: Entry) -> tuple[str, str, str, list[str]]:
    file = str(entry.yaml_path.relative_to(_FOLDER)) if entry.yaml_path else ""
    return entry.name, entry.kind.name, file, sorted(entry.tags)


def _entry(name: str, kind: str, file: str, tags: list[str]) -> Entry:
    return Entry(name, Kind[kind], _FOLDER / file if file else None, tags=set(tags))
