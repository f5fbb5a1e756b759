"""Options of `run`: what to evaluate, where, and how it is planned."""

from pathlib import Path
from typing import Annotated, Any

import typer

from coordinate_eval.coordinator.cli.options.parsing import (
    PLAN,
    WHAT,
    WHERE,
    json_object,
    option,
    restraint,
    seconds,
)

Checkpoints = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="CKPT",
        help="What training saved: a folder, a file, or s3://…; several with --average, or a YAML "
        "file that names them.",
        show_default="the checkpoint of --plan",
    ),
]
Average = Annotated[
    bool,
    option(
        WHAT,
        "",
        "Evaluate the average of the CKPT that follow, or of last:N up to CKPT, as one of its own.",
        "--average",
    ),
]
Weights = Annotated[
    str | None,
    option(
        WHAT,
        "NUMBERS",
        "With --average: a weight for each CKPT: 1,1,2.",
        shown="the same for all",
    ),
]
Base = Annotated[
    Path | None,
    option(
        WHAT, "CKPT", "The base of an adapter.", "--base", shown="the one that the adapter names"
    ),
]
Suite = Annotated[
    str | None,
    option(WHAT, "SUITE", "A shipped suite's name, or a suite file.", "--suite", shown="base"),
]
Skip = Annotated[
    list[str] | None,
    option(WHAT, "NAMES", "Leave out these datasets; names or patterns: gsm8k,arc_*."),
]
Group = Annotated[
    list[str] | None, option(WHAT, "NAMES", "Evaluate only these groups of datasets: maths,code.")
]
Limit = Annotated[
    int | None, option(WHAT, "N", "Use at most N items of each task.", min=1, max=10**9)
]
Precision = Annotated[
    float | None,
    option(
        WHAT,
        "SE",
        "Use as many random items of each dataset as give its score a standard error of at most "
        "SE, such as 0.01.",
        min=0.0001,
        max=0.5,
    ),
]
UntilDecided = Annotated[
    str | None,
    option(
        WHAT,
        "PREVIOUS",
        "End as soon as the mean differs from that of PREVIOUS, or surely does not: a run, a "
        "checkpoint, or a step of the same training. `resume RUN --full` asks the rest.",
        "--until-decided",
    ),
]
Strict = Annotated[
    bool,
    option(
        WHAT,
        "",
        "Refuse a suite with a task that is missing or broken. Otherwise the others are "
        "evaluated, and the run ends incomplete.",
        "--strict/--no-strict",
    ),
]
Step = Annotated[
    int | None,
    option(
        WHAT,
        "N",
        "The training step, for tables of scores.",
        shown="what the checkpoint's name tells",
        min=0,
        max=10**15,
    ),
]
ModelConfig = Annotated[
    Path | None, option(WHAT, "FILE", "The config.json, in place of the checkpoint's.", "--config")
]
Tokenizer = Annotated[
    Path | None, option(WHAT, "DIR", "The folder of the tokenizer, in place of the checkpoint's.")
]
Mapping = Annotated[
    Path | None,
    option(
        WHAT,
        "FILE",
        "A mapping from the names of the checkpoint's tensors to Hugging Face's, in YAML.",
        shown="the one of the shipped mappings that fits",
    ),
]
CheckAgainst = Annotated[
    Path | None,
    option(
        WHAT,
        "FILE",
        "Compare log-likelihoods with those that coordinate_eval.reference wrote in training, on "
        "this machine's CPU, and refuse a checkpoint that differs.",
    ),
]
EngineArgs = Annotated[
    dict[str, Any] | None,
    option(
        WHAT, "JSON", 'Arguments of the engine, as JSON: {"dtype": "float32"}.', parser=json_object
    ),
]
Nodes = Annotated[
    str | None,
    option(
        WHERE,
        "NODES",
        "The number of nodes to use at most, or their names: gpu[1-4,7].",
        "--nodes",
        "--max-nodes",
    ),
]
MaxGpus = Annotated[int | None, option(WHERE, "N", "Use at most N GPUs in all.")]
GpusOfType = Annotated[
    str | None,
    option(
        WHERE,
        "TYPE",
        "Use only GPUs of this type, such as h100.",
        shown="the type whose free GPUs are fastest together",
    ),
]
Queue = Annotated[
    bool | None,
    option(
        WHERE,
        "",
        "If no GPU is free, wait for one; if few are, begin on them and take more as they "
        "become free. `watch` always does.",
        "--queue",
    ),
]
Keep = Annotated[
    bool | None,
    option(
        WHERE,
        "",
        "Hold the checkpoint's files by hard links until all responses are there, so that training "
        "may delete it.",
        "--keep/--no-keep",
        shown="keep",
    ),
]
Constraint = Annotated[str | None, option(WHERE, "FEATURES", "Slurm node features.")]
RunDirectory = Annotated[
    Path | None,
    option(
        WHERE,
        "DIR",
        "The run's directory, on storage that all nodes share.",
        "--run-dir",
        shown="runs_dir/<id>",
    ),
]
DryRun = Annotated[bool, option(PLAN, "", "Show the plan and submit nothing.", "--dry-run")]
Html = Annotated[
    Path | None, option(PLAN, "FILE", "With --dry-run: write the plan as one HTML page.")
]
Scripts = Annotated[
    Path | None,
    option(PLAN, "DIR", "With --dry-run: write the exact job scripts into this new folder."),
]
WhatIf = Annotated[
    bool,
    option(
        PLAN,
        "",
        "With --dry-run: predict the times on other numbers of nodes and GPUs, and "
        "mark the choice.",
        "--what-if",
    ),
]
Estimate = Annotated[
    bool,
    option(
        PLAN,
        "",
        "With --dry-run: build no prompts, and take the catalogue's figures.",
        "--estimate",
    ),
]
PlanFile = Annotated[
    Path | None, option(PLAN, "FILE", "Submit the plan that --dry-run --json printed.", "--plan")
]
Objective = Annotated[
    float | None,
    option(
        PLAN,
        "NAME",
        "makespan: end as soon as possible; gpu-hours: use few GPUs.",
        shown="makespan",
        parser=restraint,
    ),
]
Deadline = Annotated[
    float | None,
    option(
        PLAN, "TIME", "Refuse a plan that takes longer: 900 (seconds), 15m, 2h.", parser=seconds
    ),
]
FirstSignal = Annotated[
    bool | None,
    option(
        PLAN,
        "",
        "Evaluate a slice of every dataset first, for rough scores early.",
        "--first-signal",
    ),
]
