"""The results of a run: `results.json`, a table of it, and what is missing."""

import contextlib
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from coordinate_eval import __version__, _files
from coordinate_eval._format import plural
from coordinate_eval.coordinator.incidents.shown import report_failures
from coordinate_eval.coordinator.report.judges import judged, judged_differently
from coordinate_eval.coordinator.report.main_metric import metrics
from coordinate_eval.coordinator.run.claiming.claims import (
    MAX_DEATHS,
    Ledger,
    whole,
)
from coordinate_eval.coordinator.run.claiming.pullers import Pullers, pullers_name
from coordinate_eval.coordinator.run.claiming.work import unbuildable
from coordinate_eval.coordinator.run.logs import LAST_LOG_LINES, MOST_LOG_BYTES
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import JudgeProgress, Run
from coordinate_eval.errors import ForeignError, RecordError
from coordinate_eval.records import (
    Checkpoint,
    CheckpointFormat,
    DatasetResults,
    Outputs,
    OwnAnswers,
    Record,
    Span,
)

WORTH_SAYING = 0.1
"""Share of a dataset's answers that has to be degenerate before people are told."""

_DEGENERATE = {
    "empty": "are empty",
    "repeated": "are mostly repetition",
    "other_script": "are in another script than the prompts",
    "cut": "are cut by length",
}

_TABLES = (
    "results", "groups", "group_subtasks", "higher_is_better", "n_shot", "n_samples", "versions",
)  # fmt: skip
"""Fields of a dataset's results that have a task or group as key."""

MOST_NAMES = 5
"""Most datasets that a line names; more with the same reason are counted."""


class Rescored(Record):
    """The findings of a run that scores another one's responses again; see `differences`."""

    dir: str
    changed: dict[str, dict[str, dict[str, dict[str, float | None]]]]
    not_scored_before: list[str]
    judges: dict[str, str] = Field(default={})


class _Shown(Record):
    """The part of `results.json` that people are shown."""

    complete: bool
    run: str = ""
    results: dict[str, dict[str, Any]] = Field(default={})
    n_samples: dict[str, dict[str, Any]] = Field(default={})
    outputs: dict[str, Outputs] = Field(default={})
    rescored: Rescored | None = None
    missing: dict[str, str] = Field(default={})
    left_out: dict[str, str] = Field(default={})
    reason: str = ""
    judge: dict[str, dict[str, Any]] = Field(default={})
    failures: list[str] = Field(default=[])


