"""Options of several commands."""

from pathlib import Path
from typing import Annotated

import typer

from coordinate_eval.coordinator.cli.options.parsing import (
    option,
    output_option,
    what_option,
    where_option,
)

Json = Annotated[bool, output_option("--json", "Print one JSON document on stdout.")]
SettingsFile = Annotated[
    Path | None,
    output_option(
        "--settings FILE", "Read settings from this TOML file.", shown="your config.toml"
    ),
]
Full = Annotated[
    bool,
    what_option(
        "--full",
        "Ask also what is left of a run that --until-decided has ended early, or of a "
        "sample (--precision).",
    ),
]
Wait = Annotated[
    bool,
    output_option(
        "--wait", "Supervise in this terminal until the run ends, then print the scores."
    ),
]
Verbose = Annotated[
    bool,
    output_option(
        "--verbose -v", "Show the warnings of other libraries, and the job scripts of a dry run."
    ),
]
RunName = Annotated[
    str | None,
    typer.Argument(metavar="RUN", help="A run's directory or id.", show_default="the latest run"),
]
Metric = Annotated[
    str | None,
    option(
        "--metric NAME",
        "Show this metric instead, for the datasets that have it: acc, exact_match,strict-match.",
    ),
]
Only = Annotated[
    list[str] | None,
    what_option("--only NAMES", "Evaluate only these datasets; names or patterns: gsm8k,arc_*."),
]
Engine = Annotated[
    str | None,
    what_option(
        "--engine NAME",
        "vllm, transformers or server; simulated makes up the responses.",
        shown="vllm",
    ),
]
JudgeUrl = Annotated[
    str | None,
    what_option("--judge-url URL", "OpenAI-compatible server of the judge: http://host:8000/v1."),
]
JudgeModel = Annotated[
    str | None, what_option("--judge-model NAME", "The judge's name on that server.")
]
Cluster = Annotated[
    str | None,
    where_option(
        "--cluster NAME",
        "slurm; local: this machine; ray: the Ray cluster of the setting ray.address; or a "
        "cluster file, which describes nodes to plan on.",
        shown="slurm if it is configured, else local",
    ),
]
Partition = Annotated[
    str | None, where_option("--partition NAME", "Slurm partition with the GPUs.")
]
Account = Annotated[str | None, where_option("--account NAME", "Slurm account.")]
Qos = Annotated[str | None, where_option("--qos NAME", "Slurm QOS.")]
Reservation = Annotated[str | None, where_option("--reservation NAME", "Slurm reservation.")]
OfSuite = Annotated[str | None, option("--suite NAME", "Show only runs of this suite.")]
InFolder = Annotated[
    Path | None, option("--checkpoints DIR", "Show only runs of checkpoints in this folder.")
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
    int | None,
    option("--tokens-per-step N", "Show the tokens that each checkpoint has seen.", min=1),
]
ModelConfig = Annotated[
    Path | None, what_option("--config FILE", "The config.json, in place of the checkpoint's.")
]
Tokenizer = Annotated[
    Path | None,
    what_option("--tokenizer DIR", "The folder of the tokenizer, in place of the checkpoint's."),
]
Mapping = Annotated[
    Path | None,
    what_option(
        "--mapping FILE",
        "A mapping from the names of the checkpoint's tensors to Hugging Face's, in YAML.",
        shown="the one of the shipped mappings that fits",
    ),
]
Base = Annotated[
    Path | None,
    what_option("--base CKPT", "The base of an adapter.", shown="the one that the adapter names"),
]
CheckAgainst = Annotated[
    Path | None,
    what_option(
        "--check-against FILE",
        "Compare log-likelihoods with those that coordinate_eval.reference wrote in "
        "training, on this machine's CPU, and refuse a checkpoint that differs.",
    ),
]
Strict = Annotated[
    bool,
    what_option(
        "--strict/--no-strict",
        "Refuse a suite with a task that is missing or broken. Otherwise the others are "
        "evaluated, and the run ends incomplete.",
    ),
]
