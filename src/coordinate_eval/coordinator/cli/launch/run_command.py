"""`coordinate-eval run`: what its options ask for."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coordinate_eval.coordinator.cli.options import common, parsing
from coordinate_eval.coordinator.cli.options.asked import AskedRun, spread
from coordinate_eval.coordinator.cli.options.parsing import (
    plan_option,
    what_option,
    where_option,
)
from coordinate_eval.coordinator.inputs.checkpoints.saved import training_of
from coordinate_eval.errors import UserError

if TYPE_CHECKING:
    from coordinate_eval.coordinator.inputs.checkpoints.mixed.average import Members

_Checkpoints = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="CKPT",
        help="What training saved: a folder, a file, or s3://…; several with --average, or a YAML "
        "file that names them.",
        show_default="the checkpoint of --plan",
    ),
]
_Average = Annotated[
    bool,
    what_option(
        "--average",
        "Evaluate the average of the CKPT that follow, or of last:N up to CKPT, as one of its own.",
    ),
]
_Weights = Annotated[
    str | None,
    what_option(
        "--weights NUMBERS",
        "With --average: a weight for each CKPT: 1,1,2.",
        shown="the same for all",
    ),
]
_UntilDecided = Annotated[
    str | None,
    what_option(
        "--until-decided PREVIOUS",
        "End as soon as the mean differs from that of PREVIOUS, or surely does not: a run, "
        "a checkpoint, or a step of the same training. `resume RUN --full` asks the rest.",
    ),
]
_Step = Annotated[
    int | None,
    what_option(
        "--step N",
        "The training step, for tables of scores.",
        shown="what the checkpoint's name tells",
        min=0,
        max=10**15,
    ),
]
_DryRun = Annotated[bool, plan_option("--dry-run", "Show the plan and submit nothing.")]
_RunDirectory = Annotated[
    Path | None,
    where_option(
        "--run-dir DIR",
        "The run's directory, on storage that all nodes share.",
        shown="runs_dir/<id>",
    ),
]
_Html = Annotated[
    Path | None, plan_option("--html FILE", "With --dry-run: write the plan as one HTML page.")
]
_Scripts = Annotated[
    Path | None,
    plan_option(
        "--scripts DIR", "With --dry-run: write the exact job scripts into this new folder."
    ),
]
_WhatIf = Annotated[
    bool,
    plan_option(
        "--what-if",
        "With --dry-run: predict the times on other numbers of nodes and GPUs, and mark the "
        "choice.",
    ),
]
_Estimate = Annotated[
    bool,
    plan_option(
        "--estimate", "With --dry-run: build no prompts, and take the catalogue's figures."
    ),
]
_PlanFile = Annotated[
    Path | None, plan_option("--plan FILE", "Submit the plan that --dry-run --json printed.")
]


@spread
def run_command(
    checkpoints: _Checkpoints = None,
    *,
    asked: AskedRun,
    strict: common.Strict = True,
    average: _Average = False,
    weights: _Weights = None,
    step: _Step = None,
    until_decided: _UntilDecided = None,
    check_against: common.CheckAgainst = None,
    run_dir: _RunDirectory = None,
    dry_run: _DryRun = False,
    html: _Html = None,
    scripts: _Scripts = None,
    what_if: _WhatIf = False,
    estimate: _Estimate = False,
    plan: _PlanFile = None,
    wait: common.Wait = False,
    as_json: common.Json = False,
    verbose: common.Verbose = False,
    settings_file: common.SettingsFile = None,
) -> None:
    """Evaluate the checkpoint CKPT: submit the run to Slurm and return, or run it here.

    With --queue on a machine of Slurm without sbatch, such as a container, the run is requested: a
    supervisor of yours submits it, or `watch` elsewhere. Exit status: 4 if so.
    """
    from coordinate_eval.coordinator.cli.launch import spooled
    from coordinate_eval.coordinator.cli.launch.run import start_run
    from coordinate_eval.coordinator.planning.new_run import read_inputs
    from coordinate_eval.coordinator.planning.reviewed_plan import read as read_plan

    if (html or scripts or what_if or estimate) and not dry_run:
        raise UserError(
            "--html, --scripts, --what-if and --estimate show what would be submitted: add "
            "--dry-run"
        )
    if estimate and plan is not None:
        raise UserError("--estimate makes a plan, and --plan gives one: leave out one of them")
    reviewed = read_plan(plan) if plan is not None else None
    if reviewed is not None:
        # The plan names the engine. Another one on the command line is refused below.
        engine = reviewed.engine
        if asked.engine_args is None and asked.engine in (None, engine.name):
            asked = dataclasses.replace(asked, engine_args=engine.args)
        asked = dataclasses.replace(asked, engine=asked.engine or engine.name)
        if until_decided is None and any(cost.stages for cost in reviewed.datasets):
            raise UserError(f"plan {plan} was made with --until-decided: give it as there")
    settings, suite = asked.load(settings_file)
    inputs = read_inputs(
        settings,
        suite,
        _what(checkpoints or [], average, weights),
        step=step,
        **asked.stand_ins,
        reviewed=reviewed,
        strict=strict or dry_run,  # a dry run builds all of it
    )
    if until_decided is not None:
        from coordinate_eval.coordinator.cli.inquire.compare import find_previous
        from coordinate_eval.coordinator.comparison.deciding import check_alike

        training = training_of(inputs.checkpoint.path)
        previous = find_previous(until_decided, settings, training)
        inputs = dataclasses.replace(inputs, against=str(previous.root))
        check_alike(previous, inputs.run_id, suite, settings, inputs.max_length)
    if check_against is not None:
        from coordinate_eval.coordinator.workers.on_node import against

        against.check(inputs.checkpoint, check_against)
    if not (dry_run or wait or plan) and (why := spooled.why_requested(settings)):
        if until_decided is not None:
            raise UserError(f"{why}, and a request has no --until-decided: call it where sbatch is")
        given = {**asked.stand_ins, "run_dir": run_dir}
        raise typer.Exit(spooled.request(inputs, settings, why, **given, as_json=as_json))
    if not dry_run:
        raise typer.Exit(start_run(inputs, run_dir, wait=wait, as_json=as_json))
    # What submits a run does without it, and returns sooner.
    from coordinate_eval.coordinator.cli.launch.dry_run import show_plan

    show_plan(
        inputs,
        run_dir,
        as_json=as_json,
        verbose=verbose,
        html=html,
        scripts=scripts,
        what_if=what_if,
        estimate=estimate,
    )


def _what(paths: list[Path], average: bool, weights: str | None) -> "Path | Members | None":
    """Return the checkpoint that is asked for, None if none is named.

    An average is of all that are named, or of `last:N` up to the one that is.
    """
    from coordinate_eval.coordinator.inputs.checkpoints.mixed.average import members, up_to

    spans = [path for path in paths if str(path).startswith("last:")] if average else []
    if spans:
        ends = [path for path in paths if path not in spans]
        if len(spans) != 1 or len(ends) != 1 or weights is not None:
            raise UserError(
                "--average last:N takes one checkpoint, the last of those that are averaged, and "
                "no --weights: to weight them, name each"
            )
        return up_to(ends[0], parsing.last(str(spans[0])))
    if average:
        return members(paths, None if weights is None else parsing.numbers(weights))
    if weights is not None:
        raise UserError("--weights are those of an average: add --average")
    if len(paths) > 1:
        raise UserError(
            f"{len(paths)} checkpoints are given: start a run for each, or add --average to "
            "evaluate their average"
        )
    return paths[0] if paths else None
