"""Compare a run with another one while it goes on, and end it early once that is decided.

What is decided is the question that a team has: is this checkpoint better, in the mean over the
datasets of the suite? Each dataset has the same weight there, so small datasets bring most of its
noise, and large ones most of the requests: a fraction of these is enough.
"""

import contextlib
import math
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from coordinate_eval import _files, _owner
from coordinate_eval.coordinator.comparison import sequential
from coordinate_eval.coordinator.comparison.compare import (
    Comparison,
    Measured,
    compare,
    in_mean,
    mean_of,
    refusal,
)
from coordinate_eval.coordinator.comparison.item_pairs import other_prompts
from coordinate_eval.coordinator.history.measured import asked, options
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.report.results import read_dataset
from coordinate_eval.coordinator.run.claiming.decided import (
    Compared,
    Verdict,
    count_looks,
    look_span,
    read_part,
    requests_share,
)
from coordinate_eval.coordinator.run.claiming.work import request_indexes
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, read_run
from coordinate_eval.errors import CoordinateError, UserError
from coordinate_eval.records import Suite, judge_name


def check_alike(previous: RunDir, run: str, suite: Suite, settings: Settings, length: int) -> None:
    """Check that a run which is to be started can be compared with another one.

    How prompts are made, and the versions of tasks, are known when they are built.

    Args:
        previous: the other run.
        run: the id of the new one.
        suite: what it evaluates.
        settings: of its engine and judge.
        length: of its context, in tokens.

    Raises:
        UserError: they ask differently, or have no dataset in common.
    """
    before = read_run(previous)
    theirs = {dataset.name: dataset for dataset in before.suite.datasets}
    unequal: dict[str, list[str]] = {}
    common = 0
    for dataset in suite.datasets:
        results = read_dataset(previous, dataset.name) if dataset.name in theirs else None
        if results is None:
            continue
        common += 1
        was = asked(before, theirs[dataset.name], results)
        now = options(dataset, settings.engine.name, length)
        now["version of lm_eval"] = _harness() or was["version of lm_eval"]
        if dataset.rubric is not None and settings.judge.model:
            now["judge"] = settings.judge.name
            was["judge"] = judge_name(
                results.judge.get("model", ""), results.judge.get("revision", "")
            )
        told = [
            f"{name} {was.get(name)!r} and {value!r} in {before.id} and {run}"
            for name, value in now.items()
            if was.get(name) != value
        ]
        if told:
            unequal[dataset.name] = told
    if unequal:
        raise UserError(
            refusal(
                unequal, "Name datasets that are alike with --only, or leave out --until-decided"
            )
        )
    if not common:
        raise UserError(f"nothing can be compared: run {before.id} has no score of these datasets")


def _harness() -> str:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version("lm_eval")
    return ""


def unlike_prompts(run_dir: RunDir, run: Run) -> str:
    """Return why a run whose prompts are built cannot be compared, empty if it can."""
    previous = RunDir(Path(run.against))
    with contextlib.suppress(CoordinateError, OSError):
        before = read_run(previous)
        files = "the files or data that prompts are made from differ in"
        unequal = {
            dataset.name: [f"{files} {before.id} and {run.id}"]
            for dataset in run.suite.datasets
            if other_prompts(previous, run_dir, dataset.name)
        }
        if unequal:
            return refusal(unequal, "Evaluate without --until-decided")
    return ""


def compare_at(run_dir: RunDir, run: Run, number: int) -> Compared:
    """Compare a run at a look, and write what that decides.

    The same look finds the same, so a process that dies in between does no harm.

    Args:
        run_dir: the run.
        run: its record.
        number: of the look, from 1. At the last one all items that are asked are there.
    """
    try:
        with _owner.for_show():
            found = _compared(run_dir, run, number)
    except (CoordinateError, OSError, ValueError) as error:
        found = Compared(number=number, previous=run.against, why_not=str(error))
    if found.verdict and number < count_looks(run):
        _files.create_record(run_dir.decided, found)
    _files.create_record(run_dir.comparison(number), found)
    return found


def conclude(run_dir: RunDir, run: Run) -> None:
    """Compare a run of which all that is asked is scored, unless it was decided before."""
    if run.against and run.stages and not run_dir.decided.exists():
        compare_at(run_dir, run, count_looks(run))


def _compared(run_dir: RunDir, run: Run, number: int) -> Compared:
    found = compare(RunDir(Path(run.against)), run_dir, anyway=True, look=number)
    judged = {dataset.name for dataset in run.suite.datasets if dataset.rubric is not None}
    asked = [m for m in found.datasets if m.name not in {*judged, *found.unlike}]
    mean = mean_of("mean", asked, least=1)
    about = _about(run_dir, run, number, found)
    if mean is None or mean.p is None or not mean.stderr:
        return about.model_copy(update={"why_not": "no dataset can be compared item by item"})
    about = about.model_copy(
        update={
            "datasets": mean.datasets,
            "first": mean.first,
            "second": mean.second,
            "difference": mean.difference,
            "stderr": mean.stderr,
            "information": 1.0
            if number == count_looks(run)
            else _information(in_mean(asked), run.sampled),
        }
    )
    # All items may be there before somebody has made the last comparison of a part.
    read = _files.read_record_if_there
    earlier = [read(run_dir.comparison(n), Compared) for n in range(1, number)]
    shares = [each.information for each in earlier if each is not None and each.information]
    shares.append(about.information)
    told = sequential.look(mean.difference, mean.stderr, sequential.deviations(mean.p), shares)
    verdict: Verdict = "better" if mean.difference > 0 else "worse"
    if told.decision != "different":
        verdict = told.decision
    return about.model_copy(update={"verdict": verdict, "bound": told.bound, "likely": told.likely})


def _about(run_dir: RunDir, run: Run, number: int, found: Comparison) -> Compared:
    """Return what a look at a run takes."""
    used = dict(run.sampled)
    for name in run.stages:
        span = look_span(run, name, number)
        part = read_part(run_dir, span) if span is not None else None
        if span is not None and part is not None and part.results is not None:
            used[name] = span.stop
    out = found.left_out | {name: "; ".join(why) for name, why in found.unlike.items()}
    out |= {each.name: each.why_not for each in found.datasets if each.why_not}
    return Compared(
        number=number,
        previous=found.first.run,
        items=used,
        of_items={name: run.stages[name][-1] for name in used},
        requests_share=requests_share(request_indexes(run_dir, run), used),
        left_out=out,
    )


def _information(measured: Sequence[Measured], sampled: Mapping[str, int]) -> float:
    """Return the variance of the mean that is expected at the last look, over that of now."""
    now = whole = 0.0
    for each in measured:
        variance, items = (each.stderr or 0.0) ** 2, each.items or 1
        in_the_end = min(each.of_items or items, sampled.get(each.name, math.inf))
        now += variance
        whole += variance * items / max(items, in_the_end)
    return min(1.0, whole / now)
