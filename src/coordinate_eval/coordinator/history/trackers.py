"""Trackers that show scores where a training logs its loss: W&B, MLflow, TensorBoard, trackio.

A tracker gets what it has not been told before. What it was told is noted afterwards, in the folder
of the history: whoever is killed in between tells the same scores again, under the same step.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from coordinate_eval import _files
from coordinate_eval.coordinator.history import measured, telling
from coordinate_eval.coordinator.history.alarms import alarms
from coordinate_eval.coordinator.history.rows import Row
from coordinate_eval.coordinator.history.series import Series, mean_column
from coordinate_eval.errors import RecordError, UserError

STEP = "train/step"
"""The horizontal axis of W&B. Its own step only grows, and a training may go back."""

_TOKENS = "train/tokens"
_ALARMS = "eval/alarms"
_PART = "eval/part_of_items"
"""1 where some scores are of a part of the items; 0 once they no longer are."""

_TOLD = TypeAdapter(dict[str, dict[str, int | float]])
_MOST_OF_A_TAG = 5000  # characters of a tag in MLflow
_SECONDS = 60  # for a tracker's server to answer


class Target(NamedTuple):
    """The tracker and the place there to which scores are logged."""

    tracker: str
    project: str | None = None
    """W&B's and trackio's project, MLflow's experiment. By default the folder's name."""
    run: str | None = None
    """Id of a run that is there, such as the training's own. By default a run of its own."""
    folder: Path | None = None
    """Folder of TensorBoard's files."""


class Point(NamedTuple):
    """The metrics that are logged of one checkpoint."""

    checkpoint: str
    step: int
    created: float
    metrics: Mapping[str, float]
    alarms: Sequence[str] = ()
    """Alarms that begin at it, in words."""


def points(found: Series, tokens_per_step: int | None = None) -> list[Point]:
    """Return what is logged of the checkpoints of one training, by step.

    These are the scores, their standard errors, the mean, and the alarms that begin at it.
    Checkpoints without a step are left out.
    """
    mean = mean_column(found, found.rows)
    raised: dict[str, list[str]] = {}
    for alarm in alarms(found):
        raised.setdefault(alarm.row.checkpoint, []).append(telling.line(alarm))

    def metrics(row: Row) -> Iterator[tuple[str, float]]:
        for name in row.scores:
            score = row.score(name)
            yield f"eval/{name}", score.value
            if score.stderr is not None:
                yield f"eval/{name}_stderr", score.stderr
        if mean is not None and (value := mean.value(row)) is not None:
            yield "eval/mean", value.value
        if row.decided:
            yield _PART, 1
        yield _ALARMS, len(raised.get(row.checkpoint, ()))
        if tokens_per_step is not None and row.step is not None:
            yield _TOKENS, row.step * tokens_per_step

    return [
        Point(
            row.checkpoint,
            row.step,
            row.created,
            dict(metrics(row)),
            raised.get(row.checkpoint, ()),
        )
        for row in found.rows
        if row.step is not None and row.scores
    ]


def log(runs_dir: str, training: str, every: Sequence[Point], target: Target) -> list[Point]:
    """Tell a tracker what it has not been told of a training. Return what that was.

    Raises:
        UserError: the tracker is not installed, refuses, or its files cannot be written.
    """
    noted = _Noted(runs_dir, training, target)
    new = [each for each in map(noted.without_told, every) if each.metrics]
    if not new:
        return []
    try:
        noted.add([])
    except OSError as error:
        raise UserError(
            f"nothing is logged to {target.tracker}, since it would be logged again each time: "
            f"what it was told cannot be noted in {measured.folder(runs_dir)} ({error.strerror})"
        ) from error
    try:
        TRACKERS[target.tracker](training, new, target)
    except ImportError as error:
        raise UserError(
            f"{target.tracker} is not installed ({error}): pip install {_PACKAGES[target.tracker]}"
        ) from error
    except UserError:
        raise
    except Exception as error:  # each library has errors of its own
        words = f"{type(error).__name__}: {error}"
        raise UserError(f"{target.tracker} did not take the scores: {words}") from error
    noted.add(new)
    return new


