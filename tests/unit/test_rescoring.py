"""Which responses a rescoring takes over, and what becomes of its settings."""

import shutil
from pathlib import Path

import pytest
from tests.decisions import make_run

from coordinate_eval import _files
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, read_run
from coordinate_eval.coordinator.run.starting.rescoring import create_rescoring, rescoring
from coordinate_eval.errors import RunExists, UserError


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return make_run(asks=["a", "b"], score_seconds={"a": 1, "b": 2}, python="/old/python")


@pytest.fixture
def run_dir(tmp_path: Path, run: Run) -> RunDir:
    """A run of datasets a and b; b lacks its responses."""
    run_dir = RunDir(tmp_path / "r")
    _files.write_record(run_dir.run, run)
    run_dir.model.mkdir()
    for name in "ab":
        _files.write(run_dir.requests(name), name)
        _files.write(run_dir.requests_index(name), name)
    for shard in run.shards:
        if shard.dataset == "a":
            _files.write(run_dir.published("outputs", shard.span), shard.span.stem)
    return run_dir


def test_it_has_the_datasets_that_are_answered(run_dir: RunDir, run: Run) -> None:
    settings = Settings.model_validate({"harness": {"memory_gib": 32}, "engine": {"name": "vllm"}})
    made = rescoring(run_dir, run, run.suite, settings)
    found = create_rescoring(run_dir, run, made)
    assert found.root == run_dir.root.with_name("r-rescored-1")
    new = read_run(found)
    assert new.id == "r-rescored-1"
    assert new.rescores == str(run_dir.root)
    assert new.python != run.python
    assert [dataset.name for dataset in new.suite.datasets] == new.asks == ["a"]
    assert {shard.dataset for shard in new.shards} == {"a"}
    assert new.score_seconds == {"a": 1}
    assert "responses" in new.left_out["b"]
    assert new.settings.harness.memory_gib == 32
    assert sorted(path.name for path in found.requests_folder.iterdir()) == ["a.json", "a.jsonl"]
    shutil.rmtree(run_dir.root)  # the responses stay
    for shard in new.shards:
        assert found.published("outputs", shard.span).read_text() == shard.span.stem


def test_each_rescoring_has_a_number(run_dir: RunDir, run: Run) -> None:
    first, meanwhile = (rescoring(run_dir, run, run.suite, Settings()) for _ in range(2))
    create_rescoring(run_dir, run, first)
    assert rescoring(run_dir, run, run.suite, Settings()).id == "r-rescored-2"
    with pytest.raises(RunExists):
        create_rescoring(run_dir, run, meanwhile)


def test_another_judge_is_taken_and_no_judge_keeps_the_old_one(run_dir: RunDir) -> None:
    old = Settings.model_validate(
        {"judge": {"model": "j", "base_url": "http://a/v1", "baseline": "/b"}}
    )
    run = make_run(settings=old)
    assert rescoring(run_dir, run, run.suite, Settings()).settings.judge == old.judge
    other = Settings.model_validate({"judge": {"model": "k", "base_url": "http://b/v1"}})
    judge = rescoring(run_dir, run, run.suite, other).settings.judge
    assert (judge.name, judge.baseline) == ("k", "/b")


def test_without_any_answered_dataset_there_is_none(run_dir: RunDir, run: Run) -> None:
    only = run.suite.model_copy(update={"datasets": run.suite.datasets[1:]})
    with pytest.raises(UserError, match="no dataset with all responses among b"):
        rescoring(run_dir, run, only, Settings())


def test_jobs_run_where_the_settings_say_now_and_else_where_the_run_s_did(run_dir: RunDir) -> None:
    old = {
        "gpu_type": "a100",
        "max_gpus": 8,
        "engine": {"args": {"dtype": "float16"}},
        "trial": {"max_length": 64, "max_minutes": 60, "cpus": 2},
        "slurm": {"partition": "old", "account": "team"},
    }
    now = {
        "max_gpus": 2,
        "runs_dir": "/elsewhere",
        "engine": {"args": {"dtype": "float32"}},
        "trial": {"max_length": 32, "max_minutes": 30},
        "slurm": {"partition": "new"},
    }
    run = make_run(settings=Settings.model_validate(old))
    made = rescoring(run_dir, run, run.suite, Settings.model_validate(now)).settings
    assert (made.gpu_type, made.max_gpus) == ("a100", 2)
    assert (made.slurm.partition, made.slurm.account) == ("new", "team")
    assert (made.trial.max_length, made.trial.max_minutes, made.trial.cpus) == (64, 30, 2)
    assert (made.engine, made.runs_dir) == (run.settings.engine, run.settings.runs_dir)


def test_a_judge_that_has_moved_is_asked_where_it_is_now(run_dir: RunDir) -> None:
    old = Settings.model_validate({"judge": {"model": "j", "base_url": "http://a/v1"}})
    run = make_run(settings=old)
    moved = Settings.model_validate({"judge": {"base_url": "http://b/v1", "max_requests": 9}})
    judge = rescoring(run_dir, run, run.suite, moved).settings.judge
    assert (judge.name, judge.base_url, judge.max_requests) == ("j", "http://b/v1", 9)
