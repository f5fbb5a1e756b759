"""`coordinate-eval log`: tell a tracker the scores that it has not been told."""

from pathlib import Path
from typing import Annotated, Literal

from coordinate_eval._format import plural
from coordinate_eval.coordinator.cli.inquire.history import by_training, load
from coordinate_eval.coordinator.cli.options import common
from coordinate_eval.coordinator.cli.options.parsing import option
from coordinate_eval.coordinator.cli.output import say, write_json
from coordinate_eval.coordinator.history.series import series
from coordinate_eval.coordinator.history.trackers import Target, log, points
from coordinate_eval.coordinator.inputs.checkpoints.saved import training_of
from coordinate_eval.coordinator.inputs.layers import load as load_settings
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import read_run
from coordinate_eval.errors import UserError

_To = Annotated[
    Literal["wandb", "mlflow", "tensorboard", "trackio"], option("--to NAME", "Where to log.")
]
_Project = Annotated[
    str | None,
    option(
        "--project NAME",
        "The project of W&B or trackio, or MLflow's experiment.",
        shown="the training's folder",
    ),
]
_TrackedRun = Annotated[
    str | None,
    option("--run ID", "Log into this run, such as the training's own.", shown="a run of its own"),
]
_Dir = Annotated[Path | None, option("--dir DIR", "The folder that TensorBoard shows.")]


def log_command(
    training: common.Trainings = None,
    *,
    to: _To,
    project: _Project = None,
    run: _TrackedRun = None,
    folder: _Dir = None,
    suite: common.OfSuite = None,
    tokens_per_step: common.TokensPerStep = None,
    as_json: common.Json = False,
    settings_file: common.SettingsFile = None,
) -> None:
    """Log the scores of a training's checkpoints to the tracker that has its loss.

    Each call logs what is new. Call it by hand for all checkpoints so far, and with `after_run` for
    those to come.
    """
    if folder is not None and to != "tensorboard":
        raise UserError("--dir is the folder of TensorBoard's files: leave it out")
    settings, _ = load_settings({}, settings_file)
    target = Target(to, project, run, folder)
    known, problems = load(settings)
    found = series(known, [_training(each) for each in training or []], suite)
    told = []
    notes: list[str] = []
    for each, mine in by_training(known, found, suite):
        notes += mine.notes
        new = log(settings.runs_dir, each, points(mine, tokens_per_step), target)
        numbers = sum(len(point.metrics) for point in new)
        told.append({"training": each, "checkpoints": len(new), "numbers": numbers})
        say(
            f"{each}: {target.tracker} got {plural(numbers, 'number')} of "
            f"{plural(len(new), 'checkpoint')}"
        )
    if as_json:
        write_json({"schema": "coordinate-eval/logged@1", "to": target.tracker, "trainings": told})
    for line in [*notes, *problems]:
        say(line)


def _training(name: str) -> str:
    """Return the training of a run whose directory is given, as `after_run` does."""
    run_dir = RunDir(Path(name))
    return training_of(read_run(run_dir).checkpoint.path) if run_dir.run.exists() else name
