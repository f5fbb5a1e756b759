"""Removing runs: one that goes on stays, and nothing of others goes."""

import itertools
import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from tests.decisions import make_run
from tests.reviewer import FakeCluster, OnCluster

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import Job
from coordinate_eval.coordinator.cli.inquire.runs import find_all
from coordinate_eval.coordinator.cli.upkeep.prune import prune
from coordinate_eval.coordinator.inputs import clusters
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.claiming.claims import LEDGERS
from coordinate_eval.coordinator.run.claiming.work import all_spans
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import read_run, write_planned, write_run
from coordinate_eval.coordinator.run.removing import OWN_NAMES, remove
from coordinate_eval.errors import ClusterSilent, CoordinateError, UserError
from coordinate_eval.records import Shard

SECURITY = Path(__file__).parents[2] / "docs" / "security.md"


def shards(dataset: str, *edges: int, metric: float = 0.0) -> list[Shard]:
    return [
        Shard(dataset=dataset, start=a, stop=b, gpu_seconds=1, metric_cpu_seconds=metric)
        for a, b in itertools.pairwise(edges)
    ]


def made(folder: Path, name: str = "r", **changes: Any) -> RunDir:
    """A run of two datasets, of which one asks questions, with all of its files."""
    run_dir = RunDir(folder / name)
    run_dir.root.mkdir(parents=True)
    all_shards = [*shards("b", 3, 9), *shards("b", 0, 3), *shards("a", 0, 4, 8, 10, metric=12.0)]
    values: dict[str, Any] = {"id": name, "nonce": name, "asks": ["a"], "shards": all_shards}
    run = make_run(**(values | changes))
    write_run(run_dir, run)
    write_planned(run_dir, run)
    for ledger in LEDGERS:
        for span in all_spans(run, "outputs" if ledger == "outputs" else "answers"):
            lines = "".join(f"{ledger} {span.dataset} {n}\n" for n in range(span.start, span.stop))
            _files.write(run_dir.published(ledger, span), lines)
            _files.write(run_dir.claims_folder(ledger, span.dataset) / f"{span.stem}.1.json", "{}")
    _files.write(run_dir.results, json.dumps({"complete": True}))
    return run_dir


class Killed(BaseException):
    """The end of a process."""


def test_every_name_of_a_run_directory_is_known() -> None:
    rows = re.findall(r"^\| `runs_dir/<run>/([^/`]+)", SECURITY.read_text(), re.MULTILINE)
    assert set(rows) <= OWN_NAMES


def test_a_run_with_a_file_of_somebody_stays(tmp_path: Path) -> None:
    run_dir = made(tmp_path)
    (run_dir.root / "notes.txt").write_text("mine")
    with pytest.raises(CoordinateError, match=r"notes\.txt"):
        remove(run_dir)
    assert read_run(run_dir)


@pytest.mark.parametrize("meanwhile", ["a file", "another folder"])
def test_a_run_that_is_exchanged_while_it_is_removed_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    run_dir, rename = made(tmp_path), Path.rename

    def exchanged(path: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "rename", rename)
        if meanwhile == "a file":
            (path / "notes.txt").touch()
        else:
            path.rename(tmp_path / "elsewhere")
            path.mkdir()
        return path.rename(target)

    monkeypatch.setattr(Path, "rename", exchanged)
    with pytest.raises(CoordinateError, match="nothing of it is removed"):
        remove(run_dir)
    assert run_dir.root.is_dir()
    there = RunDir(tmp_path / "elsewhere") if meanwhile == "another folder" else run_dir
    assert read_run(there)


@pytest.fixture
def cluster(on_cluster: OnCluster) -> FakeCluster:
    fake = FakeCluster()
    on_cluster(fake)
    return fake


def old(run_dir: RunDir, days: float) -> None:
    when = time.time() - days * 86_400
    for path in (run_dir.run, run_dir.results, run_dir.cancelled):
        if path.exists():
            os.utime(path, (when, when))


def left(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.startswith(".nodes-")}


