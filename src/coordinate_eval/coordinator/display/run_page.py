"""A run and its plan as one HTML page: scores, both over time, and where the GPU time went."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from coordinate_eval import __version__, _files
from coordinate_eval._format import plural
from coordinate_eval.coordinator.display import gantt
from coordinate_eval.coordinator.display.drawing import (
    LEFT,
    STYLES,
    WIDTH,
    ascii_text,
    colors_of,
    draw,
    template,
)
from coordinate_eval.coordinator.display.gantt import Lane, Phase, Stretch
from coordinate_eval.coordinator.planning.plan import Plan
from coordinate_eval.coordinator.planning.simulate import simulate
from coordinate_eval.coordinator.report import missing, warnings
from coordinate_eval.coordinator.report import results as report
from coordinate_eval.coordinator.report.main_metric import main_score
from coordinate_eval.coordinator.report.samples import Card
from coordinate_eval.coordinator.report.time_ledger import (
    Asked,
    Row,
    TimeLedger,
    Use,
    begin_of,
    read_asked,
    rows,
)
from coordinate_eval.coordinator.run.claiming.decided import Compared, cut_short
from coordinate_eval.coordinator.run.measurements import ShardDone, read_lines
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, read_run
from coordinate_eval.records import DatasetResults

OF_OTHERS = "shards that others finished"

_PHASES = {
    Use.QUEUE: Phase.QUEUE,
    Use.STAGING: Phase.STAGE,
    Use.START: Phase.START,
    Use.LOST: Phase.LOST,
}
"""Phases in which a trial answers nothing, by use; other uses are not drawn."""


def write_report(run_dir: RunDir, results: Mapping[str, Any], samples: Sequence[Card] = ()) -> str:
    """Write `report.html` of a run that has ended with these results, and samples if there are any.

    Return why it could not be written, an empty string if it was: the run itself has ended well.
    """
    try:
        run, ledger = read_run(run_dir), TimeLedger.model_validate(results["ledger"])
        plan = _files.read_record_if_there(run_dir.plan, Plan)
        begin = begin_of(run_dir, run)
        asked = read_asked(run_dir, run, ended=True)
        lanes = happened(run_dir, begin, asked, ledger)
        planned_at = asked[0].time - begin if asked else 0.0
        last = [life.last - begin for round_ in asked for life in round_.lives if life.last]
        read = (report.read_dataset(run_dir, dataset.name) for dataset in run.suite.datasets)
        scored = [found for found in read if found is not None]
        page = render(
            run, plan, ledger, lanes, results, scored, planned_at, max(last, default=None), samples
        )
        _files.write(run_dir.report, page)
    except Exception as error:
        return f"cannot write {run_dir.report}: {error}"
    return ""


def happened(
    run_dir: RunDir, begin: float, asked: Sequence[Asked], ledger: TimeLedger
) -> list[Lane]:
    """Return what each trial of these rounds did, in seconds from the submission at `begin`."""
    lanes = []
    for row in rows(begin, asked, begin + ledger.seconds):
        lines = read_lines(run_dir.observations(row.life.trial))
        done = [line for line in lines if isinstance(line, ShardDone)]
        lanes.append(Lane(row.life.trial, row.life.node, list(_seen(row, done, begin))))
    return lanes


def render(
    run: Run,
    plan: Plan | None,
    ledger: TimeLedger,
    lanes: list[Lane],
    results: Mapping[str, Any],
    scored: Sequence[DatasetResults],
    planned_at: float,
    last_response: float | None,
    samples: Sequence[Card] = (),
) -> str:
    """Return the page.

    Args:
        scored: the datasets with scores, in the order of the suite.
        planned_at: when the plan was made, which is its time 0, in seconds from the submission.
        last_response: when it came, in the same seconds.
    """
    planned, expected = [], 0.0
    if plan is not None:
        cores = plan.metric_cpus
        timeline = simulate(plan.datasets, plan.trials, plan.metric_jobs, plan.score_jobs, cores)
        planned, expected = gantt.lanes(timeline, planned_at), timeline.end
    end = max(planned_at + expected, ledger.seconds) or 1.0
    # Those of the page of the plan, where it shows the same datasets.
    colors = colors_of(planned or lanes)
    drawn = {name for name, _ in gantt.longest([*lanes, *planned])}
    if OF_OTHERS in drawn:
        colors.setdefault(OF_OTHERS, "c")
    charts = [("Planned", draw(planned, end, colors))] if planned else []
    text = template("run.html.j2").render(
        version=__version__,
        run=run,
        results=results,
        reasons=missing.reasons(results),
        scores=[*map(_score, scored), *_aggregates(results)],
        warnings=[
            *_stopped(run, results),
            *(line for found in scored for line in warnings.warnings(found)),
        ],
        ledger=ledger,
        expected=expected,
        planned_at=planned_at,
        last_response=last_response,
        charts=[*charts, ("What happened", draw(lanes, end, colors))],
        colors=colors,
        drawn=drawn,
        count=len(drawn),
        phases=[(STYLES[phase], phase.value) for phase in Phase],
        samples=samples,
        left=LEFT,
        right=LEFT + WIDTH,
    )
    return ascii_text(text)


def _stopped(run: Run, results: Mapping[str, Any]) -> list[str]:
    """Return why a run has not asked all items, and of which datasets."""
    stopped = results.get("stopped") or {}
    if not stopped:
        return []
    each = [f"{name} {n['items']:,} of {n['of_items']:,}" for name, n in stopped.items()]
    why = "a sample of the items"
    if cut_short(run, {name: n["items"] for name, n in stopped.items()}):
        why = f"stopped early: {Compared.model_validate(results['compared']).words}"
    return [f"{why}. Items that are used: {', '.join(each)}"]


def _score(found: DatasetResults) -> tuple[str, str, str, str, str]:
    """Return a dataset's name, items, main metric, score and standard error, in words."""
    score = main_score(found)
    items = f"{found.items:,}"
    if score is None:
        return found.dataset, items, "several metrics: see results.json", "", ""
    mean = f" (mean of {score.tasks:,} tasks)" if score.tasks > 1 else ""
    error = "" if score.stderr is None else f"± {score.stderr:.4f}"
    return found.dataset, items, f"{score.metric}{mean}", f"{score.value:.4f}", error


def _aggregates(results: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield the aggregates of the suite in the same way."""
    for name, each in results.get("aggregates", {}).items():
        if each["value"] is None:
            yield name, "", report.AggregateScore.model_validate(each).why_unknown, "", ""
            continue
        error = "" if each["stderr"] is None else f"± {each['stderr']:.4f}"
        of = f"aggregate of {plural(each['datasets'], 'dataset')}"
        yield name, "", of, f"{each['value']:.4f}", error


def _seen(row: Row, done: list[ShardDone], begin: float) -> Iterator[Stretch]:
    """Yield what a trial did; its shards follow one another as they were completed."""
    for since, until, use in row.stretches:
        if use is not Use.REQUESTS:
            yield Stretch(since - begin, until - begin, _PHASES.get(use))
            continue
        for line in sorted(done, key=lambda each: each.time):
            stop = min(line.time, until)
            if stop > since:
                title = f"{line.dataset}, items {line.start:,}–{line.stop:,}"
                yield Stretch(since - begin, stop - begin, line.dataset, title)
                since = stop
        if until > since:
            yield Stretch(since - begin, until - begin, OF_OTHERS, OF_OTHERS)
