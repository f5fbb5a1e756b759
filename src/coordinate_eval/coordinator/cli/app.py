"""The command line: parses, loads settings, and calls."""

import difflib
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from coordinate_eval import __version__
from coordinate_eval._format import visible
from coordinate_eval.coordinator.cli import process, training_commands
from coordinate_eval.coordinator.cli.inquire import log, score_commands, state_commands
from coordinate_eval.coordinator.cli.launch import run_commands, save_commands
from coordinate_eval.coordinator.cli.options import parsing
from coordinate_eval.coordinator.cli.upkeep import upkeep_commands
from coordinate_eval.errors import UserError

# Typer has it from click, or by now from a copy of click, and exports only what derives from it.
_USAGE_ERROR: Any = typer.BadParameter.__base__


class _Group(parsing.Commands):
    """The commands. `run` is the default one, also for shell completion."""

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


_PANELS = {
    "Evaluate": "run watch prefetch resume rescore cancel",
    "Look": "status runs samples diagnose",
    "Decide": "scores history best compare alarms gate report log",
    "Keep training alive": "guard advise",
    "Before and between runs": "doctor config suites checkpoint priors prune",
}
"""Where `--help` lists each command."""


def main() -> None:
    """Run the command line, as the console script does."""
    process.run(lambda args: app(args=args))


def with_default_command(args: list[str]) -> list[str]:
    """Return `run CKPT …` for `CKPT …`, and every other command line as it is."""
    if not args or args[0] in _commands() or args[0] in _GROUP_OPTIONS:
        return args
    return ["run", *args]


def refuse_misspelled(args: list[str]) -> None:
    """Refuse a first word that is no command and no file, but nearly the name of a command."""
    word = args[0] if args else ""
    if not word or word in _commands() or not re.fullmatch(r"[a-z]+", word) or Path(word).exists():
        return
    if near := difflib.get_close_matches(word, _commands(), n=1):
        raise UserError(f"no such command or checkpoint: {word}; did you mean {near[0]}?")


def _commands() -> set[str]:
    return set(" ".join(_PANELS.values()).split())


def _sorted_into_panels() -> None:
    """Have `--help` list the commands by what they are for."""
    order = " ".join(_PANELS.values()).split()
    panel_of = {name: panel for panel, names in _PANELS.items() for name in names.split()}
    for each in app.registered_commands:
        each.name = each.name or getattr(each.callback, "__name__", "")
        each.rich_help_panel = panel_of[str(each.name)]
    app.registered_commands.sort(key=lambda each: order.index(str(each.name)))
    for group in app.registered_groups:
        group.rich_help_panel = panel_of[str(group.name)]


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


for _room in (
    run_commands,
    save_commands,
    state_commands,
    score_commands,
    log,
    training_commands,
    upkeep_commands,
):
    _room.register(app)
_sorted_into_panels()
