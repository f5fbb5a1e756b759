"""The output of `coordinate-eval suites`, and runs of a part of a suite."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.reviewer import FakeCluster
from tests.runs import TASKS, Workspace
from tests.tiny import tiny_model
from typer.testing import CliRunner, Result

from coordinate_eval.clusters.protocol import Node
from coordinate_eval.coordinator.cli.app import app
from coordinate_eval.coordinator.cli.launch import resume as continued
from coordinate_eval.coordinator.cli.launch import run as launch
from coordinate_eval.coordinator.inputs import clusters
from coordinate_eval.coordinator.report import results as report
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, read_run
from coordinate_eval.errors import UserError
from coordinate_eval.priors.shapes import llama_like, parameter_count


def call(*args: object, **environ: str) -> Result:
    """The command, within this process; what it raises on purpose is raised here."""
    ran = CliRunner().invoke(app, list(map(str, args)), env={"COLUMNS": "200", **environ})
    if isinstance(ran.exception, Exception):
        raise ran.exception
    return ran


def described(*args: object) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(call("suites", *args, "--json").stdout)
    return made


def test_the_shipped_suites_are_listed() -> None:
    rows = json.loads(call("suites", "--json").stdout)
    base = next(row for row in rows if row["suite"] == "base")
    assert (base["datasets"], base["with_task"]) == (63, 63)
    listed = call("suites")
    assert f"{base['items']:,}" in listed.stdout
    folder = Path(listed.stderr.split()[-1])
    assert (folder / "tasks" / "mt_bench.yaml").exists()


def test_a_suite_for_early_steps_costs_a_small_part_of_the_base_suite() -> None:
    early, base = described("base-early"), described("base")
    assert early["total"]["gpu_seconds"] < base["total"]["gpu_seconds"] / 10
    assert {group["group"] for group in early["groups"]} == {"answers", "solutions", "cloze"}
    assert list(early["aggregates"]) == ["answer_bits", "solution_bits", "above_guessing"]
    assert all(row["items"] for row in early["datasets"])


def test_a_suite_is_described() -> None:
    made = described("base")
    assert made["schema"] == "coordinate-eval/suite@1"
    assert made["total"]["datasets"] == len(made["datasets"]) == 63
    for key in ("items", "gpu_seconds", "metric_cpu_seconds"):
        of_rows = sum(row[key] for row in made["datasets"])
        assert made["total"][key] == pytest.approx(of_rows)
        assert sum(group[key] for group in made["groups"]) == pytest.approx(of_rows)
    rows = {row["name"]: row for row in made["datasets"]}
    assert rows["gsm8k"]["num_fewshot"] == 8
    assert rows["mt_bench"]["kind"] == "judge"
    assert rows["mt_bench"]["task"] == "mt_bench"
    shown = call("suites", "base").stdout
    assert "maths: 9 " in shown


def test_a_size_a_gpu_and_a_checkpoint_are_predicted_for() -> None:
    models = (("--model", "70b", "--gpu", "a100"), ("--model", "70b", "--tp", 8), ("--model", "7b"))
    seconds = [described("base", *args)["total"]["gpu_seconds"] for args in models]
    assert seconds == sorted(seconds, reverse=True)
    made = described("base", "--checkpoint", tiny_model())
    assert made["model"]["name"] == str(tiny_model())
    assert 50_000 < made["model"]["parameters"] < 500_000


def test_costs_of_a_suite_win_and_unknown_ones_are_said(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "datasets:\n- {name: a, task: '[red]t', group: x}\n"
        "- {name: b, items: 5, prior: {gpu_seconds: 7, cpu_seconds: 3}}\n"
    )
    made = described(tmp_path / "mine.yaml")
    assert [row["gpu_seconds"] for row in made["datasets"]] == [None, 7]
    assert made["total"] == {
        "datasets": 2, "items": 5, "gpu_seconds": 7, "metric_cpu_seconds": 3
    }  # fmt: skip
    assert [group["group"] for group in made["groups"]] == ["x", None]
    shown = call("suites", tmp_path / "mine.yaml").stdout
    assert "[red]t" in shown
    assert "?" in shown


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("base", "--model", "huge"), "'huge' is not a number of parameters"),
        (("base", "--model", "9" * 18 + "t"), "not a number of parameters"),
        (("base", "--model", "7b", "--checkpoint", "x"), "--model and --checkpoint"),
        (("bass",), "no suite 'bass'"),
        (("base", "--checkpoint", "/nowhere"), "/nowhere does not exist"),
    ],
)
def test_what_no_suite_answers_is_refused(args: tuple[str, ...], words: str) -> None:
    with pytest.raises(UserError) as caught:
        call("suites", *args)
    assert words in str(caught.value)


def test_an_unknown_gpu_is_said_to_be_unknown() -> None:
    assert "unknown: taken for an A100" in call("suites", "base", "--gpu", "x9").stdout
    assert call("suites", "--model", "7b").exit_code == 2
    assert call("suites", "base", "--tp", "0").exit_code == 2


@pytest.mark.parametrize(
    ("text", "count"),
    [("7b", 7 * 10**9), ("1.5B", 15 * 10**8), ("350m", 350 * 10**6), ("9k", 9000)],
)
def test_parameters_as_people_say_them(text: str, count: int) -> None:
    assert parameter_count(text) == count


@pytest.mark.parametrize(
    ("parameters", "layers"), [(8_030_000_000, 32), (70_600_000_000, 80), (405_000_000_000, 126)]
)
def test_assumed_shapes_are_near_those_of_llama_3(parameters: int, layers: int) -> None:
    assumed = llama_like(parameters).kv_bytes_per_token
    assert assumed == pytest.approx(2 * layers * 1024 * 2, rel=0.15)
    assert llama_like(1).kv_bytes_per_token > 0


class OneNode(FakeCluster):
    """A cluster of one node, to which nothing is submitted here."""

    name = "local"
    local = True

    def __init__(self) -> None:
        super().__init__()
        self.free = [
            Node(
                name="n1", gpus=1, free_gpus=1, gpu_type="cpu", gpu_memory_gib=80, cpus=8,
                memory_gib=64,
            )
        ]  # fmt: skip


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A user whose runs come to be, and are then left alone."""
    monkeypatch.setattr(clusters, "_MAKERS", {"local": lambda settings: OneNode()})
    for module in (launch, continued):
        monkeypatch.setattr(module, "supervise", lambda *args, **options: 0)
    made = Workspace(tmp_path)
    made.environ["COORDINATE_EVAL_CLUSTER"] = "local"
    (tmp_path / "mine.yaml").write_text(
        f"include_path: ['{TASKS}']\n"
        "datasets: [tiny_cloze, tiny_choice, {name: mt_bench, group: talk},"
        " {name: vicuna_bench, group: code}]\n"
    )
    monkeypatch.chdir(TASKS)
    return made


