"""Every file of `examples/` does what it says, without a cluster."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.runs import Workspace
from tests.tiny import tiny_model

from coordinate_eval.coordinator.inputs import cluster_file, settings, suite
from coordinate_eval.evaluators.base import harness_evaluator
from coordinate_eval.records import Request

EXAMPLES = Path(__file__).parents[2] / "examples"
PLANNED = ("--dry-run", "--cluster", "cluster.yaml")


@pytest.fixture
def user(tmp_path: Path) -> Workspace:
    """A user with `coordinate-eval` on PATH."""
    made = Workspace(tmp_path)
    made.environ["COORDINATE_EVAL_ENGINE_NAME"] = "vllm"
    command = tmp_path / "bin" / "coordinate-eval"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m coordinate_eval "$@"\n')
    command.chmod(0o755)
    made.environ["PATH"] = f"{command.parent}:{os.environ['PATH']}"
    return made


def call(user: Workspace, *args: object, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, args)),
        cwd=EXAMPLES,
        env=user.environ | environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )


def checkpoints(folder: Path, *steps: int) -> Path:
    for step in steps:
        shutil.copytree(tiny_model(), folder / f"step-{step}")
    return folder


def test_every_file_is_listed() -> None:
    listed = set(re.findall(r"\]\(([^)]+)\)", (EXAMPLES / "README.md").read_text()))
    there = {path.name for path in EXAMPLES.iterdir()} - {"__pycache__"}
    assert listed | {"README.md"} == there


def test_training_loop(user: Workspace, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    done = call(user, sys.executable, "after_each_save.py", "--checkpoints", saved, *PLANNED)
    assert done.returncode == 0, done.stderr
    logs = sorted(saved.glob("*.evaluation.log"))
    assert [log.name for log in logs] == ["step-100.evaluation.log", "step-200.evaluation.log"]
    for log in logs:
        assert "makespan" in log.read_text()


def test_cron_asks_once_for_each_checkpoint(user: Workspace, tmp_path: Path) -> None:
    folder = checkpoints(tmp_path / "saved", 100)
    command = ("./evaluate_new.sh", folder, "--suite", "suite.yaml", *PLANNED)
    assert "makespan" in call(user, *command).stdout
    again = call(user, *command)
    assert (again.returncode, again.stdout) == (0, "")
    checkpoints(folder, 200)
    (folder / "step-300").mkdir()  # still being saved: it is asked for again
    for _ in range(2):
        third = call(user, *command)
        assert third.returncode == 0
        assert third.stderr.count("step-300") >= 1
    marks = {
        path.name.rpartition("%")[2] for path in (tmp_path / ".coordinate-eval/asked").iterdir()
    }
    assert marks == {"lock", "step-100", "step-200"}


def test_cron_stops_where_the_scheduler_is_silent(user: Workspace, tmp_path: Path) -> None:
    folder = checkpoints(tmp_path / "saved", 100, 200)
    (tmp_path / "bin" / "coordinate-eval").write_text(
        f"#!/bin/sh\necho >>{tmp_path}/asked; exit 3\n"
    )
    assert call(user, "./evaluate_new.sh", folder).returncode == 3
    assert (tmp_path / "asked").read_text() == "\n"


def test_crontab() -> None:
    lines = (EXAMPLES / "crontab").read_text().splitlines()
    jobs = [line for line in lines if line[:1] in ("*", *"0123456789")]
    for line in (line for line in lines if line and line not in jobs):
        assert line.startswith("#") or re.fullmatch(r"[A-Z_]+=\S+", line), line
    assert [job.split()[:5] for job in jobs] == [["*/10", "*", "*", "*", "*"]]
    command = jobs[0].split(maxsplit=5)[5]
    assert "%" not in command  # cron ends the line there
    assert "./evaluate_new.sh" in shlex.split(command)
    assert (EXAMPLES / "evaluate_new.sh").stat().st_mode & 0o111


def test_sbatch_script(user: Workspace) -> None:
    script = EXAMPLES / "evaluate.sbatch"
    assert call(user, "bash", "-n", script).returncode == 0
    # Slurm reads no #SBATCH line that stands after a command.
    text = script.read_text()
    assert text.rindex("\n#SBATCH") < text.index("\nset -")
    done = call(user, "bash", script, tiny_model(), "--suite", "suite.yaml", *PLANNED)
    assert "makespan" in done.stdout, done.stderr
    assert call(user, "bash", script).returncode != 0


def test_suite_and_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = suite.load(str(EXAMPLES / "suite.yaml"))
    names = {dataset.name: dataset for dataset in loaded.datasets}
    assert names["hellaswag"].limit == 2000
    assert not {name for name in names if name.startswith("longbench")}
    monkeypatch.chdir(EXAMPLES)
    written: list[Request] = []
    evaluator = harness_evaluator(tiny_model(), loaded.include_path, "vllm", 1024)
    built = evaluator.build(names["units"], written.append)
    assert built.items == names["units"].items
    assert len(written) == 8 * 3  # a log-likelihood for each choice


def test_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [v for v in os.environ if v.startswith("COORDINATE_EVAL_")]:
        monkeypatch.delenv(variable)
    loaded, sources = settings.load({}, EXAMPLES / "config.toml")
    assert set(sources.values()) == {str(EXAMPLES / "config.toml")}
    assert loaded.slurm.partition == "gpu-low"
    assert len(loaded.slurm.setup) == 2


def test_cluster_file() -> None:
    free, busy = cluster_file.load(EXAMPLES / "cluster.yaml").free()
    assert [node.free_gpus for node in free] == [8, 4]
    assert not busy
