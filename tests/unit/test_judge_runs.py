"""The judge's run beside the run that asks, where jobs belong to the process that supervises."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.decisions import make_run
from tests.reviewer import FakeCluster
from tests.runs import until

from coordinate_eval import _files
from coordinate_eval.coordinator.report.state import has_ended_incomplete
from coordinate_eval.coordinator.run.epochs import latest_epoch
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import JudgeProgress, write_run
from coordinate_eval.coordinator.supervisor import judge_runs
from coordinate_eval.coordinator.supervisor.judge_runs import JudgeRuns
from coordinate_eval.coordinator.supervisor.loop import Supervisor


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at each run with every step."""
    monkeypatch.setattr(judge_runs, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(judge_runs, "AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(Supervisor, "pause_seconds", 0.0)
    monkeypatch.setattr(_files, "_never_made", set())


class Beside:
    """A run that asks, and its judge's run, which has no prompts yet."""

    def __init__(self, folder: Path) -> None:
        self.asking = RunDir(folder)
        self.inner = RunDir(folder / "judge" / "0123456789" / "run")
        self.told: list[str] = []
        self.cluster = FakeCluster()
        self.runs = JudgeRuns(self.asking, self.cluster, self.told.append)

    def make(self, **changes: Any) -> None:
        self.inner.requests_folder.mkdir(parents=True)
        write_run(self.inner, make_run(folder="/", gpu_type="", shards=[], **changes))
        self.judge_says("0123456789")

    def judge_says(self, run: str) -> None:
        """Have the judge's job say in which run it is answered."""
        said = JudgeProgress(state="asking", run=run, updated=0.0)
        _files.write_record(self.asking.judge, said)

    def submitted(self) -> list[str]:
        return [job.argv[4] for job in self.cluster.submitted]


@pytest.fixture
def beside(tmp_path: Path) -> Beside:
    return Beside(tmp_path)


def test_it_is_supervised_as_soon_as_it_is_there_until_it_is_over(beside: Beside) -> None:
    assert not beside.runs.step()
    beside.make()
    assert beside.runs.step()
    assert beside.runs.step()
    assert beside.submitted() == ["_build"]
    _files.write(beside.inner.cancelled, "")
    until(lambda: not beside.runs.step(), "its end")
    assert has_ended_incomplete(beside.inner)
    assert not beside.runs.step()
    assert latest_epoch(beside.inner) == 1


def test_one_that_is_resumed_goes_on(beside: Beside) -> None:
    beside.make()
    _files.write(beside.inner.cancelled, "")
    assert not beside.runs.step()
    beside.inner.cancelled.unlink()
    beside.inner.results.unlink()
    assert beside.runs.step()
    assert beside.submitted() == ["_build"]


SUPERVISOR = """
import sys
from pathlib import Path
from coordinate_eval.coordinator.run.epochs import take_over
from coordinate_eval.coordinator.run.paths import RunDir
print(take_over(RunDir(Path(sys.argv[1]))), flush=True)
sys.stdin.read()
"""


def test_one_that_another_process_supervises_is_left_to_it_as_long_as_that_lives(
    beside: Beside,
) -> None:
    beside.make()
    assert beside.runs.step()
    with subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(beside.inner.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"2\n"
        for _ in range(3):
            assert not beside.runs.step()
        assert latest_epoch(beside.inner) == 2
        other.send_signal(signal.SIGKILL)
        other.wait()
    assert beside.runs.step()
    assert latest_epoch(beside.inner) == 3


def test_only_the_one_that_the_judge_s_job_waits_for_is_begun(beside: Beside) -> None:
    beside.make()
    beside.asking.judge.unlink()
    assert not beside.runs.step()
    beside.judge_says("")
    assert not beside.runs.step()
    beside.judge_says("fedcba9876")  # which is being made
    assert not beside.runs.step()
    assert latest_epoch(beside.inner) == 0
    beside.judge_says("0123456789")
    assert beside.runs.step()
    beside.asking.judge.unlink()
    assert beside.runs.step()


def test_one_that_cannot_be_read_is_told_of_and_tried_again(beside: Beside) -> None:
    _files.write(beside.inner.run, "{torn")
    beside.judge_says("0123456789")
    assert not beside.runs.step()
    assert str(beside.inner.root) in beside.told[0]
    beside.inner.run.unlink()
    beside.make()
    assert beside.runs.step()
