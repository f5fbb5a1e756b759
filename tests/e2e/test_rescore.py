"""`coordinate-eval rescore`: another metric, the same responses, no GPU; and changed prompts."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.runs import TASKS, Workspace, published, scores
from tests.scoring import KEEPS, write_metric
from tests.tiny import tiny_model

ALWAYS_RIGHT = """
def score(doc, results):
    return {"acc": 1.0}
"""


@pytest.fixture(scope="module")
def tasks(user: Workspace) -> Path:
    folder = user.folder / "own tasks"
    folder.mkdir()
    write_metric(folder, "own", KEEPS, items=8)
    return folder


@pytest.fixture(scope="module")
def finished(user: Workspace, tasks: Path) -> Path:
    run = user.folder / "finished"
    suite = user.folder / "rescored.yaml"
    datasets = [{"name": name, "task": name} for name in ("own", "tiny_code", "tiny_choice")]
    content = {"include_path": [str(TASKS), str(tasks)], "datasets": datasets}
    suite.write_text(yaml.safe_dump(content))
    user.call("run", tiny_model(), "--suite", suite, "--run-dir", run, "--json")
    return run


def _digest(folder: Path) -> str:
    """A digest of all that a user may miss of a run: its logs grow."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    kept = [path for path in files if "logs" not in path.parts]
    told = [f"{path} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in kept]
    return "\n".join(told)


def _rescored(user: Workspace, run: Path, *args: str, status: int = 0) -> dict[str, Any]:
    before = {path.name for path in run.parent.glob("*-rescored-*")}
    user.call("rescore", run, *args, "--json", status=status)
    (name,) = {path.name for path in run.parent.glob("*-rescored-*")} - before
    found: dict[str, Any] = json.loads((run.parent / name / "results.json").read_text())
    return found | {"root": run.parent / name}


def test_scores_anew_stand_beside_the_old_ones(
    user: Workspace, tasks: Path, finished: Path
) -> None:
    before, old = _digest(finished), scores(finished)
    same = _rescored(user, finished)
    assert same["complete"]
    assert same["results"] == old
    assert same["rescored"] == {
        "dir": str(finished.resolve()), "changed": {}, "not_scored_before": [], "judges": {},
    }  # fmt: skip
    assert same["ledger"]["total_gpu_seconds"] == 0
    assert not (same["root"] / "trials").exists()
    assert {p.stat().st_ino for p in published(same["root"])} == {
        p.stat().st_ino for p in published(finished)
    }
    (tasks / "own_metric.py").write_text(ALWAYS_RIGHT)
    other = _rescored(user, finished, "--only", "own")
    assert other["results"].keys() == {"own"}
    assert other["rescored"]["changed"] == {
        "own": {"own": {"acc,none": {"before": old["own"]["acc,none"], "now": 1.0}}}
    }
    shown = user.call("status", other["root"]).stdout
    assert "changed since" in shown
    assert f"{1 - old['own']['acc,none']:+.4f}" in shown
    assert _digest(finished) == before


def test_changed_prompts_are_refused(user: Workspace, tasks: Path, finished: Path) -> None:
    task = tasks / "own task.yaml"
    written = task.read_text()
    before = _digest(finished)
    task.write_text(written.replace('"doc_to_text": "q"', '"doc_to_text": "{{q}} again"'))
    try:
        found = _rescored(user, finished, "--only", "own,tiny_choice", status=1)
    finally:
        task.write_text(written)
    assert found["results"].keys() == {"tiny_choice"}
    assert "answers another prompt" in found["missing"]["own"]
    assert _digest(finished) == before


def test_a_run_without_responses_is_refused(user: Workspace, finished: Path) -> None:
    done = user.call("rescore", finished, "--only", "nothing", status=2)
    assert "nothing" in done.stderr
