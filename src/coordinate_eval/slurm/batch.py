"""A user's own batch scripts: submitted as they are, found again by a mark, and described.

A job is submitted held, and whoever submits it releases it when its id is written down. So a job
that was submitted twice, because an answer was lost, never runs twice. The mark is a part of the
job's comment, because scripts use a job's name.
"""

import math
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from coordinate_eval import _user_files
from coordinate_eval.clusters.protocol import End, TaskStatus
from coordinate_eval.errors import ClusterError, ClusterSilent, UserError
from coordinate_eval.slurm.answers.partitions import read_minutes
from coordinate_eval.slurm.answers.queue import ENDED, RECORD, read_job_id, read_tasks
from coordinate_eval.slurm.client import SlurmClient
from coordinate_eval.slurm.environment import TOKEN

_FORMAT = f"{RECORD}%i|%T|%r|%N|%k"
"""As `SQUEUE_FORMAT`, with a job's comment in the place of its name."""

_OPTION = re.compile(r"^#SBATCH\s+(.*)$")
_SHORT = {"-x": "--exclude", "-a": "--array", "-M": "--clusters", "-W": "--wait"}
_MORE_THAN_ONE = ("--array", "--het-group", "hetjob", "packjob")
_NOT_HERE = {
    "--clusters": "the job may be on another cluster, where a guard does not look for it",
    "--wait": "sbatch would not return before the training ends",
}


@dataclass(frozen=True)
class Script:
    """A batch script, and the options in it that a submission has to respect."""

    path: Path
    exclude: str = ""
    comment: str = ""
    export: str = ""


def read_script(path: Path) -> Script:
    """Read the `#SBATCH` lines of a script.

    Raises:
        UserError: it cannot be read, is no script, or would start several jobs.
    """
    text = _user_files.read_text(path, "batch script")
    if not text.startswith("#!"):
        raise UserError(f"batch script {path} does not begin with #!, and sbatch would refuse it")
    options: dict[str, str] = {}
    for line in text.splitlines()[1:]:
        if line.strip() and not line.startswith("#"):
            break  # sbatch reads no further
        if found := _OPTION.match(line):
            options |= _options(found[1])
    for name in _MORE_THAN_ONE:
        if name in options:
            raise UserError(
                f"batch script {path} has `#SBATCH {name}`, and so would be several jobs: a guard "
                "keeps one job alive"
            )
    for name, why in _NOT_HERE.items():
        if name in options:
            raise UserError(f"batch script {path} has `#SBATCH {name}`: {why}. Leave it out")
    names = ("exclude", "comment", "export")
    return Script(path, *(options.get(f"--{name}", "") for name in names))


def _options(text: str) -> dict[str, str]:
    try:
        words = shlex.split(text, comments=True)
    except ValueError:
        return {}
    found: dict[str, str] = {}
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if not word.startswith("-"):
            if word in _MORE_THAN_ONE:
                found[word] = ""
            continue
        if not equals and not word.startswith("--") and len(word) > 2:
            name, value = word[:2], word[2:]
        elif not equals and at + 1 < len(words) and not words[at + 1].startswith("-"):
            value = words[at + 1]
        found[_SHORT.get(name, _whole(name))] = value
    return found


def _whole(name: str) -> str:
    """Return the option that a beginning of it stands for, of those that are refused."""
    return next(
        (
            whole
            for whole, least in (("--array", "--ar"), ("--clusters", "--cluster"))
            if name.startswith(least) and whole.startswith(name)
        ),
        name,
    )


_NEAR_LIMIT = 0.9
"""Share of its time limit after which a job that ends by itself may have saved before it."""


@dataclass(frozen=True)
class Described:
    """A job as Slurm describes it, for as long as it remembers it."""

    state: str
    """In Slurm's words: COMPLETED, NODE_FAIL."""
    end: End
    reason: str = ""
    exit_code: str = ""
    nodes: str = ""
    partition: str = ""
    logs: tuple[str, ...] = ()
    told: End | None = None
    """Slurm's reason to end it: a training that saves at that word ends by itself, and well."""
    forgotten: bool = False
    """Only the accounting remembers it: the controller says that there is no such job."""


