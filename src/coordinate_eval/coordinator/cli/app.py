"""The command line: finds the command, and imports its module."""

import difflib
import functools
import importlib
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand

from coordinate_eval import __version__
from coordinate_eval._format import visible
from coordinate_eval.coordinator.cli import process
from coordinate_eval.coordinator.cli.options import parsing
from coordinate_eval.errors import UserError

_COMMANDS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "Evaluate": {
        "run": ("launch.run_command", "Evaluate a checkpoint: submit a run, or run it here."),
        "watch": ("launch.watch_command", "Evaluate the checkpoints that appear in a folder."),
        "prefetch": ("launch.prefetch", "Download the data of a suite, and build its prompts."),
        "resume": ("launch.resume", "Continue a run that was cancelled or ended incomplete."),
        "rescore": ("launch.rescore", "Score the responses of a run again, in a run beside it."),
        "cancel": ("launch.resume", "End all jobs of a run; `resume` continues it."),
    },
    "Look": {
        "status": ("inquire.status", "Show how far a run is, its scores, and what to do next."),
        "runs": ("inquire.runs", "List the runs in `runs_dir`, the newest first."),
        "samples": ("inquire.samples", "Show prompts, answers, targets and verdicts of a dataset."),
        "diagnose": ("inquire.diagnose", "Name the cause of each failed job, and what to do."),
    },
    "Decide": {
        "scores": ("inquire.scores", "Show a table of scores: a row a run, a column a dataset."),
        "history": ("inquire.history", "Show the scores of a training's checkpoints, by step."),
        "best": ("inquire.history", "Name the checkpoint with the best score."),
        "compare": ("inquire.compare", "Show where two runs differ by more than chance."),
        "alarms": ("inquire.alarms", "Show checkpoints worse than their training's past explains."),
        "gate": ("inquire.compare", "Decide whether a run meets a policy: GO or NO-GO."),
        "report": ("inquire.report", "Write one HTML page of a training."),
        "log": ("inquire.log", "Log scores to the tracker that has the training's loss."),
    },
    "Keep training alive": {
        "guard": ("inquire.guards", "Keep a training alive: start it again whenever it fails."),
        "advise": ("inquire.advise", "Say whether a training goes on, or back and where to."),
    },
    "Before and between runs": {
        "doctor": ("upkeep.doctor", "Check what runs need, here and in jobs; find bad nodes."),
        "config": ("inquire.config", "Show every setting, its value, and where it comes from."),
        "suites": ("inquire.suites", "List the shipped suites, or the datasets of one."),
        "checkpoint": ("inquire.checkpoint", "Show what a folder or file is, and what is missing."),
        "priors": ("upkeep.priors", "Show what finished runs measured."),
        "prune": ("upkeep.prune", "Remove runs that have ended."),
    },
}  # fmt: skip
"""The commands by the groups of `--help`: each name with its module, and what it does.

The module has a function `<name>_command`, or an `app` with commands of its own.
"""

_MODULES: Final = {name: place for each in _COMMANDS.values() for name, (place, _) in each.items()}

# Typer has it from click, or by now from a copy of click, and exports only what derives from it.
_USAGE_ERROR: Any = typer.BadParameter.__base__


class _Commands(Mapping[str, Any]):
    """The commands by name. The module of a command is imported when it is asked for."""

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - typer's own type
        return _made(name, _MODULES[name])

    def __iter__(self) -> Iterator[str]:
        return iter(_MODULES)

    def __len__(self) -> int:
        return len(_MODULES)


@functools.cache
def _made(name: str, place: str) -> Any:  # noqa: ANN401 - typer's own type
    module = importlib.import_module(f"coordinate_eval.coordinator.cli.{place}")
    group = getattr(module, "app", None)
    if group is not None:
        made: Any = typer.main.get_group(group)
    else:
        alone = typer.Typer(add_completion=False, rich_markup_mode="markdown")
        alone.command(name)(getattr(module, f"{name}_command"))
        made = typer.main.get_command(alone)
    made.name = name
    return made


class _Group(parsing.Commands):
    """The commands. `run` is the default one, also for shell completion."""

    def __init__(self, **given: Any) -> None:  # noqa: ANN401 - typer's own
        super().__init__(**given)
        self.commands: Any = _Commands()

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401 - typer's own type
        return list(self.commands)

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - typer's own types
        self.commands = {
            name: TyperCommand(name, help=meaning, rich_help_panel=panel)
            for panel, each in _COMMANDS.items()
            for name, (_, meaning) in each.items()
        }
        super().format_help(ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - typer's own type
        if not ctx.resilient_parsing:  # completing a word that is not whole
            refuse_misspelled(args)
        args = parsing.with_joined_weights(with_default_command(args))
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - typer's own type
        try:
            return super().invoke(ctx)
        except _USAGE_ERROR as error:  # a word of the command line may be the name of a file
            error.message = visible(error.message)
            raise


app = typer.Typer(
    name="coordinate-eval",
    cls=_Group,
    help="Score a checkpoint on a suite of benchmarks, on whatever GPUs are free.\n\n"
    "`coordinate-eval CKPT` is the same as `coordinate-eval run CKPT`.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)

_GROUP_OPTIONS = ("--help", "--version", "--install-completion", "--show-completion")


def main() -> None:
    """Run the command line, as the console script does."""
    process.run(lambda args: app(args=args))


def with_default_command(args: list[str]) -> list[str]:
    """Return `run CKPT …` for `CKPT …`, and every other command line as it is."""
    if not args or args[0] in _MODULES or args[0] in _GROUP_OPTIONS:
        return args
    return ["run", *args]


def refuse_misspelled(args: list[str]) -> None:
    """Refuse a first word that is no command and no file, but nearly the name of a command."""
    word = args[0] if args else ""
    if not word or word in _MODULES or not re.fullmatch(r"[a-z]+", word) or Path(word).exists():
        return
    if near := difflib.get_close_matches(word, _MODULES, n=1):
        raise UserError(f"no such command or checkpoint: {word}; did you mean {near[0]}?")


def _print_version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"{__version__}\n")
        raise typer.Exit


@app.callback()
def _group(
    version: Annotated[
        bool,
        # Eager, so that it works without a command.
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass
