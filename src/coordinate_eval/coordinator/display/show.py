"""`--dry-run`: show a plan in the terminal, as JSON or as a page, and its jobs as scripts."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from coordinate_eval import __version__, _files
from coordinate_eval._format import plural, visible_json
from coordinate_eval.clusters.protocol import Cluster, Job, ShownJob
from coordinate_eval.coordinator.display import drawing, gantt, plan_terminal
from coordinate_eval.coordinator.display.drawing import (
    COLUMNS,
    LEFT,
    STYLES,
    WIDTH,
    ascii_text,
    check_page,
    colors_of,
    draw,
    template,
)
from coordinate_eval.coordinator.display.risks import risks
from coordinate_eval.coordinator.display.summary import (
    Review,
    by_work,
    dataset_table,
    node_table,
    review,
    summary,
    what_if_table,
)
from coordinate_eval.coordinator.planning.offer import Offer
from coordinate_eval.coordinator.planning.plan_run import PlannedRun
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.claiming import pullers
from coordinate_eval.coordinator.run.claiming.pullers import Pullers
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.errors import UserError

MARK = '<meta name="generator" content="coordinate-eval plan">'
"""Marks a page that another one may replace."""

_METRICS_HEIGHT = 56.0


def render(review: Review) -> str:
    """Return the page."""
    drawn = review.timeline
    end = drawn.end or 1.0
    lanes = gantt.lanes(drawn)
    colors = colors_of(lanes)
    used = gantt.cores(drawn, COLUMNS, end) if drawn.on_cores else []
    text = template("page.html.j2").render(
        mark=MARK,
        version=__version__,
        plan=review.plan,
        review=review,
        risks=risks(review),
        summary=summary(review),
        drawing=draw(lanes, end, colors),
        bound=LEFT + min(end, review.plan.estimate.lower_bound_seconds) * WIDTH / end,
        metrics=_area(used, review.offer.metric_cpus),
        most_cores=max((step.cores for step in drawn.cores()), default=0),
        colors=colors,
        phases=[(STYLES[phase], phase.value) for phase in gantt.PLANNED],
        nodes=node_table(review),
        datasets=dataset_table(review),
        shares=_shares(review, colors),
        what_if=what_if_table(review),
        left=LEFT,
        right=LEFT + WIDTH,
        metrics_height=_METRICS_HEIGHT,
    )
    return ascii_text(text)


def _shares(review: Review, colors: Mapping[str, str]) -> list[tuple[str, float]]:
    """Return each dataset's style and its GPU time in percent of the longest one's.

    They are in the order of the table of datasets.
    """
    ordered = by_work(review.plan)
    longest = max(cost.gpu_seconds for cost in ordered)
    return [(colors.get(c.name, "c"), 100 * c.gpu_seconds / longest) for c in ordered]


def _area(used: Sequence[float], metric_cpus: int) -> str:
    """Return the points of a polygon: cores in use, above a line; empty without metrics."""
    if not used:
        return ""
    width = WIDTH / len(used)
    points = [(LEFT, _METRICS_HEIGHT)]
    for column, cores in enumerate(used):
        y = _METRICS_HEIGHT * (1 - min(1.0, cores / metric_cpus))
        points += [(LEFT + column * width, y), (LEFT + (column + 1) * width, y)]
    points.append((LEFT + WIDTH, _METRICS_HEIGHT))
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def show(
    planned: PlannedRun,
    offer: Offer,
    cluster: Cluster,
    run_dir: RunDir,
    console: Console,
    *,
    as_json: bool = False,
    html: Path | None = None,
    scripts: Path | None = None,
    verbose: bool = False,
) -> None:
    """Print a plan as one JSON document, or as figures, a chart and tables.

    `html` is a file for the page and `scripts` a folder for the scripts. With `verbose` each
    submission is printed too, word by word.
    """
    shown = [cluster.shown(job) for job in planned_jobs(planned, cluster, run_dir)]
    found = review(planned, offer, shown)
    if scripts is not None:
        write_scripts(scripts, shown)
    if html is not None:
        write_page(html, found)
    if as_json:
        text = planned.plan.model_dump_json(by_alias=True, indent=1)
        sys.stdout.write(visible_json(text) + "\n")
        return
    console.print(plan_terminal.render(found))
    if not verbose:
        count = plural(len(shown), "job")
        told = "--verbose prints the scripts, --scripts DIR writes them"
        if scripts is not None:
            told = f"their scripts are in {scripts}"
        console.print(f"\n{count}: {told}", markup=False, highlight=False, soft_wrap=True)
        return
    for each in shown:
        console.print()
        console.print(each.text, markup=False, highlight=False, soft_wrap=True)


def planned_jobs(planned: PlannedRun, cluster: Cluster, run_dir: RunDir) -> Iterator[Job]:
    """Yield every job that the plan leads to, in the order of submission."""
    run, round_ = planned.run, planned.round
    if not cluster.local:
        yield jobs.supervisor_job(run, run_dir, 1, run.created)
    for node in round_.nodes:
        if run.exclusive:
            yield jobs.node_job(run, run_dir, round_, node)
        else:
            for name in node.names:
                yield jobs.keeper_job(run, run_dir, round_, node, name)
            yield jobs.trials_job(run, run_dir, round_, node)
    if set(run.asks) - set(run.judged):
        yield _pullers(run, run_dir, Pullers.METRIC)
    if run.judged:
        yield _pullers(run, run_dir, Pullers.JUDGE)
    yield _pullers(run, run_dir, Pullers.SCORE)


def _pullers(run: Run, run_dir: RunDir, kind: Pullers) -> Job:
    """Return the first array of pullers."""
    return pullers.pullers_job(
        run, run_dir, kind, 0, pullers.useful_pullers(run, kind), run.created
    )


def check_outputs(html: Path | None, scripts: Path | None) -> None:
    """Check that the page and the scripts have a place, before anything is built or written."""
    try:
        if html is not None:
            check_page(html, MARK, "--html")
        if scripts is not None:
            _check_empty(scripts)
    except OSError as error:
        raise UserError(f"{error.filename} cannot be written: {error.strerror}") from error


def write_page(file: Path, found: Review) -> None:
    """Write the HTML page, in place of an earlier one."""
    drawing.write_page(file, render(found), MARK, "--html")


def write_scripts(folder: Path, shown: Sequence[ShownJob]) -> None:
    """Write each job's script, and the command that submits it, to a new or empty folder.

    Raises:
        UserError: The folder is not empty or cannot be written.
    """
    try:
        _check_empty(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in _texts(shown):
            _files.write(folder / name, text)
    except OSError as error:
        raise UserError(f"--scripts {folder} cannot be written: {error.strerror}") from error


def _texts(shown: Sequence[ShownJob]) -> Iterator[tuple[str, str]]:
    """Yield file names and contents; a job's name may hold what no file name can."""
    seen: set[str] = set()
    for each in shown:
        name = stem = re.sub(r"[^A-Za-z0-9_.=+@,-]", "-", each.name)[:200]
        while name in seen:
            name = f"{stem}-{len(seen)}"
        seen.add(name)
        if each.script is None:
            yield f"{name}.argv", f"{each.command}\n"
        else:
            yield f"{name}.sh", each.script
            yield f"{name}.argv", f"{each.command} < {name}.sh\n"


def _check_empty(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--scripts {folder} is a file: name a new folder")
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"--scripts {folder} is not empty: name a new folder")
