"""Prompts are built before a run needs them; what fails is named, and the rest is there."""

import json
import os
import shutil
from pathlib import Path

import pytest
import yaml
from tests.runs import TASKS, Workspace
from tests.tiny import need, tiny_model


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    need("lm_eval", "harness")
    made = Workspace(tmp_path_factory.mktemp("user"))
    made.environ["COORDINATE_EVAL_CLUSTER"] = "local"
    return made


def suite(user: Workspace, **tasks: str) -> Path:
    path = user.folder / "suite.yaml"
    datasets = [{"name": name, "task": task} for name, task in tasks.items()]
    path.write_text(yaml.safe_dump({"include_path": [str(TASKS)], "datasets": datasets}))
    return path


def test_what_fails_is_named_and_the_rest_is_there(user: Workspace) -> None:
    data = user.folder / "gone.yaml"
    data.write_text(
        (TASKS / "tiny_cloze.yaml")
        .read_text()
        .replace("tiny_cloze", "gone")
        .replace("data/cloze.jsonl", str(user.folder / "nowhere.jsonl"))
    )
    wanted = suite(user, tiny_cloze="tiny_cloze", gone=str(data), tiny_sums="tiny_sums")
    done = user.call("prefetch", tiny_model(), "--suite", wanted, "--jobs", 2, status=1)
    lines = done.stderr.splitlines()
    assert [line.partition(":")[0] for line in lines[:3]] == ["1 of 3", "2 of 3", "3 of 3"]
    assert f"the prompts of 2 of 3 datasets are in {user.folder / 'cache'}" in lines
    assert "dataset 'gone': task 'gone'" in done.stderr
    again = user.call("prefetch", tiny_model(), "--suite", wanted, "--skip", "gone", "--json")
    assert json.loads(again.stdout)["items"] == {"tiny_cloze": 10, "tiny_sums": 11}
    assert "1 of" not in again.stderr  # nothing was built


def test_a_dry_run_shows_no_warnings_of_the_harness(user: Workspace) -> None:
    task = user.folder / "unsaid.yaml"
    said = (TASKS / "tiny_cloze.yaml").read_text().replace("tiny_cloze", "unsaid")
    said = said.replace("data/", f"{TASKS}/data/").replace("loglikelihood", "generate_until")
    task.write_text(said.partition("metric_list")[0])  # so the harness says what it takes instead
    args = ("run", tiny_model(), "--suite", suite(user, unsaid=str(task)), "--dry-run")
    quiet = user.call(*args)
    assert "lm_eval" not in quiet.stderr
    assert "unsaid" not in quiet.stderr
    shutil.rmtree(user.folder / "cache" / f"requests-{os.geteuid()}")
    assert "generation_kwargs" in user.call(*args, "--verbose").stderr


def test_which_checkpoint(user: Workspace) -> None:
    none = user.call("prefetch", "--suite", suite(user, tiny_cloze="tiny_cloze"), status=2)
    assert "give a checkpoint CKPT" in none.stderr


def test_an_estimate_is_of_a_dry_run_without_a_plan(user: Workspace, tmp_path: Path) -> None:
    wanted = suite(user, tiny_cloze="tiny_cloze")
    alone = user.call("run", tiny_model(), "--suite", wanted, "--estimate", status=2)
    assert "add --dry-run" in alone.stderr
    plan = tmp_path / "plan.json"
    both = user.call(
        "run", tiny_model(), "--suite", wanted, "--plan", plan, "--estimate", "--dry-run", status=2
    )
    assert "leave out one of them" in both.stderr


def test_an_estimate_builds_nothing(user: Workspace) -> None:
    suite = user.folder / "catalogue.yaml"
    suite.write_text("datasets: [{name: mmlu, task: mmlu}, {name: gsm8k, task: gsm8k}]\n")
    cache = user.folder / "empty cache"
    args = ("run", tiny_model(), "--suite", suite, "--dry-run", "--estimate")
    plan = json.loads(user.call(*args, "--json", COORDINATE_EVAL_CACHE_DIR=str(cache)).stdout)
    assert plan["estimated"] is True
    assert {d["name"]: d["items"] for d in plan["datasets"]} == {"mmlu": 14042, "gsm8k": 1319}
    assert not cache.exists()
    assert "an estimate" in user.call(*args, COORDINATE_EVAL_CACHE_DIR=str(cache)).stdout
    # It is not submitted as if it had been reviewed.
    file = user.folder / "plan.json"
    file.write_text(json.dumps(plan))
    refused = user.call("run", "--suite", suite, "--plan", file, status=2)
    assert "is an estimate" in refused.stderr
