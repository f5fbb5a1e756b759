"""Runs of a training's checkpoints that have ended, and commands that show them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from coordinate_eval import _files
from coordinate_eval.coordinator.cli.app import app
from coordinate_eval.coordinator.history import measured
from coordinate_eval.coordinator.history.columns import Plain
from coordinate_eval.coordinator.history.measured import Measured
from coordinate_eval.coordinator.history.rows import Row
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.records import DatasetResults
from tests.decisions import make_run
from tests.plans import CHECKPOINT

TRAINING = "/ckpts/seven"


def run_of(home: Path, step: int, scores: dict[str, float], **more: Any) -> RunDir:
    """A run that has ended, with an accuracy and its error for each dataset."""
    name = f"step-{step}-x"
    run_dir = RunDir(home / name)
    checkpoint = CHECKPOINT.model_copy(
        update={"path": f"{TRAINING}/step-{step}", "identity": f"{step:064}"}
    )
    run = make_run(
        id=name,
        nonce=str(step),
        checkpoint=checkpoint,
        created=float(step),
        cluster="local",
        **more,
    )
    _files.write_record(run_dir.run, run)
    for dataset, value in scores.items():
        found = DatasetResults.model_validate(
            {"dataset": dataset, "items": 100, "harness": "0.4.9",
             "results": {dataset: {"acc,none": value, "acc_stderr,none": 0.01}}}
        )  # fmt: skip
        _files.write_record(run_dir.dataset_results(dataset), found)
    missing = [d.name for d in run.suite.datasets if d.name not in scores]
    results = {"complete": not missing, "missing": dict.fromkeys(missing, "")}
    _files.write(run_dir.results, json.dumps(results))
    _files.write(run_dir.cancelled, "")  # no scheduler is asked about it
    return run_dir


def keep(home: Path, step: int, scores: dict[str, Any], **more: Any) -> None:
    """The scores of a checkpoint whose run was removed; a number is an accuracy of 100 items."""
    training = more.pop("training", TRAINING)
    plain: dict[str, Plain] = {
        name: each if isinstance(each, tuple) else (each, 0.05, 100, "acc", True, "x")
        for name, each in scores.items()
    }
    record = Measured(
        run=more.pop("run", f"run-{len(training)}-{step}"), dir="/none",
        identity=more.pop("identity", f"{step}"),
        training=training, checkpoint=f"{training}/step-{step}", step=step,
        created=more.pop("created", step), ended=1, complete=True,
        suite="s", scores=plain, **more,
    )  # fmt: skip
    measured.keep(str(home), record)


def row(step: int, scores: Mapping[str, Any] | None = None, **more: Any) -> Row:
    """A checkpoint in a series, with these scores."""
    place = f"/t/step-{step}"
    made = Row("/t", step, place, [f"run-{step}"], float(step), scores or {}, [], None)
    return made._replace(**more)


def call(home: Path, *args: str) -> Result:
    env = {"COORDINATE_EVAL_RUNS_DIR": str(home), "COLUMNS": "100"}
    return CliRunner().invoke(app, list(args), env=env)
