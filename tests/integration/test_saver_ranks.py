"""Saves of several ranks, and trainings that are killed and go on."""

import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.runs import PATIENCE_SECONDS, until

from coordinate_eval.checkpointing import latest

pytest.importorskip("torch")

from tests import tiny_training

STEPS = 23

forks = multiprocessing.get_context("forkserver")
_MODULES = ["tests.tiny_training", "coordinate_eval.checkpointing.writer", "torch._dynamo"]
forks.set_forkserver_preload(_MODULES)


class Ranks:
    """The processes of one training, forked from one that has imported torch."""

    def __init__(self, folder: Path, size: int, pause: float = 0.0, fault: str = "") -> None:
        meeting = str(folder.with_name(f"meeting-{time.monotonic_ns()}"))
        self.processes, self.outputs, self.errors = [], [], []
        for rank in range(size):
            output, says = forks.Pipe(duplex=False)
            errors, complains = forks.Pipe(duplex=False)
            args = (rank, size, meeting, folder, STEPS, pause, fault)
            process = forks.Process(target=_rank, args=(says, complains, *args), daemon=True)
            process.start()
            says.close()
            complains.close()
            self.processes.append(process)
            self.outputs.append(os.fdopen(os.dup(output.fileno())))
            self.errors.append(os.fdopen(os.dup(errors.fileno())))

    def ends(self) -> list[tuple[int | None, str, str]]:
        """Exit status, output and errors of each rank."""
        found: list[tuple[int | None, str, str]] = []
        for process, output, errors in zip(self.processes, self.outputs, self.errors, strict=True):
            process.join(PATIENCE_SECONDS)
            assert process.exitcode is not None, "a rank does not end"
            with output, errors:
                found.append((process.exitcode, output.read(), errors.read()))
        return found

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
        self.ends()


def _rank(says: Connection, complains: Connection, *args: Any) -> None:
    os.dup2(says.fileno(), 1)
    os.dup2(complains.fileno(), 2)
    tiny_training.train(*args)


def digest(ends: list[tuple[int | None, str, str]]) -> str:
    """The digest that all ranks have printed."""
    for status, _, err in ends:
        assert status == 0, err
    (found,) = {out.split()[-1] for _, out, _ in ends}
    return found


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_training_that_is_killed_at_any_instant_ends_as_an_undisturbed_one(
    tmp_path: Path, size: int
) -> None:
    wanted = digest(Ranks(tmp_path / "undisturbed", size).ends())
    random, folder = Random(size), tmp_path / "killed"
    began = []
    for _ in range(3):
        ranks = Ranks(folder, size, pause=0.02)
        line = ranks.outputs[0].readline()
        began.append(int(line.split()[-1]))
        ranks.processes[0].join(random.uniform(0.05, 0.8))
        ranks.kill()
    assert began == sorted(began)
    ends = Ranks(folder, size).ends()
    assert digest(ends) == wanted
    assert {p.name for p in folder.iterdir() if p.name.startswith(".")} == {".saver.json"}
    assert sorted(p.name for p in folder.glob("step-*")) == ["step-15", "step-20", "step-23"]


def test_a_rank_that_is_told_to_end_has_all_of_them_save_and_end(tmp_path: Path) -> None:
    wanted = digest(Ranks(tmp_path / "undisturbed", 2).ends())
    ranks = Ranks(tmp_path / "told", 2, pause=0.1)
    ranks.outputs[1].readline()
    os.kill(ranks.processes[1].pid or 0, signal.SIGUSR1)
    ends = ranks.ends()
    digest(ends)
    (ended,) = {int(out.split()[-2]) for _, out, _ in ends}
    assert ended < STEPS
    assert latest(tmp_path / "told") == tmp_path / "told" / f"step-{ended}"
    assert digest(Ranks(tmp_path / "told", 2).ends()) == wanted


def test_all_ranks_hear_of_the_disk_of_one(tmp_path: Path) -> None:
    ends = Ranks(tmp_path / "ckpts", 2, fault="full_disk").ends()
    digest(ends)
    for _, out, _ in ends:
        assert "heard: step 7 was not saved" in out
        assert "rank 1: " in out
        assert "File too large" in out
    assert not (tmp_path / "ckpts" / "step-7").exists()


def test_ranks_wait_for_no_dead_one(tmp_path: Path) -> None:
    ends = Ranks(tmp_path / "ckpts", 2, fault="dying_rank").ends()
    assert [status for status, _, _ in ends] == [8, 9]
    assert "heard: step 7 was not saved" in ends[0][1]
    assert latest(tmp_path / "ckpts") == tmp_path / "ckpts" / "step-5"


def test_ranks_that_save_different_steps_are_told(tmp_path: Path) -> None:
    ends = Ranks(tmp_path / "ckpts", 2, fault="other_step").ends()
    digest(ends)
    assert all("ranks save different steps: 7, 8" in out for _, out, _ in ends)


def test_what_one_rank_writes_for_all_is_never_missing(tmp_path: Path) -> None:
    ends = Ranks(tmp_path / "ckpts", 2, fault="lost_tensor").ends()
    digest(ends)
    assert all("copied in part: True" in out for _, out, _ in ends)


def test_a_second_sigterm_ends_a_training_that_does_not_look(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path / "ckpts", 1, pause=1000)
    (process,) = ranks.processes
    ranks.outputs[0].readline()
    assert process.pid
    pid = process.pid
    process.terminate()
    until(lambda: _caught(pid), "the first signal is heard")
    # Those of the first ten seconds are one: Slurm and srun each send it.
    until(lambda: _ended_by_another(process), "the training's end")
    assert ranks.ends()[0][0] == -signal.SIGTERM


def _ended_by_another(process: BaseProcess) -> bool:
    process.terminate()
    return process.exitcode is not None


def _caught(process: int) -> bool:
    """Whether no signal waits for a process."""
    status = Path(f"/proc/{process}/status").read_text()
    return "ShdPnd:\t0000000000000000" in status and "SigPnd:\t0000000000000000" in status
