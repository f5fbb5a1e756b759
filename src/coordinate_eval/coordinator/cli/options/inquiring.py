"""Arguments and options of the commands that show runs and suites."""

from pathlib import Path
from typing import Annotated

import typer

from coordinate_eval.coordinator.cli.options.parsing import OUTPUT

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
    typer.Option(
        "--end",
        metavar="TEXT",
        help='How the job of LOG ended: state, reason and exit code of Slurm, as in "TIMEOUT '
        'TimeLimit 0:15".',
    ),
]
Ask = Annotated[
    bool,
    typer.Option(
        "--ask",
        help="Where no rule knows the cause, ask the model that the settings of [diagnosis] name. "
        "It is sent lines of the logs, which may hold secrets.",
    ),
]
Confirm = Annotated[
    bool,
    typer.Option("--confirm", help="Make a rule of what the model has said of these logs."),
]
Compressed = Annotated[
    bool,
    typer.Option(
        "--compressed",
        help="Print the lines that the rules read: LOG without what says that all goes well.",
        rich_help_panel=OUTPUT,
    ),
]
RunNames = Annotated[
    list[str] | None,
    typer.Argument(metavar="RUN", help="Directories or ids of runs.", show_default="all runs"),
]
Ledger = Annotated[
    bool,
    typer.Option(
        "--ledger",
        help="Show where the GPU time went, and what to change next.",
        rich_help_panel=OUTPUT,
    ),
]
Follow = Annotated[
    bool,
    typer.Option(
        "--follow",
        "-f",
        help="Refresh until the run ends. Ctrl-C stops watching and leaves the run alone.",
        rich_help_panel=OUTPUT,
    ),
]
ScoredDataset = Annotated[
    str | None,
    typer.Option("--dataset", help="Show the main score of this dataset.", metavar="NAME"),
]
MostRuns = Annotated[
    int, typer.Option("--limit", min=1, help="Show the N newest runs.", metavar="N")
]
SampledDataset = Annotated[
    str | None,
    typer.Option(
        "--dataset", metavar="NAME", help="Show samples of this dataset.",
        show_default="the only one of the run",
    ),
]  # fmt: skip
Items = Annotated[
    list[int] | None,
    typer.Option("--item", metavar="N", help="Show this item, counted from 0; may be repeated."),
]
Wrong = Annotated[
    bool,
    typer.Option("--wrong", help="Show the items that are not right, or of graded ones the worst."),
]
OtherRun = Annotated[
    str | None,
    typer.Option(
        "--diff",
        metavar="OTHER",
        help="Show the items that only one of RUN and OTHER gets right, or that differ most.",
    ),
]
MostItems = Annotated[
    int | None,
    typer.Option(
        "--limit",
        min=1,
        metavar="N",
        help="Show at most N items.",
        show_default="10; all with --json or --output",
    ),
]
SamplesJson = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print a line of JSON for each sample, as lm_eval --log_samples writes it.",
        rich_help_panel=OUTPUT,
    ),
]
SampleFiles = Annotated[
    Path | None,
    typer.Option(
        "--output",
        metavar="DIR",
        help="Write a file of such lines for each task into this folder.",
        rich_help_panel=OUTPUT,
    ),
]
InReport = Annotated[
    bool,
    typer.Option(
        "--report",
        help="Write report.html of the run again, with these samples.",
        rich_help_panel=OUTPUT,
    ),
]
OutputFormat = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="table, csv, json or markdown; of one run also lm_eval, the harness's results file, "
        "and model-card, a table in Markdown.",
        show_default="table",
        rich_help_panel=OUTPUT,
    ),
]
Csv = Annotated[
    bool,
    typer.Option("--csv", help="Print comma-separated values.", rich_help_panel=OUTPUT),
]
Markdown = Annotated[
    bool, typer.Option("--markdown", help="Print a Markdown table.", rich_help_panel=OUTPUT)
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
    typer.Option(
        metavar="SIZE",
        help="Predict for a model with this many parameters: 350m.",
        show_default="7b",
    ),
]
PredictedCheckpoint = Annotated[
    Path | None, typer.Option(metavar="CKPT", help="Predict for this checkpoint instead.")
]
GpuType = Annotated[str, typer.Option(metavar="NAME", help="Type of the GPUs.")]
TensorParallel = Annotated[
    int, typer.Option(min=1, max=1024, metavar="N", help="GPUs of one trial.")
]
