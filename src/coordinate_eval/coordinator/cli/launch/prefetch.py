"""`coordinate-eval prefetch`: download and build the prompts of a suite before a run needs them."""

import os
import time
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from coordinate_eval._format import duration, plural
from coordinate_eval.coordinator.cli import output
from coordinate_eval.coordinator.cli.inquire.runs import find
from coordinate_eval.coordinator.cli.launch.runnable import runnable
from coordinate_eval.coordinator.cli.options import common
from coordinate_eval.coordinator.cli.options.asked import AskedPrompts, spread
from coordinate_eval.coordinator.cli.options.parsing import option, output_option
from coordinate_eval.coordinator.cli.output import Ticker, quiet_libraries, say, write_json
from coordinate_eval.coordinator.inputs.checkpoints import checkpoint as checkpoints
from coordinate_eval.coordinator.inputs.checkpoints.mixed.average import Members
from coordinate_eval.coordinator.inputs.folders import check_writable, working_in
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.planning.new_run import Inputs, read_inputs
from coordinate_eval.coordinator.prompts import building
from coordinate_eval.coordinator.prompts.request_cache import Builder
from coordinate_eval.coordinator.report.warnings import own_answers
from coordinate_eval.coordinator.run.records import read_run
from coordinate_eval.errors import UserError

_PrefetchedFor = Annotated[
    Path | None,
    typer.Argument(
        metavar="CKPT",
        help="A checkpoint with the model's tokenizer.",
        show_default="that of your latest run",
    ),
]
_Jobs = Annotated[
    int | None,
    option(
        "--jobs N", "Build with at most N processes.", shown="one for each core", min=1, max=1024
    ),
]


_Verbose = Annotated[bool, output_option("--verbose -v", "Show the warnings of other libraries.")]


@spread
def prefetch_command(
    ckpt: _PrefetchedFor = None,
    *,
    asked: AskedPrompts,
    jobs: _Jobs = None,
    as_json: common.Json = False,
    verbose: _Verbose = False,
    settings_file: common.SettingsFile = None,
) -> None:
    """Download the data of a suite and build its prompts, for the tokenizer of a checkpoint.

    Where compute nodes have no network, do this once on a machine that has one. What fails is
    named at the end, and the rest is there. Exit status: 0 all is there; 1 something failed.
    """
    settings, suite = asked.load(settings_file)
    inputs = read_inputs(
        settings,
        suite,
        ckpt or _latest_checkpoint(settings),
        **asked.stand_ins,
        strict=False,  # what cannot be built is named at the end
    )
    processes = jobs or len(os.sched_getaffinity(0))
    raise typer.Exit(prefetch(inputs, jobs=processes, as_json=as_json, verbose=verbose))


def _latest_checkpoint(settings: Settings) -> Path | Members:
    """Return the checkpoint of the user's latest run, and say so."""
    try:
        found = read_run(find(None, settings)).checkpoint
    except UserError as error:
        raise UserError(
            "give a checkpoint CKPT: prompts are built for its tokenizer, and you have no run "
            "whose checkpoint could be taken"
        ) from error
    say(f"for the checkpoint of your latest run: {found.path}")
    return checkpoints.named(found)


def prefetch(inputs: Inputs, *, jobs: int, as_json: bool, verbose: bool) -> int:
    """Build what is not in the cache yet. Return 0 if all of the suite is there, else 1.

    Raises:
        UserError: the cache cannot be written, or nothing of the suite can be built.
    """
    began = time.monotonic()
    settings = inputs.settings
    check_writable(settings, "cache_dir")
    inputs = runnable(inputs, scored=False)
    cache = Path(settings.cache_dir).expanduser().absolute()
    make = partial(
        Builder, cache, inputs.checkpoint, inputs.suite, settings.engine.name, inputs.max_length
    )
    # The stream as it is now: libraries are given another one.
    console, count = output.console(stderr=True), len(inputs.suite.datasets)
    with (
        working_in(inputs.folder),
        quiet_libraries(verbose=verbose),
        Ticker(console, "building prompts") as ticker,
    ):
        made = building.build_each(
            make,
            inputs.suite.datasets,
            processes=jobs,
            tell=lambda each: ticker.update(_line(each, count)) if each.ended else None,
        )
    warnings = [
        line
        for name, built in made.built.items()
        for line in own_answers(name, built.index.own_answers)
    ]
    if as_json:
        write_json(
            {
                "checkpoint": inputs.checkpoint.path,
                "suite": inputs.suite.name,
                "cache_dir": str(cache),
                "items": {name: built.index.items for name, built in made.built.items()},
                "failed": made.errors,
                "warnings": warnings,
                "left_out": dict(inputs.left_out),
                "seconds": round(time.monotonic() - began, 1),
            }
        )
    ready = len(made.built)
    say(f"the prompts of {ready} of {plural(count, 'dataset')} are in {cache}")
    for line in [*made.errors.values(), *warnings]:
        say(line)
    return 1 if made.errors else 0


def _line(progress: building.Progress, datasets: int) -> str:
    """Return how many datasets of all are built, and which has just ended."""
    ended = datasets - progress.of + progress.done
    what = "cannot be built" if progress.error else "built"
    left = f", about {duration(progress.left_seconds)} left" if progress.done < progress.of else ""
    return f"{ended} of {datasets}: {progress.dataset} {what}{left}"
