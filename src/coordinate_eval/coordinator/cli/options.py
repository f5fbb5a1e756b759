"""Arguments and options of the commands, as annotated types: name, check and help text of each."""

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

_WHAT = "What to evaluate"
_WHERE = "Where to run"
_PLAN = "Plan"
_OUTPUT = "Run and output"


class Commands(TyperGroup):
    """Commands whose help says what to type after an option, and nothing after a flag."""

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401 - typer's own type
        """Return the group's own parameters."""
        return _as_typed(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401 - typer's own types
        """Return a command, if there is one of this name."""
        found = super().get_command(ctx, cmd_name)
        if found is not None:
            _as_typed(found.get_params(ctx))
        return found


def _as_typed(parameters: list[Any]) -> list[Any]:
    """Return parameters without the word `<bool>` that typer shows after flags."""
    for each in parameters:
        if getattr(each, "is_flag", False):
            each.metavar = ""
    return parameters


def json_object(text: str) -> dict[str, Any]:
    """Return the JSON object that an option's text holds.

    Raises:
        typer.BadParameter: it is not one.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise typer.BadParameter("must be a JSON object")
    return value


def seconds(text: str) -> float:
    """Return the seconds that an option's text names, such as 900, 15m or 2h.

    Raises:
        typer.BadParameter: it is not a time.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if match is None:
        raise typer.BadParameter("must be a time such as 900, 15m or 2h")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def _refuse_constant(constant: str) -> float:
    """Refuse NaN and the infinities, which Python reads and JSON does not have."""
    raise ValueError(f"{constant} is not a number")


Json = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document on stdout.", rich_help_panel=_OUTPUT),
]
SettingsFile = Annotated[
    Path | None,
    typer.Option(
        "--settings",
        metavar="FILE",
        help="Read settings from this TOML file.",
        show_default="your config.toml",
        rich_help_panel=_OUTPUT,
    ),
]
Wait = Annotated[
    bool,
    typer.Option(
        "--wait",
        help="Supervise in this terminal until the run ends, then print the scores.",
        rich_help_panel=_OUTPUT,
    ),
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        help="Show the warnings of other libraries, and the job scripts of a dry run.",
        rich_help_panel=_OUTPUT,
    ),
]

RunName = Annotated[
    str | None,
    typer.Argument(metavar="RUN", help="A run's directory or id.", show_default="the latest run"),
]

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
        rich_help_panel=_OUTPUT,
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
        rich_help_panel=_OUTPUT,
    ),
]
Follow = Annotated[
    bool,
    typer.Option(
        "--follow",
        "-f",
        help="Refresh until the run ends. Ctrl-C stops watching and leaves the run alone.",
        rich_help_panel=_OUTPUT,
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
    str, typer.Option("--dataset", metavar="NAME", help="Show samples of this dataset.")
]
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
        rich_help_panel=_OUTPUT,
    ),
]
SampleFiles = Annotated[
    Path | None,
    typer.Option(
        "--output",
        metavar="DIR",
        help="Write a file of such lines for each task into this folder.",
        rich_help_panel=_OUTPUT,
    ),
]
InReport = Annotated[
    bool,
    typer.Option(
        "--report",
        help="Write report.html of the run again, with these samples.",
        rich_help_panel=_OUTPUT,
    ),
]
Metric = Annotated[
    str | None,
    typer.Option(
        help="Show this metric instead, for the datasets that have it: acc, "
        "exact_match,strict-match.",
        metavar="NAME",
    ),
]
OutputFormat = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="table, csv, json or markdown; of one run also lm_eval, the harness's results file, "
        "and model-card, a table in Markdown.",
        show_default="table",
        rich_help_panel=_OUTPUT,
    ),
]
Csv = Annotated[
    bool,
    typer.Option("--csv", help="Print comma-separated values.", rich_help_panel=_OUTPUT),
]
Markdown = Annotated[
    bool, typer.Option("--markdown", help="Print a Markdown table.", rich_help_panel=_OUTPUT)
]

Checkpoint = Annotated[
    Path | None,
    typer.Argument(
        metavar="CKPT",
        help="A Hugging Face model directory, or a .pt file with a state dict.",
        show_default="the checkpoint of --plan",
    ),
]
Suite = Annotated[
    str | None,
    typer.Option(
        metavar="SUITE",
        help="A shipped suite's name, or a suite file.",
        show_default="base",
        rich_help_panel=_WHAT,
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAMES",
        help="Evaluate only these datasets; names or patterns: gsm8k,arc_*.",
        rich_help_panel=_WHAT,
    ),
]
Skip = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAMES",
        help="Leave out these datasets; names or patterns: gsm8k,arc_*.",
        rich_help_panel=_WHAT,
    ),
]
Group = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAMES",
        help="Evaluate only these groups of datasets: maths,code.",
        rich_help_panel=_WHAT,
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(
        min=1, max=10**9, help="Use at most N items of each task.", metavar="N",
        rich_help_panel=_WHAT,
    ),
]  # fmt: skip
Step = Annotated[
    int | None,
    typer.Option(
        min=0, max=10**15, metavar="N", help="The training step, for tables of scores.",
        show_default="what the checkpoint's name tells", rich_help_panel=_WHAT,
    ),
]  # fmt: skip
ModelConfig = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The config.json of a .pt checkpoint.",
        rich_help_panel=_WHAT,
    ),
]
Tokenizer = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="The folder of a .pt checkpoint's tokenizer.", rich_help_panel=_WHAT
    ),
]
Engine = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="vllm or transformers; simulated makes up the responses.",
        show_default="vllm",
        rich_help_panel=_WHAT,
    ),
]
EngineArgs = Annotated[
    dict[str, Any] | None,
    typer.Option(
        parser=json_object,
        metavar="JSON",
        help='Arguments of the engine, as JSON: {"dtype": "float32"}.',
        rich_help_panel=_WHAT,
    ),
]
JudgeUrl = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="OpenAI-compatible server of the judge: http://host:8000/v1.",
        rich_help_panel=_WHAT,
    ),
]
JudgeModel = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The judge's name on that server.", rich_help_panel=_WHAT),
]

