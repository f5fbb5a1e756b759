"""Fixtures of several files: runs, reviewed plans, checkpoints to be staged or mixed."""

import functools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import mixes
from tests.reviewer import OnCluster, Reviewer
from tests.runs import TASKS
from tests.shown_runs import submitted_run
from tests.staging import checkpoint
from tests.tiny import architectures

from coordinate_eval.coordinator.inputs import clusters
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.coordinator.supervisor.placing import other_runs
from coordinate_eval.coordinator.workers.on_node import keeper
from coordinate_eval.records import Checkpoint


@pytest.fixture(scope="module", autouse=True)
def no_disk() -> Iterator[None]:
    """Nothing waits for a disk: what survives a power failure shows in no test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True)
def runs_of_this_test_alone(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of other tests, which may have the user's own `runs_dir`, are promised nothing here."""
    of = other_runs.promise_file

    @functools.cache
    def folder() -> Path:
        return tmp_path_factory.mktemp("promises")

    def promise_file(run: Run) -> Path:
        return folder() / of(run).name

    monkeypatch.setattr(other_runs, "promise_file", promise_file)


@pytest.fixture
def on_cluster(monkeypatch: pytest.MonkeyPatch) -> OnCluster:
    def on(cluster: object) -> None:
        monkeypatch.setattr(clusters, "by_name", lambda *_: cluster)
        monkeypatch.setattr(clusters, "chosen", lambda _: cluster)

    return on


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials wait for no keeper: their engines need no weights."""
    monkeypatch.setattr(keeper.Arrival, "wait", lambda *_: None)


@pytest.fixture(scope="session")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache of requests for all of them, in which the tiny model is known: see `guard`."""
    known, cache = architectures(), tmp_path_factory.mktemp("cache")
    shutil.copytree(known, cache / known.name)
    return cache


@pytest.fixture
def reviewer(
    _cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Reviewer:
    """With settings and a scheduler of its own."""
    made = Reviewer(_cache, tmp_path, capsys)
    monkeypatch.setattr(clusters, "_MAKERS", {"slurm": lambda settings: made.cluster})
    monkeypatch.chdir(TASKS)
    return made


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    """A run that was submitted, and of which nothing is done."""
    return submitted_run(tmp_path / "runs")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A memory file system, as far as anybody can tell."""
    made = tmp_path / "shared 'memory'"
    made.mkdir()
    return made


@pytest.fixture
def source(tmp_path: Path) -> Checkpoint:
    """A checkpoint whose weights have several ranges."""
    return checkpoint(tmp_path / "step 1")


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three saves of a training."""
    root = tmp_path_factory.mktemp("training")
    return [mixes.saved(root / f"step-{step}", step) for step in (800, 900, 1000)]


@pytest.fixture(scope="module")
def adapter(steps: list[Path]) -> Path:
    """An adapter of the first save, beside what PEFT merges it to."""
    folder = steps[0].parent / "adapter"
    mixes.adapted(steps[0], folder, use_dora=True, modules_to_save=["lm_head"])
    return folder