def start(user: Workspace, *args: object) -> tuple[Run, RunDir, str]:
    """The run that a command makes, and what it says on stderr."""
    pytest.importorskip("lm_eval")
    before = set((user.folder / "runs").glob("*"))
    suite = user.folder / "mine.yaml"
    ran = call("run", tiny_model(), "--suite", suite, *args, **user.environ)
    assert ran.exit_code == 0, ran.stderr
    (root,) = set((user.folder / "runs").glob("*")) - before
    return read_run(RunDir(root)), RunDir(root), ran.stderr


def test_what_has_no_task_is_left_out_and_said(user: Workspace) -> None:
    run, run_dir, said = start(user)
    assert [d.name for d in run.suite.datasets] == ["tiny_cloze", "tiny_choice"]
    assert list(run.left_out) == ["mt_bench", "vicuna_bench"]
    (line,) = (line for line in said.splitlines() if "left out" in line)
    assert "mt_bench" in line
    assert "vicuna_bench" in line
    results = report.collect_results(run_dir, run)
    assert results["left_out"] == run.left_out
    run_dir.results.write_text(json.dumps(results))
    shown = CliRunner().invoke(app, ["status", str(run_dir.root)], env={"COLUMNS": "200"}).stdout
    assert "left out: no task" in shown and "no rubric by which a judge" in shown


def test_a_part_of_a_suite_is_a_run_of_its_own(user: Workspace) -> None:
    whole, _, _ = start(user)
    part, _, _ = start(user, "--only", "tiny_*", "--limit", "2")
    other, _, said = start(user, "--skip", "tiny_choice,mt_bench", "--skip", "vicuna_bench")
    assert len({whole.id, part.id, other.id}) == 3
    assert [d.limit for d in part.suite.datasets] == [2, 2]
    assert [d.name for d in other.suite.datasets] == ["tiny_cloze"]
    assert "left out" not in said
    with pytest.raises(ValueError, match="unpack"):  # the same again: no other run comes to be
        start(user, "--only", "tiny_cloze,tiny_choice", "--limit", "2")


def test_another_part_does_not_fit_into_a_run_directory(user: Workspace, tmp_path: Path) -> None:
    suite = user.folder / "mine.yaml"
    args = ("run", tiny_model(), "--suite", suite, "--run-dir", tmp_path / "here")
    assert call(*args, "--only", "tiny_cloze", **user.environ).exit_code == 0
    with pytest.raises(UserError, match="or another part of it is asked for now"):
        call(*args, "--only", "tiny_choice", **user.environ)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--only", "mt_bench"), "dataset mt_bench: no task"),
        (("--group", "talk"), "dataset mt_bench: no task"),
        (("--only", "tiny_cloth"), "did you mean tiny_cloze"),
        (("--group", "cod"), "groups: talk, code"),
        (("--skip", "*"), "no dataset is left"),
    ],
)
def test_nothing_begins_where_nothing_can(
    user: Workspace, args: tuple[str, ...], words: str
) -> None:
    with pytest.raises(UserError) as caught:
        call("run", tiny_model(), "--suite", user.folder / "mine.yaml", *args, **user.environ)
    assert words in str(caught.value)
    assert not (user.folder / "runs").exists()
