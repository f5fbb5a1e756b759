"""A reviewed plan is what is run, or nothing is: what it is compared with."""

import json
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from tests.plans import changed
from tests.reviewer import LONG, NODES, SLICED, Reviewer
from tests.runs import Workspace
from tests.tiny import tiny_model
from typer.testing import CliRunner

from coordinate_eval.clusters.protocol import Busy, JobLimits, Node, Window
from coordinate_eval.coordinator.cli.app import app
from coordinate_eval.coordinator.cli.launch import dry_run
from coordinate_eval.coordinator.cli.launch import run as launch
from coordinate_eval.coordinator.inputs.settings import (
    MetricSettings,
    SupervisorSettings,
    TrialSettings,
)
from coordinate_eval.errors import SubmitRefused, UserError
from coordinate_eval.records import EngineSettings


def test_what_was_reviewed_is_what_runs(reviewer: Reviewer) -> None:
    planned = reviewer.plan()
    reviewer.cluster.free = NODES[::-1]  # which would be planned otherwise
    run = reviewer.submit()
    assert (run / "plan.json").read_text() == reviewer.file.read_text()
    frozen = json.loads((run / "planned.json").read_text())
    asked = [shard for trial in planned["trials"] for shard in trial["shards"]]
    assert sorted(map(str, frozen["shards"])) == sorted(map(str, asked))
    nodes = json.loads((run / "rounds" / "0.json").read_text())["nodes"]
    assert {n["name"]: n["trials"] for n in nodes} == {
        node["name"]: sum(t["node"] == node["name"] for t in planned["trials"])
        for node in planned["nodes"]
    }
    assert [job.name.rpartition("-")[2] for job in reviewer.cluster.submitted] == ["super1"]


def test_the_first_signal_of_a_plan_is_that_of_its_run(reviewer: Reviewer) -> None:
    reviewer.wants(SLICED, first_signal=True, max_gpus=1)
    plan = reviewer.plan()
    asked = [shard for trial in plan["trials"] for shard in trial["shards"]]
    assert {shard["dataset"] for shard in asked if shard["signal"]} == {"tiny_choice", "tiny_code"}
    run = reviewer.submit()
    frozen = json.loads((run / "planned.json").read_text())["shards"]
    assert sorted(map(str, frozen)) == sorted(map(str, asked))
    first = [shard["signal"] for shard in frozen]  # whoever takes free ones takes these first
    assert first == sorted(first, reverse=True)


def test_reviewed_nodes_are_asked_for_where_jobs_take_whole_ones(reviewer: Reviewer) -> None:
    reviewer.cluster.whole = True
    usual = reviewer.settings.slurm.model_copy(update={"cpu_partition": "cpu"})
    reviewer.settings = reviewer.settings.model_copy(update={"slurm": usual})
    planned = reviewer.plan()
    run = reviewer.submit()
    nodes = json.loads((run / "rounds" / "0.json").read_text())["nodes"]
    assert [n["name"] for n in nodes] == [n["name"] for n in planned["nodes"]]


def test_what_cannot_be_run_is_in_neither_plan_nor_run(reviewer: Reviewer) -> None:
    suite = reviewer.folder / "long.yaml"
    more = "- {name: later, items: 500, prior: {gpu_seconds: 900}}\n"
    suite.write_text(suite.read_text() + more)
    assert [d["name"] for d in reviewer.plan()["datasets"]] == ["tiny_choice", "tiny_code"]
    run = reviewer.submit()
    assert (run / "plan.json").read_text() == reviewer.file.read_text()
    reviewer.submit()
    assert len(reviewer.cluster.submitted) == 1


def test_a_part_of_a_suite_is_asked_for_again(reviewer: Reviewer) -> None:
    dry_run.show_plan(reviewer.inputs(tiny_model(), only=["tiny_code"]), as_json=True)
    reviewer.file.write_text(reviewer.capsys.readouterr().out)
    reviewer.refused("--suite and what narrows it")
    run = reviewer.submit(only=("tiny_code",))
    assert (run / "plan.json").read_text() == reviewer.file.read_text()


def test_the_counts_of_a_live_dry_run_are_real(reviewer: Reviewer) -> None:
    assert {d["name"]: d["items"] for d in reviewer.plan()["datasets"]} == {
        "tiny_choice": 12,
        "tiny_code": 5,
    }


