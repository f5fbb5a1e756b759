"""Scores in trackers: each gets what it was not told before, by its real library, offline."""

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.trainings import TRAINING, call, run_of

SCORES = {"a": 0.5, "b": 0.25}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for step in (10, 20):
        run_of(tmp_path / "runs", step, SCORES)
    return tmp_path / "runs"


def logged(home: Path, *args: str) -> list[dict[str, Any]]:
    answer = call(home, "log", TRAINING, "--json", *args)
    assert answer.exit_code == 0, answer.output
    found: list[dict[str, Any]] = json.loads(answer.stdout)["trainings"]
    return found


def tensorboard_events(folder: Path) -> Iterator[tuple[int, str, float]]:
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    for path in sorted(folder.rglob("events.*")):
        for event in LegacyEventFileLoader(str(path)).Load():
            for value in event.summary.value:
                yield event.step, value.tag, round(value.simple_value, 4)


def test_tensorboard_has_each_score_at_its_step_once(home: Path, tmp_path: Path) -> None:
    to = ("--to", "tensorboard", "--dir", str(tmp_path / "board"))
    assert logged(home, *to) == [{"training": TRAINING, "checkpoints": 2, "numbers": 12}]
    run_of(home, 30, SCORES)
    assert [each["checkpoints"] for each in logged(home, *to)] == [1]
    assert [each["checkpoints"] for each in logged(home, *to)] == [0]

    found = list(tensorboard_events(tmp_path / "board"))
    assert [event for event in found if event[1] == "eval/a"] == [
        (step, "eval/a", 0.5) for step in (10, 20, 30)
    ]
    assert (20, "eval/mean", 0.375) in found
    assert (20, "eval/b_stderr", 0.01) in found
    assert len(found) == len(set(found))


def test_mlflow_has_one_run_for_a_training(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    logged(home, "--to", "mlflow", "--tokens-per-step", "1000")
    run_of(home, 30, SCORES)
    logged(home, "--to", "mlflow", "--tokens-per-step", "1000")

    client = MlflowClient()
    place = client.get_experiment_by_name("seven")
    assert place is not None
    (run,) = client.search_runs([place.experiment_id])
    history = client.get_metric_history(run.info.run_id, "eval/a")
    assert [(each.step, each.value) for each in history] == [(10, 0.5), (20, 0.5), (30, 0.5)]
    assert run.data.metrics["train/tokens"] == 30_000


def wandb_records(path: Path) -> Iterator[Any]:
    """What W&B has written offline: a log in the format of LevelDB, after a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    record: Any = wandb_internal_pb2
    whole, last, block = 1, 4, 32_768
    place, data = 7, b""
    content = path.read_bytes()
    while place + 7 <= len(content):
        left = block - place % block
        length, kind = struct.unpack("<HB", content[place + 4 : place + 7])
        if left < 7 or not kind:
            place += left
            continue
        data += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (whole, last):
            yield record.Record.FromString(data)
            data = b""


def test_wandb_has_an_axis_that_may_go_back(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offline = {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}
    for name, value in offline.items():
        monkeypatch.setenv(name, value)
    to = ("--to", "wandb", "--project", "pretraining")
    assert [logged(home, *to)[0]["checkpoints"] for _ in range(2)] == [2, 0]

    (path,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    records = list(wandb_records(path))
    rows = [
        {
            "/".join(item.nested_key) or item.key: json.loads(item.value_json)
            for item in r.history.item
        }
        for r in records
        if r.WhichOneof("record_type") == "history"
    ]
    assert [(row["train/step"], row["eval/a"]) for row in rows] == [(10, 0.5), (20, 0.5)]
    assert any(record.metric.step_metric == "train/step" for record in records)
    assert {record.run.project for record in records} >= {"pretraining"}


ALARM = (
    "step-30: a: collapse: 0.0500 ±0.0100, and 0.5000 was expected; the last good one is "
    "/ckpts/seven/step-20"
)


def test_trackers_get_an_alarm_in_words_once(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an alert of W&B, a tag of MLflow, a text of TensorBoard: each time with the evidence."""
    from mlflow import MlflowClient
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    offline = {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}
    uri = f"file://{tmp_path}/ml"
    mlflow = {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_TRACKING_URI": uri}
    for name, value in {**offline, **mlflow}.items():
        monkeypatch.setenv(name, value)
    run_of(home, 30, {"a": 0.05, "b": 0.25})
    for _ in range(2):
        for to in ("wandb", "mlflow"):
            logged(home, "--to", to)
        logged(home, "--to", "tensorboard", "--dir", str(tmp_path / "board"))

    (path,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    alerts = [r.alert for r in wandb_records(path) if r.WhichOneof("record_type") == "alert"]
    assert [each.title for each in alerts] == ["seven, step 30"]
    assert alerts[0].text.endswith(ALARM)
    client = MlflowClient(uri)
    (experiment,) = client.search_experiments(filter_string="name = 'seven'")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.tags["coordinate_eval.alarms.step_30"].endswith(ALARM)
    texts = [
        value.tensor.string_val[0].decode()
        for file in (tmp_path / "board").rglob("events.*")
        for event in LegacyEventFileLoader(str(file)).Load()
        for value in event.summary.value
        if value.tag == "eval/alarm"
    ]
    assert len(texts) == 1
    assert texts[0].endswith(ALARM)


def test_a_score_that_comes_later_is_told_alone(home: Path, tmp_path: Path) -> None:
    to = ("--to", "tensorboard", "--dir", str(tmp_path / "board"))
    run_of(home, 30, {"a": 0.5})
    logged(home, *to)
    run_of(home, 30, SCORES)
    assert logged(home, *to)[0]["numbers"] <= 4  # b, its error, and the mean and alarms with it


def test_a_tracker_that_refuses_is_told_again(home: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    answer = call(home, "log", TRAINING, "--to", "tensorboard", "--dir", str(tmp_path / "file"))
    assert "tensorboard did not take the scores" in str(answer.exception)
    to = ("--to", "tensorboard", "--dir", str(tmp_path / "board"))
    assert logged(home, *to)[0]["checkpoints"] == 2


def test_nothing_is_logged_that_cannot_be_noted_and_would_be_logged_again(
    home: Path, tmp_path: Path
) -> None:
    (home / f".history-{os.geteuid()}").write_text("no folder")
    board = tmp_path / "board"
    answer = call(home, "log", TRAINING, "--to", "tensorboard", "--dir", str(board))
    assert "nothing is logged to tensorboard" in str(answer.exception)
    assert not board.exists()


@pytest.mark.parametrize("content", ["{", "[]", '{"/ckpts/seven/step-10": 3}'])
def test_torn_notes_of_what_was_told_are_named(home: Path, tmp_path: Path, content: str) -> None:
    to = ("--to", "tensorboard", "--dir", str(tmp_path / "board"))
    logged(home, *to)
    (notes,) = (home / f".history-{os.geteuid()}").glob("told-*")
    notes.write_text(content)
    assert f"{notes}, which has what tensorboard was told, is torn" in str(
        call(home, "log", TRAINING, *to).exception
    )


def test_a_run_that_has_ended_names_its_training(home: Path, tmp_path: Path) -> None:
    """As `after_run` does."""
    to = ("--to", "tensorboard", "--dir", str(tmp_path / "board"))
    answer = call(home, "log", *to, str(home / "step-20-x"))
    assert f"{TRAINING}: tensorboard got 12 numbers of 2 checkpoints" in answer.output


def test_tensorboard_needs_a_folder(home: Path) -> None:
    answer = call(home, "log", "--to", "tensorboard")
    assert "needs --dir" in str(answer.exception)
