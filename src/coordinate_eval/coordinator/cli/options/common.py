"""Options of several commands."""

from pathlib import Path
from typing import Annotated

import typer

from coordinate_eval.coordinator.cli.options.parsing import OUTPUT, WHAT, WHERE, option

Json = Annotated[bool, option(OUTPUT, "", "Print one JSON document on stdout.", "--json")]
SettingsFile = Annotated[
    Path | None,
    option(
        OUTPUT, "FILE", "Read settings from this TOML file.", "--settings", shown="your config.toml"
    ),
]
Full = Annotated[
    bool,
    option(
        WHAT,
        "",
        "Ask also what is left of a run that --until-decided has ended early, or of a sample "
        "(--precision).",
        "--full",
    ),
]
Wait = Annotated[
    bool,
    option(
        OUTPUT,
        "",
        "Supervise in this terminal until the run ends, then print the scores.",
        "--wait",
    ),
]
Verbose = Annotated[
    bool,
    option(
        OUTPUT,
        "",
        "Show the warnings of other libraries, and the job scripts of a dry run.",
        "--verbose",
        "-v",
    ),
]
RunName = Annotated[
    str | None,
    typer.Argument(metavar="RUN", help="A run's directory or id.", show_default="the latest run"),
]
Metric = Annotated[
    str | None,
    option(
        "",
        "NAME",
        "Show this metric instead, for the datasets that have it: acc, exact_match,strict-match.",
    ),
]
Only = Annotated[
    list[str] | None,
    option(WHAT, "NAMES", "Evaluate only these datasets; names or patterns: gsm8k,arc_*."),
]
Engine = Annotated[
    str | None,
    option(
        WHAT,
        "NAME",
        "vllm, transformers or server; simulated makes up the responses.",
        shown="vllm",
    ),
]
JudgeUrl = Annotated[
    str | None, option(WHAT, "URL", "OpenAI-compatible server of the judge: http://host:8000/v1.")
]
JudgeModel = Annotated[str | None, option(WHAT, "NAME", "The judge's name on that server.")]
Cluster = Annotated[
    str | None,
    option(
        WHERE,
        "NAME",
        "slurm; local: this machine; ray: the Ray cluster of the setting ray.address; or a "
        "cluster file, which describes nodes to plan on.",
        shown="slurm if it is configured, else local",
    ),
]
Partition = Annotated[str | None, option(WHERE, "NAME", "Slurm partition with the GPUs.")]
Account = Annotated[str | None, option(WHERE, "NAME", "Slurm account.")]
Qos = Annotated[str | None, option(WHERE, "NAME", "Slurm QOS.")]
Reservation = Annotated[str | None, option(WHERE, "NAME", "Slurm reservation.")]
OfSuite = Annotated[str | None, option("", "NAME", "Show only runs of this suite.", "--suite")]
InFolder = Annotated[
    Path | None, option("", "DIR", "Show only runs of checkpoints in this folder.", "--checkpoints")
]
Trainings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TRAINING",
        help="Folders of checkpoints, or the ends of their paths.",
        show_default="all trainings",
    ),
]
TokensPerStep = Annotated[
    int | None, option("", "N", "Show the tokens that each checkpoint has seen.", min=1)
]
