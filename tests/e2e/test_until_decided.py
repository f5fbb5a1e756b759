"""Runs that end before all items are asked, killed on the way, and then asked in full."""

import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.own_tasks import write_task
from tests.runs import TASKS, Workspace, kill, results, scores, times_answered, until
from tests.tiny import tiny_model

ITEMS = {"long": 1500, "left": 200, "right": 160}


@pytest.fixture(scope="module")
def suite(user: Workspace) -> Path:
    """Return a suite of a task that is asked in three stages, and a group in two."""
    folder = user.folder / "staged tasks"
    folder.mkdir()
    for name, items in ITEMS.items():
        draws = random.Random(name)
        rows = [{"q": f"{name} {n}", "label": draws.randrange(2)} for n in range(items)]
        write_task(
            folder,
            rows,
            name,
            output_type="multiple_choice",
            doc_to_text="{{q}}",
            doc_to_choice=["yes", "no"],
            doc_to_target="label",
            metric_list=[{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
        )
    metric = {"metric": "acc", "weight_by_size": False}
    group = {"group": "both", "task": ["left", "right"], "aggregate_metric_list": [metric]}
    (folder / "both.yaml").write_text(yaml.safe_dump(group))
    path = user.folder / "staged.yaml"
    datasets = [{"name": name, "task": name} for name in ("long", "both")]
    path.write_text(yaml.safe_dump({"include_path": [str(folder)], "datasets": datasets}))
    return path


@pytest.fixture(scope="module")
def whole(user: Workspace, suite: Path) -> Path:
    run = user.folder / "whole"
    relative = os.path.relpath(run, TASKS)  # the folder of a user's commands
    user.call("run", tiny_model(), "--suite", suite, "--run-dir", relative, "--json")
    return run


def _until_decided(run: Path, suite: Path, whole: Path) -> Sequence[object]:
    return ["run", tiny_model(), "--suite", suite, "--run-dir", run, "--until-decided", whole]


def _has_answered(run: Path, items: dict[str, int]) -> bool:
    """Return whether all shards up to these positions are published."""
    if not (run / "planned.json").exists():
        return False
    shards = json.loads((run / "planned.json").read_text())["shards"]
    wanted = (each for each in shards if each["stop"] <= items[each["dataset"]])
    names = (f"outputs/{s['dataset']}/{s['start']}-{s['stop']}.jsonl" for s in wanted)
    return all((run / name).exists() for name in names)


def test_a_run_stops_when_it_is_decided_and_is_completed_by_reusing_its_responses(
    user: Workspace, suite: Path, whole: Path
) -> None:
    run, pause = user.folder / "decided", user.folder / "pause of decided"
    engine = json.dumps({"seconds_per_request": 0.04, "pause": str(pause)})
    most = user.folder / "most.yaml"  # a sample in which all is decided
    most.write_text(f"{{extends: {suite}, datasets: [{{name: long, sample: 0.8}}]}}")
    started = user.start(*_until_decided(run, most, whole), "--engine-args", engine)
    until(lambda: _has_answered(run, {"long": 625, "both": 360}), "the second stage", run)
    pause.touch()  # from now on engines answer their first request at most
    kill([started.pid])
    started.communicate()
    early: dict[str, Any] = json.loads(user.call("resume", run, "--json").stdout)

    # Equal answers, so there is no difference.
    assert early["compared"]["verdict"] == "no difference"
    assert not early["complete"] and not early["missing"]
    assert early["stopped"] == {"long": {"items": 625, "of_items": 1500}}
    assert early["items"]["long"] == 625
    assert early["n_samples"]["long"] == {"original": 1500, "effective": 625}
    assert early["results"]["both"] == scores(whole)["both"]
    assert early["results"]["long"] != scores(whole)["long"]
    assert len(times_answered(run)) < len(times_answered(whole))
    shown = json.loads(user.call("status", run, "--json").stdout)
    assert (shown["state"], shown["datasets"]["long"]["state"]) == ("decided", "stopped")
    compared = json.loads(user.call("compare", whole, run, "--json").stdout)
    (long,) = (each for each in compared["datasets"] if each["name"] == "long")
    assert (long["difference"], long["items"], long["of_items"]) == (0.0, 625, 1500)
    assert "stopped early: no difference from" in user.call("scores", run).stdout

    # Asked again it stays as it is; in full it asks each item that is left, once.
    user.call("resume", run)
    assert results(run)["stopped"]
    pause.unlink()
    user.call("resume", run, "--full", "--json")
    assert results(run)["complete"] and not results(run)["stopped"]
    assert scores(run) == scores(whole)
    assert times_answered(run) == times_answered(whole)
    assert set(times_answered(run).values()) == {1}


def test_a_sample_is_completed_by_reusing_its_responses(
    user: Workspace, suite: Path, whole: Path
) -> None:
    run = user.folder / "sample"
    sampled = user.folder / "sampled.yaml"
    sampled.write_text(yaml.safe_dump({"extends": str(suite), "defaults": {"sample": 0.3}}))
    how = ["run", tiny_model(), "--suite", sampled, "--run-dir", run]
    plan: dict[str, Any] = json.loads(user.call(*how, "--dry-run", "--json").stdout)
    assert {each["name"]: each["items"] for each in plan["datasets"]} == {"long": 450, "both": 108}
    user.call(*how)
    early = results(run)

    assert early["complete"] and early["compared"] is None
    assert early["stopped"] == {
        "long": {"items": 450, "of_items": 1500},
        "both": {"items": 108, "of_items": 360},
    }
    assert early["n_samples"]["long"] == {"original": 1500, "effective": 450}
    assert len(times_answered(run)) == 2 * (450 + 108)
    shown = json.loads(user.call("status", run, "--json").stdout)
    assert shown["state"] == "complete" and shown["responses"] == shown["requests"] == 1116
    assert shown["datasets"]["long"]["of_items"] == 1500
    assert "a sample of 30% of the requests" in user.call("scores", run).stdout
    compared = json.loads(user.call("compare", whole, run, "--json").stdout)
    (long,) = (each for each in compared["datasets"] if each["name"] == "long")
    assert (long["difference"], long["items"], long["of_items"]) == (0.0, 450, 1500)
    lines = user.call("samples", run, "--dataset", "long", "--limit", "3", "--json").stdout
    assert len([json.loads(line) for line in lines.splitlines()]) == 3
    user.call("rescore", run, "--wait")
    (again,) = user.folder.glob("*-rescored-1")
    assert scores(again) == scores(run)
    assert results(again)["stopped"] == early["stopped"]

    assert "--full` asks those that are left" in user.call("resume", run).stderr
    user.call("resume", run, "--full")
    assert results(run)["complete"] and not results(run)["stopped"]
    assert scores(run) == scores(whole)
    assert times_answered(run) == times_answered(whole)
    assert set(times_answered(run).values()) == {1}


def test_unlike_runs_are_refused_as_they_are_compared(
    user: Workspace, suite: Path, whole: Path
) -> None:
    run = user.folder / "unlike"
    other = user.folder / "other.yaml"
    other.write_text(yaml.safe_dump({"extends": str(suite), "defaults": {"num_fewshot": 1}}))
    refused = user.call(*_until_decided(run, other, whole), status=2).stderr
    assert "these runs have asked differently, so their scores say little" in refused
    assert "num fewshot None and 1" in refused
    nothing = user.call(*_until_decided(run, suite, user.folder / "nothing"), status=2).stderr
    assert "no run" in nothing
    assert not run.exists()
