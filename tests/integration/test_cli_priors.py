"""`coordinate-eval priors`: what was measured is shown, and mistakes are named."""

import json
import time
from pathlib import Path

import pytest
from tests.command_line import called_here
from tests.observed import DATASETS, DAY, NOW, on, seen
from tests.runs import Workspace
from tests.tiny import tiny_model
from typer.testing import CliRunner

from coordinate_eval.coordinator.cli.app import app, with_default_command
from coordinate_eval.errors import CoordinateError
from coordinate_eval.priors.observations import StageSeen, TrialSeen, subject
from coordinate_eval.priors.shapes import llama_like, parameter_count
from coordinate_eval.priors.store import Store
from coordinate_eval.records import Dataset


@pytest.fixture
def user(tmp_path: Path) -> Workspace:
    made = Workspace(tmp_path)
    made.environ["COORDINATE_EVAL_ENGINE_NAME"] = "vllm"
    made.environ["COORDINATE_EVAL_PRIORS_DIR"] = str(tmp_path / "priors")
    datasets = "".join(
        f"- {{name: {name}, task: {name}, items: {DATASETS[name][0]}}}\n" for name in DATASETS
    )
    (tmp_path / "suite.yaml").write_text(f"datasets:\n{datasets}- {{name: new, task: unheard}}\n")
    return made


def learn(user: Workspace) -> None:
    store = Store(user.folder / "priors")
    days_ago = (NOW - time.time()) / DAY
    for number in range(3):
        measured = [
            seen(
                name, on(), days_ago=days_ago, run=f"run{number}", noise=1 + number / 50,
                settings=subject(Dataset(name=name, task=name)).settings,
            )
            for name in DATASETS
        ]  # fmt: skip
        store.put(measured)
    start = TrialSeen(run="start", time=1, conditions=on(), trial="n-0", start_seconds=33.0)
    copies = [
        StageSeen(
            run="start", time=1, conditions=on(), node=f"n{n}", storage="/ckpts",
            bytes=14_000_000_000, seconds=28.0, at_once=1, converted=False,
        )
        for n in range(50)
    ]  # fmt: skip
    store.put([start, *copies])


def test_a_group_of_commands_is_no_checkpoint() -> None:
    assert with_default_command(["priors", "show"]) == ["priors", "show"]
    assert with_default_command(["/ckpt"]) == ["run", "/ckpt"]


def test_show_says_what_a_suite_would_take(user: Workspace) -> None:
    learn(user)
    args = ("priors", "show", "--suite", user.folder / "suite.yaml")
    shown = json.loads(called_here(user, *args, "--json").stdout)
    rows = {row["name"]: row for row in shown["datasets"]}
    assert rows.keys() == {*DATASETS, "new"}
    assert rows["new"] == {"name": "new", "observations": 0}
    assert shown["runs"] == 4
    assert shown["engine_start_seconds"] == 33.0
    assert shown["conditions"]["model"]["parameters"] == 7_000_000_000
    for name in DATASETS:
        row = rows[name]
        assert row["observations"] == 3
        assert row["gpu_seconds"] == pytest.approx(row["measured_gpu_seconds"], rel=0.1)
        assert 0 < row["spread"] < 1
        assert row["error_left_out"] < 0.1
    stage = shown["stage"]
    assert (stage["storage"], stage["copies"]) == ("/ckpts", 50)
    assert stage["seconds"] == pytest.approx(28, rel=0.2)
    assert stage["gigabits_per_node"] == pytest.approx(4, rel=0.2)
    plain = called_here(user, *args).stdout
    assert "weights on /ckpts reach a node's memory in" in plain
    assert "seen 50 ×" in plain
    table = called_here(user, *args, "--model", "70b", "--gpu", "h200").stdout
    assert "70b parameters on h200 with vllm" in table
    assert "not known" in table


def test_nothing_learned_is_shown_too(user: Workspace) -> None:
    shown = json.loads(called_here(user, "priors", "show", "--json").stdout)
    assert shown["runs"] == 0
    assert all(row["spread"] == 0.5 for row in shown["datasets"])
    assert not (user.folder / "priors").exists()


def test_a_size_means_the_same_model_everywhere(user: Workspace) -> None:
    shown = json.loads(called_here(user, "priors", "show", "--model", "7b", "--json").stdout)
    assumed = llama_like(parameter_count("7b"))
    model = shown["conditions"]["model"]
    assert model["kv_bytes_per_token"] == assumed.kv_bytes_per_token
    assert model["bytes"] == assumed.bytes


def test_a_plan_on_a_cluster_file_does_not_depend_on_what_others_ran(user: Workspace) -> None:
    cluster = user.folder / "cluster.yaml"
    cluster.write_text("nodes: [{name: n1, gpus: 2, gpu_type: h100}]\n")
    suite = user.folder / "given.yaml"
    suite.write_text("datasets: [{name: long-text, task: long-text, items: 500}]\n")
    args = (tiny_model(), "--suite", suite, "--cluster", cluster, "--dry-run", "--json")
    before = called_here(user, *args).stdout
    learn(user)
    assert called_here(user, *args).stdout == before
    (dataset,) = json.loads(before)["datasets"]
    assert dataset["spread"] == 0.5
    suite.write_text("datasets: [{name: x, items: 9, prior: {gpu_seconds: 4, spread: 0.2}}]\n")
    (dataset,) = json.loads(called_here(user, *args).stdout)["datasets"]
    assert (dataset["gpu_seconds"], dataset["spread"]) == (4, 0.2)


def mistake(user: Workspace, *args: str) -> str:
    """The one line that a command ends with; nothing is shown."""
    done = CliRunner().invoke(app, ["priors", *args], env=user.environ)
    error = done.exception
    assert isinstance(error, CoordinateError), repr(error)
    assert error.exit_status == 2
    assert done.stdout == ""
    assert "\n" not in str(error)
    return str(error)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("show", "--model", "seven"), "write it like 350m, 7b"),
        (("show", "--model", "7b", "--checkpoint", "x"), "not both"),
    ],
)
def test_mistakes_are_named(user: Workspace, args: tuple[str, ...], words: str) -> None:
    assert words in mistake(user, *args)
