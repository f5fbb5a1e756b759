"""The command line: what is wrong is said once and clearly, and nothing is left behind."""

import re
from pathlib import Path

import pytest
import yaml
from tests.command_line import NODE, dry, refused, refused_here, user_without_slurm
from tests.runs import TASKS, Workspace
from tests.tiny import tiny_model
from typer.testing import CliRunner

from coordinate_eval.coordinator.cli.app import app
from coordinate_eval.errors import RecordError


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return user_without_slurm(tmp_path_factory.mktemp("user"))


def test_a_task_without_items_is_refused(user: Workspace, tmp_path: Path) -> None:
    (tmp_path / "empty.json").write_text("[]")
    (tmp_path / "hollow.yaml").write_text(
        f"task: hollow\ndataset_path: json\ndataset_kwargs:\n  data_files:\n"
        f"    test: {tmp_path / 'empty.json'}\noutput_type: loglikelihood\ntest_split: test\n"
        "doc_to_text: '{{a}}'\ndoc_to_target: '{{b}}'\nmetric_list: [{metric: acc}]\n"
    )
    suite = tmp_path / "suite.yaml"
    suite.write_text(f"include_path: ['{tmp_path}']\ndatasets: [hollow]\n")
    refused_here(user, *dry(user, "--suite", suite), words=("hollow",))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nodes: []", ("nodes", "at least 1")),
        (yaml.safe_dump({"nodes": [NODE, NODE]}), ("n1 is listed twice",)),
        (yaml.safe_dump({"nodes": [NODE | {"gpus": -1}]}), ("nodes.0.gpus",)),
        (yaml.safe_dump({"nodes": [NODE | {"free_gpus": 9}]}), ("free_gpus is 9, but gpus is 8",)),
        (yaml.safe_dump({"nodes": [NODE | {"memory_gib": float("nan")}]}), ("memory_gib",)),
        (yaml.safe_dump({"nodes": [NODE | {"color": "red"}]}), ("nodes.0.color",)),
        (yaml.safe_dump({"nodes": [NODE], "speed": 3}), ("speed",)),
        (yaml.safe_dump({"nodes": [NODE], "storage_gigabits_per_node": 0}), ("storage_gigabits",)),
        (yaml.safe_dump({"nodes": [NODE], "engine_start_seconds": -1}), ("engine_start_seconds",)),
        (yaml.safe_dump({"nodes": [NODE], "metric_cpus": 0}), ("metric_cpus",)),
        (yaml.safe_dump({"nodes": [NODE | {"gpu_memory_gib": 1e-5}]}), ("GPU memory", "1e-05")),
        (yaml.safe_dump({"nodes": [NODE | {"memory_gib": 2}]}), ("no node has room", "n1")),
        (yaml.safe_dump({"nodes": [NODE | {"gpus": True}]}), ("nodes.0.gpus", "integer")),
        (yaml.safe_dump({"nodes": [NODE | {"gpus": 1_000_000}]}), ("nodes.0.gpus", "1024")),
        ("nodes: [{name: n, gpus: 1" + "0" * 400 + "}]", ("nodes.0.gpus", "1024")),
        ("nodes: [{name: n, gpus: 1" + "0" * 5000 + "}]", ("is not YAML", "digits")),
        ("nodes: [{name: n, gpus: 1, cpus: 2026-99-99}]", ("is not YAML", "month")),
        ("nodes: [{name: n, gpus: 1, memory_gib: 1.0e+300}]", ("nodes.0.memory_gib", "1000000")),
        ("storage_gigabits_per_node: 1.0e-300\nnodes: [{name: n, gpus: 1}]", ("0.001",)),
        ("engine_start_seconds: 1.0e+300\nnodes: [{name: n, gpus: 1}]", ("engine_start_seconds",)),
        ("nodes: [{name: '', gpus: 1}]", ("nodes.0.name",)),
        ("nodes: [{name: a/b, gpus: 1}]", ("nodes.0.name",)),
        ('nodes: [{name: "a\\n", gpus: 1}]', ("nodes.0.name",)),
        ('nodes: [{name: "a\\u202eb", gpus: 1}]', ("nodes.0.name",)),
        ("nodes: [{name: a, gpus: 1}]\nnodes: []", ("line 2", "key 'nodes' is given twice")),
        ("[" * 1_000_000, ("is not YAML", "nested too deeply")),
        ("nodes: [\0]", ("is not YAML", "characters")),
        ("nodes: {", ("is not YAML", "line ")),
        ("- a", ("must be a mapping",)),
        ("", ("must be a mapping",)),
        ("!!python/object/apply:os.system [touch it-ran]", ("is not YAML",)),
    ],
)
def test_bad_cluster_files_are_refused(
    user: Workspace, text: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    refused_here(user, *dry(user, "--cluster", file), words=words)
    assert not Path("it-ran").exists()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--suite", "no-such-suite"], ("no-such-suite", "base")),
        (["--suite", "x" * 400], ("no suite",)),
        (["--cluster", "absent.yaml"], ("absent.yaml cannot be read",)),
        (["--cluster", "slrum"], ("cluster 'slrum' is unknown", "auto, slurm, local, ray, or a")),
        (["--nodes", "0"], ("--nodes must be at least 1",)),
        (["--nodes", "n1,n7"], ("n7",)),
        (["--nodes", "n[3-1]"], ("3-1 counts backwards",)),
        (["--nodes", ""], ("names no node",)),
        (["--max-gpus", "0"], ("max_gpus", "command line")),
        (["--max-gpus", "-1"], ("max_gpus", "command line")),
        (["--max-gpus", "many"], ("--max-gpus", "valid integer")),
        (["--engine", "nonsense"], ("engine.name on the command line", "must be 'vllm'")),
        (["--engine-args", "{x"], ("--engine-args", "not JSON")),
        (["--engine-args", "[1]"], ("--engine-args", "JSON object")),
        (["--engine-args", '{"a": NaN}'], ("--engine-args", "NaN")),
        (["--engine-args", '{"a":' * 100_000], ("--engine-args", "not JSON")),
        (["--engine-args", r'{"a": "\ud800"}', "--json"], ("engine.args on the command line",)),
        (["--no-such-option"], ("--no-such-option",)),
        (["--average", "last:2", "--weights", "1,2"], ("takes one checkpoint", "name each")),
        (["--average", "last:2", "another"], ("takes one checkpoint",)),
        (["--average", "last:1"], ("must be last:N",)),
    ],
)
def test_bad_options_are_refused(user: Workspace, args: list[str], words: tuple[str, ...]) -> None:
    refused_here(user, *dry(user, *args), words=words)