class _Noted:
    """The metrics of a training that a tracker was told, by checkpoint."""

    def __init__(self, runs_dir: str, training: str, target: Target) -> None:
        self._home = measured.folder(runs_dir)
        folder = None if target.folder is None else str(target.folder.absolute())
        whom = json.dumps([training, target.tracker, target.project, target.run, folder])
        self._path = self._home / f"told-{hashlib.sha256(whom.encode()).hexdigest()[:16]}.json"
        self._told: dict[str, dict[str, int | float]] = {}
        if self._path.exists():
            try:
                self._told = _TOLD.validate_python(_files.read_json(self._path))
            except (RecordError, ValidationError) as error:
                raise UserError(
                    f"{self._path}, which has what {target.tracker} was told, is torn: remove it, "
                    "and all scores are logged again"
                ) from error

    def without_told(self, point: Point) -> Point:
        """Return a point with what is new of it, and nothing if no score is."""
        told = self._told.get(point.checkpoint, {})
        # As text, in which NaN is like NaN.
        now = {**({_PART: 0.0} if told.get(_PART) else {}), **point.metrics}
        new = {k: v for k, v in now.items() if json.dumps(told.get(k)) != json.dumps(v)}
        metrics = new if new.keys() - {_TOKENS} else {}
        return point._replace(metrics=metrics, alarms=point.alarms if _ALARMS in metrics else ())

    def add(self, new: Sequence[Point]) -> None:
        """Note that the tracker has taken these."""
        for each in new:
            self._told.setdefault(each.checkpoint, {}).update(each.metrics)
        _files.own_folder(self._home)
        _files.write(self._path, json.dumps(self._told))


def _wandb(training: str, new: Sequence[Point], target: Target) -> None:
    import wandb

    name = PurePath(training).name
    own = hashlib.sha256(training.encode()).hexdigest()[:16]
    run = wandb.init(
        project=target.project or name,
        id=target.run or f"eval-{own}",
        name=None if target.run else f"{name} evaluation",
        resume="allow",
        settings=wandb.Settings(init_timeout=_SECONDS, console="off", x_disable_stats=True),
    )
    with run:
        run.define_metric("eval/*", step_metric=STEP)
        for each in new:
            run.log({STEP: each.step, **each.metrics})
            if each.alarms:
                run.alert(f"{name}, step {each.step:,}", "\n".join(each.alarms), level="WARN")
    wandb.teardown()  # what was logged offline is in its file only then


def _trackio(training: str, new: Sequence[Point], target: Target) -> None:
    import trackio

    name = PurePath(training).name
    trackio.init(
        project=target.project or name, name=target.run or f"{name} evaluation", resume="allow"
    )
    for each in new:
        trackio.log(dict(each.metrics), step=each.step)
        if each.alarms:
            trackio.alert(f"{name}, step {each.step:,}", "\n".join(each.alarms))
    trackio.finish()


def _mlflow(training: str, new: Sequence[Point], target: Target) -> None:
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", str(_SECONDS))
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    from mlflow import MlflowClient
    from mlflow.entities import Metric

    client = MlflowClient()
    run = target.run
    if run is None:
        name = target.project or PurePath(training).name
        experiment = client.get_experiment_by_name(name)
        place = experiment.experiment_id if experiment else client.create_experiment(name)
        own = f"tags.`coordinate_eval.training` = {json.dumps(training)}"
        before = client.search_runs([place], own, max_results=1)
        tags = {"coordinate_eval.training": training, "mlflow.runName": "evaluation"}
        run = before[0].info.run_id if before else client.create_run(place, tags=tags).info.run_id
    of_point = [
        Metric(re.sub(r"[^\w. /-]", "_", name), value, int(each.created * 1000), each.step)
        for each in new
        for name, value in each.metrics.items()
    ]
    for start in range(0, len(of_point), 1000):  # the most that a server takes at once
        client.log_batch(run, of_point[start : start + 1000])
    for each in new:
        if each.alarms:
            words = "\n".join(each.alarms)[:_MOST_OF_A_TAG]
            client.set_tag(run, f"coordinate_eval.alarms.step_{each.step}", words)
    if target.run is None:
        client.set_terminated(run)


def _tensorboard(training: str, new: Sequence[Point], target: Target) -> None:
    if target.folder is None:
        raise UserError("--to tensorboard needs --dir, the folder that TensorBoard shows")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.plugins.text.metadata import create_summary_metadata
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(target.folder / PurePath(training).name / "evaluation"))
    for each in new:
        values = [Summary.Value(tag=k, simple_value=v) for k, v in each.metrics.items()]
        if each.alarms:
            words = TensorProto(dtype="DT_STRING", string_val=["\n\n".join(each.alarms).encode()])
            shown = create_summary_metadata("alarms", "")
            values.append(Summary.Value(tag="eval/alarm", tensor=words, metadata=shown))
        summary = Summary(value=values)
        writer.add_event(Event(step=each.step, wall_time=time.time(), summary=summary))
    writer.close()


TRACKERS: Mapping[str, Callable[[str, Sequence[Point], Target], Any]] = {
    "wandb": _wandb,
    "mlflow": _mlflow,
    "tensorboard": _tensorboard,
    "trackio": _trackio,
}
_PACKAGES = {
    "wandb": "'coordinate-eval[wandb]'",
    "mlflow": "'coordinate-eval[mlflow]'",
    "tensorboard": "'coordinate-eval[tensorboard]'",
    "trackio": "trackio",
}
