"""What a dry run prints and writes, and what it refuses to, run within this process."""

import os
from pathlib import Path

import pytest
import yaml
from tests.tiny import tiny_model
from typer.testing import CliRunner

from coordinate_eval.coordinator import jobs
from coordinate_eval.coordinator.cli import app
from coordinate_eval.coordinator.run import MOST_PORTIONS, Run
from coordinate_eval.errors import UserError

NODE = {"name": "n1", "gpus": 8, "gpu_type": "h200"}
DATASET = {"name": "a", "items": 50, "prior": {"gpu_seconds": 100, "cpu_seconds": 10}}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, of a user who has set nothing."""
    for name in [name for name in os.environ if name.startswith("COORDINATE_EVAL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def dry(*options: object, dataset: dict[str, object] = DATASET) -> str:
    """What a dry run of one dataset on one node prints."""
    Path("../suite.yaml").write_text(yaml.safe_dump({"datasets": [dataset]}))
    Path("../cluster.yaml").write_text(yaml.safe_dump({"nodes": [NODE]}))
    given = ["--suite", "../suite.yaml", "--cluster", "../cluster.yaml", "--dry-run", *options]
    ran = CliRunner().invoke(app, ["run", str(tiny_model()), *map(str, given)])
    if isinstance(ran.exception, UserError):
        raise ran.exception
    assert ran.exit_code == 0, ran.output
    return ran.stdout


def test_long_metrics_have_no_more_portions_than_a_run_would(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[int] = []

    def counted(run: Run) -> int:
        found.append(sum(len(run.portions(shard)) for shard in run.asking()))
        return 1

    monkeypatch.setattr(jobs, "pullers", counted)
    prior = {"gpu_seconds": 1e6, "cpu_seconds": 1e12}
    assert "metric0" in dry(dataset={"name": "a", "items": 100_000, "prior": prior})
    assert MOST_PORTIONS <= found[0] < 2 * MOST_PORTIONS
