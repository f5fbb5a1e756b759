"""A run where Slurm refuses jobs: for a while, or because they ask for no GPU."""

import json
from pathlib import Path

import pytest

from tests.runs import Workspace, scores, until
from tests.slurm.runs import Undisturbed, picky_site


@pytest.fixture
def workspace(undisturbed: Undisturbed, tmp_path: Path) -> Workspace:
    return Workspace(tmp_path).with_prompts(undisturbed.requests)


def test_a_run_waits_for_its_turn_and_needs_no_keeper(workspace: Workspace) -> None:
    full = workspace.folder / "full"
    full.touch()
    run = workspace.submit(
        workspace.suite("tiny_choice"), "--max-gpus", 2, **picky_site(workspace.folder)
    )
    until((run / "refused.json").exists, "a refusal")
    shown = workspace.call("status", run, status=0).stdout
    assert "QOSMaxSubmitJobPerUserLimit" in " ".join(shown.split())
    full.unlink()
    assert scores(run)
    assert not (run / "refused.json").exists()
    jobs = [json.loads(path.read_text()) for path in (run / "jobs").glob("*.json")]
    keepers = [job for job in jobs if "_keep" in job["job"]["argv"]]
    assert keepers
    assert all("QOSMinGRES" in job["refusal"] for job in keepers)
    nodes = [job for job in jobs if "_node" in job["job"]["argv"]]
    assert any(job["job_id"] for job in nodes)
    until(lambda: list(workspace.memory.iterdir()) == [], "nodes without weights")
