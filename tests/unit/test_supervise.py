"""A supervisor whose scheduler does not answer."""

from pathlib import Path
from typing import Any

import pytest
from tests.reviewer import FakeCluster
from tests.unit.test_decide import make_run

from coordinate_eval import _files
from coordinate_eval.coordinator.cluster import Busy, Job, Node, TaskStatus
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.supervisor.loop import MAX_BACKOFF_SECONDS, MAX_FAULTS, Supervisor
from coordinate_eval.errors import ClusterError, ClusterSilent


class Enough(Exception):
    """The test has seen what it wanted."""


class Mute(FakeCluster):
    """A scheduler of which every question ends like this."""

    def __init__(self, error: ClusterError) -> None:
        super().__init__()
        self._error = error

    def nodes(self) -> tuple[list[Node], list[Busy]]:
        raise self._error

    def submit(self, job: Job) -> str:
        raise self._error

    def poll(self, prefix: str) -> list[TaskStatus]:
        raise self._error

    def cancel(self, job_ids: list[str]) -> None:
        raise self._error


def waits(
    folder: Path, error: ClusterError, most: int, monkeypatch: pytest.MonkeyPatch
) -> list[float]:
    """Seconds between the first questions."""
    found: list[float] = []

    def wait(self: Supervisor, seconds: float, **_: Any) -> None:
        found.append(seconds)
        if len(found) == most:
            raise Enough

    run_dir = RunDir(folder)
    _files.write_record(run_dir.run, make_run(folder=str(folder)))
    monkeypatch.setattr(Supervisor, "_wait", wait)
    with pytest.raises((Enough, ClusterError)):
        Supervisor(run_dir, Mute(error)).run()
    return found


def test_a_silent_scheduler_is_asked_ever_less_often_and_never_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = waits(tmp_path, ClusterSilent("no route to host"), 2000, monkeypatch)
    assert found[:4] == [10, 20, 40, MAX_BACKOFF_SECONDS]
    assert set(found[4:]) == {MAX_BACKOFF_SECONDS}
    assert len(found) == 2000


def test_one_that_answers_with_errors_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(waits(tmp_path, ClusterError("no such thing"), 2000, monkeypatch)) == MAX_FAULTS
