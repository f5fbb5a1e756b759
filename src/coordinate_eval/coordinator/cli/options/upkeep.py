"""Arguments and options of the commands that look after an installation."""

from typing import Annotated

import typer

from coordinate_eval.coordinator.cli.options.parsing import WHERE

InJobs = Annotated[
    bool,
    typer.Option(
        "--submit",
        help="Check the same in small jobs, one on each partition of the settings.",
        rich_help_panel=WHERE,
    ),
]
TestNodes = Annotated[
    bool,
    typer.Option(
        "--nodes",
        help="Find bad nodes: test all that are free, in pairs, on all GPUs that are free there.",
        rich_help_panel=WHERE,
    ),
]
TestedNodes = Annotated[
    str | None,
    typer.Option(
        "--nodelist",
        "-w",
        metavar="NAMES",
        help="Test these nodes only: gpu[1-4,7]. Implies --nodes.",
        rich_help_panel=WHERE,
    ),
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
