"""Dry runs as a user calls them: their forms, what they write, and a plan that can be replayed."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.command_line import (
    NODE,
    called_here,
    copy_of_model,
    dry,
    refused,
    user_without_slurm,
)
from tests.replay import replayed
from tests.runs import TASKS, Workspace

from coordinate_eval import __version__


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return user_without_slurm(tmp_path_factory.mktemp("user"))


def test_options_may_stand_before_or_after_the_checkpoint(user: Workspace) -> None:
    usual = json.loads(called_here(user, *dry(user, "--json")).stdout)
    _, checkpoint, *options = dry(user, "--json")
    for args in ((checkpoint, *options), (*options, checkpoint), (*options, "--", checkpoint)):
        assert json.loads(called_here(user, *args).stdout) == usual
    assert called_here(user, "--version").stdout == f"{__version__}\n"
    assert "--dry-run" in called_here(user, "run", "--help").stdout


def test_a_path_of_any_characters_is_shown_and_runs_nothing(
    user: Workspace, tmp_path: Path
) -> None:
    checkpoint = copy_of_model(tmp_path / "step 1 \"best\" of 'all'\n[bold]$(touch it-ran)")
    plan = json.loads(user.call(*dry(user, "--json", checkpoint=checkpoint)).stdout)
    assert plan["checkpoint"]["path"] == str(checkpoint)
    shown = user.call(*dry(user, "--verbose", checkpoint=checkpoint)).stdout
    assert "[bold]" in shown
    assert "sbatch" in shown or "#SBATCH" in shown
    assert not (TASKS / "it-ran").exists()


def test_a_dry_run_writes_what_it_shows(user: Workspace, tmp_path: Path) -> None:
    page, folder = tmp_path / "plan.html", tmp_path / "scripts"
    shown = called_here(user, *dry(user, "--verbose", "--html", page, "--scripts", folder)).stdout
    scripts = sorted(folder.glob("*.sh"))
    assert [s.stem.rpartition(".")[2].split("-", 1)[1] for s in scripts] == [
        "keep0-n1",
        "metric0",
        "score0",
        "super1",
        "trial0-n1",
    ]
    for script in scripts:
        assert script.read_text() in shown
        command = script.with_suffix(".argv").read_text()
        assert f"--job-name={script.stem}" in command
    text = page.read_text()
    assert text.startswith("<!DOCTYPE html>")
    assert "makespan" in text
    assert "what runs when" in shown
    assert "#SBATCH" not in (brief := called_here(user, *dry(user)).stdout)
    assert "5 jobs: --verbose prints the scripts" in brief
    words = ("--html", "not the page of a plan")
    refused(user, *dry(user, "--html", user.folder / "given.yaml"), words=words)


@pytest.mark.parametrize(
    ("cluster", "suite", "options"),
    [
        ({"nodes": [NODE]}, "given", []),
        ({"nodes": [NODE], "metric_cpus": 3, "engine_start_seconds": 0}, "given", []),
        ({"nodes": [NODE | {"name": f"n{i}", "free_gpus": i} for i in range(1, 6)]}, "base", []),
        ({"nodes": [NODE], "storage_gigabits_per_node": 0.01}, "base", ["--max-gpus", "3"]),
        ({"nodes": [NODE | {"cpus": 9}], "metric_cpus": 1}, "given", ["--nodes", "1"]),
    ],
)
def test_a_plan_can_be_replayed(
    user: Workspace, cluster: dict[str, Any], suite: str, options: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump(cluster))
    name = user.folder / "given.yaml" if suite == "given" else suite
    plan = json.loads(
        called_here(user, *dry(user, "--suite", name, "--cluster", file, *options, "--json")).stdout
    )
    estimate = plan["estimate"]
    for key, value in replayed(plan, cluster).items():
        assert estimate[key] == pytest.approx(value, rel=1e-3, abs=1e-9), key
    assert estimate["lower_bound_seconds"] <= estimate["makespan_seconds"] * 1.000001
