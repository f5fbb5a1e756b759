"""Commands that show, compare and judge the scores of runs, and their options."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from coordinate_eval.coordinator.cli.options import common
from coordinate_eval.coordinator.cli.options.parsing import OUTPUT, option
from coordinate_eval.coordinator.inputs.layers import load as load_settings
from coordinate_eval.errors import CoordinateError, UserError

RunNames = Annotated[
    list[str] | None,
    typer.Argument(metavar="RUN", help="Directories or ids of runs.", show_default="all runs"),
]
InFolder = Annotated[
    Path | None,
    typer.Option(
        "--checkpoints", metavar="DIR", help="Show only runs of checkpoints in this folder."
    ),
]
OfSuite = Annotated[
    str | None, typer.Option("--suite", metavar="NAME", help="Show only runs of this suite.")
]
Reference = Annotated[
    str,
    typer.Argument(
        metavar="A", help="The run to compare with: its directory, its id, or its checkpoint."
    ),
]
Changed = Annotated[
    str, typer.Argument(metavar="B", help="The run whose change is asked for, named likewise.")
]
Gated = Annotated[
    str, typer.Argument(metavar="RUN", help="Its directory, its id, or its checkpoint.")
]
PolicyFile = Annotated[Path, option("", "FILE", "The policy, a YAML file.", "--policy")]
Against = Annotated[
    str | None,
    option("", "BASELINE", "The run that rules about losses and gains compare with.", "--against"),
]
Compared = Annotated[
    list[str] | None,
    option("", "NAME", "Compare this dataset only. May be given several times.", "--dataset"),
]
Anyway = Annotated[
    bool, option("", "", "Compare although the runs have asked or scored differently.", "--anyway")
]
Trainings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TRAINING",
        help="Folders of checkpoints, or the ends of their paths.",
        show_default="all trainings",
    ),
]
Columns = Annotated[
    list[str] | None,
    option(
        "",
        "WHAT",
        "Show this dataset, group, aggregate, or mean, such as 'mean(mmlu,arc*)'. May be given "
        "several times.",
        "--column",
        shown="each dataset; of more than 8, each group and the mean",
    ),
]
By = Annotated[
    str,
    option(
        "",
        "WHAT",
        "A dataset, a group, an aggregate, or a mean, such as 'mean(mmlu,arc*)'.",
        "--by",
    ),
]
TokensPerStep = Annotated[
    int | None, option("", "N", "Show the tokens that each checkpoint has seen.", min=1)
]
Smoothed = Annotated[
    bool,
    option(
        OUTPUT,
        "",
        "Smooth the scores: show where each column is, goes and jumps, with 95 % intervals.",
        "--curve",
    ),
]
Everything = Annotated[
    bool,
    option(
        OUTPUT,
        "",
        "Show all checkpoints, as in a pipe or a file: a long table has the last and the best.",
        "--all",
    ),
]
Noisy = Annotated[
    bool,
    option(
        OUTPUT,
        "",
        "Show how far each column has risen and how noisy it is, the clearest first.",
        "--noise",
    ),
]
ParquetFile = Annotated[
    Path | None,
    option(OUTPUT, "FILE", "Write a line for each checkpoint and dataset into this file."),
]
Reported = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TRAINING|RUN",
        help="Folders of checkpoints, or the ends of their paths; or a run's directory or id.",
        show_default="all trainings",
    ),
]
Baseline = Annotated[
    str | None,
    option("", "BASELINE", "Show this training, checkpoint or run beside it.", "--against"),
]
PageFile = Annotated[
    Path | None,
    option(
        OUTPUT, "FILE", "Write the page into this file.", "--output", shown="TRAINING.html, here"
    ),
]
ScoredDataset = Annotated[
    str | None, option("", "NAME", "Show the main score of this dataset.", "--dataset")
]
MostRuns = Annotated[int, option("", "N", "Show the N newest runs.", "--limit", min=1)]
OutputFormat = Annotated[
    str | None,
    option(
        OUTPUT,
        "NAME",
        "table, csv, json or markdown; of one run also lm_eval, the harness's results file, "
        "and model-card, a table in Markdown.",
        shown="table",
    ),
]
Csv = Annotated[bool, option(OUTPUT, "", "Print comma-separated values.", "--csv")]
Markdown = Annotated[bool, option(OUTPUT, "", "Print a Markdown table.", "--markdown")]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (runs, scores, history, best, alarms, report, compare, gate):
        app.command()(command)


def runs(
    dataset: ScoredDataset = None,
    limit: MostRuns = 20,
    checkpoints: InFolder = None,
    suite: OfSuite = None,
    as_json: common.Json = False,
    settings_file: common.SettingsFile = None,
) -> None:
    """List the runs in `runs_dir`, the newest first."""
    from coordinate_eval.coordinator.cli.inquire.runs import Wanted, list_runs

    settings, _ = load_settings({}, settings_file)
    list_runs(settings, dataset, limit, Wanted(checkpoints, suite), as_json=as_json)


def scores(
    run: RunNames = None,
    metric: common.Metric = None,
    output_format: OutputFormat = None,
    as_csv: Csv = False,
    as_json: common.Json = False,
    as_markdown: Markdown = False,
    checkpoints: InFolder = None,
    suite: OfSuite = None,
    settings_file: common.SettingsFile = None,
) -> None:
    """Show a table of scores: a row for each run, by training step; a column for each dataset.

    A column has the dataset's main metric: `acc_norm` if the task has it, else the first metric of
    its configuration of which more is better, else its first one. A group without a score of its
    own has the mean over its tasks.
    """
    from coordinate_eval.coordinator.cli.inquire.runs import Wanted
    from coordinate_eval.coordinator.cli.inquire.scores import FORMATS, show_scores

    flags = (("csv", as_csv), ("json", as_json), ("markdown", as_markdown))
    asked = [name for name, on in flags if on] + ([output_format] if output_format else [])
    if len(asked) > 1:
        raise UserError(f"{asked[0]} and {asked[1]} are two formats: give one of them")
    if asked and asked[0] not in FORMATS:
        raise UserError(f"--output-format {asked[0]}: it must be one of {', '.join(FORMATS)}")
    settings, _ = load_settings({}, settings_file)
    if run and (checkpoints or suite):
        raise UserError("--checkpoints and --suite choose among all runs: name no RUN")
    wanted = Wanted(checkpoints, suite)
    show_scores(run or [], settings, metric, asked[0] if asked else "table", wanted)


def history(
    training: Trainings = None,
    suite: OfSuite = None,
    column: Columns = None,
    tokens_per_step: TokensPerStep = None,
    curve: Smoothed = False,
    noise: Noisy = False,
    everything: Everything = False,
    as_csv: Csv = False,
    as_json: common.Json = False,
    parquet: ParquetFile = None,
    settings_file: common.SettingsFile = None,
) -> None:
    """Show the scores of a training's checkpoints, by step, also of runs that were removed.

    Only scores that can be compared stand in one column: those whose prompts, task, harness and
    judge are the newest run's. A checkpoint that was written again counts as it was evaluated last.
    """
    from coordinate_eval.coordinator.cli.inquire.history import Wanted, show_history

    if as_csv + as_json + (parquet is not None) > 1:
        raise UserError("--csv, --json and --parquet are three formats: give one of them")
    if curve and noise:
        raise UserError("--curve and --noise are two tables: give one of them")
    if (curve or noise) and (as_csv or parquet is not None):
        name = "--curve" if curve else "--noise"
        raise UserError(f"{name} shows a table, or with --json a document: it has no other format")
    settings, _ = load_settings({}, settings_file)
    wanted = Wanted(training or [], suite, column or [], tokens_per_step, curve, noise)
    wanted = wanted._replace(everything=everything or not sys.stdout.isatty())
    form = "csv" if as_csv else "json" if as_json else "table"
    show_history(settings, wanted, form, parquet)


def best(
    training: Trainings = None,
    by: By = "mean",
    suite: OfSuite = None,
    as_json: common.Json = False,
    settings_file: common.SettingsFile = None,
) -> None:
    """Name the checkpoint with the best score, and those that may be as good."""
    from coordinate_eval.coordinator.cli.inquire.history import Wanted, show_best

    settings, _ = load_settings({}, settings_file)
    show_best(settings, Wanted(training or [], suite, []), by, as_json=as_json)


def alarms(
    training: Trainings = None,
    suite: OfSuite = None,
    as_json: common.Json = False,
    settings_file: common.SettingsFile = None,
) -> None:
    """Show which checkpoints are worse than their training's past explains.

    Exit status: 0 an alarm is true of no training's newest checkpoint; 1 one is; 2 it is not known.
    """
    from coordinate_eval.coordinator.cli.inquire.alarms import show_alarms
    from coordinate_eval.coordinator.cli.inquire.history import Wanted

    with _errors_are_no_verdict():
        settings, _ = load_settings({}, settings_file)
        status = show_alarms(settings, Wanted(training or [], suite, []), as_json=as_json)
    raise typer.Exit(status)


def report(
    training: Reported = None,
    against: Baseline = None,
    suite: OfSuite = None,
    output: PageFile = None,
    settings_file: common.SettingsFile = None,
) -> None:
    """Write one HTML page of a training: curves, alarms, what has changed, and what it cost.

    The page stands alone: it can be sent, and needs no network. Of a run, its report.html is
    written again. The path of the page is printed.
    """
    from coordinate_eval.coordinator.cli.inquire.report import show_report

    settings, _ = load_settings({}, settings_file)
    show_report(settings, training or [], against, suite, output)


def compare(
    first: Reference,
    second: Changed,
    dataset: Compared = None,
    metric: common.Metric = None,
    anyway: Anyway = False,
    as_json: common.Json = False,
    settings_file: common.SettingsFile = None,
) -> None:
    """Show where the scores of run B differ from those of run A by more than chance.

    The runs are compared item by item. A dataset is better or worse if its p-value is among those
    that are significant when 5 % of such findings may be false. No GPU is used.
    """
    from coordinate_eval.coordinator.cli.inquire.compare import show_comparison

    settings, _ = load_settings({}, settings_file)
    show_comparison(
        (first, second), settings, dataset or [], metric, anyway=anyway, as_json=as_json
    )


def gate(
    run: Gated,
    policy: PolicyFile,
    against: Against = None,
    as_json: common.Json = False,
    settings_file: common.SettingsFile = None,
) -> None:
    """Decide whether a run's scores meet a policy: GO, NO-GO, or INCONCLUSIVE.

    A rule is decided if all of the 95 % interval is on one side of its bound.

    Exit status: 0 GO; 1 NO-GO; 2 the run or the policy cannot be used; 3 INCONCLUSIVE, with the
    number of items that would decide.
    """
    from coordinate_eval.coordinator.cli.inquire.compare import show_gate

    with _errors_are_no_verdict():
        settings, _ = load_settings({}, settings_file)
        status = show_gate(settings, run, policy, against, as_json=as_json)
    raise typer.Exit(status)


@contextlib.contextmanager
def _errors_are_no_verdict() -> Iterator[None]:
    """Let errors in the block end with 2, where 1 is a verdict."""
    try:
        yield
    except CoordinateError as error:
        raise UserError(str(error)) from error
