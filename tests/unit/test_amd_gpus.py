"""AMD's GPUs are asked for as Slurm names them, and each trial sees its own as ROCm names them."""

from pathlib import Path

import pytest
from tests.slurm_nodes import node

from coordinate_eval._gpus import name_once
from coordinate_eval.clusters.protocol import Job
from coordinate_eval.coordinator.workers.on_node.whole_node import visible_devices
from coordinate_eval.slurm.answers.nodes import Wanted, read_nodes
from coordinate_eval.slurm.scripts import submission
from coordinate_eval.slurm.settings import SlurmSettings

CUDA, HIP, ROCR = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"


def test_they_are_found_and_asked_for_by_the_type_that_slurm_has() -> None:
    entry = node(Gres="gpu:mi300x:8(S:0-1)", GresUsed="gpu:mi300x:3(IDX:0-2)")
    (found,), _ = read_nodes([entry], Wanted(partitions=frozenset({"low"})))
    assert (found.gpu_type, found.free_gpus, found.gpu_memory_gib) == ("mi300x", 5, 192)
    job = Job(name="n", argv=("x",), gpus=4, gpu_type=found.gpu_type, minutes=5, log="/l")
    assert "--gres=gpu:mi300x:4" in submission(job, SlurmSettings()).args


@pytest.mark.parametrize("same", [CUDA, HIP, "GPU_DEVICE_ORDINAL"])
def test_what_slurm_says_twice_hides_no_gpu(tmp_path: Path, same: str) -> None:
    """HIP would count the second list among the GPUs of the first, and find none."""
    environ = {ROCR: "4,5,6,7", same: "4,5,6,7"}
    name_once(environ, rocm=tmp_path)
    assert environ == {ROCR: "4,5,6,7"}
    assert visible_devices(environ, 1, 2) == {ROCR: "6,7"}


def test_an_nvidia_node_keeps_its_own_variable(tmp_path: Path) -> None:
    """A Slurm that detects no GPUs sets the variables of all makers."""
    environ = {ROCR: "0,1", CUDA: "0,1"}
    name_once(environ, rocm=tmp_path / "missing")
    assert visible_devices(environ, 1, 1)[CUDA] == "1"


def test_a_list_of_hip_alone_is_shared_out(tmp_path: Path) -> None:
    environ = {HIP: "0,1,2,3"}
    name_once(environ, rocm=tmp_path)
    assert visible_devices(environ, 0, 2) == {HIP: "0,1"}
