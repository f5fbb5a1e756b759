"""Options of several commands."""

from pathlib import Path
from typing import Annotated

import typer

from coordinate_eval.coordinator.cli.options.parsing import OUTPUT, WHAT, WHERE

Json = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document on stdout.", rich_help_panel=OUTPUT),
]
SettingsFile = Annotated[
    Path | None,
    typer.Option(
        "--settings",
        metavar="FILE",
        help="Read settings from this TOML file.",
        show_default="your config.toml",
        rich_help_panel=OUTPUT,
    ),
]
Wait = Annotated[
    bool,
    typer.Option(
        "--wait",
        help="Supervise in this terminal until the run ends, then print the scores.",
        rich_help_panel=OUTPUT,
    ),
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        help="Show the warnings of other libraries, and the job scripts of a dry run.",
        rich_help_panel=OUTPUT,
    ),
]
RunName = Annotated[
    str | None,
    typer.Argument(metavar="RUN", help="A run's directory or id.", show_default="the latest run"),
]
Metric = Annotated[
    str | None,
    typer.Option(
        help="Show this metric instead, for the datasets that have it: acc, "
        "exact_match,strict-match.",
        metavar="NAME",
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAMES",
        help="Evaluate only these datasets; names or patterns: gsm8k,arc_*.",
        rich_help_panel=WHAT,
    ),
]
Engine = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="vllm or transformers; simulated makes up the responses.",
        show_default="vllm",
        rich_help_panel=WHAT,
    ),
]
JudgeUrl = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="OpenAI-compatible server of the judge: http://host:8000/v1.",
        rich_help_panel=WHAT,
    ),
]
JudgeModel = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The judge's name on that server.", rich_help_panel=WHAT),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="slurm; local: this machine; ray: the Ray cluster of the setting ray.address; or a "
        "cluster file, which describes nodes to plan on.",
        show_default="slurm if it is configured, else local",
        rich_help_panel=WHERE,
    ),
]
Partition = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Slurm partition with the GPUs.", rich_help_panel=WHERE),
]
Account = Annotated[
    str | None, typer.Option(metavar="NAME", help="Slurm account.", rich_help_panel=WHERE)
]
Qos = Annotated[str | None, typer.Option(metavar="NAME", help="Slurm QOS.", rich_help_panel=WHERE)]
Reservation = Annotated[
    str | None, typer.Option(metavar="NAME", help="Slurm reservation.", rich_help_panel=WHERE)
]