def test_a_bad_variable_of_the_environment_is_refused(user: Workspace) -> None:
    words = ("max_gpus", "environment")
    refused_here(user, *dry(user), words=words, COORDINATE_EVAL_MAX_GPUS="many")


def test_a_cluster_file_is_no_cluster(user: Workspace) -> None:
    refused_here(user, *(a for a in dry(user) if a != "--dry-run"), words=("add --dry-run",))


@pytest.mark.parametrize("command", ["status", "resume", "cancel"])
def test_a_run_that_is_not_there_is_refused(user: Workspace, command: str) -> None:
    refused_here(user, command, words=("no runs under", "runs"))
    refused_here(user, command, "nobody's", words=("nobody's",))
    refused_here(user, command, "x" * 400, words=("no run",))


@pytest.mark.parametrize("command", ["status", "resume", "cancel"])
@pytest.mark.parametrize("text", ["", '{"id": "a-1', '{"id": 3}'])
def test_a_torn_run_record_is_said_in_one_line(
    user: Workspace, command: str, text: str, tmp_path: Path
) -> None:
    (tmp_path / "run.json").write_text(text)
    ran = CliRunner().invoke(app, [command, str(tmp_path)], env=user.environ)
    assert isinstance(ran.exception, RecordError)
    assert ran.exception.exit_status == 1
    assert re.fullmatch(
        r".*/run\.json cannot be read as Run: .*: restore a whole copy.*", str(ran.exception)
    )
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_places_that_are_no_run_directory_are_refused(user: Workspace, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    args = ("run", tiny_model(), "--suite", user.folder / "given.yaml", "--run-dir")
    refused_here(user, *args, tmp_path / "file", words=("is a file",))
    refused_here(user, *args, TASKS, words=("not a run directory", "--run-dir"))
    refused_here(user, *args, tmp_path / ("x" * 300), words=("run directory",))
    refused_here(user, *args, "/proc/run", words=("/proc/run cannot be made", "--run-dir"))


def test_a_dataset_without_a_task_is_planned_but_not_run(user: Workspace) -> None:
    args = ("run", tiny_model(), "--suite", user.folder / "given.yaml")
    refused(user, *args, words=("dataset big: no task", "A dry run on a cluster file"))
    assert "left out of a run: big, long, code (no task)" in user.call(*dry(user)).stderr


def test_a_wrong_slurm_configuration_is_said_and_not_worked_around(user: Workspace) -> None:
    lost = str(user.folder / "no" / "slurm.conf")
    for cluster in ("auto", "slurm"):
        args = ("run", tiny_model(), "--suite", user.folder / "given.yaml", "--cluster", cluster)
        message = refused(user, *args, words=("SLURM_CONF",), SLURM_CONF=lost)
        assert lost in message
        assert "ray" not in message.lower()


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("coordinate-eval st", ["status"]),
        ("coordinate-eval /ckpt --sui", ["--suite"]),
        ("coordinate-eval --suite base --dr", ["--dry-run"]),
        ("coordinate-eval priors sh", ["show"]),
    ],
)
def test_completion_in_bash(typed: str, completed: list[str]) -> None:
    asked = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    asked["_COORDINATE_EVAL_COMPLETE"] = "complete_bash"
    ran = CliRunner().invoke(app, [], env=asked, prog_name="coordinate-eval")
    assert ran.stdout.split() == completed


def test_a_misspelled_command_is_no_checkpoint(user: Workspace, tmp_path: Path) -> None:
    refused_here(user, "statu", words=("no such command or checkpoint: statu", "status?"))
    refused_here(user, "nothing-like-it", words=("nothing-like-it does not exist",))


def test_settings_in_a_pipe_are_whole_lines(user: Workspace) -> None:
    ran = CliRunner().invoke(app, ["config"], env=user.environ | {"COLUMNS": "80"})
    lines = ran.stdout.splitlines()
    assert all(re.match(r"[a-z_.]+ = .*  # \([^)]+\) .", line) for line in lines), lines
    assert f'runs_dir = "{user.folder / "runs"}"  # (environment) ' in ran.stdout
    assert any(line.startswith("slurm.setup = [") for line in lines)
