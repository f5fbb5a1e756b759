"""The sbatch command and the script of a job. Nothing here runs a command.

All options are on sbatch's command line, and none in #SBATCH lines. An argument needs no quoting,
so that a path or name with quotes or newlines cannot become another option or a line of shell. A
command line also takes precedence over every SBATCH_* variable. The script has only the commands.

The job gets the environment of sbatch (`--export=ALL`), which has little of the submitter's (see
`environment.py`). Programs need HF_HOME, the PATH of a virtual environment, and the shell functions
behind `module load`. With `NONE`, slurmd would start a login shell instead, which takes seconds for
each task and may differ between nodes.
"""

import math
import shlex
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from jinja2 import Environment, StrictUndefined, Template

from coordinate_eval import _job_log
from coordinate_eval.clusters.protocol import Job
from coordinate_eval.errors import UserError
from coordinate_eval.slurm.settings import SlurmSettings

WARNING_SECONDS = 60
"""Time before its time limit at which a task gets SIGUSR1, in seconds."""

LEAST_MINUTES = 3
"""Shortest time limit. Slurm may send the warning up to a minute early, and no task must start with
it."""

_MOST_RESTARTS = 5

_LEFT_SECONDS = 300
"""Time that the processes of a task on several nodes get to end when the first of them has ended.

They keep what was compiled, and remove weights. An engine whose other part is gone ends itself.
"""


@dataclass(frozen=True)
class Submission:
    """The arguments of sbatch, and the script on its standard input."""

    args: tuple[str, ...]
    script: str

    def text(self) -> str:
        """Return command and script as lines to be pasted into a shell."""
        command = " \\\n  ".join(map(shlex.quote, ("sbatch", *self.args)))
        return f"{command} <<'END_OF_JOB'\n{self.script}END_OF_JOB\n"

    def command(self) -> str:
        """Return the command for a shell, on one line even if a path has newlines."""
        return " ".join(map(_quote, ("sbatch", *self.args)))


def submission(
    job: Job, settings: SlurmSettings, within: Collection[str] = (), most_mib_per_cpu: int = 0
) -> Submission:
    """Return the submission of `job` on a site with these settings.

    Args:
        within: the partitions with the node that the job is pinned to, as far as they are known.
        most_mib_per_cpu: the partition's limit on the memory of a CPU, 0 without one.

    Raises:
        UserError: an `extra_args` entry is not an option, or a text has a NUL character.
    """
    if settings.memory and most_mib_per_cpu:
        # So a job gets the same CPUs from each version of Slurm, and with each way to ask.
        cpus = max(job.cpus, math.ceil(job.memory_mib / most_mib_per_cpu))
        job = job.model_copy(update={"cpus": cpus})
    script = _template().render(
        argv=[_quote(word) for word in job.started_by(_launcher(job))],
        folder=_quote(job.folder),
        setup=settings.setup,
        requeue=job.requeue,
        submits=job.submits,
        contained=job.container is not None,
        shared=_quote(job.container.shared) if job.container and job.container.shared else "",
        own_log=_quote(job.log) if "\\" in job.log else "",
        line_of_log=_quote(_job_log.LINE),
        most_restarts=_MOST_RESTARTS,
        nodes=job.nodes,
    )
    made = Submission(args=_options(job, settings, within), script=script)
    if any("\0" in text for text in (*made.args, made.script)):
        raise UserError(f"job {job.name!r}: a NUL character in its name, paths or settings")
    return made


def _launcher(job: Job) -> tuple[str, ...]:
    """Return what starts the processes of a task on several nodes: one on each."""
    if job.nodes == 1:
        return ()
    return (
        "srun",
        f"--nodes={job.nodes}",
        f"--ntasks={job.nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={job.cpus}",
        "--kill-on-bad-exit=1",  # processes of an engine may be left, on GPUs
        f"--wait={_LEFT_SECONDS}",
        "--mpi=none",
        "--input=none",
    )