def test_asking_twice_runs_once(reviewer: Reviewer) -> None:
    reviewer.plan()
    reviewer.submit()
    reviewer.submit()
    assert len(reviewer.cluster.submitted) == 1
    reviewer.settings = reviewer.settings.model_copy(update={"max_gpus": 1})
    reviewer.plan()
    reviewer.refused("already has a run of another plan", "--run-dir")
    assert reviewer.submit(run_dir=reviewer.folder / "elsewhere") == reviewer.folder / "elsewhere"


def test_a_refused_submission_leaves_nothing(reviewer: Reviewer) -> None:
    reviewer.plan()
    reviewer.cluster.refuses = True
    with pytest.raises(SubmitRefused):
        reviewer.submit()
    assert not list((reviewer.folder / "runs").iterdir())


def test_a_reviewed_plan_can_be_shown_again(reviewer: Reviewer) -> None:
    reviewer.plan()
    text = reviewer.file.read_text()
    dry_run.show_plan(reviewer.inputs(plan=reviewer.file), as_json=True)
    assert reviewer.capsys.readouterr().out == text
    reviewer.cluster.free = NODES[:1]
    with pytest.raises(UserError, match="n2"):
        dry_run.show_plan(reviewer.inputs(plan=reviewer.file))


def test_the_checkpoint_must_be_the_same(reviewer: Reviewer, tmp_path: Path) -> None:
    reviewer.plan()
    reviewer.submit(checkpoint=tiny_model(), run_dir=tmp_path / "both")
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in tiny_model().iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    reviewer.refused(str(tiny_model()), str(copy), checkpoint=copy)
    reviewer.plan(copy)
    (copy / "config.json").write_text((copy / "config.json").read_text() + " ")
    reviewer.refused(str(copy), "has changed")
    shutil.rmtree(copy)
    reviewer.refused("copy does not exist")


def test_the_suite_must_be_the_same(reviewer: Reviewer, tmp_path: Path) -> None:
    reviewer.plan()
    other = str(Workspace(tmp_path).suite("tiny_choice"))
    reviewer.settings = reviewer.settings.model_copy(update={"suite": other})
    reviewer.refused("of suite long ", "not of suite-tiny_choice ", "--suite")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"engine": EngineSettings(name="vllm")}, ("engine", '"simulated"', '"vllm"')),
        (
            {"engine": EngineSettings(name="simulated", args={"a": 1})},
            ("engine.args {}", '{"a": 1}'),
        ),
        ({"trial": TrialSettings(max_length=512)}, ("trial.max_length", "1024", "512")),
        ({"trial": TrialSettings(tensor_parallel=2)}, ("trial.tensor_parallel", "1", "2")),
        ({"metrics": MetricSettings(cpus=3)}, ("metrics.cpus", "64", "3")),
        ({"nodes": "n1"}, ("--nodes 'n1'", "n2")),
        ({"nodes": "1"}, ("--nodes '1'",)),
        ({"max_gpus": 2}, ("--max-gpus 2",)),
        ({"cluster": "some.yaml"}, ("some.yaml", "--dry-run")),
    ],
)
def test_the_settings_must_agree(
    reviewer: Reviewer, change: dict[str, Any], words: tuple[str, ...]
) -> None:
    reviewer.plan()
    reviewer.settings = changed(reviewer.settings, **change)
    reviewer.refused(*words)


def test_settings_that_change_nothing_of_it_may_differ(reviewer: Reviewer) -> None:
    reviewer.plan()
    change = {"supervisor": SupervisorSettings(poll_seconds=600), "nodes": "n[1-2]", "max_gpus": 8}
    reviewer.settings = changed(reviewer.settings, **change)
    reviewer.submit()


