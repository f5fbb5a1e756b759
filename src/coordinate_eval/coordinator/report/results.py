"""The results of a run: `results.json`, a table of it, and what is missing."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from coordinate_eval import __version__, _files
from coordinate_eval.coordinator.incidents.shown import report_failures
from coordinate_eval.coordinator.report.main_metric import (
    Member,
    Score,
    higher_is_better,
    main_score,
    metrics,
    why_unlike,
)
from coordinate_eval.coordinator.report.missing import build_errors, reasons, why_missing
from coordinate_eval.coordinator.run.claiming.decided import (
    Compared,
    cut_short,
    last_compared,
    read_part,
    stopped,
)
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.errors import RecordError
from coordinate_eval.records import (
    Aggregate,
    Checkpoint,
    CheckpointFormat,
    DatasetItems,
    DatasetResults,
    Record,
    Span,
    judge_name,
)

_TABLES = (
    "results", "groups", "group_subtasks", "higher_is_better", "n_shot", "n_samples", "versions",
)  # fmt: skip
"""Fields of a dataset's results that have a task or group as key."""


class Rescored(Record):
    """The findings of a run that scores another one's responses again; see `differences`."""

    dir: str
    changed: dict[str, dict[str, dict[str, dict[str, float | None]]]]
    not_scored_before: list[str]
    judges: dict[str, str] = Field(default={})


class AggregateScore(Record):
    """A weighted mean that the suite defines; null while scores are missing, or are unlike."""

    value: float | None
    stderr: float | None = None
    datasets: int
    missing: list[str] = Field(default=[])
    why_not: str = ""

    @property
    def why_unknown(self) -> str:
        """Return why there is no value, for people."""
        return self.why_not or f"not known without {', '.join(self.missing[:5])}"


def aggregate_scores(
    aggregates: Mapping[str, Aggregate],
    scores: Mapping[str, Score],
    results: Mapping[str, DatasetResults],
) -> dict[str, AggregateScore]:
    """Return the aggregates of a run, from the main scores of its datasets."""
    known = {name: (score.value, score.stderr) for name, score in scores.items()}
    found = {}
    for name, each in aggregates.items():
        members = {
            n: Member(scores[n].metric, scores[n].value, better)
            for n in each.factors
            if n in scores
            for better in [higher_is_better(results[n], scores[n].metric)]
        }
        why_not = why_unlike(members)
        value, stderr = (None if why_not else each.value(known)) or (None, None)
        found[name] = AggregateScore(
            value=value,
            stderr=stderr,
            datasets=len(each.factors),
            missing=each.missing(known),
            why_not=why_not,
        )
    return found


class _Shown(Record):
    """The part of `results.json` that people are shown."""

    complete: bool
    compared: Compared | None = None
    stopped: dict[str, dict[str, int]] = Field(default={})
    rescored: Rescored | None = None
    missing: dict[str, str] = Field(default={})
    aggregates: dict[str, AggregateScore] = Field(default={})
    reason: str = ""
    failures: list[str] = Field(default=[])


