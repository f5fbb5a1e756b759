"""`coordinate-eval history` and `best`: scores over the checkpoints of a training."""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import Annotated, Any, NamedTuple

from coordinate_eval import _files
from coordinate_eval._format import drawn_places, plural, sparkline
from coordinate_eval.coordinator.cli.options import common
from coordinate_eval.coordinator.cli.options.parsing import option, output_option
from coordinate_eval.coordinator.cli.output import (
    out,
    print_in_parts,
    say,
    table_console,
    write_csv,
    write_json,
)
from coordinate_eval.coordinator.history import measured
from coordinate_eval.coordinator.history.columns import in_columns
from coordinate_eval.coordinator.history.measured import Measured
from coordinate_eval.coordinator.history.rows import Row
from coordinate_eval.coordinator.history.series import (
    Column,
    Series,
    Value,
    best,
    column,
    default_columns,
    every_column,
    series,
)
from coordinate_eval.coordinator.inputs.layers import load as load_settings
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.errors import CoordinateError, UserError

_MOST_SHOWN = 20
"""Checkpoints that a terminal shows of more than twice as many."""


_Columns = Annotated[
    list[str] | None,
    option(
        "--column WHAT",
        "Show this dataset, group, aggregate, or mean, such as 'mean(mmlu,arc*)'. May be "
        "given several times.",
        shown="each dataset; of more than 8, each group and the mean",
    ),
]
_By = Annotated[
    str,
    option("--by WHAT", "A dataset, a group, an aggregate, or a mean, such as 'mean(mmlu,arc*)'."),
]
_Smoothed = Annotated[
    bool,
    output_option(
        "--curve",
        "Smooth the scores: show where each column is, goes and jumps, with 95 % intervals.",
    ),
]
_Noisy = Annotated[
    bool,
    output_option(
        "--noise", "Show how far each column has risen and how noisy it is, the clearest first."
    ),
]
_Everything = Annotated[
    bool | None,
    output_option(
        "--all/--no-all",
        "Show all checkpoints of a long table, or the last and the best.",
        shown="all in a pipe or a file",
    ),
]
_Csv = Annotated[bool, output_option("--csv", "Print comma-separated values.")]
_Parquet = Annotated[
    Path | None,
    output_option("--parquet FILE", "Write a line for each checkpoint and dataset into this file."),
]


class _Form(NamedTuple):
    """The form of a table."""

    tokens_per_step: int | None
    chosen: bool
    """The user has named the columns."""
    curve: bool
    """Smooth the columns."""
    noise: bool
    """Tell their signal and noise."""
    everything: bool
    """The table has all checkpoints, else the last and the best."""


def load(settings: Settings) -> tuple[list[Measured], list[str]]:
    """Return what the user's runs have measured, and what cannot be read.

    A run that is in `runs_dir` and not in the history goes on, or an earlier version has ended it.
    In the latter case, it is kept now.
    """
    found, problems = measured.read(settings.runs_dir)
    whole = {each.run for each in found if each.complete}
    whole |= {os.path.basename(each.dir) for each in found if each.complete}  # noqa: PTH119 - fast
    by_run = {each.run: each for each in found}
    names = _files.names(Path(settings.runs_dir).expanduser())
    if all(name in whole or name.startswith(".") for name in names):
        return found, problems
    from coordinate_eval.coordinator.cli.inquire.runs import readable_runs
    from coordinate_eval.coordinator.report.results import read_results

    unkept = ""
    for run_dir, run in readable_runs(settings, whole, problems):
        try:
            results = read_results(run_dir)
            before = by_run.get(run.id)
            now = measured.measure(run_dir, run, results)
            if before is not None and before.scores == now.scores:
                continue
            by_run[run.id] = now
            if results is not None and not unkept:
                unkept = _keep(settings.runs_dir, now)
        except (CoordinateError, OSError) as error:
            problems.append(str(error))
    return list(by_run.values()), [*problems, *filter(None, [unkept])]


def _keep(runs_dir: str, now: Measured) -> str:
    """Write what a run has measured. Return why it cannot be written, empty if it is."""
    try:
        measured.keep(runs_dir, now)
    except (CoordinateError, OSError) as error:
        why = getattr(error, "strerror", None) or error
        home = measured.folder(runs_dir)
        return f"scores are not kept in {home}, and are lost with their runs: {why}"
    return ""