def test_runs_go_by_age_and_count_if_they_have_ended(tmp_path: Path, cluster: FakeCluster) -> None:
    settings = Settings(runs_dir=str(tmp_path))
    for number, name in enumerate(("oldest", "old", "alive", "lost", "new")):
        old(made(tmp_path, name, created=number), 30 - number)
    (tmp_path / "lost" / "results.json").unlink()
    run = read_run(RunDir(tmp_path / "alive"))
    cluster.submitted.append(
        Job(name=jobs.supervisor_name(run, 1), argv=("x",), minutes=1, log="/log")
    )
    everything = left(tmp_path)
    with pytest.raises(UserError, match="--older-than"):
        prune(settings, None, None, yes=True)
    assert prune(settings, 20, None, yes=False) == 0
    assert left(tmp_path) == everything
    prune(settings, 29.5, 0, yes=True)
    assert left(tmp_path) == everything - {"oldest"}
    prune(settings, None, 4, yes=True)
    assert left(tmp_path) == everything - {"oldest"}
    prune(settings, None, 0, yes=True)
    assert left(tmp_path) == {"alive", "lost"}


def test_nothing_goes_while_the_scheduler_is_silent(
    tmp_path: Path, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    old(made(tmp_path), 30)

    cluster.silent = True
    monkeypatch.setattr(clusters, "SILENCE_SECONDS", 0)
    with pytest.raises(ClusterSilent):
        prune(Settings(runs_dir=str(tmp_path)), None, 0, yes=True)
    assert (tmp_path / "r").exists()


def test_what_an_interrupted_removal_left_goes_the_next_time(
    tmp_path: Path, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(runs_dir=str(tmp_path))
    old(made(tmp_path), 30)
    (tmp_path / ".removed-by-me").mkdir()

    def killed(path: Path) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr("shutil.rmtree", killed)
        prune(settings, None, 0, yes=True)
    assert len(left(tmp_path)) == 2
    assert find_all(settings) == ([], [])
    notes = tmp_path / ".removed-0123456789abcdef" / "notes.txt"
    notes.parent.mkdir()
    notes.touch()
    prune(settings, None, 0, yes=True)
    assert left(tmp_path) == {".removed-by-me", notes.parent.name}
    assert notes.exists()


def test_what_killed_processes_had_begun_to_write_goes_after_a_day(
    tmp_path: Path, cluster: FakeCluster
) -> None:
    home, cache = tmp_path / "runs", tmp_path / "cache" / "requests-0"
    settings = Settings(runs_dir=str(home), cache_dir=str(cache.parent))
    stays = [home / ".of a user.tmp", cache / "key.jsonl", cache / ".key.0123456789abcde0.tmp"]
    goes = [home / ".run.0123456789abcdef.tmp", cache / ".key.0123456789abcdef.tmp"]
    (goes[0] / "prompts").mkdir(parents=True)
    cache.mkdir(parents=True)
    for path in (*stays, goes[1]):
        path.touch()
    for path in (*stays[:2], *goes):
        os.utime(path, (time.time() - 90_000,) * 2)
    prune(settings, None, 0, yes=True)
    assert [path for path in (*stays, *goes) if path.exists()] == stays


def test_a_run_that_changes_while_others_are_removed_stays(
    tmp_path: Path, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, last = (made(tmp_path, name, created=at) for name, at in (("new", 2), ("old", 1)))
    old(first, 30)
    old(last, 30)

    def resumed(run_dir: RunDir) -> None:
        remove(run_dir)
        _files.write(last.resumed, "")

    monkeypatch.setattr("coordinate_eval.coordinator.cli.upkeep.prune.remove", resumed)
    assert prune(Settings(runs_dir=str(tmp_path)), None, 0, yes=True) == 1
    assert left(tmp_path) == {"old"}


def test_a_run_directory_of_another_user_is_passed_over(
    tmp_path: Path, cluster: FakeCluster
) -> None:
    run_dir = made(tmp_path)
    old(run_dir, 30)
    run_dir.root.chmod(0o777)  # others can write in it
    prune(Settings(runs_dir=str(tmp_path)), None, 0, yes=True)
    assert run_dir.root.exists()