def collect_results(run_dir: RunDir, run: Run, reason: str = "") -> dict[str, Any]:
    """Return the content of `results.json`, from the datasets that are scored so far.

    `reason` is why the run ended, where it ended before all of them were.
    """
    scored, used = {}, {}
    for dataset in run.suite.datasets:
        # A decision may come, or be taken back, at any time: each dataset is looked at once.
        found, items = _read_used(run_dir, dataset.name)
        if found is not None:
            scored[dataset.name] = found
        if found is not None and items is not None:
            used[dataset.name] = items
    missing = {
        d.name: why_missing(run_dir, run, d.name)
        for d in run.suite.datasets
        if d.name not in scored
    }
    mains = {name: main_score(found) for name, found in scored.items()}
    known = {name: main for name, main in mains.items() if main is not None}
    aggregates = aggregate_scores(run.suite.aggregates, known, scored)
    compared = last_compared(run_dir, run)
    merged: dict[str, dict[str, Any]] = {part: {} for part in _TABLES}
    for found in with_distinct_names(list(scored.values())):
        for part in _TABLES:
            merged[part] |= getattr(found, part)
    return {
        "schema": "coordinate-eval/scores@1",
        "complete": not (missing or cut_short(run, used)),
        **merged,
        "toolchains": {
            name: found.toolchains for name, found in scored.items() if found.toolchains
        },
        "judge": {name: found.judge for name, found in scored.items() if found.judge},
        "harness": {name: found.harness for name, found in scored.items()},
        "items": {name: found.items for name, found in scored.items()},
        "outputs": {
            name: found.outputs.model_dump() for name, found in scored.items() if found.outputs
        },
        "plain_chat": [name for name, found in scored.items() if found.plain_chat],
        "own_answers": {
            name: {task: each.model_dump() for task, each in found.own_answers.items()}
            for name, found in scored.items()
            if found.own_answers
        },
        "compared": compared.model_dump(mode="json", by_alias=True) if compared else None,
        "stopped": {n: {"items": used[n], "of_items": run.stages[n][-1]} for n in used},
        "rescored": _rescored(run, scored),
        "aggregates": {name: each.model_dump() for name, each in aggregates.items()},
        "missing": missing,
        "left_out": run.left_out,
        "reason": reason if missing else "",
        "failures": [*build_errors(run_dir), *report_failures(run_dir)] if missing else [],
        "run": run.id,
        "checkpoint": {
            "path": run.checkpoint.path,
            "identity": run.checkpoint.identity,
            "parameters": run.checkpoint.parameters,
            **_made_of(run.checkpoint),
        },
        "suite": {"name": run.suite.name, "digest": run.suite.digest},
        "engine": run.settings.engine.model_dump(),
        "seconds": round(time.time() - run.created, 3),
        "coordinate_eval_version": __version__,
    }


def with_distinct_names(scored: Sequence[DatasetResults]) -> list[DatasetResults]:
    """Return the results of datasets with each task's name in one of them only.

    Two datasets may have a task in common, with other items or settings: a group and one of its
    tasks, or two groups. Such a task is called `<dataset>/<task>`, but where it is the dataset.
    """
    owners = Counter(
        name for found in scored for name in {n for part in _TABLES for n in getattr(found, part)}
    )

    def renamed(found: DatasetResults) -> DatasetResults:
        def name_of(task: str) -> str:
            own = owners[task] < 2 or task == found.dataset
            return task if own else f"{found.dataset}/{task}"

        tables: dict[str, Any] = {
            part: {name_of(task): value for task, value in getattr(found, part).items()}
            for part in _TABLES
        }
        tables["group_subtasks"] = {
            group: [*map(name_of, members)] for group, members in tables["group_subtasks"].items()
        }
        return found.model_copy(update=tables)

    return [renamed(found) for found in scored]


def differences(before: RunDir, scored: Mapping[str, DatasetResults]) -> Rescored:
    """Return what a run that scores another one's responses again has found.

    Each metric whose value has changed is there, with its values before and now: None where there
    was none, or is none. Standard errors are not compared. Where other judges rated the answers,
    that is said under `judges`.
    """
    changed: dict[str, dict[str, dict[str, dict[str, float | None]]]] = {}
    unknown, judges = [], {}
    for name, now in scored.items():
        was = read_dataset(before, name)
        if was is None:
            unknown.append(name)
            continue
        if was.judge and now.judge:
            judges[name] = judged_differently((("before", judged(was)), ("now", judged(now))))
        for task in {**was.results, **now.results}:
            values = [
                {metric: value for metric, value, _ in metrics(found.results.get(task, {}))}
                for found in (was, now)
            ]
            for metric in {**values[0], **values[1]}:
                old, new = (each.get(metric) for each in values)
                if old != new:
                    of_dataset = changed.setdefault(name, {}).setdefault(task, {})
                    of_dataset[metric] = {"before": old, "now": new}
    differ = {name: why for name, why in judges.items() if why}
    return Rescored(dir=str(before.root), changed=changed, not_scored_before=unknown, judges=differ)


def judged(results: DatasetResults) -> dict[str, Any]:
    """Return who judged a dataset, by what, and how many items; nothing if no judge did."""
    return {"items": results.items, **results.judge} if results.judge else {}


