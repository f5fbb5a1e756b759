"""`coordinate-eval run`: what its options ask for."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from coordinate_eval.coordinator.cli.options import common, launching, parsing
from coordinate_eval.coordinator.cli.options.asked import AskedRun, spread
from coordinate_eval.coordinator.inputs.checkpoints.saved import training_of
from coordinate_eval.errors import UserError

if TYPE_CHECKING:
    from coordinate_eval.coordinator.inputs.checkpoints.average import Members


@spread
def run_command(
    checkpoints: launching.Checkpoints = None,
    *,
    asked: AskedRun,
    strict: launching.Strict = True,
    average: launching.Average = False,
    weights: launching.Weights = None,
    step: launching.Step = None,
    until_decided: launching.UntilDecided = None,
    check_against: launching.CheckAgainst = None,
    run_dir: launching.RunDirectory = None,
    dry_run: launching.DryRun = False,
    html: launching.Html = None,
    scripts: launching.Scripts = None,
    what_if: launching.WhatIf = False,
    estimate: launching.Estimate = False,
    plan: launching.PlanFile = None,
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
    from coordinate_eval.coordinator.inputs.checkpoints.average import members, up_to

    if average and len(paths) == 2 and str(paths[0]).startswith("last:"):
        return up_to(paths[1], parsing.last(str(paths[0])))
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
