"""The help of every command says what a person would type."""

from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from coordinate_eval.coordinator.cli.app import app


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, group
    for name, command in getattr(group, "commands", {}).items():
        if not command.hidden:
            yield from commands(command, (*path, name))


COMMANDS = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_options_name_what_to_type_and_flags_nothing(path: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "200"})
    assert done.exit_code == 0
    assert "--help" in done.stdout
    assert "bool" not in done.stdout
    for option in COMMANDS[path].params:
        if option.param_type_name == "option" and not option.is_flag:
            assert option.metavar, option.opts


def test_a_prefetch_promises_no_job_scripts() -> None:
    assert "job scripts" not in CliRunner().invoke(app, ["prefetch", "--help"]).stdout
