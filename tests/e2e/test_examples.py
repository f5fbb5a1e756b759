"""Every file of `examples/` does what it says, without a cluster."""

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.decisions import make_run
from tests.runs import PATIENCE_SECONDS, Workspace
from tests.tiny import tiny_model

from coordinate_eval import _files
from coordinate_eval.coordinator.inputs import cluster_file, layers
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.inputs.suites import suite
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.evaluators.harness.evaluator import HarnessEvaluator
from coordinate_eval.records import DatasetResults, Request

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
        timeout=PATIENCE_SECONDS,
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


@pytest.mark.parametrize(
    ("trainer", "saved"),
    [
        ("transformers", ["checkpoint-2", "checkpoint-4"]),
        ("lightning", ["step=2.ckpt", "step=4.ckpt"]),
        ("accelerate", ["step-2", "step-4"]),
    ],
)
def test_trainers(user: Workspace, tmp_path: Path, trainer: str, saved: list[str]) -> None:
    folder = tmp_path / "saved"
    asked = ("--checkpoints", folder, *PLANNED, "--only", "gsm8k")
    done = call(user, sys.executable, "trainers.py", trainer, *asked)
    assert done.returncode == 0, done.stderr
    logs = sorted(folder.glob("*.evaluation.log"))
    assert [log.name for log in logs] == [f"{name}.evaluation.log" for name in saved]
    for log in logs:
        assert "makespan" in log.read_text()


@pytest.fixture(scope="module")
def sharded_help() -> str:
    """What the example of trainers whose ranks write parts says of itself."""
    asked = [sys.executable, "sharded_trainers.py", "--help"]
    return subprocess.run(asked, cwd=EXAMPLES, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("trainer", "library", "saved"),
    [
        ("deepspeed", "deepspeed", ["global_step2", "global_step4"]),
        ("megatron", "megatron", ["iter_0000002", "iter_0000004"]),
        ("torchtitan", "torchtitan", ["step-2", "step-4"]),
        ("olmo-core", "olmo_core", ["step0", "step2", "step4"]),
    ],
)
def test_trainers_whose_ranks_write_parts(
    user: Workspace, tmp_path: Path, trainer: str, library: str, saved: list[str],
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    if importlib.util.find_spec(library) is None:  # they need much else: see the how-to
        assert trainer in request.getfixturevalue("sharded_help")
        return
    folder = tmp_path / "saved"
    launched = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    asked = ("--checkpoints", folder, *PLANNED, "--only", "gsm8k")
    done = call(
        user, *launched, "sharded_trainers.py", trainer, *asked,
        DS_ACCELERATOR="cpu",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    logs = sorted(folder.glob("*.evaluation.log"))
    assert [log.name for log in logs] == [f"{name}.evaluation.log" for name in saved]
    for log in logs:
        assert "makespan" in log.read_text()


def test_scores_are_logged_after_a_run(user: Workspace, tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "a run")
    run = make_run(step=100, settings=Settings(after_run=["python3", "log_scores.py"]))
    _files.write_record(run_dir.run, run)
    scored = DatasetResults(dataset="a", items=1, results={"a": {"acc,none": 0.5}})
    _files.write_record(run_dir.dataset_results("a"), scored)
    _files.write(run_dir.results, json.dumps({"complete": True}))
    done = call(user, *run.settings.after_run, run_dir.root)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"step": 100, "complete": True, "eval/a": 0.5}


def test_crontab(user: Workspace, tmp_path: Path) -> None:
    lines = (EXAMPLES / "crontab").read_text().splitlines()
    jobs = [line for line in lines if not line.startswith("#")]
    assert [job.split()[:5] for job in jobs] == [["*/10", "*", "*", "*", "*"]]
    shown = jobs[0].split(maxsplit=5)[5]
    assert "%" not in shown  # cron ends the line there
    # It is like what the command in the comment prints.
    folder, (asked,) = checkpoints(tmp_path / "run-7", 1), [x for x in lines if "--cron" in x]
    given = shlex.split(asked.partition("coordinate-eval ")[2])
    printed = call(user, "coordinate-eval", *(str(folder) if "/" in w else w for w in given))
    assert printed.returncode == 0, printed.stderr
    bash, file = shlex.split(printed.stdout)[5:]
    place = re.compile(r".*/coordinate-eval/cron/run-7-[0-9a-f]{8}\.sh")
    assert all(place.fullmatch(each) for each in (file, shlex.split(shown)[1])), file
    assert bash == shlex.split(shown)[0]
    assert f"watch {folder} --suite suite.yaml" in Path(file).read_text()


def test_sbatch_script(user: Workspace) -> None:
    script = EXAMPLES / "evaluate.sbatch"
    assert call(user, "bash", "-n", script).returncode == 0
    # Slurm reads no #SBATCH line that stands after a command.
    text = script.read_text()
    assert text.rindex("\n#SBATCH") < text.index("\nset -")
    assert call(user, "bash", script).returncode != 0


def test_suite_and_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = suite.load(str(EXAMPLES / "suite.yaml"))
    names = {dataset.name: dataset for dataset in loaded.datasets}
    assert names["hellaswag"].limit == 2000
    assert not {name for name in names if name.startswith("longbench")}
    monkeypatch.chdir(EXAMPLES)
    written: list[Request] = []
    evaluator = HarnessEvaluator(
        tokenizer=tiny_model(), max_length=1024, include_path=loaded.include_path, backend="vllm"
    )
    built = evaluator.build(names["units"], written.append)
    assert built.items == names["units"].items
    assert len(written) == 8 * 3  # a log-likelihood for each choice


def test_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [v for v in os.environ if v.startswith("COORDINATE_EVAL_")]:
        monkeypatch.delenv(variable)
    loaded, sources = layers.load({}, EXAMPLES / "config.toml")
    assert set(sources.values()) == {str(EXAMPLES / "config.toml")}
    assert loaded.slurm.partition == "gpu-low"
    assert len(loaded.slurm.setup) == 2


def test_cluster_file() -> None:
    free, busy = cluster_file.load(EXAMPLES / "cluster.yaml").free()
    assert [node.free_gpus for node in free] == [8, 4]
    assert not busy
