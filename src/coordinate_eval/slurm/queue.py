"""What squeue and sbatch print about jobs, to values. Nothing here runs a command."""

import re

from coordinate_eval.coordinator.cluster import State, TaskStatus
from coordinate_eval.errors import ClusterSilent

# A record separator begins each record, and the job's name ends it: names may hold anything
# else, newlines and bars among it.
_RECORD = "\x1e"

SQUEUE_FORMAT = f"{_RECORD}%i|%T|%r|%N|%j"
"""For `squeue -h -a -r -t all -o`: task id, state, reason, node, job name."""

_TASK = re.compile(r"(\d+)(?:_(\d+))?")

# Not begun, or begun and to begin again.
_PENDING = {
    "PENDING",
    "CONFIGURING",
    "POWER_UP_NODE",
    "REQUEUED",
    "REQUEUE_FED",
    "REQUEUE_HOLD",
    "RESV_DEL_HOLD",
    "SPECIAL_EXIT",
    "EXPEDITING",
}
_ENDED = {
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "LAUNCH_FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "RECONFIG_FAIL",
    "REVOKED",
    "TIMEOUT",
}


def read_tasks(text: str, prefix: str) -> list[TaskStatus]:
    """Tasks in squeue's answer to `SQUEUE_FORMAT` whose job name starts with `prefix`.

    Raises:
        ClusterSilent: the answer is torn or of another form; a missing task may be there.
    """
    before, *records = text.split(_RECORD)
    if before.strip() or (records and not text.endswith("\n")):
        raise ClusterSilent(f"squeue's answer is torn or not understood: it ends {text[-200:]!r}")
    tasks = []
    for record in records:
        fields = record.removesuffix("\n").split("|", maxsplit=4)
        if len(fields) != 5 or not fields[4].startswith(prefix):
            continue
        task = _TASK.fullmatch(fields[0])
        # Heterogeneous jobs have other ids, and this program has no such jobs.
        if task is None:
            continue
        tasks.append(
            TaskStatus(
                name=fields[4],
                job_id=task[1],
                index=int(task[2] or 0),
                state=_state(fields[1]),
                reason="" if fields[2] == "None" else fields[2],
                node=fields[3],
            )
        )
    return tasks


def read_job_id(text: str) -> str:
    """The job id in what `sbatch --parsable` printed, as `123` or `123;cluster`.

    Raises:
        ClusterSilent: there is none; the job may or may not exist.
    """
    for line in reversed(text.splitlines()):
        if match := re.fullmatch(r"(\d+)(;.*)?", line.strip()):
            return match[1]
    raise ClusterSilent(
        f"sbatch printed no job id but {text[:200]!r}; the job may exist: look it up by its name"
    )


def _state(word: str) -> State:
    """The state that counts. Ended is only what is known to have ended: claims end with it.

    A task that completes, is suspended, or in a state of a later version still runs.
    """
    if word in _PENDING:
        return State.PENDING
    return State.ENDED if word in _ENDED else State.RUNNING
