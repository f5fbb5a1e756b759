"""`coordinate-eval report`: a page of a training's scores, or of a run."""

import math
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from coordinate_eval._format import plural
from coordinate_eval.coordinator.cli.inquire.alarms import alarms_of
from coordinate_eval.coordinator.cli.inquire.compare import figures
from coordinate_eval.coordinator.cli.inquire.history import load
from coordinate_eval.coordinator.cli.inquire.runs import find
from coordinate_eval.coordinator.cli.options import common
from coordinate_eval.coordinator.cli.options.parsing import option, output_option
from coordinate_eval.coordinator.cli.output import say
from coordinate_eval.coordinator.comparison.compare import Measured, compare, with_verdicts
from coordinate_eval.coordinator.display import drawing, experiment_page
from coordinate_eval.coordinator.display.experiment_page import Compared, Experiment, names_of
from coordinate_eval.coordinator.display.run_page import write_report
from coordinate_eval.coordinator.history.columns import item_error
from coordinate_eval.coordinator.history.measured import Measured as Kept
from coordinate_eval.coordinator.history.rows import Row
from coordinate_eval.coordinator.history.series import Series, mean_column, series
from coordinate_eval.coordinator.inputs.checkpoints import remote
from coordinate_eval.coordinator.inputs.layers import load as load_settings
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.report.results import read_results
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.errors import CoordinateError, UserError

_MOST_COMPARED = 4
"""Trainings whose last two checkpoints are compared."""

_SURE = 1.96  # standard errors of a 95 % interval


_Named = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TRAINING|RUN",
        help="Folders of checkpoints, or the ends of their paths; or a run's directory or id.",
        show_default="all trainings",
    ),
]
_Baseline = Annotated[
    str | None, option("--against BASELINE", "Show this training, checkpoint or run beside it.")
]
_Page = Annotated[
    Path | None,
    output_option("--output FILE", "Write the page into this file.", shown="TRAINING.html, here"),
]


def report_command(
    training: _Named = None,
    against: _Baseline = None,
    suite: common.OfSuite = None,
    output: _Page = None,
    settings_file: common.SettingsFile = None,
) -> None:
    """Write one HTML page of a training: curves, alarms, what has changed, and what it cost.

    The page stands alone: it can be sent, and needs no network. Of a run, its report.html is
    written again. The path of the page is printed.
    """
    settings, _ = load_settings({}, settings_file)
    names = training or []
    if len(names) == 1 and (run_dir := _run(names[0], settings)) is not None:
        if against or suite or output:
            raise UserError(
                f"{names[0]} is a run, whose page is {run_dir.report}: --against, --suite and "
                "--output are of trainings"
            )
        _write_run(run_dir, names[0])
        return
    known, problems = load(settings)
    own, base = _chosen(known, names, against, suite)
    if not own:
        raise UserError(f"no runs under {settings.runs_dir}")
    baseline = base[0].training if base and len(base) > 1 else None
    found = _series_of(known, own if baseline is None else [*own, *base], suite)
    alone = _series_of(known, own, suite)
    file = output or Path(f"{_file_name(alone)}.html")
    drawing.check_page(file, experiment_page.MARK, "--output")
    trainings, _ = alarms_of(known, alone, suite)
    notes = [note for each, _ in trainings for note in each.notes]
    page = experiment_page.render(
        Experiment(
            found=found,
            baseline=baseline,
            alarms=[alarm for _, raised in trainings for alarm in raised],
            compared=list(_comparisons(alone, base, settings)),
            notes=list(dict.fromkeys([*found.notes, *notes, *problems])),
        )
    )
    drawing.write_page(file, page, experiment_page.MARK, "--output")
    sys.stdout.write(f"{file.absolute()}\n")
    for line in problems:
        say(line)


def _run(name: str, settings: Settings) -> RunDir | None:
    """Return the run of this name, None if it names none."""
    try:
        return find(name, settings)
    except UserError:
        return None


def _write_run(run_dir: RunDir, name: str) -> None:
    results = read_results(run_dir)
    if results is None:
        raise UserError(
            f"run {name} has not ended, and has no page yet: `coordinate-eval status {name}` shows "
            "how far it is"
        )
    if problem := write_report(run_dir, results):
        raise UserError(problem)
    sys.stdout.write(f"{run_dir.report}\n")


def _chosen(
    known: Sequence[Kept], names: Sequence[str], against: str | None, suite: str | None
) -> tuple[Sequence[Row], Sequence[Row]]:
    """Return the checkpoints that are shown, and those that they are compared with.

    The latter are all of a training, or a single one.
    """
    own = series(known, names, suite).rows
    if against is None:
        return own, []
    try:
        base = series(known, [against], suite).rows
    except UserError:
        named = (against, str(remote.located(against).resolve()))
        every = series(known, suite=suite).rows
        base = [row for row in every if row.checkpoint in named or against in row.runs][:1]
        if not base:
            raise UserError(
                f"--against {against}: no training, checkpoint or run of this name has scores"
            ) from None
        return own, base
    trainings = list(names_of(base).keys())
    if len(trainings) > 1:
        raise UserError(f"--against {against} names several trainings: {', '.join(trainings)}")
    others = [row for row in own if row.training != trainings[0]]
    if not others:
        raise UserError(f"--against {against}: no other training is shown")
    return others, base


