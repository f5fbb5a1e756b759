"""Output and refusals of a dry run, within this process."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml
from tests.tiny import tiny_model
from typer.testing import CliRunner

from coordinate_eval.coordinator.cli.app import app
from coordinate_eval.coordinator.run.claiming import pullers
from coordinate_eval.coordinator.run.records import MOST_PORTIONS, Run
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
    """Return the output of a dry run of one dataset on one node."""
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

    def counted(run: Run, kind: str) -> int:
        found.append(sum(len(run.portions(shard)) for shard in run.shards_with_questions()))
        return 1

    monkeypatch.setattr(pullers, "useful_pullers", counted)
    prior = {"gpu_seconds": 1e6, "cpu_seconds": 1e12}
    assert "metric0" in dry("--verbose", dataset={"name": "a", "items": 100_000, "prior": prior})
    assert MOST_PORTIONS <= found[0] < 2 * MOST_PORTIONS


def test_a_sample_is_said_with_the_command_that_asks_the_rest() -> None:
    said = "1 dataset in part; `resume RUN --full` asks what is left"
    assert said in dry(dataset=DATASET | {"sample": 0.3})
    assert "in part" not in dry()


def everything(folder: Path) -> dict[str, str]:
    """Files and links below a folder, and where they lead or what they say."""
    return {
        str(path.relative_to(folder)): str(path.readlink()) if path.is_symlink() else ""
        for path in folder.rglob("*")
        if path.is_symlink() or not path.is_dir()
    }


@pytest.mark.parametrize(
    ("html", "scripts", "words"),
    [
        ("plan.html", "notes", "not empty"),
        ("notes/thesis.tex", "new", "not the page of a plan"),
        ("plan.html", ".", "not empty"),
        ("plan.html", "circle", "cannot be written"),
        ("notes", "new", "cannot be written: it is a folder"),
        ("notes/thesis.tex/below", "new", "cannot be written"),
        ("plan.html", "notes/thesis.tex", "is a file"),
    ],
)
def test_where_one_cannot_go_none_is_written(
    place: Path, html: str, scripts: str, words: str
) -> None:
    (place / "notes").mkdir()
    (place / "notes" / "thesis.tex").write_text("mine")
    (place / "link").symlink_to("new")
    (place / "circle").symlink_to("circle")
    before = everything(place)
    with pytest.raises(UserError, match=words):
        dry("--html", html, "--scripts", scripts)
    assert everything(place) == before


def test_scripts_go_where_a_link_leads(place: Path) -> None:
    (place / "empty").mkdir()
    (place / "link").symlink_to("empty")
    dry("--scripts", "link")
    assert (place / "link").readlink() == Path("empty")
    assert len(list((place / "empty").glob("*.sh"))) == 5


def test_a_page_goes_where_a_link_leads(place: Path) -> None:
    (place / "link").symlink_to("plan.html")
    for _ in range(2):
        dry("--html", "link")
        assert everything(place) == {"link": "plan.html", "plan.html": ""}


def test_a_page_does_not_go_to_a_pipe_or_device(place: Path) -> None:
    os.mkfifo(place / "pipe")
    for file in ("pipe", "/dev/full"):
        with pytest.raises(UserError, match="not the page of a plan"):
            dry("--html", file)
    assert everything(place) == {"pipe": ""}


def test_a_suite_may_come_through_a_pipe(place: Path) -> None:
    (place / "tasks").mkdir()
    (place / "generated.yaml").write_text(
        yaml.safe_dump({"include_path": ["tasks"], "datasets": [DATASET | {"name": "piped"}]})
    )
    os.mkfifo(place / "pipe")
    writer = subprocess.Popen(["cp", "generated.yaml", "pipe"], cwd=place)
    assert json.loads(dry("--suite", "pipe", "--json"))["datasets"][0]["name"] == "piped"
    assert writer.wait() == 0
