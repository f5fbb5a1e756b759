"""`coordinate-eval watch`: what its options ask for."""

import dataclasses
import sys
import time
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from coordinate_eval._format import quoted
from coordinate_eval.coordinator.cli import streams
from coordinate_eval.coordinator.cli.launch.cron import cron_job
from coordinate_eval.coordinator.cli.launch.watch import Watch
from coordinate_eval.coordinator.cli.options import common, parsing
from coordinate_eval.coordinator.cli.options.asked import AskedRun, spread
from coordinate_eval.coordinator.cli.output import say
from coordinate_eval.coordinator.inputs.checkpoints import remote
from coordinate_eval.coordinator.inputs.checkpoints.mixed.average import Members, members
from coordinate_eval.coordinator.inputs.checkpoints.saved import Pattern, Saved
from coordinate_eval.coordinator.planning.new_run import Inputs, read_inputs
from coordinate_eval.errors import CoordinateError, UserError

_watch_option = partial(parsing.option, panel="What to watch")

_Folder = Annotated[
    Path | None,
    typer.Argument(
        metavar="DIR",
        help="The folder into which checkpoints are saved. Without one, only runs that were "
        "requested are submitted.",
    ),
]
_Pattern = Annotated[
    str | None,
    _watch_option(
        "--pattern PATTERN",
        "Names of checkpoints below DIR: 'step-{step}', 'run-*/iter_{step}/hf'.",
        shown="every folder whose name tells a step",
    ),
]
_Once = Annotated[bool, _watch_option("--once", "Look once and return.")]
_Every = Annotated[
    float, _watch_option("--every TIME", "Time between two looks.", parser=parsing.seconds)
]
_Quiet = Annotated[
    float,
    _watch_option(
        "--quiet TIME",
        "A checkpoint is finished if it is whole and unchanged for this time.",
        parser=parsing.seconds,
    ),
]
_Marker = Annotated[
    str | None,
    _watch_option(
        "--marker FILE",
        "A checkpoint is finished when it has this file, or when a file of this name in DIR "
        "names it or a later one.",
        shown="STABLE or _SUCCESS, if other checkpoints of the run have one",
    ),
]
_Most = Annotated[
    int | None,
    _watch_option("--most N", "Have at most N runs at once.", shown="4; 1 on one machine", min=1),
]
_Newest = Annotated[
    bool,
    _watch_option(
        "--newest",
        "Evaluate only the newest checkpoint of each look, and cancel runs of older ones "
        "that still wait for GPUs.",
    ),
]
_Steps = Annotated[
    int,
    _watch_option("--steps N", "Evaluate only checkpoints whose step is a multiple of N.", min=1),
]
_Average = Annotated[
    int | None,
    _watch_option(
        "--average last:N",
        "Also evaluate, of each checkpoint, the average of the N that end with it.",
        parser=parsing.last,
    ),
]
_Cron = Annotated[
    bool,
    _watch_option("--cron", "Print the line for `crontab -e`, and write the file that it runs."),
]
_Log = Annotated[
    Path | None,
    _watch_option("--log FILE", "Append all output to FILE, each line with time and DIR."),
]
_DryWatch = Annotated[bool, _watch_option("--dry-run", "With --once: say what would be evaluated.")]


@spread
def watch_command(
    folder: _Folder = None,
    pattern: _Pattern = None,
    once: _Once = False,
    every: _Every = "10m",  # type: ignore[assignment]  # the parser reads it
    quiet: _Quiet = "60s",  # type: ignore[assignment]
    marker: _Marker = None,
    most: _Most = None,
    newest: _Newest = False,
    steps: _Steps = 1,
    average: _Average = None,
    cron: _Cron = False,
    log: _Log = None,
    *,
    asked: AskedRun,
    strict: common.Strict = False,
    dry_run: _DryWatch = False,
    as_json: common.Json = False,
    settings_file: common.SettingsFile = None,
) -> None:
    """Evaluate the checkpoints that appear in DIR: finished ones, each once, the latest first.

    Also submit what was requested where there is no sbatch, such as in a container. Runs wait for
    GPUs, as with --queue. Several may watch the same folder. Exit status with --once: 0; 2 some
    checkpoint or request was refused, or settings or suite are wrong for all; 3 the scheduler did
    not answer.
    """
    if (as_json or dry_run) and not once:
        raise UserError("--json and --dry-run tell of one look: add --once")
    folder = None if folder is None else remote.located(folder)
    if log is not None:
        streams.log_to(log, "requests" if folder is None else quoted(folder))
    settings, suite = dataclasses.replace(asked, queue=True).load(settings_file)

    if marker is not None and (marker in ("", ".", "..") or "/" in marker):
        raise UserError(
            f"--marker {marker!r}: give the name of a file in each checkpoint, such as STABLE"
        )

    def ask(saved: Saved) -> Inputs:
        return read_inputs(
            settings, suite, _what(saved), step=saved.step, strict=strict, **asked.stand_ins
        )  # fmt: skip

    watched = Watch(
        folder,
        Pattern(pattern),
        settings,
        suite,
        ask,
        quiet,
        marker=marker,
        most=most,
        dry=dry_run,
        newest=newest,
        steps=steps,
        strict=strict,
        last=average or 0,
    )
    if cron:
        job = cron_job(folder, sys.argv[2:], every, settings)
        job.write()
        sys.stdout.write(f"{job.line}\n")
        has = f" and {', '.join(job.secrets)}" if job.secrets else ""
        say(f"{job.path} has your environment{has}; only you can read it")
        for note in job.notes:
            say(note)
        return
    if once:
        raise typer.Exit(watched.once(as_json=as_json))
    while True:
        try:
            watched.once()
        except CoordinateError as error:  # it may be over by the next look
            say(str(error))
        time.sleep(every)


def _what(saved: Saved) -> Path | Members:
    return members(saved.members, None) if saved.members else saved.path