InJobs = Annotated[
    bool,
    typer.Option(
        "--submit",
        help="Check the same in small jobs, one on each partition of the settings.",
        rich_help_panel=_WHERE,
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="slurm; ray: this machine; or a cluster file, which describes nodes to plan on.",
        show_default="slurm if it is configured, else ray",
        rich_help_panel=_WHERE,
    ),
]
Nodes = Annotated[
    str | None,
    typer.Option(
        metavar="NODES",
        help="The number of nodes to use at most, or their names: gpu[1-4,7].",
        rich_help_panel=_WHERE,
    ),
]
MaxNodes = Annotated[
    int | None,
    typer.Option(help="Use at most N nodes, also of those named.", metavar="N",
                 rich_help_panel=_WHERE),
]  # fmt: skip
MaxGpus = Annotated[
    int | None,
    typer.Option(help="Use at most N GPUs in all.", metavar="N", rich_help_panel=_WHERE),
]
GpusOfType = Annotated[
    str | None,
    typer.Option(
        metavar="TYPE",
        help="Use only GPUs of this type, such as h100.",
        show_default="the type whose free GPUs are fastest together",
        rich_help_panel=_WHERE,
    ),
]
Queue = Annotated[
    bool | None,
    typer.Option("--queue", help="If no GPU is free, wait for one.", rich_help_panel=_WHERE),
]
Partition = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Slurm partition with the GPUs.", rich_help_panel=_WHERE),
]
Account = Annotated[
    str | None, typer.Option(metavar="NAME", help="Slurm account.", rich_help_panel=_WHERE)
]
Qos = Annotated[str | None, typer.Option(metavar="NAME", help="Slurm QOS.", rich_help_panel=_WHERE)]
Constraint = Annotated[
    str | None,
    typer.Option(metavar="FEATURES", help="Slurm node features.", rich_help_panel=_WHERE),
]
RunDirectory = Annotated[
    Path | None,
    typer.Option(
        "--run-dir",
        metavar="DIR",
        help="The run's directory, on storage that all nodes share.",
        show_default="runs_dir/<id>",
        rich_help_panel=_WHERE,
    ),
]

DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Show the plan and submit nothing.", rich_help_panel=_PLAN),
]
Html = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="With --dry-run: write the plan as one HTML page.",
        rich_help_panel=_PLAN,
    ),
]
Scripts = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="With --dry-run: write the exact job scripts into this new folder.",
        rich_help_panel=_PLAN,
    ),
]
WhatIf = Annotated[
    bool,
    typer.Option(
        "--what-if",
        help="With --dry-run: predict the times on other numbers of nodes, and mark the choice.",
        rich_help_panel=_PLAN,
    ),
]
Estimate = Annotated[
    bool,
    typer.Option(
        "--estimate",
        help="With --dry-run: build no prompts, and take the catalogue's figures.",
        rich_help_panel=_PLAN,
    ),
]
PlanFile = Annotated[
    Path | None,
    typer.Option(
        "--plan",
        metavar="FILE",
        help="Submit the plan that --dry-run --json printed.",
        rich_help_panel=_PLAN,
    ),
]
Objective = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="makespan: end as soon as possible; gpu-hours: use few GPUs.",
        show_default="makespan",
        rich_help_panel=_PLAN,
    ),
]
Deadline = Annotated[
    float | None,
    typer.Option(
        parser=seconds,
        metavar="TIME",
        help="Refuse a plan that takes longer: 900 (seconds), 15m, 2h.",
        rich_help_panel=_PLAN,
    ),
]
FirstSignal = Annotated[
    bool | None,
    typer.Option(
        "--first-signal",
        help="Evaluate a slice of every dataset first, for rough scores early.",
        rich_help_panel=_PLAN,
    ),
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
OlderThan = Annotated[
    float | None,
    typer.Option(
        "--older-than", min=0, metavar="DAYS", help="Only runs not changed for this many days."
    ),
]
KeepNewest = Annotated[
    int | None,
    typer.Option("--keep", min=0, metavar="N", help="Leave the N newest runs as they are."),
]
Compacting = Annotated[
    bool,
    typer.Option(
        "--compact", help="Merge the many small files of complete runs, and remove no run."
    ),
]
Sure = Annotated[bool, typer.Option("--yes", help="Do it. Without it runs are only listed.")]
