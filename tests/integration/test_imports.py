"""Help and plans start fast: they import nothing heavy."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.runs import PATIENCE_SECONDS, Workspace
from tests.tiny import tiny_model

HEAVY = ("torch", "ray", "vllm", "lm_eval", "transformers", "datasets", "numba", "scipy", "pandas")

PROBE = """
import atexit, json, sys
from coordinate_eval.coordinator.cli.app import main
report = sys.argv.pop(1)
def tell():
    with open(report, "w") as file:
        json.dump(sorted({name.partition(".")[0] for name in sys.modules}), file)
atexit.register(tell)
main()
"""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    made = Workspace(tmp_path_factory.mktemp("user"))
    nodes = [{"name": f"n{i}", "gpus": 8, "gpu_type": "h200"} for i in range(4)]
    (made.folder / "cluster.yaml").write_text(yaml.safe_dump({"nodes": nodes}))
    (made.folder / "given.yaml").write_text(
        "datasets:\n- {name: big, items: 500, prior: {gpu_seconds: 90, cpu_seconds: 400}}\n"
    )
    return made


def loaded(workspace: Workspace, *args: object) -> tuple[set[str], str]:
    """The packages that a command has imported when it ends, and its output."""
    report = workspace.folder / "loaded.json"
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(report), *map(str, args)],
        env=workspace.environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    return set(json.loads(report.read_text())), done.stdout


def plan_args(workspace: Workspace, suite: str) -> tuple[object, ...]:
    """A dry run on a cluster file."""
    cluster = workspace.folder / "cluster.yaml"
    return tiny_model(), "--suite", suite, "--cluster", cluster, "--dry-run", "--json"


@pytest.mark.parametrize(
    "args",
    [["--help"], ["run", "--help"], ["--version"], ["config"], ["suites"], ["suites", "base"]],
)
def test_asking_about_the_program_is_light(workspace: Workspace, args: list[str]) -> None:
    packages, output = loaded(workspace, *args)
    assert packages.isdisjoint(HEAVY)
    assert packages.isdisjoint({"numpy", "safetensors"})
    assert output


@pytest.mark.parametrize("suite", ["base", "given"])
def test_a_plan_is_light_and_one_document(workspace: Workspace, suite: str) -> None:
    name = "base" if suite == "base" else str(workspace.folder / "given.yaml")
    packages, output = loaded(workspace, *plan_args(workspace, name))
    assert packages.isdisjoint(HEAVY)
    assert json.loads(output)["suite"]["name"] == suite


@pytest.mark.parametrize("module", ["cli.launch.run", "supervisor.loop", "workers.builder"])
def test_what_submits_supervises_and_has_prompts_built_is_light(module: str) -> None:
    script = f"import sys, coordinate_eval.coordinator.{module}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert {name.partition(".")[0] for name in done.stdout.split()}.isdisjoint(HEAVY)


def test_jobs_have_nothing_that_people_need() -> None:
    module = "coordinate_eval.coordinator.cli.job_commands"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, {module}; print(*sys.modules)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert {name.partition(".")[0] for name in done.stdout.split()}.isdisjoint({"rich", "typer"})


def test_metrics_of_the_library_are_loaded_without_models() -> None:
    pytest.importorskip("evaluate")
    script = (
        "import sys; from coordinate_eval.evaluators.harness import session;"
        "session.refuse_scripts(); import evaluate; evaluate.load; print(*sys.modules);"
        "import transformers"  # it is there for whoever wants it
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    packages = {name.partition(".")[0] for name in done.stdout.split()}
    assert packages.isdisjoint({"torch", "transformers"})


def test_a_plan_reads_and_writes_nothing_else(workspace: Workspace) -> None:
    before = everything(workspace.folder)
    done = workspace.call(*plan_args(workspace, "base"))
    assert json.loads(done.stdout)["schema"] == "coordinate-eval/plan@1"
    assert done.stderr == ""
    assert everything(workspace.folder) == before


def everything(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))
