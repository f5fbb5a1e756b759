"""`coordinate-eval log`: tell a tracker the scores that it has not been told."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coordinate_eval.coordinator.cli.inquire.score_commands import OfSuite, TokensPerStep, Trainings
from coordinate_eval.coordinator.cli.options import common
from coordinate_eval.coordinator.cli.options.parsing import option
from coordinate_eval.coordinator.inputs.layers import load as load_settings
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.errors import UserError

if TYPE_CHECKING:
    from coordinate_eval.coordinator.cli.inquire.history import Wanted
    from coordinate_eval.coordinator.history.trackers import Target


class Tracker(StrEnum):
    """The trackers that can be told."""

    WANDB = "wandb"
    MLFLOW = "mlflow"
    TENSORBOARD = "tensorboard"
    TRACKIO = "trackio"


_To = Annotated[Tracker, option("", "NAME", "Where to log.", "--to")]
_Project = Annotated[
    str | None,
    option(
        "", "NAME", "The project of W&B or trackio, or MLflow's experiment.",
        shown="the training's folder",
    ),
]  # fmt: skip
_TrackedRun = Annotated[
    str | None,
    option("", "ID", "Log into this run, such as the training's own.", shown="a run of its own"),
]
_Dir = Annotated[Path | None, option("", "DIR", "The folder that TensorBoard shows.", "--dir")]


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(log)


def log(
    training: Trainings = None,
    *,
    to: _To,
    project: _Project = None,
    run: _TrackedRun = None,
    folder: _Dir = None,
    suite: OfSuite = None,
    tokens_per_step: TokensPerStep = None,
    as_json: common.Json = False,
    settings_file: common.SettingsFile = None,
) -> None:
    """Log the scores of a training's checkpoints to the tracker that has its loss.

    Each call logs what is new. Call it by hand for all checkpoints so far, and with `after_run` for
    those to come.
    """
    from coordinate_eval.coordinator.cli.inquire.history import Wanted
    from coordinate_eval.coordinator.history.trackers import Target

    if folder is not None and to is not Tracker.TENSORBOARD:
        raise UserError("--dir is the folder of TensorBoard's files: leave it out")
    settings, _ = load_settings({}, settings_file)
    wanted = Wanted([_training(each) for each in training or []], suite, [], tokens_per_step)
    _log(settings, wanted, Target(to.value, project, run, folder), as_json=as_json)


def _training(name: str) -> str:
    """Return the training of a run whose directory is given, as `after_run` does."""
    from coordinate_eval.coordinator.inputs.checkpoints.saved import training_of
    from coordinate_eval.coordinator.run.paths import RunDir
    from coordinate_eval.coordinator.run.records import read_run

    run_dir = RunDir(Path(name))
    return training_of(read_run(run_dir).checkpoint.path) if run_dir.run.exists() else name


def _log(settings: Settings, wanted: "Wanted", target: "Target", *, as_json: bool) -> None:
    from coordinate_eval._format import plural
    from coordinate_eval.coordinator.cli.inquire.history import alone, load
    from coordinate_eval.coordinator.cli.output import say, write_json
    from coordinate_eval.coordinator.history.series import series
    from coordinate_eval.coordinator.history.trackers import log as tell
    from coordinate_eval.coordinator.history.trackers import points

    known, problems = load(settings)
    found = series(known, wanted.trainings, wanted.suite)
    told = []
    notes: list[str] = []
    for training in dict.fromkeys(row.training for row in found.rows):
        mine = alone(known, found, training, wanted.suite)
        notes += mine.notes
        new = tell(settings.runs_dir, training, points(mine, wanted.tokens_per_step), target)
        numbers = sum(len(each.metrics) for each in new)
        told.append({"training": training, "checkpoints": len(new), "numbers": numbers})
        say(
            f"{training}: {target.tracker} got {plural(numbers, 'number')} of "
            f"{plural(len(new), 'checkpoint')}"
        )
    if as_json:
        write_json({"schema": "coordinate-eval/logged@1", "to": target.tracker, "trainings": told})
    for line in [*notes, *problems]:
        say(line)