@pytest.mark.parametrize(
    ("free", "busy", "words"),
    [
        ([NODES[0]], [], ("n2: there is no such node",)),
        ([NODES[0]], [Busy(name="n2", why="4 of 4 GPUs in use")], ("n2: 4 of 4 GPUs in use",)),
        ([], [], ("n1: ", "n2: ")),
        (
            [NODES[0], NODES[1].model_copy(update={"free_gpus": 3})],
            [],
            ("n2: 3 GPUs, 64 cores and 200.0 GiB are free: room for 3 of its 4 trials",),
        ),
        (
            [NODES[0], NODES[1].model_copy(update={"memory_gib": 40})],
            [],
            ("n2: 4 GPUs, 64 cores and 40.0 GiB are free",),
        ),
        (
            [NODES[0], NODES[1].model_copy(update={"cpus": 16})],
            [],
            ("n2: 4 GPUs, 16 cores", "3 of its 4"),
        ),
        (
            [NODES[0], NODES[1].model_copy(update={"gpu_type": "a100"})],
            [],
            ("n2: its GPUs are a100, not h200",),
        ),
    ],
)
def test_its_nodes_must_have_room(
    reviewer: Reviewer, free: list[Node], busy: list[Busy], words: tuple[str, ...]
) -> None:
    reviewer.plan()
    reviewer.cluster.free, reviewer.cluster.busy = free, busy
    reviewer.refused("cannot start as it is", *words)


def test_a_plan_for_unknown_nodes_is_none_to_submit(reviewer: Reviewer) -> None:
    reviewer.cluster.free, reviewer.cluster.busy = [], [Busy(name="n1", why="4 of 4 GPUs in use")]
    reviewer.settings = reviewer.settings.model_copy(update={"queue": True})
    reviewer.plan()
    reviewer.refused("--queue")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), ""),
        (("--engine", "simulated"), ""),
        (("--engine", "transformers"), 'engine "simulated", now it is "transformers"'),
        (("--engine-args", '{"concurrency": 4}'), 'engine.args {"concurrency": 3}'),
        (("--engine-args", '{"concurrency": 3}'), ""),
    ],
)
def test_the_engine_is_that_of_the_plan(
    reviewer: Reviewer, flags: tuple[str, ...], words: str
) -> None:
    engine = EngineSettings(name="simulated", args={"concurrency": 3})
    reviewer.settings = reviewer.settings.model_copy(update={"engine": engine})
    reviewer.plan()
    settings = reviewer.settings
    env = {
        "COORDINATE_EVAL_RUNS_DIR": settings.runs_dir,
        "COORDINATE_EVAL_CACHE_DIR": settings.cache_dir,
        "COORDINATE_EVAL_CLUSTER": "slurm",
    }
    args = ["run", "--suite", settings.suite, "--plan", str(reviewer.file), *flags]
    ran = CliRunner().invoke(app, args, env=env)
    if words:
        assert isinstance(ran.exception, UserError)
        assert words in str(ran.exception)
    else:
        assert ran.exit_code == 0, ran.exception
    assert len(reviewer.cluster.submitted) == (0 if words else 1)


def test_what_would_not_end_in_time_is_refused_before_anything_is_made(reviewer: Reviewer) -> None:
    """Eight GPUs need 25 minutes for LONG."""
    reviewer.plan()
    reviewer.cluster.limited = JobLimits(
        until=time.time() + 900, until_why="reservation night ends"
    )
    reviewer.refused("reservation night ends in", "the plan takes")
    with pytest.raises(UserError, match=r"reservation night ends in .*no plan ends within"):
        reviewer.plan()
    reviewer.wants(re.sub("task: tiny_(choice|code)", r"\g<0>, items: 100", LONG))
    with pytest.raises(UserError, match=r"reservation night ends in .*no plan ends within"):
        launch.start_run(reviewer.inputs(checkpoint=tiny_model()))
    assert not (reviewer.folder / "runs").exists()
    assert not reviewer.cluster.submitted


def test_jobs_that_end_before_a_maintenance_are_announced(reviewer: Reviewer) -> None:
    reviewer.plan()
    window = Window(start=time.time() + 6030, why="reservation maint (tonight)")
    reviewer.cluster.limited = JobLimits(gpu_window=window, cpu_window=window)
    assert launch.start_run(reviewer.inputs(plan=reviewer.file)) == 0
    said = reviewer.capsys.readouterr().err
    assert said.count("reservation maint (tonight) takes all nodes: jobs ask for at most 9") == 1
    (job,) = reviewer.cluster.submitted
    assert 90 <= job.minutes <= 94
