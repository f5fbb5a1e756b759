"""What runs on the nodes of a Ray cluster: an actor that ends with its process, and says how."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
from tests.cluster_contract import ENGINE, engine_runs
from tests.runs import until

from coordinate_eval.clusters.ray import on_node
from coordinate_eval.clusters.ray.on_node import MOST_STARTS, Task


class Ray(SimpleNamespace):
    """Ray, as far as an actor of a task uses it."""

    def __init__(self) -> None:
        again = SimpleNamespace(run=SimpleNamespace(remote=lambda: None))
        context = SimpleNamespace(
            gcs_address="head:1",
            current_actor=again,
            was_current_actor_reconstructed=False,
            get_node_id=lambda: "a",
        )
        super().__init__(
            nodes=list,
            get_runtime_context=lambda: context,
            actor=SimpleNamespace(exit_actor=self._exit),
        )

    def _exit(self) -> NoReturn:
        raise SystemExit(0)


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Task]:
    """Makes a task of a script, which notes each start in `starts`."""
    monkeypatch.setattr(on_node, "_ray", Ray)
    monkeypatch.setattr(on_node, "PAUSE_SECONDS", 0.0)
    place = {
        "folder": str(tmp_path),
        "log": str(tmp_path / "log"),
        "task": "7_0",
        "task variable": "TASK",
        "node variable": "NODE",
        "started variable": "STARTED",
    }

    def make(script: str, *, goes_on: bool) -> Task:
        noted = f'echo "$TASK $STARTED" >> starts; {script}'
        return Task(["sh", "-c", noted], {}, [], place, 60, goes_on)

    return make


def exit_status(task: Task) -> object:
    """Run a task until its actor exits; the status with which it does."""
    with pytest.raises(SystemExit) as exited:
        task.run()
    return exited.value.code


def starts(folder: Path) -> list[list[str]]:
    path = folder / "starts"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize(("script", "status"), [("exit 0", 0), ("exit 3", 1), ("kill -9 $$", 1)])
def test_an_actor_fails_if_its_process_did(
    tmp_path: Path, task: Callable[..., Task], script: str, status: int
) -> None:
    assert exit_status(task(script, goes_on=False)) == status
    assert len(starts(tmp_path)) == 1


def test_one_whose_log_cannot_be_written_has_failed(
    tmp_path: Path, task: Callable[..., Task]
) -> None:
    (tmp_path / "log").mkdir()
    assert exit_status(task("exit 0", goes_on=False)) == 1


def test_a_log_is_nobody_elses_to_write_whatever_the_umask_of_ray(
    tmp_path: Path, task: Callable[..., Task]
) -> None:
    before = os.umask(0)
    try:
        exit_status(task("echo words", goes_on=False))
    finally:
        os.umask(before)
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "log").read_text() == "words\n"


@pytest.mark.parametrize("name", ["KILL", "TERM", "SEGV"])
def test_a_supervisor_that_is_killed_is_started_again_as_another_one(
    tmp_path: Path, task: Callable[..., Task], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    clock = iter(range(1000, 2000))
    monkeypatch.setattr("time.time", lambda: next(clock))
    killed = task(f"mkdir tried 2>/dev/null || exit 0; kill -s {name} $$", goes_on=True)
    assert exit_status(killed) == 0
    first, second = starts(tmp_path)
    assert first[0] == "7_0.0"
    assert second[0].startswith("7_0.")
    assert second[0] != first[0]
    assert first[1] == second[1]  # both have the same time
    assert "started again" in (tmp_path / "log").read_text()


def test_one_that_is_always_killed_is_not_started_for_ever(
    tmp_path: Path, task: Callable[..., Task]
) -> None:
    assert exit_status(task("kill -9 $$", goes_on=True)) == 0
    assert len(starts(tmp_path)) == MOST_STARTS


@pytest.mark.parametrize("status", [0, 1])
def test_one_that_ends_by_itself_is_never_started_again(
    tmp_path: Path, task: Callable[..., Task], status: int
) -> None:
    assert exit_status(task(f"exit {status}", goes_on=True)) == 0
    assert len(starts(tmp_path)) == 1


@pytest.mark.parametrize("goes_on", [True, False])
def test_one_that_is_cancelled_has_not_failed_and_is_not_started_again(
    tmp_path: Path, task: Callable[..., Task], goes_on: bool
) -> None:
    running = task("exec tail -f /dev/null", goes_on=goes_on)
    found: list[object] = []
    actor = threading.Thread(target=lambda: found.append(exit_status(running)))
    actor.start()
    until(lambda: bool(starts(tmp_path)), "its start")
    running.cancel()
    actor.join()
    assert found == [0]
    assert len(starts(tmp_path)) == 1


def test_one_that_is_cancelled_before_it_runs_ends_at_once(task: Callable[..., Task]) -> None:
    waiting = task("exec tail -f /dev/null", goes_on=True)
    waiting.cancel()
    assert exit_status(waiting) == 0


def test_what_a_killed_job_has_started_ends_with_it(
    tmp_path: Path, task: Callable[..., Task]
) -> None:
    assert exit_status(task(f"{ENGINE} kill -9 $$", goes_on=False)) == 1
    until(lambda: not engine_runs(tmp_path), "the end of its engine")


def test_what_a_job_has_started_that_must_be_killed_ends_with_it(
    tmp_path: Path, task: Callable[..., Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_node, "END_SECONDS", 0.1)
    running = task(f"trap '' TERM; {ENGINE} wait; wait", goes_on=False)
    actor = threading.Thread(target=lambda: exit_status(running))
    actor.start()
    until((tmp_path / "engine").exists, "its start")
    running.cancel()
    actor.join()
    until(lambda: not engine_runs(tmp_path), "the end of its engine")