def collect_results(run_dir: RunDir, run: Run, reason: str = "") -> dict[str, Any]:
    """Return the content of `results.json`, from the datasets that are scored so far.

    `reason` is why the run ended, where it ended before all of them were.
    """
    scored = {}
    for dataset in run.suite.datasets:
        found = read_dataset(run_dir, dataset.name)
        if found is not None:
            scored[dataset.name] = found
    missing = {
        d.name: _why_missing(run_dir, run, d.name)
        for d in run.suite.datasets
        if d.name not in scored
    }
    merged: dict[str, dict[str, Any]] = {part: {} for part in _TABLES}
    for found in with_distinct_names(list(scored.values())):
        for part in _TABLES:
            merged[part] |= getattr(found, part)
    return {
        "schema": "coordinate-eval/scores@1",
        "complete": not missing,
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
        "rescored": _rescored(run, scored),
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
    """Return the results of a dataset, None if it has none yet."""
    return _files.read_record_if_there(run_dir.dataset_results(dataset), DatasetResults)


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


def _why_missing(run_dir: RunDir, run: Run, dataset: str) -> str:
    """Return what a dataset without results still needed when the run ended."""
    path = run_dir.dataset_error(dataset)
    if path.exists():
        return _files.read(path).decode(errors="replace").strip()
    if not run.planned:
        return _why_not_planned(run_dir, run, dataset)
    spans = [s.span for s in run.shards if s.dataset == dataset]
    outputs = Ledger(run_dir, "outputs")
    unpublished = outputs.unpublished(spans)
    deadly = _deadly(outputs, unpublished)
    if deadly:
        return f"{deadly}; logs: {run_dir.logs}"
    if unpublished:
        items = sum(s.stop - s.start for s in unpublished)
        return f"{items} items have no responses"
    asked = [
        p for s in run.shards_with_questions() if s.dataset == dataset for p in run.portions(s)
    ]
    if dataset in run.judged and Ledger(run_dir, "answers").unpublished(asked):
        return _why_not_judged(run_dir, run)
    if Ledger(run_dir, "answers").unpublished(asked):
        why = "the questions of its metric are not all answered"
        said = _last_words(run_dir, run, Pullers.METRIC)
        return "\n".join([f"{why}; the last metric job said:", *said]) if said else why
    if Ledger(run_dir, "results").count_deaths(whole(dataset)) >= MAX_DEATHS:
        return f"{MAX_DEATHS} scoring jobs died on it; logs: {run_dir.logs}"
    said = _last_words(run_dir, run, Pullers.SCORE)
    return "\n".join(["not scored; the last scoring job said:", *said]) if said else "not scored"


def _deadly(outputs: Ledger, unpublished: list[Span]) -> str:
    """Return which items of a dataset end engines; empty if none do."""
    items = [item for span in unpublished for item in outputs.given_up(span) or ()]
    if not items:
        return ""
    one = len(items) == 1
    names = ", ".join(map(str, items[:MOST_NAMES])) + (", …" if len(items) > MOST_NAMES else "")
    return (
        f"{'item' if one else 'items'} {names}: engines die at {'it' if one else 'them'}, also "
        "with nothing else"
    )


def _why_not_judged(run_dir: RunDir, run: Run) -> str:
    """Return what the judge, or the job that asks it, said last."""
    progress = _files.read_record_if_there(run_dir.judge, JudgeProgress)
    said = progress.said if progress is not None else ""
    said = said or " ".join(_last_words(run_dir, run, Pullers.JUDGE)) or "it was not asked"
    return f"waits for its judge: {said}; `coordinate-eval resume {run.id}` goes on"


def _why_not_planned(run_dir: RunDir, run: Run, dataset: str) -> str:
    """Return what a dataset needed when the run ended before it had a plan."""
    path = run_dir.requests_error(dataset)
    if path.exists():
        return _files.read(path).decode(errors="replace").strip()
    if run_dir.requests_index(dataset).exists():
        return "it was not run: the run ended before its plan was made"
    said = _last_words(run_dir, run, Pullers.BUILD)
    why = "its requests are not built"
    return "\n".join([f"{why}; the last build job said:", *said]) if said else why


def _last_words(run_dir: RunDir, run: Run, kind: Pullers) -> list[str]:
    """Return the last lines of the newest puller that said anything, such as why it cannot."""
    pattern = pullers_name(run, kind, 0).removesuffix("0") + "*.log"
    for log in sorted(run_dir.logs.glob(pattern), key=_files.modified, reverse=True):
        with contextlib.suppress(OSError, ForeignError):
            lines = _files.read_end(log, MOST_LOG_BYTES).decode(errors="replace").splitlines()
            # Slurm's words about a job that the end of the run has ended.
            said = [line for line in lines if "CANCELLED AT" not in line]
            if said:
                return said[-LAST_LOG_LINES:]
    return []


def reasons(results: Mapping[str, Any] | None) -> list[str]:
    """Return why a run ended incomplete, a line for each reason, from its `results.json`.

    First the errors of jobs with their logs, and refused jobs, then why the run was given
    up, then the datasets without results, those that need the same together.
    """
    if results is None:
        return []
    lines = list(results["failures"])
    if results.get("reason"):
        lines.append(results["reason"])
    alike: dict[str, list[str]] = {}
    for dataset, why in results["missing"].items():
        if any(why in failure for failure in results["failures"]):
            continue
        last = why.strip().splitlines()[-1] if why.strip() else "not scored"
        alike.setdefault(_without_numbers(last), []).append(dataset)
    for why, datasets in alike.items():
        more = f" and {len(datasets) - MOST_NAMES} more" if len(datasets) > MOST_NAMES else ""
        lines.append(f"no results of {', '.join(datasets[:MOST_NAMES])}{more}: {why}")
    return lines


def why_incomplete(run_dir: RunDir) -> list[str]:
    """Return why a run has ended without all of its results; nothing of one that goes on.

    Raises:
        RecordError: `results.json` is torn, or is none.
    """
    results = read_results(run_dir)
    if results is None or results["complete"]:
        return []
    return reasons(results) or ["it ended before all datasets were scored"]


def warnings(found: DatasetResults) -> list[str]:
    """Return what people should know who read the scores of a dataset."""
    return [
        *own_answers(found.dataset, {n: e for n, e in found.own_answers.items() if e.own}),
        *degenerate(found.dataset, found.outputs),
        *odd_answers(found.dataset, found.judge),
    ]


def own_answers(dataset: str, tasks: Mapping[str, OwnAnswers]) -> list[str]:
    """Return how many items of a dataset show their own answer, if examples are evaluated items."""
    if not tasks:
        return []
    showing = {name: each for name, each in tasks.items() if each.own}
    names = list(showing or tasks)
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    where = dataset if names == [dataset] else f"{dataset} ({', '.join(names[:MOST_NAMES])}{more})"
    if not showing:
        return [
            f"{where}: few-shot examples are other items of those that are evaluated; no item "
            "shows its own answer"
        ]
    own, items = (sum(getattr(e, count) for e in showing.values()) for count in ("own", "items"))
    return [
        f"{where}: {own:,} of {items:,} items show their own answer among their few-shot examples; "
        "in the task, name a `fewshot_split` that is not evaluated, or set `num_fewshot: 0`"
    ]


def degenerate(dataset: str, outputs: Outputs | None) -> list[str]:
    """Return what is wrong with so many generated answers of a dataset that people should look."""
    if outputs is None or not outputs.responses:
        return []
    shares = {kind: getattr(outputs, kind) / outputs.responses for kind in _DEGENERATE}
    return [
        f"{dataset}: {share:.0%} of answers {_DEGENERATE[kind]}"
        for kind, share in shares.items()
        if share >= WORTH_SAYING
    ]


_NO_VERDICT = {
    "refused": "refused",
    "empty": "without words",
    "thinking_unended": "with thinking that does not end",
    "out_of_range": "with a rating that the rubric does not allow",
}


def often_odd(odd: Mapping[str, int], answers: int) -> list[str]:
    """Return what is odd about so many answers of a judge that people should look."""
    words = _NO_VERDICT | {"cut": "cut at their limit of tokens"}
    return [
        f"{count:,} {words.get(kind) or kind.replace('_', ' ')}"
        for kind, count in odd.items()
        if count >= WORTH_SAYING * answers
    ]


def odd_answers(dataset: str, judge: Mapping[str, Any]) -> list[str]:
    """Return what is odd about a judge's answers: those without a verdict, cut, or sampled freely.

    All questions without a verdict are worth saying.
    """
    odd, lines = {"refused": judge.get("refused", 0), **judge.get("odd", {})}, []
    questions = judge.get("questions", 0)
    if missing := judge.get("without_verdict", 0):
        why = [f"{odd[kind]:,} {words}" for kind, words in _NO_VERDICT.items() if odd.get(kind)]
        lines.append(
            f"{dataset}: no verdict on {missing:,} of {plural(questions, 'question')} to the judge"
            f"{' (' + ', '.join(why) + ')' if why else ''}: they are in no mean; "
            f"`coordinate-eval samples --dataset {dataset}` shows its words"
        )
    if (cut := odd.get("cut", 0)) and cut >= WORTH_SAYING * questions:
        lines.append(
            f"{dataset}: {cut:,} of {plural(questions, 'answer')} of the judge ended at the limit "
            "of their tokens: raise max_tokens of the rubric"
        )
    lines += [
        f"{dataset}: the judge was asked {count:,} of {plural(questions, 'question')} without "
        f"{kind.removeprefix('without_')}, which its server does not support"
        for kind, count in odd.items()
        if kind.startswith("without_")
    ]
    return lines


def _without_numbers(why: str) -> str:
    """Return a reason without the numbers in which equal reasons of several datasets differ."""
    return re.sub(r"^items? [\d, …-]+:", "some items:", re.sub(r"^\d+ items", "items", why))


def build_errors(run_dir: RunDir) -> list[str]:
    """Return why requests cannot be built; what several datasets have in common is said once."""
    alike: dict[str, list[str]] = {}
    for name in unbuildable(run_dir):
        said = _files.read(run_dir.requests_error(name)).decode(errors="replace").strip()
        alike.setdefault(said, []).append(name)
    return [
        said if len(names) == 1 else f"{', '.join(names)}: {said}" for said, names in alike.items()
    ]