def judged_differently(judges: Iterable[tuple[str, dict[str, Any]]]) -> str:
    """Return how the judges of a dataset differ in several runs; empty if they do not.

    They are the same if model, revision and rubric are, and the prompts wherever runs have the same
    items. Each is given with its run's id.
    """
    runs: dict[str, str] = {}
    prompts: dict[int, dict[str, str]] = {}
    for run, judge in judges:
        model = judge_name(judge.get("model", ""), judge.get("revision", ""))
        rubric = f"{judge.get('rubric', '')} ({judge.get('rubric_digest', '')})"
        runs.setdefault(f"{model} by rubric {rubric}", run)
        prompts.setdefault(judge["items"], {}).setdefault(judge.get("prompts_digest", ""), run)
    if len(runs) > 1:
        each = "; ".join(f"{said} in {run}" for said, run in runs.items())
        return f"its judges differ: {each}"
    told = next((each for each in prompts.values() if len(each) > 1), None)
    if told is not None:
        return (
            f"its judge was told different things in {' and '.join(told.values())}, in its prompts "
            "or of the baseline"
        )
    return ""


def _made_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return what a checkpoint is made of, if it is made of others."""
    if checkpoint.format is CheckpointFormat.ADAPTER:
        return {"base": checkpoint.parts[0].path}
    if checkpoint.format is CheckpointFormat.AVERAGE:
        members = [part.path for part in checkpoint.parts]
        return {"average": members, "weights": checkpoint.shares}
    return {}


def _rescored(run: Run, scored: Mapping[str, DatasetResults]) -> dict[str, Any] | None:
    if not run.rescores:
        return None
    return differences(RunDir(Path(run.rescores)), scored).model_dump()


def read_dataset(run_dir: RunDir, dataset: str) -> DatasetResults | None:
    """Return the results of a dataset, of the items that are used; None if it has none yet."""
    return _read_used(run_dir, dataset)[0]


def _read_used(run_dir: RunDir, dataset: str) -> tuple[DatasetResults | None, int | None]:
    """Return the results of a dataset, and how many items they are of; None for all of them."""
    whole = _files.read_record_if_there(run_dir.dataset_results(dataset), DatasetResults)
    used = stopped(run_dir).get(dataset) if whole is None else None
    if used is None:
        return whole, None
    part = read_part(run_dir, Span(dataset, 0, used))
    return (part.results if part is not None else None), used


def read_items(run_dir: RunDir, dataset: str) -> DatasetItems | None:
    """Return the scores of the items that the results of a dataset are of, if there are any."""
    whole = _files.read_record_if_there(run_dir.items(dataset), DatasetItems)
    used = stopped(run_dir).get(dataset) if whole is None else None
    part = read_part(run_dir, Span(dataset, 0, used)) if used is not None else None
    return part.items if part is not None else whole


def read_results(run_dir: RunDir) -> dict[str, Any] | None:
    """Return the content of `results.json`, or None before the run has ended.

    Raises:
        RecordError: the file is torn, or is no `results.json`.
    """
    if not run_dir.results.exists():
        return None
    mend = "delete it; `coordinate-eval resume` rebuilds it from the scores"
    try:
        results = _files.read_json(run_dir.results)
    except RecordError as error:
        raise RecordError(f"{error}; {mend}") from error
    try:
        shown = _Shown.model_validate(results)
    except ValidationError as error:
        raise RecordError(f"{run_dir.results} has no results of a run; {mend}") from error
    found: dict[str, Any] = shown.model_dump() | results
    return found


def is_done(results: Mapping[str, Any]) -> bool:
    """Return whether a run has what it was asked for: all scores, or a decision."""
    return bool(results["complete"] or (results.get("stopped") and not results.get("missing")))


def why_incomplete(run_dir: RunDir) -> list[str]:
    """Return why a run has ended without all of its results; nothing of one that goes on.

    Raises:
        RecordError: `results.json` is torn, or is none.
    """
    results = read_results(run_dir)
    if results is None or is_done(results):
        return []
    return reasons(results) or ["it ended before all datasets were scored"]
