"""The command line: parses, loads settings, calls, and turns errors into messages.

Exit status: 0 done, and all results are there where results were asked for; 1 the run ended
without all results; 2 bad input or a refusal, nothing was submitted; 3 the scheduler did not
answer; 130 interrupted.
"""

import json
import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from coordinate_eval import __version__
from coordinate_eval.coordinator.cli import priors
from coordinate_eval.coordinator.cli.stdout import whole_output
from coordinate_eval.coordinator.inputs import settings as config
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.workers.signals import end_with_parent_if_asked
from coordinate_eval.errors import CoordinateError, UserError

app = typer.Typer(
    name="coordinate-eval",
    help="Score a checkpoint on a suite of benchmarks, on whatever GPUs are free.\n\n"
    "`coordinate-eval CKPT` is the same as `coordinate-eval run CKPT`.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="markdown",
)
app.add_typer(priors.app, name="priors")

RunArgument = Annotated[
    str | None, typer.Argument(help="A run's directory or id.", show_default="the latest")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
SettingsOption = Annotated[
    Path | None,
    typer.Option("--settings", help="A TOML file.", show_default="the user's own"),
]

QUIET_VARIABLES = ("TQDM_DISABLE", "HF_DATASETS_DISABLE_PROGRESS_BARS")
"""Switch off other people's progress bars; set to 0 to see them."""

_Round = Annotated[int, typer.Option("--round")]


def main() -> None:
    """Entry point of the console script."""
    for variable in QUIET_VARIABLES:
        os.environ.setdefault(variable, "1")
    try:
        with whole_output():
            _call(with_default_command(sys.argv[1:]))
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
    """`CKPT …` as `run CKPT …`."""
    commands = {c.name or c.callback.__name__ for c in app.registered_commands if c.callback}
    commands |= {group.name for group in app.registered_groups if group.name}
    if not args or args[0] in commands or args[0] in ("--help", "--version"):
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
    checkpoint: Annotated[
        Path | None,
        typer.Argument(
            help="A Hugging Face directory, or a .pt file of a state dict.",
            show_default="that of --plan",
        ),
    ] = None,
    suite: Annotated[str | None, typer.Option(help="A shipped suite's name, or a file.")] = None,
    cluster: Annotated[
        str | None,
        typer.Option(help="slurm, ray, or with --dry-run a cluster file.", show_default="auto"),
    ] = None,
    nodes: Annotated[
        str | None, typer.Option(help="At most so many nodes, or those to take: gpu[1-4,7].")
    ] = None,
    max_nodes: Annotated[
        int | None, typer.Option(help="At most so many nodes, also of those named.")
    ] = None,
    max_gpus: Annotated[int | None, typer.Option(help="GPUs of all trials together.")] = None,
    objective: Annotated[
        str | None,
        typer.Option(help="makespan: end soon; gpu-hours: take few GPUs.", show_default="makespan"),
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option(help="Refuse what is not predicted to end within it: 900, 15m, 2h."),
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="vllm or transformers.", show_default="vllm")
    ] = None,
    engine_args: Annotated[
        str | None, typer.Option(help='The engine\'s own, as JSON: {"dtype": "float32"}.')
    ] = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="Where the run lives, on storage that all nodes share.")
    ] = None,
    model_config: Annotated[
        Path | None, typer.Option("--config", help="config.json of a .pt checkpoint.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Folder of the tokenizer of a .pt checkpoint.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Datasets to take, by name or pattern: gsm8k,arc_*.")
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option(help="Datasets to leave away, by name or pattern.")
    ] = None,
    group: Annotated[
        list[str] | None, typer.Option(help="Groups of datasets to take: maths,code.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, max=10**9, help="At most so many items of each task.")
    ] = None,
    partition: Annotated[str | None, typer.Option(help="Slurm partition of GPU jobs.")] = None,
    account: Annotated[str | None, typer.Option(help="Slurm account.")] = None,
    qos: Annotated[str | None, typer.Option(help="Slurm QOS.")] = None,
    constraint: Annotated[str | None, typer.Option(help="Slurm node features.")] = None,
    queue: Annotated[
        bool | None, typer.Option("--queue", help="Wait in the queue when no GPU is free.")
    ] = None,
    first_signal: Annotated[
        bool | None,
        typer.Option("--first-signal", help="A slice of every dataset first: rough scores early."),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Supervise here, and print the results.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan only.")] = False,
    as_json: JsonOption = False,
    html: Annotated[
        Path | None, typer.Option(help="With --dry-run: write the plan as one page of HTML.")
    ] = None,
    what_if: Annotated[
        bool, typer.Option("--what-if", help="With --dry-run: what 1, 2, 4 … nodes would come to.")
    ] = False,
    scripts: Annotated[
        Path | None, typer.Option(help="With --dry-run: a new folder for the exact scripts.")
    ] = None,
    plan: Annotated[
        Path | None, typer.Option(help="Submit the plan that --dry-run --json printed.")
    ] = None,
    settings_file: SettingsOption = None,
) -> None:
    """Score CHECKPOINT: submit a supervisor to Slurm and return, or run here with Ray."""
    from coordinate_eval.coordinator.cli import run as launch
    from coordinate_eval.coordinator.planning import arrange

    flags: dict[str, Any] = {
        "suite": suite,
        "cluster": cluster,
        "nodes": nodes,
        "max_nodes": max_nodes,
        "max_gpus": max_gpus,
        "objective": objective,
        "deadline_seconds": _seconds("--deadline", deadline),
        "queue": queue,
        "first_signal": first_signal,
        "engine.name": engine,
        "engine.args": _json_object("--engine-args", engine_args),
        "slurm.partition": partition,
        "slurm.account": account,
        "slurm.qos": qos,
        "slurm.constraint": constraint,
    }
    settings, _ = config.load(flags, settings_file)
    order = arrange.Order(
        checkpoint=checkpoint,
        config=model_config,
        tokenizer=tokenizer,
        run_dir=run_dir,
        only=tuple(only or ()),
        skip=tuple(skip or ()),
        groups=tuple(group or ()),
        limit=limit,
        wait=wait,
        dry_run=dry_run,
        as_json=as_json,
        html=html,
        scripts=scripts,
        plan=plan,
        what_if=what_if,
    )
    raise typer.Exit(launch.run(order, settings))


@app.command()
def status(
    run: RunArgument = None, as_json: JsonOption = False, settings_file: SettingsOption = None
) -> None:
    """Show how far a run is, from its directory and the scheduler."""
    from coordinate_eval.coordinator.cli import status as inquire

    settings, _ = config.load({}, settings_file)
    inquire.status(inquire.find(run, settings), as_json=as_json)


@app.command()
def resume(
    run: RunArgument = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Supervise here, and print the results.")
    ] = False,
    as_json: JsonOption = False,
    settings_file: SettingsOption = None,
) -> None:
    """Go on with a run that lost its supervisor or was cancelled."""
    from coordinate_eval.coordinator.cli import resume as continue_
    from coordinate_eval.coordinator.cli import status as inquire

    settings, _ = config.load({}, settings_file)
    raise typer.Exit(continue_.resume(inquire.find(run, settings), wait=wait, as_json=as_json))