def _options(job: Job, settings: SlurmSettings, within: Collection[str]) -> tuple[str, ...]:
    chosen = settings.of(job.in_gpu_partition)
    optional = {
        "--array": f"0-{job.count - 1}" if job.count > 1 else "",
        "--gres": _gres(job, settings),
        "--nodelist": job.node,
        "--partition": _partitions(chosen.partition, within),
        "--account": chosen.account,
        "--qos": chosen.qos,
        "--reservation": chosen.reservation,
        "--constraint": settings.constraint if job.in_gpu_partition else "",
    }
    return (
        "--parsable",
        f"--job-name={job.name}",
        f"--output={_log_pattern(job)}",
        "--open-mode=append",
        "--export=ALL",
        "--propagate=NONE",  # a login node's limits, such as ulimit -t, are none of a job's
        f"--nodes={job.nodes}",
        f"--ntasks={job.nodes}",
        *(["--ntasks-per-node=1"] if job.nodes > 1 else []),
        f"--cpus-per-task={job.cpus}",
        *_memory(job, settings),
        f"--time={max(LEAST_MINUTES, job.minutes)}",
        f"--signal=B:USR1@{WARNING_SECONDS}",
        "--requeue" if job.requeue else "--no-requeue",
        *(f"{name}={value}" for name, value in optional.items() if value),
        *_extra(settings),
        *_avoided(job, settings),
    )


def _avoided(job: Job, settings: SlurmSettings) -> list[str]:
    """Return the option for the nodes that a job avoids. sbatch takes it in place of the site's."""
    names = filter(None, (settings.exclude, *job.avoid))
    return [f"--exclude={','.join(names)}"] if job.avoid else []


def _memory(job: Job, settings: SlurmSettings) -> list[str]:
    # 0 would request all memory of the node.
    if settings.memory == "per-cpu":
        return [f"--mem-per-cpu={max(1, math.ceil(job.memory_mib / job.cpus))}M"]
    return [f"--mem={max(1, job.memory_mib)}M"] if settings.memory else []


def _partitions(names: str, within: Collection[str]) -> str:
    """Return the partitions of a setting that have the job's node; all if none is known to.

    With EnforcePartLimits=ALL, Slurm refuses a job whose node is not in all of its partitions.
    """
    return ",".join(name for name in names.split(",") if name in within) or names


def _gres(job: Job, settings: SlurmSettings) -> str:
    # Slurm refuses the type that the settings give to GPUs without one.
    kind = "" if job.gpu_type in ("", settings.gpu_type) else f"{job.gpu_type}:"
    return f"gpu:{kind}{job.gpus}" if job.gpus else ""


def _log_pattern(job: Job) -> str:
    """Return the path of the log, for output and errors, in Slurm's notation."""
    # With a backslash anywhere, Slurm expands no pattern and drops the backslashes.
    if "\\" in job.log:
        return "/dev/null"
    task = "%A_%a" if job.count > 1 else "%j"
    return f"{job.log.replace('%', '%%')}.{task}.log"


def _extra(settings: SlurmSettings) -> list[str]:
    """Return the site's own options as words. Each is written as after `#SBATCH`."""
    words: list[str] = []
    for option in settings.extra_args:
        try:
            split = shlex.split(option)
        except ValueError as error:
            raise UserError(f"[slurm] extra_args: {option!r} cannot be read: {error}") from error
        if not split or not split[0].startswith("-"):
            raise UserError(
                f"[slurm] extra_args: {option!r} is not an option such as '--exclude=n1'"
            )
        words += split
    return words


def _quote(word: str) -> str:
    """Return one word of bash on one line: sbatch refuses CR LF even within quotes."""
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(map(_escaped, word)) + "'"


def _escaped(character: str) -> str:
    if character in "\\'":
        return "\\" + character
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))


@cache
def _template() -> Template:
    source = files(__package__).joinpath("job.sh.j2").read_text(encoding="utf-8")
    environment = Environment(
        autoescape=False,  # noqa: S701 - shell, not HTML; _quote does the quoting
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.from_string(source)
