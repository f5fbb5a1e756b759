"""The command line: parses, loads settings, calls, and turns errors into messages.

Exit status: 0 done, and all results are there where results were asked for; 1 the run ended
without all results; 2 bad input or a refusal, nothing was submitted; 3 the scheduler did not
answer; 130 interrupted.
"""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

from coordinate_eval import __version__
from coordinate_eval.coordinator.cli import options, priors
from coordinate_eval.coordinator.cli.stdout import whole_output
from coordinate_eval.coordinator.inputs import settings as config
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.workers.signals import end_with_parent_if_asked
from coordinate_eval.errors import CoordinateError, UserError


class _Group(TyperGroup):
    """The commands, of which `run` may be left out, when typed and when completed."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - typer's own type
        return super().parse_args(ctx, with_default_command(args))


app = typer.Typer(
    name="coordinate-eval",
    cls=_Group,
    help="Score a checkpoint on a suite of benchmarks, on whatever GPUs are free.\n\n"
    "`coordinate-eval CKPT` is the same as `coordinate-eval run CKPT`.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
app.add_typer(priors.app, name="priors")

QUIET_VARIABLES = ("TQDM_DISABLE", "HF_DATASETS_DISABLE_PROGRESS_BARS")
"""Switch off other people's progress bars; set to 0 to see them."""

_GROUP_OPTIONS = ("--help", "--version", "--install-completion", "--show-completion")

_Round = Annotated[int, typer.Option("--round")]


def main() -> None:
    """Entry point of the console script."""
    for variable in QUIET_VARIABLES:
        os.environ.setdefault(variable, "1")
    try:
        with whole_output():
            _call(sys.argv[1:])
    except CoordinateError as error:
        sys.stderr.write(f"coordinate-eval: {error}\n")
        sys.exit(error.exit_status)
    except KeyboardInterrupt:  # before or after a command; typer ends one of itself, with 130
        sys.exit(130)


def _call(args: list[str]) -> None:
    try:
        app(args=args)
    except FileNotFoundError as error:
        if error.filename is not None:
            raise
        # Only asking for the working directory fails so without naming a file.
        raise UserError("the working directory is gone: change to one that is there") from error


def with_default_command(args: list[str]) -> list[str]:
    """Return `run CKPT …` for `CKPT …`, and every other command line as it is."""
    commands = {c.name or c.callback.__name__ for c in app.registered_commands if c.callback}
    commands |= {group.name for group in app.registered_groups if group.name}
    if not args or args[0] in commands or args[0] in _GROUP_OPTIONS:
        return args
    return ["run", *args]


def _print_version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"{__version__}\n")
        raise typer.Exit


