"""Commands that show a run's state and samples, suites, checkpoints and settings."""

from pathlib import Path
from typing import Annotated

import typer

from coordinate_eval.coordinator.cli.options import common, launching
from coordinate_eval.coordinator.cli.options.parsing import OUTPUT, option
from coordinate_eval.coordinator.inputs.layers import load as load_settings

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
    for command in (status, diagnose, samples, suites, checkpoint, config):
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
