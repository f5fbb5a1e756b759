"""A job and a site's settings, to what sbatch is given. Nothing here runs a command.

All options travel on sbatch's command line, none as #SBATCH lines: an argument needs no
quoting, so a path or name with quotes or newlines cannot become another option or a line of
shell; and a command line wins over every SBATCH_* variable. The script holds only what runs.

The job gets the submitter's environment (`--export=ALL`), from which the client has removed
what belongs to Slurm: programs need HF_HOME, a virtual environment's PATH and the shell
functions behind `module load`. With `NONE` slurmd would ask a login shell instead, which takes
seconds a task and differs by node.
"""

import shlex
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from jinja2 import Environment, StrictUndefined, Template

from coordinate_eval.coordinator.cluster import Job
from coordinate_eval.errors import UserError
from coordinate_eval.slurm.settings import SlurmSettings

WARNING_SECONDS = 60
"""How long before its time limit a task gets SIGUSR1."""

# Slurm may send the warning up to a minute early; a task shall not begin with it.
_LEAST_MINUTES = 3
_MOST_RESTARTS = 5


@dataclass(frozen=True)
class Submission:
    """Exactly what is submitted: sbatch's arguments, and the script on its standard input."""

    args: tuple[str, ...]
    script: str

    def text(self) -> str:
        """The same as a command for a shell, for people who want to see it first."""
        command = " \\\n  ".join(map(shlex.quote, ("sbatch", *self.args)))
        return f"{command} <<'END_OF_JOB'\n{self.script}END_OF_JOB\n"

    def command(self) -> str:
        """The command alone, for a shell and on one line whatever the paths in it are."""
        return " ".join(map(_quote, ("sbatch", *self.args)))


def submission(job: Job, settings: SlurmSettings) -> Submission:
    """What submits `job` on a site with these settings.

    Raises:
        UserError: an `extra_args` entry is no option, or something holds a NUL character.
    """
    script = _template().render(
        argv=[_quote(word) for word in job.argv],
        setup=settings.setup,
        requeue=job.requeue,
        own_log=_quote(job.log) if "\\" in job.log else "",
        most_restarts=_MOST_RESTARTS,
    )
    made = Submission(args=_options(job, settings), script=script)
    if any("\0" in text for text in (*made.args, made.script)):
        raise UserError(f"job {job.name!r}: a NUL character in its name, paths or settings")
    return made


def _options(job: Job, settings: SlurmSettings) -> tuple[str, ...]:
    gpu_work = job.gpu_work or job.gpus > 0
    cpu_partition = settings.cpu_partition or settings.partition
    optional = {
        "--array": f"0-{job.count - 1}" if job.count > 1 else "",
        "--gres": _gres(job),
        "--nodelist": job.node,
        "--partition": settings.partition if gpu_work else cpu_partition,
        "--account": settings.account,
        "--qos": settings.qos,
        "--constraint": settings.constraint if gpu_work else "",
    }
    return (
        "--parsable",
        f"--job-name={job.name}",
        f"--output={_log_pattern(job)}",
        "--open-mode=append",
        "--export=ALL",
        "--nodes=1",
        "--ntasks=1",
        f"--cpus-per-task={job.cpus}",
        f"--mem={max(1, job.memory_mib)}M",  # 0 would ask for all memory of the node
        f"--time={max(_LEAST_MINUTES, job.minutes)}",
        f"--signal=B:USR1@{WARNING_SECONDS}",
        "--requeue" if job.requeue else "--no-requeue",
        *(f"{name}={value}" for name, value in optional.items() if value),
        *_extra(settings),
    )


def _gres(job: Job) -> str:
    kind = f"{job.gpu_type}:" if job.gpu_type else ""
    return f"gpu:{kind}{job.gpus}" if job.gpus else ""


def _log_pattern(job: Job) -> str:
    """The log in Slurm's notation, which is for output and errors alike."""
    # A backslash anywhere makes Slurm take the pattern for a plain name, less the backslashes.
    if "\\" in job.log:
        return "/dev/null"
    task = "%A_%a" if job.count > 1 else "%j"
    return f"{job.log.replace('%', '%%')}.{task}.log"


def _extra(settings: SlurmSettings) -> list[str]:
    """The site's own options, each written as after `#SBATCH`."""
    words: list[str] = []
    for option in settings.extra_args:
        try:
            split = shlex.split(option)
        except ValueError as error:
            raise UserError(f"[slurm] extra_args: {option!r} cannot be read: {error}") from error
        if not split or not split[0].startswith("-"):
            raise UserError(f"[slurm] extra_args: {option!r} is no option such as '--exclude=n1'")
        words += split
    return words


def _quote(word: str) -> str:
    """One word of bash, on one line: sbatch refuses scripts with CR LF even within quotes."""
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
