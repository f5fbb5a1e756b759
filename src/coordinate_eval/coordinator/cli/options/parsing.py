"""Values of options, and the help of commands."""

import json
import re
from functools import partial
from typing import Any

import typer
from typer.core import TyperGroup

from coordinate_eval.coordinator.inputs.settings import MOST_RESTRAINT
from coordinate_eval.errors import UserError


class Commands(TyperGroup):
    """Commands whose help says what to type after an option, and nothing after a flag."""

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401 - typer's own type
        """Return the group's own parameters."""
        return _as_typed(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401 - typer's own types
        """Return a command, if there is one of this name."""
        found = super().get_command(ctx, cmd_name)
        if found is not None:
            _as_typed(found.get_params(ctx))
        return found


def _as_typed(parameters: list[Any]) -> list[Any]:
    """Return parameters without the word `<bool>` that typer shows after flags."""
    for each in parameters:
        if getattr(each, "is_flag", False):
            each.metavar = ""
    return parameters


def json_object(text: str) -> dict[str, Any]:
    """Return the JSON object that an option's text holds.

    Raises:
        typer.BadParameter: the text is no JSON object.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise typer.BadParameter("must be a JSON object")
    return value


def seconds(text: str) -> float:
    """Return the seconds that an option's text names, such as 900, 15m or 2h.

    Raises:
        typer.BadParameter: the text is not a time.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if match is None:
        raise typer.BadParameter("must be a time such as 900, 15m or 2h")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def last(text: str) -> int:
    """Return the number of checkpoints that are averaged, of `last:N`.

    Raises:
        typer.BadParameter: the text is not of this form, or the number less than 2.
    """
    match = re.fullmatch(r"last:([1-9]\d{0,2})", text.strip())
    if match is None or int(match[1]) < 2:
        raise typer.BadParameter("must be last:N, such as last:5, with N of at least 2")
    return int(match[1])


def restraint(text: str) -> float | None:
    """Return the setting `restraint` for an objective; None for the usual one.

    Raises:
        typer.BadParameter: it is no objective.
    """
    if text not in ("makespan", "gpu-hours"):
        raise typer.BadParameter("must be makespan or gpu-hours")
    return MOST_RESTRAINT if text == "gpu-hours" else None


def numbers(text: str) -> list[float]:
    """Return the numbers that an option's text lists, after commas or spaces."""
    try:
        return [float(each) for each in re.split(r"[,\s]+", text.strip())]
    except ValueError as error:
        raise UserError(f"--weights {text!r}: give numbers, such as 1,1,2") from error


def with_joined_weights(args: list[str]) -> list[str]:
    """Return a command line in which all numbers after `--weights` are its one value."""
    if "--weights" not in args:
        return args
    begin = end = args.index("--weights") + 1
    while end < len(args) and re.fullmatch(r"[-+]?[\d.]+(?:e[-+]?\d+)?,?", args[end]):
        end += 1
    given = ",".join(each.rstrip(",") for each in args[begin:end])
    return [*args[: begin - 1], f"--weights={given}", *args[end:]] if given else args


def _refuse_constant(constant: str) -> float:
    """Refuse NaN and the infinities, which Python reads and JSON does not have."""
    raise ValueError(f"{constant} is not a number")


def option(
    typed: str,
    meaning: str,
    panel: str | None = None,
    *,
    shown: str | bool = True,
    **more: Any,  # noqa: ANN401 - typer's own parameters
) -> Any:  # noqa: ANN401 - typer's own type
    """Return an option of a command.

    Args:
        typed: its names, and a word for its value unless it is a flag: `--nodes --max-nodes NODES`.
        panel: title of the panel in which the help shows it.
        shown: the default, in words.
        more: what typer knows beside these.
    """
    words = typed.split()
    names = [word for word in words if word.startswith("-")]
    return typer.Option(
        *names,
        metavar=" ".join(words[len(names) :]),
        help=meaning,
        show_default=shown,
        rich_help_panel=panel,
        **more,
    )


what_option = partial(option, panel="What to evaluate")
where_option = partial(option, panel="Where to run")
plan_option = partial(option, panel="Plan")
output_option = partial(option, panel="Run and output")
