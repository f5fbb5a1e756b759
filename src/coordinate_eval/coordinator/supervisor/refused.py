"""Datasets that nobody can score here, found before a GPU works for them."""

import asyncio
import os
from collections.abc import Iterator

from coordinate_eval import _files
from coordinate_eval.coordinator.run.claiming.outcomes import request_indexes, unscored_datasets
from coordinate_eval.coordinator.run.claiming.portions import unanswered_portions
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.coordinator.run.starting.baselines import name_by_item, why_incomplete
from coordinate_eval.errors import JudgeRefuses, JudgeSilent, UserError
from coordinate_eval.evaluators.confined.evaluator import find_level, refusal
from coordinate_eval.evaluators.judged.access import Access
from coordinate_eval.evaluators.judged.endpoint import Endpoint
from coordinate_eval.evaluators.sandbox import toolchains
from coordinate_eval.evaluators.sandbox.languages import missing_packages
from coordinate_eval.records import DatasetRequests


def refuse(run_dir: RunDir, run: Run) -> list[str]:
    """Give up the datasets that cannot be scored here.

    These are datasets whose scoring may run what the model wrote, where nothing confines it; those
    whose metric asks for programs in a language whose compiler is not installed; those whose
    answers are compared with a baseline's that are not all there; and those whose judge refuses
    the key, has no such model, or too short a context. One that does not answer may do so later.

    It is called before the first job is submitted: no GPU works for them. This node speaks for
    those of scoring and metric jobs. One of them that can do less refuses its work itself.

    Returns:
        events for the user, mostly none.
    """
    unscored = {dataset.name for dataset in unscored_datasets(run_dir, run)}
    indexes = {n: i for n, i in request_indexes(run_dir, run).items() if n in unscored}
    events = []
    here = f"on {os.uname().nodename}"
    for reasons, why in (
        (dict(_unconfined(run, indexes)), f"Nothing confines what their scoring may run {here}"),
        (dict(_without_compiler(indexes)), f"A compiler of their programs is missing {here}"),
        (dict(_without_baseline(run_dir, indexes)), "The baseline lacks answers to compare with"),
    ):
        for name, reason in reasons.items():
            _files.write(run_dir.dataset_error(name), f"{reason}\n")
        if reasons:
            events.append(f"not run: {', '.join(reasons)}. {why}; results.json says what to do")
            indexes = {name: index for name, index in indexes.items() if name not in reasons}
    unanswered = {span.dataset for span in unanswered_portions(run_dir, run, judged=True)}
    judged = [name for name in indexes if name in unanswered]
    if judged:
        events += _ask_the_judge(run_dir, run, judged)
    return events


def _ask_the_judge(run_dir: RunDir, run: Run, judged: list[str]) -> Iterator[str]:
    """Ask the judge once whether it can be asked. Give up its datasets if it cannot."""
    settings = run.settings.judge
    if settings.checkpoint:
        return  # it is no server
    try:
        access = Access.of(
            settings.base_url or "", settings.model or "", settings.api_key_env, os.environ
        )
        context = asyncio.run(_check(access))
    except JudgeSilent as error:
        yield (
            f"the judge of {', '.join(judged)} does not answer: {error}. Their answers are "
            "collected, and it is asked again when they are there"
        )
    except (JudgeRefuses, UserError) as error:
        for name in judged:
            _files.write(run_dir.dataset_error(name), f"{error}\n")
        yield f"not run: {', '.join(judged)}. {error}"
    else:
        for name, why in _without_room(run, judged, context):
            _files.write(run_dir.dataset_error(name), f"{why}\n")
            yield f"not run: {name}. {why}"


def _without_room(run: Run, judged: list[str], context: int | None) -> Iterator[tuple[str, str]]:
    """Yield the datasets whose judge would refuse every question, with the reason."""
    rubrics = {dataset.name: dataset.rubric for dataset in run.suite.datasets}
    for name in judged:
        rubric = rubrics[name]
        if context is not None and rubric is not None and context <= rubric.max_tokens:
            yield (
                name,
                f"judge {run.settings.judge.model} has a context of {context:,} tokens, and its "
                f"answers alone may take {rubric.max_tokens:,} (max_tokens of rubric "
                f"{rubric.name}): serve it with a longer context and resume the run, or start one "
                "with a rubric of your own",
            )


async def _check(access: Access) -> int | None:
    async with Endpoint(access) as judge:
        return await judge.check()


def _unconfined(run: Run, indexes: dict[str, DatasetRequests]) -> Iterator[tuple[str, str]]:
    """Yield the datasets whose scoring may run text that nothing here confines, with the reason."""
    runs_text = {name: index.runs_text for name, index in indexes.items() if index.runs_text}
    level, why = find_level(run.settings.metrics.allow_unsafe_code) if runs_text else (None, "")
    if level is None:
        for name, what in runs_text.items():
            yield name, refusal(name, what, why)


def _without_baseline(
    run_dir: RunDir, indexes: dict[str, DatasetRequests]
) -> Iterator[tuple[str, str]]:
    """Yield the datasets with questions that the baseline has not answered, with the reason."""
    for name, index in indexes.items():
        name_by_item(run_dir, name, index.question_ids)
        if why := why_incomplete(run_dir, name, index.question_ids):
            yield name, why


def _without_compiler(indexes: dict[str, DatasetRequests]) -> Iterator[tuple[str, str]]:
    """Yield the datasets with programs in a language that is not installed, with the reason."""
    for name, index in indexes.items():
        missing = missing_packages(index.languages)
        if missing:
            yield name, f"dataset {name!r}: {toolchains.refusal(missing, 'its')}"