@app.callback()
def _group(
    version: Annotated[
        bool,
        # Eager, so that it is answered before a command is missed.
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


@app.command()
def run(
    checkpoint: options.Checkpoint = None,
    suite: options.Suite = None,
    only: options.Only = None,
    skip: options.Skip = None,
    group: options.Group = None,
    limit: options.Limit = None,
    engine: options.Engine = None,
    engine_args: options.EngineArgs = None,
    model_config: options.ModelConfig = None,
    tokenizer: options.Tokenizer = None,
    cluster: options.Cluster = None,
    nodes: options.Nodes = None,
    max_nodes: options.MaxNodes = None,
    max_gpus: options.MaxGpus = None,
    queue: options.Queue = None,
    partition: options.Partition = None,
    account: options.Account = None,
    qos: options.Qos = None,
    constraint: options.Constraint = None,
    run_dir: options.RunDirectory = None,
    dry_run: options.DryRun = False,
    html: options.Html = None,
    scripts: options.Scripts = None,
    what_if: options.WhatIf = False,
    plan: options.PlanFile = None,
    objective: options.Objective = None,
    deadline: options.Deadline = None,
    first_signal: options.FirstSignal = None,
    wait: options.Wait = False,
    as_json: options.Json = False,
    settings_file: options.SettingsFile = None,
) -> None:
    """Evaluate the checkpoint CKPT: submit the run to Slurm and return, or run here with Ray."""
    from coordinate_eval.coordinator.cli import run as launch
    from coordinate_eval.coordinator.inputs import suite as suites_
    from coordinate_eval.coordinator.planning.prepare import read_inputs

    if (html or scripts or what_if) and not dry_run:
        raise UserError(
            "--html, --scripts and --what-if show what would be submitted: add --dry-run"
        )

    flags: dict[str, Any] = {
        "suite": suite,
        "cluster": cluster,
        "nodes": nodes,
        "max_nodes": max_nodes,
        "max_gpus": max_gpus,
        "objective": objective,
        "deadline_seconds": deadline,
        "queue": queue,
        "first_signal": first_signal,
        "engine.name": engine,
        "engine.args": engine_args,
        "slurm.partition": partition,
        "slurm.account": account,
        "slurm.qos": qos,
        "slurm.constraint": constraint,
    }
    settings, _ = config.load(flags, settings_file)
    wanted = suites_.narrow(
        suites_.load(settings.suite),
        only=only or (),
        skip=skip or (),
        groups=group or (),
        limit=limit,
    )
    inputs = read_inputs(
        settings, wanted, checkpoint, config=model_config, tokenizer=tokenizer, plan=plan
    )
    if dry_run:
        launch.dry_run(
            inputs, run_dir, as_json=as_json, html=html, scripts=scripts, what_if=what_if
        )
    else:
        raise typer.Exit(launch.run(inputs, run_dir, wait=wait, as_json=as_json))


@app.command()
def status(
    run: options.RunName = None,
    as_json: options.Json = False,
    settings_file: options.SettingsFile = None,
) -> None:
    """Show how far a run is, from its directory and the scheduler."""
    from coordinate_eval.coordinator.cli import status as inquire

    settings, _ = config.load({}, settings_file)
    inquire.status(inquire.find(run, settings), as_json=as_json)


@app.command()
def resume(
    run: options.RunName = None,
    wait: options.Wait = False,
    as_json: options.Json = False,
    settings_file: options.SettingsFile = None,
) -> None:
    """Continue a run that was cancelled, ended incomplete, or lost its supervisor."""
    from coordinate_eval.coordinator.cli import resume as continue_
    from coordinate_eval.coordinator.cli import status as inquire

    settings, _ = config.load({}, settings_file)
    raise typer.Exit(continue_.resume(inquire.find(run, settings), wait=wait, as_json=as_json))


@app.command()
def cancel(run: options.RunName = None, settings_file: options.SettingsFile = None) -> None:
    """End all jobs of a run. What it has published stays; `resume` continues it."""
    from coordinate_eval.coordinator.cli import status as inquire

    settings, _ = config.load({}, settings_file)
    inquire.cancel(inquire.find(run, settings))


@app.command()
def suites(
    suite: options.SuiteName = None,
    model: options.ModelSize = None,
    checkpoint: options.PredictedCheckpoint = None,
    gpu: options.GpuType = "h200",
    tp: options.TensorParallel = 1,
    as_json: options.Json = False,
) -> None:
    """List the shipped suites, or the datasets of one and what they take."""
    from coordinate_eval.coordinator.cli import suites as suite_table
    from coordinate_eval.coordinator.inputs import suite as suite_module

    if suite is None:
        if model is not None or checkpoint is not None:
            raise typer.BadParameter("name a suite to predict for", param_hint="SUITE")
        suite_table.list_shipped(as_json=as_json)
        return
    wanted = suite_module.load(suite)
    name, described = suite_table.model_of(model, checkpoint)
    suite_table.show(wanted, name, described, gpu, tp, as_json=as_json)


@app.command(name="config")
def show_config(as_json: options.Json = False, settings_file: options.SettingsFile = None) -> None:
    """Show every setting, its value, and where it comes from."""
    settings, sources = config.load({}, settings_file)
    values = config.flatten(settings.model_dump(mode="json"))
    if as_json:
        rows = {k: {"value": v, "source": sources.get(k, "default")} for k, v in values.items()}
        sys.stdout.write(json.dumps(rows, indent=1) + "\n")
        return
    table = Table("setting", "value", "from", "meaning")
    for name, value in values.items():
        source = sources.get(name, "default")
        table.add_row(name, json.dumps(value), source, config.meaning(name))
    Console().print(table)


@app.command(name="_supervise", hidden=True)
def _supervise(run_dir: Path, minutes: int = 0) -> None:
    from coordinate_eval.coordinator.cli import status as inquire

    raise typer.Exit(inquire.supervise_as_job(RunDir(run_dir), minutes))


@app.command(name="_keep", hidden=True)
def _keep(run_dir: Path, node: str, round_number: _Round = 0, minutes: int = 60) -> None:
    from coordinate_eval.coordinator.workers.keeper import run_keeper

    end_with_parent_if_asked()
    raise typer.Exit(run_keeper(RunDir(run_dir), node, round_number, minutes))


@app.command(name="_trial", hidden=True)
def _trial(run_dir: Path, node: str, round_number: _Round = 0, minutes: int = 60) -> None:
    from coordinate_eval.coordinator.workers.trial import run_trial

    end_with_parent_if_asked()
    raise typer.Exit(run_trial(RunDir(run_dir), node, round_number, minutes))


@app.command(name="_node", hidden=True)
def _node(
    run_dir: Path, node: str, round_number: _Round = 0, minutes: int = 60, trials: int = 1
) -> None:
    from coordinate_eval.coordinator.workers.whole_node import run_node

    raise typer.Exit(run_node(RunDir(run_dir), node, round_number, minutes, trials))


@app.command(name="_metric", hidden=True)
def _metric(run_dir: Path) -> None:
    from coordinate_eval.coordinator.workers.metric import run_metric

    end_with_parent_if_asked()
    raise typer.Exit(run_metric(RunDir(run_dir)))


@app.command(name="_score", hidden=True)
def _score(run_dir: Path) -> None:
    from coordinate_eval.coordinator.workers.scorer import run_scorer

    end_with_parent_if_asked()
    raise typer.Exit(run_scorer(RunDir(run_dir)))