@app.command()
def cancel(run: RunArgument = None, settings_file: SettingsOption = None) -> None:
    """End all jobs of a run; what is published stays, and `resume` goes on with it."""
    from coordinate_eval.coordinator.cli import status as inquire

    settings, _ = config.load({}, settings_file)
    inquire.cancel(inquire.find(run, settings))


@app.command()
def suites(
    suite: Annotated[
        str | None, typer.Argument(help="A shipped suite's name, or a file.", show_default="all")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Predict for a model of so many parameters: 350m.", show_default="7b"),
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Predict for this checkpoint instead.")
    ] = None,
    gpu: Annotated[str, typer.Option(help="Type of the GPUs.")] = "h200",
    tp: Annotated[int, typer.Option(min=1, max=1024, help="GPUs of one trial.")] = 1,
    as_json: JsonOption = False,
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
def show_config(as_json: JsonOption = False, settings_file: SettingsOption = None) -> None:
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


def _json_object(name: str, text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        value = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"not JSON: {error}", param_hint=name) from error
    if not isinstance(value, dict):
        raise typer.BadParameter("must be a JSON object", param_hint=name)
    return value


def _seconds(name: str, text: str | None) -> float | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if match is None:
        raise typer.BadParameter("a time such as 900, 15m or 2h", param_hint=name)
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def _no_number(constant: str) -> float:
    """NaN and the infinities, which Python reads and JSON does not have."""
    raise ValueError(f"{constant} is no number")
