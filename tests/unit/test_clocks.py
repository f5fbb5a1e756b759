"""A file server whose clock differs from that of the nodes: what was before a resume stays so."""

import os
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.decisions import make_run
from tests.incidents import judge

from coordinate_eval import _files
from coordinate_eval.coordinator.incidents.shown import report_failures
from coordinate_eval.coordinator.report.state import has_ended_incomplete
from coordinate_eval.coordinator.run.claiming.claims import Ledger
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Round, RoundNode, Run, TrialProgress
from coordinate_eval.coordinator.run.starting import resumes
from coordinate_eval.coordinator.run.supervision import take_over
from coordinate_eval.coordinator.supervisor.decide_rounds import last_round_recurs
from coordinate_eval.coordinator.supervisor.gather import gather_facts

skewed = pytest.mark.parametrize("ahead", [-100.0, 0.0, 100.0])


class Served:
    """A run on a server that writes its own time at each file, and looks no file up twice."""

    def __init__(self, folder: Path, ahead: float) -> None:
        self.dir, self.run = RunDir(folder), make_run(folder=str(folder))
        self._ahead = ahead
        self._seen: set[tuple[Path, int]] = set()
        _files.write_record(self.dir.run, self.run)

    def stamp(self) -> None:
        """Give what was written since the last stamp the server's time, and let some time pass."""
        for path in self.dir.root.rglob("*"):
            if path.is_file() and (path, path.stat().st_ino) not in self._seen:
                changed = path.stat().st_mtime + self._ahead
                os.utime(path, (changed, changed))
                self._seen.add((path, path.stat().st_ino))
        before = time.time()
        while time.time() < before + 0.01:
            pass

    def fail(self, number: int) -> None:
        """A round starts, its trial fails, and its shard loses its owner."""
        node = RoundNode(name="n1", gpu_type="h200", trials=1)
        round_ = Round(number=number, created=time.time(), nodes=[node], minutes=15)
        _files.write_record(self.dir.round(number), round_)
        trial = f"n1-0-r{number}" if number else "n1-0"
        failed = TrialProgress(
            trial=trial, task="1_0", node="n1", state="failed", started=time.time(),
            updated=time.time(), message="no room", cause="input",
        )  # fmt: skip
        _files.write_record(self.dir.trial(trial), failed)
        span = self.run.shards[0].span
        attempt = Ledger(self.dir, "outputs").claim(span, trial, "1_0")
        assert attempt is not None
        Ledger(self.dir, "outputs").revoke(span, attempt, "died")
        self.stamp()

    def counted(self) -> tuple[int, int, bool, int]:
        """Idle rounds, deaths at the shard, whether it would fail again, and failures."""
        run: Run = self.run
        judge(self.dir)
        self.stamp()
        facts = gather_facts(self.dir, run, [], time.time(), Counter())
        return (
            facts.idle_rounds,
            Ledger(self.dir, "outputs").count_deaths(run.shards[0].span),
            bool(last_round_recurs(facts)),
            len(report_failures(self.dir)),
        )


@skewed
def test_what_failed_counts_until_the_run_is_resumed(tmp_path: Path, ahead: float) -> None:
    served = Served(tmp_path, ahead)
    served.fail(0)
    served.fail(1)
    assert served.counted() == (2, 2, True, 1)
    resumes.note(served.dir, by_hand=True)
    served.stamp()
    assert served.counted() == (0, 0, False, 0)
    served.fail(2)
    assert served.counted() == (1, 1, True, 1)


@skewed
def test_rounds_beside_one_that_answers_are_not_idle(tmp_path: Path, ahead: float) -> None:
    served = Served(tmp_path, ahead)
    served.fail(0)
    served.fail(1)
    path = served.dir.trial("n1-0")
    first = _files.read_record(path, TrialProgress)
    _files.write_record(path, first.model_copy(update={"state": "running", "responses": 3}))
    served.stamp()
    assert served.counted()[0] == 0
    served.fail(2)
    assert served.counted()[0] == 1


@skewed
def test_a_run_has_ended_when_its_last_supervisor_wrote_results(
    tmp_path: Path, ahead: float
) -> None:
    served = Served(tmp_path, ahead)
    take_over(served.dir)
    served.stamp()
    assert not has_ended_incomplete(served.dir)
    _files.write(served.dir.results, '{"complete": false}')
    served.stamp()
    assert has_ended_incomplete(served.dir)
    take_over(served.dir)
    served.stamp()
    assert not has_ended_incomplete(served.dir)
