"""Commands that show runs, scores, suites and settings, change nothing, and their options."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from coordinate_eval.coordinator.cli.options import common, launching
from coordinate_eval.coordinator.cli.options.parsing import OUTPUT, option
from coordinate_eval.coordinator.inputs.layers import load as load_settings
from coordinate_eval.errors import CoordinateError, UserError

DiagnosedJobs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RUN|LOG...",
        help="A run's directory or id, or log files: of one job, a file for each rank.",
        show_default="the latest run",
    ),
]
Ended = Annotated[
    str | None,
    option(
        "",
        "TEXT",
        'How the job of LOG ended: state, reason and exit code of Slurm, as in "TIMEOUT '
        'TimeLimit 0:15".',
        "--end",
    ),
]
Compressed = Annotated[
    bool,
    option(
        OUTPUT,
        "",
        "Print the lines that the rules read: LOG without what says that all goes well.",
        "--compressed",
    ),
]
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
ShownCheckpoint = Annotated[
    Path, typer.Argument(metavar="CKPT", help="A folder, or a file, whatever it is.")
]
Check = Annotated[
    bool,
    option(
        "",
        "",
        "Compare all tensors with the architecture, and look for NaN. All weights are read.",
        "--check",
    ),
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
        "Show this dataset, group, or mean, such as 'mean(mmlu,arc*)'. May be given several times.",
        "--column",
        shown="each dataset; of more than 8, each group and the mean",
    ),
]
By = Annotated[
    str, option("", "WHAT", "A dataset, a group, or a mean, such as 'mean(mmlu,arc*)'.", "--by")
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
ParquetFile = Annotated[
    Path | None,
    option(OUTPUT, "FILE", "Write a line for each checkpoint and dataset into this file."),
]
Ledger = Annotated[
    bool, option(OUTPUT, "", "Show where the GPU time went, and what to change next.", "--ledger")
]
Follow = Annotated[
    bool,
    option(
        OUTPUT,
        "",
        "Refresh until the run ends. Ctrl-C stops watching and leaves the run alone.",
        "--follow",
        "-f",
    ),
]
ScoredDataset = Annotated[
    str | None, option("", "NAME", "Show the main score of this dataset.", "--dataset")
]
MostRuns = Annotated[int, option("", "N", "Show the N newest runs.", "--limit", min=1)]
SampledDataset = Annotated[
    str | None,
    option(
        "", "NAME", "Show samples of this dataset.", "--dataset", shown="the only one of the run"
    ),
]
Items = Annotated[
    list[int] | None, option("", "N", "Show this item, counted from 0; may be repeated.", "--item")
]
Wrong = Annotated[
    bool,
    option("", "", "Show the items that are not right, or of graded ones the worst.", "--wrong"),
]
OtherRun = Annotated[
    str | None,
    option(
        "",
        "OTHER",
        "Show the items that only one of RUN and OTHER gets right, or that differ most.",
        "--diff",
    ),
]
MostItems = Annotated[
    int | None,
    option(
        "", "N", "Show at most N items.", "--limit", shown="10; all with --json or --output", min=1
    ),
]
SamplesJson = Annotated[
    bool,
    option(
        OUTPUT,
        "",
        "Print a line of JSON for each sample, as lm_eval --log_samples writes it.",
        "--json",
    ),
]
SampleFiles = Annotated[
    Path | None,
    option(OUTPUT, "DIR", "Write a file of such lines for each task into this folder.", "--output"),
]
InReport = Annotated[
    bool, option(OUTPUT, "", "Write report.html of the run again, with these samples.", "--report")
]
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
SuiteName = Annotated[
    str | None,
    typer.Argument(
        metavar="SUITE",
        help="A shipped suite's name, or a suite file.",
        show_default="list all",
    ),
]
ModelSize = Annotated[
    str | None,
    option("", "SIZE", "Predict for a model with this many parameters: 350m.", shown="7b"),
]
PredictedCheckpoint = Annotated[
    Path | None, option("", "CKPT", "Predict for this checkpoint instead.")
]
GpuType = Annotated[str, option("", "NAME", "Type of the GPUs.")]
TensorParallel = Annotated[int, option("", "N", "GPUs of one trial.", min=1, max=1024)]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (
        status, diagnose, runs, scores, history, best, alarms, compare, gate, samples, suites,
        checkpoint, config,
    ):  # fmt: skip
        app.command()(command)


def status(
    run: common.RunName = None,
    follow: Follow = False,
    ledger: Ledger = False,
    as_json: common.Json = False,
    settings_file: common.SettingsFile = None,
) -> None:
    """Show how far a run is, its scores or why it failed, and what to do next.

    Exit status: 0 the run is complete or goes on; 1 it ended without all results, was cancelled,
    or has lost its supervisor; 3 the scheduler did not answer and nothing else tells.
    """
    from coordinate_eval.coordinator.cli.inquire.status import show_ledger, show_status

    settings, _ = load_settings({}, settings_file)
    if ledger:
        show_ledger(run, settings, as_json=as_json, follow=follow)
        return
    raise typer.Exit(show_status(run, settings, as_json=as_json, follow=follow))


def diagnose(
    what: DiagnosedJobs = None,
    end: Ended = None,
    compressed: Compressed = False,
    as_json: common.Json = False,
    settings_file: common.SettingsFile = None,
) -> None:
    """Name the cause of each failed job of a run, or of any job by its logs, and what to do.

    Exit status: 0 every cause is known, or nothing failed; 1 a cause is not known, or the run
    ended incomplete and no job of it failed.
    """
    from coordinate_eval.coordinator.cli.inquire.diagnose import Asked, show_causes

    settings, _ = load_settings({}, settings_file)
    asked = Asked(what or [], end or "", compressed, as_json)
    raise typer.Exit(show_causes(settings, asked))


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
    if curve and (as_csv or parquet is not None):
        raise UserError("--curve shows a table, or with --json a document: it has no other format")
    settings, _ = load_settings({}, settings_file)
    wanted = Wanted(training or [], suite, column or [], tokens_per_step, curve)
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
    from coordinate_eval.coordinator.cli.inquire.history import Wanted, show_alarms

    with _errors_are_no_verdict():
        settings, _ = load_settings({}, settings_file)
        status = show_alarms(settings, Wanted(training or [], suite, []), as_json=as_json)
    raise typer.Exit(status)


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
    from coordinate_eval.coordinator.cli.inquire.gate import show_gate

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


def samples(
    dataset: SampledDataset = None,
    run: common.RunName = None,
    item: Items = None,
    wrong: Wrong = False,
    diff: OtherRun = None,
    limit: MostItems = None,
    metric: common.Metric = None,
    as_json: SamplesJson = False,
    output: SampleFiles = None,
    report: InReport = False,
    settings_file: common.SettingsFile = None,
) -> None:
    """Show prompts, answers, targets and verdicts of a dataset that is scored.

    An item is right if the main metric of its task, or the one named, is 1 for it. The harness
    must be installed here: it scores the responses again, confined. No GPU is used.
    """
    from coordinate_eval.coordinator.cli.inquire.samples import Wanted, show_samples

    settings, _ = load_settings({}, settings_file)
    wanted = Wanted(
        dataset, item or [], wrong, diff, limit, metric, as_json, output, report
    )  # fmt: skip
    show_samples(run, settings, wanted)


def suites(
    suite: SuiteName = None,
    model: ModelSize = None,
    checkpoint: PredictedCheckpoint = None,
    gpu: GpuType = "h200",
    tp: TensorParallel = 1,
    as_json: common.Json = False,
) -> None:
    """List the shipped suites, or the datasets of one and what they take."""
    from coordinate_eval.coordinator.cli.inquire.suites import list_shipped, model_of, show_suite
    from coordinate_eval.coordinator.inputs.suites.suite import load as load_suite

    if suite is None:
        if model is not None or checkpoint is not None:
            raise typer.BadParameter("name a suite to predict for", param_hint="SUITE")
        list_shipped(as_json=as_json)
        return
    wanted = load_suite(suite)
    name, described = model_of(model, checkpoint)
    show_suite(wanted, name, described, gpu, tp, as_json=as_json)


def checkpoint(
    ckpt: ShownCheckpoint,
    model_config: launching.ModelConfig = None,
    tokenizer: launching.Tokenizer = None,
    mapping: launching.Mapping = None,
    base: launching.Base = None,
    check: Check = False,
    check_against: launching.CheckAgainst = None,
    as_json: common.Json = False,
) -> None:
    """Show what a folder or file is: format, tensors, whose names they have, what is missing.

    Without --check no weight is read, and nothing is needed but its headers. Exit status: 0 it can
    be scored; 2 it cannot, and the last line says why.
    """
    from coordinate_eval.coordinator.cli.inquire.checkpoint import Asked, show_checkpoint

    asked = Asked(ckpt, model_config, tokenizer, mapping, check, check_against, base)
    raise typer.Exit(show_checkpoint(asked, as_json=as_json))


def config(as_json: common.Json = False, settings_file: common.SettingsFile = None) -> None:
    """Show every setting, its value, and where it comes from."""
    from coordinate_eval.coordinator.cli.inquire.config import show_config

    show_config(settings_file, as_json=as_json)
