"""A run whose directory is removed: all that works for it ends, and nothing makes it again."""

import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
from tests.decisions import make_run
from tests.reviewer import Cancelling

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import State, TaskStatus
from coordinate_eval.coordinator.cli import job_commands
from coordinate_eval.coordinator.run.own import enter
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.supervisor.loop import Supervisor
from coordinate_eval.coordinator.workers import scorer
from coordinate_eval.coordinator.workers.on_node.staging import StagedWeights
from coordinate_eval.errors import RecordError
from coordinate_eval.records import Shard


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A planned run, in a folder of runs."""
    made = RunDir(tmp_path / "runs" / "r")
    shard = Shard(dataset="a", start=0, stop=5, gpu_seconds=1, metric_cpu_seconds=1)
    settings = {"stage": {"root": str(tmp_path)}, "metrics": {"allow_unsafe_code": True}}
    run = make_run(folder=str(tmp_path), shards=[shard], asks=["a"], settings=settings)
    _files.write_record(made.run, run)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_files, "_never_made", set())
    return made


class Removing(Cancelling):
    """A scheduler during whose answer the run is removed. A trial is running."""

    def __init__(self, run_dir: RunDir) -> None:
        super().__init__()
        self._dir = run_dir

    def poll(self, prefix: str) -> list[TaskStatus]:
        shutil.rmtree(self._dir.root, ignore_errors=True)
        if self.cancelled:
            return []
        return [TaskStatus(name=f"{prefix}t0-n1", job_id="7", state=State.RUNNING)]


def test_its_supervisor_cancels_its_jobs_and_ends(run_dir: RunDir) -> None:
    cluster = Removing(run_dir)
    supervisor = Supervisor(run_dir, cluster)
    with pytest.raises(RecordError, match="has been removed"):
        supervisor.run()
    assert (cluster.cancelled, cluster.submitted) == (["7"], [])
    assert not run_dir.root.exists()


def test_no_process_of_it_makes_it_again(run_dir: RunDir) -> None:
    entered = enter(run_dir.root)
    _files.write(entered.claim("outputs", make_run().shards[0].span, 1), "")
    shutil.rmtree(run_dir.root)
    for path in (entered.results, entered.job("j"), entered.claims_folder("outputs", "a") / "c"):
        with pytest.raises(FileNotFoundError):
            _files.write(path, "")
    assert not run_dir.root.exists()


@pytest.mark.parametrize("command", ["_score", "_metric", "_keep"])
def test_its_jobs_end_with_one_message(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def removed(seconds: float) -> None:
        if run_dir.root.exists():  # renamed at once, as `prune` does: others write there meanwhile
            run_dir.root.rename(run_dir.root.with_name("removed"))

    monkeypatch.setattr("time.sleep", removed)
    monkeypatch.setattr(scorer, "start_evaluator", lambda *_: nullcontext())
    monkeypatch.setattr(StagedWeights, "copy", lambda *_: True)
    node = ["n1"] if command == "_keep" else []
    with pytest.raises(RecordError) as ended:
        job_commands.call([command, str(run_dir.root), *node])
    assert str(ended.value) == (
        f"run directory {run_dir.root} has been removed: nothing more is done for this run"
    )
    assert not run_dir.root.exists()
