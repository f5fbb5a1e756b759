"""Options of `run`: what to evaluate, where, and how it is planned."""

from pathlib import Path
from typing import Annotated, Any

import typer

from coordinate_eval.coordinator.cli.options.parsing import (
    PLAN,
    WHAT,
    WHERE,
    json_object,
    restraint,
    seconds,
)

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
        rich_help_panel=WHAT,
    ),
]
Skip = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAMES",
        help="Leave out these datasets; names or patterns: gsm8k,arc_*.",
        rich_help_panel=WHAT,
    ),
]
Group = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAMES",
        help="Evaluate only these groups of datasets: maths,code.",
        rich_help_panel=WHAT,
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(
        min=1, max=10**9, help="Use at most N items of each task.", metavar="N",
        rich_help_panel=WHAT,
    ),
]  # fmt: skip
Strict = Annotated[
    bool,
    typer.Option(
        "--strict/--no-strict",
        help="Refuse a suite with a task that is missing or broken. Otherwise the others are "
        "evaluated, and the run ends incomplete.",
        rich_help_panel=WHAT,
    ),
]
Step = Annotated[
    int | None,
    typer.Option(
        min=0, max=10**15, metavar="N", help="The training step, for tables of scores.",
        show_default="what the checkpoint's name tells", rich_help_panel=WHAT,
    ),
]  # fmt: skip
ModelConfig = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The config.json of a .pt checkpoint.",
        rich_help_panel=WHAT,
    ),
]
Tokenizer = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="The folder of a .pt checkpoint's tokenizer.", rich_help_panel=WHAT
    ),
]
EngineArgs = Annotated[
    dict[str, Any] | None,
    typer.Option(
        parser=json_object,
        metavar="JSON",
        help='Arguments of the engine, as JSON: {"dtype": "float32"}.',
        rich_help_panel=WHAT,
    ),
]
Nodes = Annotated[
    str | None,
    typer.Option(
        metavar="NODES",
        help="The number of nodes to use at most, or their names: gpu[1-4,7].",
        rich_help_panel=WHERE,
    ),
]
MaxNodes = Annotated[
    int | None,
    typer.Option(help="Use at most N nodes, also of those named.", metavar="N",
                 rich_help_panel=WHERE),
]  # fmt: skip
MaxGpus = Annotated[
    int | None,
    typer.Option(help="Use at most N GPUs in all.", metavar="N", rich_help_panel=WHERE),
]
GpusOfType = Annotated[
    str | None,
    typer.Option(
        metavar="TYPE",
        help="Use only GPUs of this type, such as h100.",
        show_default="the type whose free GPUs are fastest together",
        rich_help_panel=WHERE,
    ),
]
Queue = Annotated[
    bool | None,
    typer.Option(
        "--queue",
        help="If no GPU is free, wait for one; if few are, begin on them and take more as they "
        "become free. `watch` always does.",
        rich_help_panel=WHERE,
    ),
]
Constraint = Annotated[
    str | None,
    typer.Option(metavar="FEATURES", help="Slurm node features.", rich_help_panel=WHERE),
]
RunDirectory = Annotated[
    Path | None,
    typer.Option(
        "--run-dir",
        metavar="DIR",
        help="The run's directory, on storage that all nodes share.",
        show_default="runs_dir/<id>",
        rich_help_panel=WHERE,
    ),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Show the plan and submit nothing.", rich_help_panel=PLAN),
]
Html = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="With --dry-run: write the plan as one HTML page.",
        rich_help_panel=PLAN,
    ),
]
Scripts = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="With --dry-run: write the exact job scripts into this new folder.",
        rich_help_panel=PLAN,
    ),
]
WhatIf = Annotated[
    bool,
    typer.Option(
        "--what-if",
        help="With --dry-run: predict the times on other numbers of nodes and GPUs, and "
        "mark the choice.",
        rich_help_panel=PLAN,
    ),
]
Estimate = Annotated[
    bool,
    typer.Option(
        "--estimate",
        help="With --dry-run: build no prompts, and take the catalogue's figures.",
        rich_help_panel=PLAN,
    ),
]
PlanFile = Annotated[
    Path | None,
    typer.Option(
        "--plan",
        metavar="FILE",
        help="Submit the plan that --dry-run --json printed.",
        rich_help_panel=PLAN,
    ),
]
Objective = Annotated[
    float | None,
    typer.Option(
        parser=restraint,
        metavar="NAME",
        help="makespan: end as soon as possible; gpu-hours: use few GPUs.",
        show_default="makespan",
        rich_help_panel=PLAN,
    ),
]
Deadline = Annotated[
    float | None,
    typer.Option(
        parser=seconds,
        metavar="TIME",
        help="Refuse a plan that takes longer: 900 (seconds), 15m, 2h.",
        rich_help_panel=PLAN,
    ),
]
FirstSignal = Annotated[
    bool | None,
    typer.Option(
        "--first-signal",
        help="Evaluate a slice of every dataset first, for rough scores early.",
        rich_help_panel=PLAN,
    ),
]
