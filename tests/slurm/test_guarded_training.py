"""The training of `examples/guarded_training` on four nodes: its end and its way back."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dev_cluster import DevCluster
from tests.guarded import STEPS, Training, assert_one_at_a_time, tensors, undisturbed
from tests.runs import until
from tests.slurm.runs import queue
from tests.tiny import need


@pytest.fixture
def training(slurm_cluster: DevCluster, tmp_path: Path) -> Iterator[Training]:
    need("torch", "transformers")
    assert slurm_cluster.conf.exists()
    yield Training(tmp_path / "training")
    until(lambda: not queue(), "an empty queue")


def test_a_training_whose_rank_dies_goes_on_from_its_save(
    training: Training, tmp_path: Path
) -> None:
    first = training.submit()
    victim = until(lambda: [r for r in training.reads() if r.step == 60 and r.rank == 2], "step 60")
    os.kill(victim[0].pid, signal.SIGKILL)
    until(lambda: not queue(), "the end of the job")
    saved = training.checkpoints / f"step-{training.saves()[-1]}"
    second = training.submit(COORDINATE_EVAL_RESUME_FROM=str(saved), COORDINATE_EVAL_ATTEMPT="2")
    until(lambda: not queue(), "the end of the training")
    assert training.saves()[-1] == STEPS, training.log(first) + training.log(second)
    reads = training.reads()
    assert_one_at_a_time(reads)
    assert min(read.step for read in reads if read.attempt == "2") == int(saved.name[5:]) + 1
    expected = undisturbed(tmp_path / "undisturbed")
    assert tensors(training.checkpoints / f"step-{STEPS}") == tensors(expected)