def history_command(
    training: common.Trainings = None,
    suite: common.OfSuite = None,
    columns: _Columns = None,
    tokens_per_step: common.TokensPerStep = None,
    curve: _Smoothed = False,
    noise: _Noisy = False,
    everything: _Everything = None,
    as_csv: _Csv = False,
    as_json: common.Json = False,
    parquet: _Parquet = None,
    settings_file: common.SettingsFile = None,
) -> None:
    """Show the scores of a training's checkpoints, by step, also of runs that were removed.

    Only scores that can be compared stand in one column: those whose prompts, task, harness and
    judge are the newest run's. A checkpoint that was written again counts as it was evaluated last.
    """
    if as_csv + as_json + (parquet is not None) > 1:
        raise UserError("--csv, --json and --parquet are three formats: give one of them")
    if curve and noise:
        raise UserError("--curve and --noise are two tables: give one of them")
    if (curve or noise) and (as_csv or parquet is not None):
        name = "--curve" if curve else "--noise"
        raise UserError(f"{name} shows a table, or with --json a document: it has no other format")
    settings, _ = load_settings({}, settings_file)
    known, problems = load(settings)
    found = series(known, training or [], suite)
    chosen = [column(each, found) for each in columns or []]
    chosen = chosen or (every_column(found) if noise else default_columns(found))
    every = not sys.stdout.isatty() if everything is None else everything
    form = _Form(tokens_per_step, bool(columns), curve, noise, every)
    if parquet is not None:
        _write_parquet(found, form, parquet)
        say(f"wrote {parquet}")
    elif as_json:
        write_json(_document(found, chosen, form))
    elif as_csv:
        write_csv(_csv(found, chosen, form))
    elif curve or noise:
        from coordinate_eval.coordinator.cli.inquire.curves import curves_table, noise_table

        table_console().print((curves_table if curve else noise_table)(found, chosen))
    else:
        _print(found, chosen, form, settings)
    for line in [*found.notes, *problems]:
        say(line)


def best_command(
    training: common.Trainings = None,
    by: _By = "mean",
    suite: common.OfSuite = None,
    as_json: common.Json = False,
    settings_file: common.SettingsFile = None,
) -> None:
    """Name the checkpoint with the best score, and those that may be as good."""
    settings, _ = load_settings({}, settings_file)
    known, problems = load(settings)
    found = series(known, training or [], suite)
    chosen = best(found, column(by, found))
    if as_json:
        write_json(
            {
                "schema": "coordinate-eval/best@1",
                "by": by,
                **_told(chosen.row, chosen.value),
                "close": [_told(row, value) for row, value in chosen.close],
                "without": [row.checkpoint for row in chosen.without],
            }
        )
    else:
        out(f"{chosen.row.checkpoint}: {by} {_number(chosen.value)}")
        if chosen.row.decided:
            from coordinate_eval.coordinator.run.claiming.decided import in_part

            out(f"its scores are of a part of the items: {in_part(chosen.row.decided)}")
        if chosen.close:
            several = len({row.training for row in found.rows}) > 1
            shown = ", ".join(
                f"{row.checkpoint if several else row.name} ({_number(value)})"
                for row, value in chosen.close[:5]
            )
            more = len(chosen.close) - 5
            out(
                f"may be as good: {shown}{f' and {more} more' if more > 0 else ''}; "
                "`coordinate-eval compare` tells more, item by item"
            )
        if chosen.without:
            out(f"{plural(len(chosen.without), 'checkpoint')} without all of these scores")
    for line in [*found.notes, *problems]:
        say(line)


def by_training(
    known: Sequence[Measured], found: Series, suite: str | None = None
) -> Iterator[tuple[str, Series]]:
    """Yield each training with a series of its own: what another was asked is nothing to it."""
    for training in dict.fromkeys(row.training for row in found.rows):
        of = {row.checkpoint for row in found.rows if row.training == training}
        yield training, series([each for each in known if each.checkpoint in of], suite=suite)


def _told(row: Row, value: Value) -> dict[str, Any]:
    return {
        "checkpoint": row.checkpoint,
        "step": row.step,
        "run": row.runs[0],
        "value": value.value,
        "stderr": value.stderr,
        "decided": row.decided,
    }


def _number(value: Value) -> str:
    error = "" if value.stderr is None else f" ±{value.stderr:.4f}"
    return f"{value.value:.4f}{error}"


def _tokens(row: Row, form: _Form) -> int | None:
    if row.step is None or form.tokens_per_step is None:
        return None
    return row.step * form.tokens_per_step


def _document(found: Series, columns: Sequence[Column], form: _Form) -> dict[str, Any]:
    def told(row: Row, values: Sequence[Value | None]) -> dict[str, Any]:
        return {
            "training": row.training,
            "step": row.step,
            "tokens": _tokens(row, form),
            "checkpoint": row.checkpoint,
            "runs": list(row.runs),
            "created": row.created,
            "gpu_seconds": row.gpu_seconds,
            "columns": {
                each.name: None if value is None else value._asdict()
                for each, value in zip(columns, values, strict=True)
            },
            "scores": in_columns(row.scores).document(),
            "missing": list(row.missing),
            "decided": row.decided,
        }

    more: dict[str, Any] = {}
    if form.curve or form.noise:
        from coordinate_eval.coordinator.cli.inquire.curves import curves, noise

        more = {"curves": curves(found, columns)} if form.curve else {}
        more |= {"noise": noise(found, columns)} if form.noise else {}
    return {
        "schema": "coordinate-eval/history@1",
        "columns": {each.name: list(each.datasets) for each in columns},
        "datasets": list(found.datasets),
        "groups": dict(found.groups),
        "rows": [told(*each) for each in zip(found.rows, _values(found, columns), strict=True)],
        "notes": list(found.notes),
        **more,
    }