@dataclass
class BatchScripts:
    """Submits scripts, and asks about their jobs. Each method runs one command of Slurm.

    Args:
        user: number of the user whose jobs these are.
    """

    user: int
    client: SlurmClient = field(default_factory=SlurmClient)

    def submit(
        self,
        script: Path,
        *,
        mark: str,
        folder: str,
        environment: Mapping[str, str],
        variables: Mapping[str, str],
        arguments: Sequence[str] = (),
        exclude: Collection[str] = (),
        nodes: int | None = None,
    ) -> str:
        """Submit a script as a held job, and return the id of the job.

        Slurm does not start it again by itself, and appends to its log. The variables reach it
        whatever it exports.

        Raises:
            UserError: the script cannot be read.
            ClusterSilent: no answer. The job may exist, with its mark.
        """
        read = read_script(script)
        excluded = ",".join(filter(None, (read.exclude, *sorted(exclude))))
        options = [
            "--parsable",
            "--hold",
            "--no-requeue",
            "--open-mode=append",
            f"--comment={' '.join(filter(None, (read.comment, mark)))}",
            f"--export={_export(read.export or environment.get('SBATCH_EXPORT', ''), variables)}",
            *([f"--exclude={excluded}"] if excluded else []),
            *([f"--nodes={nodes}"] if nodes is not None else []),
        ]
        answer = self.client.run(
            "sbatch",
            *options,
            str(script),
            *arguments,
            environment={**environment, **variables},
            folder=folder,
        )
        return read_job_id(answer)

    def jobs(self, mark: str) -> list[TaskStatus]:
        """Return the jobs whose comment has this mark, with their comments as names.

        Raises:
            ClusterSilent: no answer, or one that is not whole.
        """
        who = ("-u", str(self.user))
        text = self.client.run("squeue", "-h", "-a", "-t", "all", *who, "-o", _FORMAT)
        return [job for job in read_tasks(text, "") if mark in job.name]

    def release(self, job_id: str) -> None:
        """Let a held job start. One that has ended is left as it is."""
        self._change("scontrol", "release", job_id)

    def cancel(self, job_id: str) -> None:
        """End a job. One that has ended is left as it is."""
        self._change("scancel", job_id)

    def describe(self, job_id: str) -> Described | None:
        """Return what Slurm knows of a job; None if it has forgotten it."""
        text = self.client.answer("scontrol", "show", "job", job_id)
        if text is None:
            return self._accounted(job_id)
        logs = (_field(text, "StdOut"), _field(text, "StdErr"))
        return Described(
            state=_field(text, "JobState"),
            end=ENDED.get(_field(text, "JobState"), End.UNKNOWN),
            reason=_field(text, "Reason"),
            exit_code=_field(text, "ExitCode"),
            nodes=_field(text, "NodeList"),
            partition=_field(text, "Partition"),
            logs=tuple(dict.fromkeys(_expanded(log, text) for log in logs if log)),
            told=_told(text),
        )

    def node_names(self) -> set[str]:
        """Return the names of all nodes."""
        return set(self.client.run("sinfo", "-h", "-a", "-N", "-o", "%N").split())

    def drain(self, nodes: Sequence[str], reason: str) -> None:
        """Have Slurm start nothing more on nodes, as administrators and operators may."""
        named = f"nodename={','.join(nodes)}"
        self.client.run("scontrol", "update", named, "state=drain", f"reason={reason}")

    def _accounted(self, job_id: str) -> Described | None:
        """Return what Slurm's accounting knows of a job, where there is accounting."""
        asked = "State,ExitCode,NodeList,Partition"
        try:
            text = self.client.answer("sacct", "-n", "-P", "-X", "-j", job_id, "-o", asked)
        except UserError:  # it is not installed
            return None
        lines = (text or "").splitlines()
        if not lines or lines[-1].count("|") != 3:
            return None
        state, exit_code, nodes, partition = lines[-1].split("|")
        state = state.split()[0] if state else ""
        end = ENDED.get(state, End.UNKNOWN)
        return Described(
            state, end, exit_code=exit_code, nodes=nodes, partition=partition, forgotten=True
        )

    def _change(self, *words: str) -> None:
        try:
            self.client.run(*words)
        except ClusterSilent:
            raise
        except ClusterError as error:
            if not re.search("invalid job id|already complet|job is no longer", str(error).lower()):
                raise


def kept_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which a script is submitted: all but those of the caller's job."""
    return {
        name: value
        for name, value in environ.items()
        if name in ("SLURM_CONF", "SLURM_CONF_SERVER", TOKEN) or not name.startswith("SLURM_")
    }


def _export(own: str, variables: Mapping[str, str]) -> str:
    """Return what a job exports: what its script says, and these variables by their names.

    Their values are in sbatch's environment, because they may have commas.
    """
    if own.upper() in ("", "ALL"):
        return "ALL"
    listed = [] if own.upper() in ("NONE", "NIL") else [own]
    return ",".join([*listed, *variables])


def _told(text: str) -> End | None:
    """Return why Slurm wanted a job to end, by `scontrol show job`; None where it did not."""
    if _field(text, "PreemptTime") not in ("", "None", "Unknown", "N/A"):
        return End.PREEMPTED
    ran, limit = (read_minutes(_field(text, name)) for name in ("RunTime", "TimeLimit"))
    return End.TIME_LIMIT if 0 < _NEAR_LIMIT * limit <= ran < math.inf else None


def _field(text: str, name: str) -> str:
    """Return a value of `scontrol show job`.

    A path begins a line, and ends before the next line that begins with a name: a path may have
    blanks and newlines.
    """
    if name.startswith("Std"):
        found = re.search(rf"(?ms)^\s+{name}=(.*?)(?=\n\s+\w+=|\s*\Z)", text)
    else:
        found = re.search(rf"(?m)(?:^|\s){name}=(.*?)(?=\s|$)", text)
    value = found[1] if found else ""
    return "" if value in ("(null)", "None") else value


def _expanded(path: str, text: str) -> str:
    """Return the path of a log, where Slurm shows the pattern."""
    job_id, name = _field(text, "JobId"), _field(text, "JobName")
    user = _field(text, "UserId").partition("(")[0]
    values = {"j": job_id, "A": job_id, "x": name, "u": user, "%": "%"}
    return re.sub(r"%\d*([jAxu%])", lambda found: values[found[1]], path)
