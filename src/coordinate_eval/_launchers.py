"""Environment variables that a training job's launcher sets for its processes.

A command may be started by a training job. Its own jobs belong to no such job: with
TORCHELASTIC_USE_AGENT_STORE, for instance, torch takes the process group that an engine makes for
one that the launcher's agent serves, and waits for it for ever (`_torchelastic_use_agent_store` in
torch/distributed/rendezvous.py). Names are those of

- torchrun: https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
- accelerate: `prepare_*_env` in https://github.com/huggingface/accelerate, utils/launch.py
- DeepSpeed: https://github.com/deepspeedai/DeepSpeed, deepspeed/launcher/launch.py
- Open MPI and PRRTE: https://docs.open-mpi.org/en/main/tuning-apps/environment-var.html
- MPICH's Hydra and others of PMI: https://github.com/pmodels/mpich, src/pm/hydra
- Slurm: https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES, removed with all
  of Slurm's variables where its commands are run (`slurm/client.py`)
"""

from collections.abc import Mapping, MutableMapping

_RANKS = (
    "RANK",
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "MV2_COMM_WORLD_RANK",
    "PALS_RANKID",
    "FLUX_TASK_RANK",
)
"""Variables with the number of a process in its job."""

_SLURM_RANK = "SLURM_PROCID"
"""The same from Slurm. srun may have started one torchrun on each node, and then it counts these;
batch scripts have it, too."""

_MEMBERSHIP = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "LOCAL_SIZE",
    "CROSS_RANK",
    "CROSS_SIZE",
    "NODE_RANK",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_NAME",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_",
    # transformers would load the weights on rank 0 only, for FSDP to spread them.
    "ACCELERATE_",
    "FSDP_",
    # A library that is linked with MPI would join the job, and wait for its other processes.
    "OMPI_",
    "PMI",
    "PRTE_",
    "PALS_",
    "HYDI_",
    "HYDRA_",
    "MPI_",
    "MV2_COMM_WORLD_",
)
"""Beginnings of variables that say which process of which job this is."""

_TUNING = (
    # Networks and algorithms for many nodes. An engine has the GPUs of one.
    "NCCL_",
    "TORCH_NCCL_",
    "GLOO_",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    # torchrun sets 1 thread. Cores that threads are bound to are not those of another job.
    "OMP_",
    "KMP_",
    "GOMP_",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    # Engines choose for themselves; vLLM cannot use expandable segments with some of its options.
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF",
)
"""Beginnings of variables that tune a training job, and not every program of the user."""


def rank(environ: Mapping[str, str]) -> int | None:
    """Return the number of this process in its job, None if no launcher gave it one."""
    found = (environ.get(name, "") for name in (*_RANKS, _SLURM_RANK))
    return next((int(number) for number in found if number.isdecimal()), None)


def is_for_training(name: str) -> bool:
    """Return whether a variable is a launcher's, or tunes a training job."""
    return name.startswith((*_MEMBERSHIP, *_TUNING))


def leave_job(environ: MutableMapping[str, str]) -> None:
    """Remove the variables of the job that this process was started in, if it was.

    Those that tune a job are kept where no launcher is seen: the user may have set them for this
    program, which may run its engines on this machine.
    """
    launched = any(name in environ for name in _RANKS)
    for name in list(environ):
        if name.startswith(_MEMBERSHIP) or (launched and is_for_training(name)):
            del environ[name]