def _values(found: Series, columns: Sequence[Column]) -> list[tuple[Value | None, ...]]:
    """Return the values of each checkpoint in the columns."""
    if not columns:
        return [()] * len(found.rows)
    return list(zip(*(each.values(found.rows) for each in columns), strict=True))


def _csv(found: Series, columns: Sequence[Column], form: _Form) -> Iterator[list[object]]:
    heads = [head for each in columns for head in (each.name, f"{each.name} stderr")]
    yield ["training", "step", "tokens", "checkpoint", "gpu_hours", "missing", "decided", *heads]
    for row, values in zip(found.rows, _values(found, columns), strict=True):
        cells = [
            cell
            for value in values
            for cell in ((None, None) if value is None else (value.value, value.stderr))
        ]
        hours = None if row.gpu_seconds is None else round(row.gpu_seconds / 3600, 4)
        line = [row.training, row.step, _tokens(row, form), row.checkpoint, hours]
        yield [*line, len(row.missing), row.decided, *cells]


def _write_parquet(found: Series, form: _Form, target: Path) -> None:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise UserError(
            "Parquet files are written by pyarrow: pip install pyarrow, or use --csv"
        ) from error
    lines = list(_long(found, form))
    names = lines[0].keys() if lines else ("training",)
    table = pa.table({name: [line[name] for line in lines] for name in names})
    beside = target.with_name(f".{target.name[:100]}.{_files.token()}.tmp")
    try:
        parquet.write_table(table, beside)
        _files.replace(beside, target)
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror or error}") from error
    finally:
        beside.unlink(missing_ok=True)


def _long(found: Series, form: _Form) -> Iterator[dict[str, Any]]:
    for row in found.rows:
        for name in row.scores:
            yield {
                "training": row.training,
                "step": row.step,
                "tokens": _tokens(row, form),
                "checkpoint": row.checkpoint,
                "run": row.runs[0],
                "dataset": name,
                "group": found.groups.get(name),
                "decided": row.decided,
                **row.score(name)._asdict(),
            }


def _print(found: Series, columns: Sequence[Column], form: _Form, settings: Settings) -> None:
    if not found.rows or not columns:
        out("no scores yet" if found.rows else f"no runs under {settings.runs_dir}")
        return
    trainings = list(dict.fromkeys(row.training for row in found.rows))
    for training in trainings:
        rows = [row for row in found.rows if row.training == training]
        if len(trainings) > 1:
            out(training)
        shown, told = _shown(found, rows, columns, form, len(trainings))
        _print_table(shown, columns, form)
        for line in told:
            out(line)
        if len(rows) > 2:
            width = max(len(each.name) for each in columns)
            drawn = [rows[place] for place in drawn_places(len(rows))]
            for each in columns:
                curve = [None if value is None else value.value for value in each.values(drawn)]
                out(f"{each.name:<{width}}  {sparkline(curve)}")
    if any(row.decided for row in found.rows):
        from coordinate_eval.coordinator.run.claiming.decided import part_lines

        for line in part_lines((_step(row), row.decided) for row in found.rows):
            out(line)
    if lacking := [row for row in found.rows if row.missing]:
        count = sum(len(row.missing) for row in lacking)
        out(
            f"* {plural(count, 'score')} missing in {plural(len(lacking), 'checkpoint')}: "
            "`coordinate-eval status RUN` says why"
        )


def _shown(
    found: Series, rows: Sequence[Row], columns: Sequence[Column], form: _Form, trainings: int
) -> tuple[Sequence[Row], list[str]]:
    """Return the checkpoints of a training that the table has, and what it leaves out, in words."""
    most = max(3, _MOST_SHOWN // trainings)
    if form.everything or len(rows) <= 2 * most:
        return rows, []
    by = columns[0] if form.chosen else columns[-1]
    shown, told = list(rows[-most:]), f"the last {most} of {len(rows):,} checkpoints"
    with contextlib.suppress(UserError):  # none has a value
        row = best(found._replace(rows=rows), by).row
        told += f" (best by {by.name}: {row.name})"
        if row not in shown:
            shown.insert(0, row)
    return shown, [f"{told}; --all shows all"]


def _print_table(rows: Sequence[Row], columns: Sequence[Column], form: _Form) -> None:
    first = [["step", *map(_step, rows)]]
    if form.tokens_per_step is not None:
        tokens = [_tokens(row, form) for row in rows]
        first.append(["tokens", *("" if each is None else f"{each:.3g}" for each in tokens)])
    cells = []
    for each in columns:
        title = f"{each.name} ({len(each.datasets)})" if each.mean else each.name
        its = each.values(rows)
        cells.append([title, *("" if value is None else _number(value) for value in its)])
    print_in_parts(first, cells)


def _step(row: Row) -> str:
    name = str(row.step) if row.step is not None else PurePath(row.checkpoint).name
    return name + ("*" if row.missing else "")
