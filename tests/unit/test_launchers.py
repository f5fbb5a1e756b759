"""What a launcher sets for the processes of a training job is known, and reaches nothing else."""

import json
import subprocess
import sys

import pytest

from coordinate_eval import _launchers
from coordinate_eval.slurm.environment import of_job

TORCHRUN = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "GROUP_RANK": "1",
    "ROLE_RANK": "3",
    "ROLE_NAME": "default",
    "LOCAL_WORLD_SIZE": "2",
    "WORLD_SIZE": "4",
    "GROUP_WORLD_SIZE": "2",
    "ROLE_WORLD_SIZE": "4",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_MAX_RESTARTS": "0",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_ERROR_FILE": "/tmp/error.json",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "OMP_NUM_THREADS": "1",
}
MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_MCA_pml": "ob1",
    "PMIX_RANK": "3",
    "PMIX_NAMESPACE": "x",
    "PMI_RANK": "3",
    "PMI_FD": "6",
    "MPI_LOCALRANKID": "1",
}
TUNED = {
    "NCCL_DEBUG": "INFO",
    "NCCL_SOCKET_IFNAME": "ib0",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    "OMP_NUM_THREADS": "7",
}
KEPT = {
    "HF_HOME": "/hf",
    "PATH": "/bin",
    "PYTHONPATH": "/lib",
    "TORCH_HOME": "/torch",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "CUDA_HOME": "/cuda",
    "COORDINATE_EVAL_CONFIG": "/config.toml",
}


@pytest.mark.parametrize("launcher", [TORCHRUN, MPI], ids=["torchrun", "mpi"])
def test_a_command_leaves_the_job_that_started_it(launcher: dict[str, str]) -> None:
    environ = {**launcher, **TUNED, **KEPT, "CUDA_VISIBLE_DEVICES": "2"}
    _launchers.leave_job(environ)
    # It still says which GPUs may be used on this machine.
    assert environ == {**KEPT, "CUDA_VISIBLE_DEVICES": "2"}


def test_what_a_user_sets_outside_of_jobs_is_kept() -> None:
    environ = {**TUNED, **KEPT}
    _launchers.leave_job(environ)
    assert environ == {**TUNED, **KEPT}


def test_jobs_of_slurm_get_none_of_it() -> None:
    given = TORCHRUN | MPI | TUNED | {"CUDA_VISIBLE_DEVICES": "2", "SLURM_PROCID": "0"}
    assert of_job(given | KEPT) == KEPT


@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        ({}, None),
        (KEPT, None),
        (TORCHRUN, 3),
        (MPI, 3),
        ({"SLURM_PROCID": "5"}, 5),
        # One torchrun on each of two nodes: Slurm counts the nodes.
        ({"SLURM_PROCID": "0", "RANK": "8"}, 8),
        ({"RANK": "", "PMI_RANK": "2"}, 2),
        ({"RANK": "first"}, None),
    ],
)
def test_the_number_of_a_process(environ: dict[str, str], rank: int | None) -> None:
    assert _launchers.rank(environ) == rank


def test_programs_of_the_caller_get_what_it_has_set_and_nothing_of_ours() -> None:
    code = (
        "import json, os; from coordinate_eval.coordinator.cli import process; "
        "process.run(lambda args: print(json.dumps([process.callers_environment(), *os.environ])))"
    )
    given = {"PATH": "bin:/usr/bin", "PYTHONPATH": ":/x", "MINE": "1", "RANK": "3"}
    python = [sys.executable, "-c", code]
    told = subprocess.run(python, env=given, check=True, capture_output=True, text=True).stdout
    callers, *ours = json.loads(told)
    assert {"PYTHONSAFEPATH", "TQDM_DISABLE"} < set(ours)
    del given["RANK"]
    assert {name: callers[name] for name in callers if name != "LC_CTYPE"} == given
