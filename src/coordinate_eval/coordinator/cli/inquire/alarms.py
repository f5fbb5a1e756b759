"""`coordinate-eval alarms`, and who is told of them."""

import os
from collections.abc import Sequence

import typer

from coordinate_eval._format import plural
from coordinate_eval.coordinator.cli.inquire.history import by_training, load
from coordinate_eval.coordinator.cli.options import common
from coordinate_eval.coordinator.cli.output import errors_are_no_verdict, out, say, write_json
from coordinate_eval.coordinator.history import telling
from coordinate_eval.coordinator.history.alarms import Alarm, alarms
from coordinate_eval.coordinator.history.measured import Measured
from coordinate_eval.coordinator.history.series import Series, series
from coordinate_eval.coordinator.inputs.checkpoints import remote
from coordinate_eval.coordinator.inputs.layers import load as load_settings
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.supervisor.after_run import with_our_command
from coordinate_eval.errors import CoordinateError


def alarms_command(
    training: common.Trainings = None,
    suite: common.OfSuite = None,
    as_json: common.Json = False,
    settings_file: common.SettingsFile = None,
) -> None:
    """Show which checkpoints are worse than their training's past explains, and stalls.

    Exit status: 0 an alarm is true of no training's newest checkpoint; 1 one is; 2 it is not known.
    """
    with errors_are_no_verdict():
        settings, _ = load_settings({}, settings_file)
        known, problems = load(settings)
        found = series(known, training or [], suite)
        trainings, broken = alarms_of(known, found, suite)
        raised = [alarm for _, its in trainings for alarm in its]
        notes = [note for each, _ in trainings for note in each.notes]
        for each, its in trainings:
            notes += telling.untold(settings.runs_dir, each, its, settings)
    if as_json:
        write_json(telling.document(raised))
    else:
        for alarm in raised:
            out(telling.line(alarm))
        if not raised:
            out(f"no alarms in {plural(len(found.rows), 'checkpoint')}")
    for line in [*notes, *problems]:
        say(line)
    raise typer.Exit(int(broken))


def tell_alarms(settings: Settings, folder: str, *, patience: float) -> list[str]:
    """Tell people of the alarms of the trainings in a folder. Return what went wrong, in words.

    Args:
        folder: of checkpoints, or one above.
        patience: seconds to wait for another process that tells of the same training.
    """
    by = telling.ways(settings, with_our_command(os.environ))
    if not by:
        return []
    wrong = []
    try:
        known, _ = load(settings)
        found = series(each for each in known if remote.is_below(each.training, folder))
        for each, raised in alarms_of(known, found, None)[0]:
            wrong += telling.tell(settings.runs_dir, each, raised, by, patience=patience)
    except (CoordinateError, OSError) as error:
        wrong.append(f"alarms are not told: {error}")
    return wrong


def alarms_of(
    known: Sequence[Measured], found: Series, suite: str | None
) -> tuple[list[tuple[Series, list[Alarm]]], bool]:
    """Return each training with its alarms, and whether the newest checkpoint of any has one."""
    every = []
    broken = False
    for _, its in by_training(known, found, suite):
        every.append((its, raised := alarms(its)))
        newest = [row for row in its.rows if row.step is not None][-1:]
        broken |= any(alarm.last in newest for alarm in raised)
    return every, broken
