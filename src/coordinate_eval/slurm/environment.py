"""The environment of Slurm's commands, and of jobs: a short list of the caller's variables.

A caller's personal settings are no part of a run. A private folder for temporary files or compiled
code may not exist on a node, an option of a SPANK plugin would change each job, and runs of two
shells would differ. A job gets what is listed here and in `[slurm] environment`; the lines of
`[slurm] setup` set whatever else it needs.
"""

from collections.abc import Iterable, Mapping

from coordinate_eval._engines import CACHE_ROOTS
from coordinate_eval._launchers import is_for_training
from coordinate_eval._no_telemetry import NO_TELEMETRY

TOKEN = "SLURM_JWT"  # noqa: S105 - its name
"""The variable with which Slurm's commands authenticate where there is no munge."""

NAMING_CLUSTERS = ("SLURM_CLUSTERS", "SBATCH_CLUSTERS")
"""Variables with which users tell Slurm's commands to ask other clusters than their own."""

ANOTHER_CLUSTER = (
    "for another cluster, run this on its login node, or set SLURM_CONF to its slurm.conf"
)
"""The advice where a user names a cluster."""

_KEPT_FOR_COMMANDS = ("SLURM_CONF", "SLURM_CONF_SERVER", TOKEN)
_CHANGING_COMMANDS = (
    "SLURM",
    "_SLURM",
    "SBATCH_",
    "SQUEUE_",
    "SINFO_",
    "SCANCEL_",
    "SCONTROL_",
    "SALLOC_",
    "SRUN_",
)

_OF_JOBS = frozenset(
    {
        *_KEPT_FOR_COMMANDS,
        *NO_TELEMETRY,
        # The user, and the user's language.
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "LANG",
        "LANGUAGE",
        "TZ",
        "XDG_CACHE_HOME",
        "XDG_CONFIG_HOME",
        "XDG_DATA_HOME",
        # Programs and libraries.
        "PATH",
        "LD_LIBRARY_PATH",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "CONDA_DEFAULT_ENV",
        "CUDA_HOME",
        "CUDA_PATH",
        "ROCM_HOME",
        "ROCM_PATH",
        "CC",
        "CXX",
        "CPATH",
        "LIBRARY_PATH",
        # Environment modules, with the shell functions below.
        "BASH_ENV",
        "LOADEDMODULES",
        "_LMFILES_",
        # Data, and the network to it.
        "TORCH_HOME",
        "NLTK_DATA",
        "TQDM_DISABLE",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        *(f"{kind}_proxy" for kind in ("http", "https", "no", "all")),
        *(f"{kind}_PROXY" for kind in ("HTTP", "HTTPS", "NO", "ALL")),
    }
)
"""Variables that jobs get from whoever submits them."""

_OF_JOBS_BEGIN = (
    "COORDINATE_EVAL_",
    "LC_",
    "PYTHON",
    "HF_",
    "HUGGINGFACE_",
    "TRANSFORMERS_",
    "VLLM_",
    "BASH_FUNC_",
    "LMOD_",
    "__LMOD_",
    "__MODULES_",
    "_ModuleTable",
    "MODULE",
)
"""Beginnings of more such variables."""


def of_command(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for a command that starts no job: all that do not change its work."""
    kept = {
        name: value
        for name, value in environ.items()
        if name in _KEPT_FOR_COMMANDS or not name.startswith(_CHANGING_COMMANDS)
    }
    return {**kept, "LC_ALL": "C"}


def of_job(
    environ: Mapping[str, str],
    more: Iterable[str] = (),
    needs: Iterable[str] = (),
    without: Iterable[str] = (),
) -> dict[str, str]:
    """Return the variables that sbatch, and so a job, gets.

    Args:
        more: further variables that all jobs get: names, or beginnings with `*` at the end.
        needs: further variables of this job.
        without: variables that this job does not get, whatever else says that it does.
    """
    names, beginnings = {*needs}, []
    for word in more:
        if word.endswith("*"):
            beginnings.append(word[:-1])
        else:
            names.add(word)

    def passes(name: str) -> bool:
        if name in names or name.startswith(tuple(beginnings)):
            return True
        if name in CACHE_ROOTS or is_for_training(name):
            return False
        return name in _OF_JOBS or name.startswith(_OF_JOBS_BEGIN)

    left_out = {*without}
    return {n: value for n, value in environ.items() if n not in left_out and passes(n)}