def _series_of(known: Sequence[Kept], rows: Sequence[Row], suite: str | None) -> Series:
    wanted = {row.checkpoint for row in rows}
    return series([each for each in known if each.checkpoint in wanted], suite=suite)


def _file_name(found: Series) -> str:
    name = "-".join(names_of(found.rows).values())
    return re.sub(r"[^A-Za-z0-9_.+-]+", "-", name).strip("-.")[:100] or "scores"


def _comparisons(found: Series, base: Sequence[Row], settings: Settings) -> Iterator[Compared]:
    """Yield the last checkpoint of each training against the one before it, and the baseline."""
    names = names_of(found.rows)
    for training, name in list(names.items())[:_MOST_COMPARED]:
        rows = [row for row in found.rows if row.training == training and row.scores]
        rows = [row for row in rows if row.step is not None] or rows
        last = f"{name}: the last checkpoint" if len(names) > 1 else "The last checkpoint"
        if len(rows) > 1:
            title = f"{last} against the one before"
            yield _compared(title, found, rows[-2:], settings)
        if rows and base:
            yield _compared(
                f"{last} against the baseline",
                found,
                [_like(rows[-1], base), rows[-1]],
                settings,
            )


def _like(row: Row, base: Sequence[Row]) -> Row:
    """Return the baseline's checkpoint at the same step or the last before it, or its first."""
    scored = [each for each in base if each.scores] or base
    before = [each for each in scored if (each.step or 0) <= (row.step or 0)]
    return before[-1] if before else scored[0]


def _compared(title: str, of: Series, pair: Sequence[Row], settings: Settings) -> Compared:
    """Return what differs item by item where both runs are there, else by the kept scores."""
    first, second = pair
    heads = _heads(first, second)
    try:
        found = compare(*(_there(row, settings) for row in pair))
        mean, datasets = found.mean, found.datasets
        measured = [*found.aggregates, *found.groups, *datasets]
        note = "Of the datasets called better or worse, 5% may be so by chance."
    except (CoordinateError, OSError) as error:
        mean, measured = _mean_apart(of, first, second), _apart(first, second)
        datasets = measured
        note = (
            f"Not item by item: {str(error).splitlines()[0].rstrip('.')}. Differences are by the "
            "errors of both scores, as if each had answered other items."
        )
    chief, told = mean or (datasets[0] if len(datasets) == 1 else None), ""
    if chief is not None and chief.low is not None and chief.high is not None:
        told = f"{chief.name} {chief.difference:+.4f} (95 %: {chief.low:+.4f} … {chief.high:+.4f})"
    rows = [_words(each) for each in (*([mean] if mean else []), *measured)]
    verdicts = [each.verdict for each in datasets]
    counts = (
        f"{heads[1]} against {heads[0]}: better in {verdicts.count('better'):,}, worse in "
        f"{verdicts.count('worse'):,} of {plural(len(datasets), 'dataset')}"
    )
    return Compared(title, heads, chief.verdict if chief else "", told, counts, note, rows)


def _there(row: Row, settings: Settings) -> RunDir:
    """Return the newest run of a checkpoint.

    Raises:
        UserError: it is gone. The words stand in a page that may be sent, so no path is in them.
    """
    try:
        return find(row.runs[0], settings)
    except UserError as error:
        raise UserError(f"the run of {_step(row)} was removed") from error


def _heads(first: Row, second: Row) -> tuple[str, str]:
    if first.training != second.training:
        names = names_of([first, second])
        return tuple(f"{names[row.training]}, {_step(row)}" for row in (first, second))  # type: ignore[return-value]  # of two
    return _step(first), _step(second)


def _step(row: Row) -> str:
    return f"step {row.step:,}" if row.step is not None else Path(row.checkpoint).name


def _apart(first: Row, second: Row) -> list[Measured]:
    """Return the differences of two checkpoints' scores with the errors that these have."""
    measured = []
    for name in second.scores:
        if name not in first.scores:
            continue
        before, now = first.score(name), second.score(name)
        errors = [item_error(each.value, each.stderr, each.items) for each in (before, now)]
        if all(errors) and math.isfinite(now.value - before.value):
            made = _difference(name, before.value, now.value, math.hypot(*errors))
            more = {"metric": now.metric, "higher_is_better": now.higher_is_better}
            measured.append(made.model_copy(update=more))
    return with_verdicts(measured)


def _mean_apart(of: Series, first: Row, second: Row) -> Measured | None:
    """Return the difference of two checkpoints' means, None if one is not known."""
    pair = [first, second]
    if (mean := mean_column(of._replace(rows=pair), pair)) is None:
        return None
    before, now = mean.values(pair)
    if before is None or now is None:
        return None
    errors = [mean.known_error(row) or 0.0 for row in pair]
    if not all(errors):
        return None
    made = _difference(mean.name, before.value, now.value, math.hypot(*errors))
    return with_verdicts([made.model_copy(update={"datasets": len(mean.datasets)})])[0]


def _difference(name: str, first: float, second: float, error: float) -> Measured:
    difference = second - first
    return Measured(
        name=name, first=first, second=second, difference=difference, stderr=error,
        low=difference - _SURE * error, high=difference + _SURE * error,
        p=math.erfc(abs(difference) / error / math.sqrt(2)),
    )  # fmt: skip


def _words(each: Measured) -> tuple[str, str, str, str, str, str, str]:
    name = f"{each.name} ({each.datasets})" if each.datasets > 1 else each.name
    return name, *figures(each), each.verdict or ""
