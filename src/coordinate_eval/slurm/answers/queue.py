"""Parse the output of squeue and sbatch. Nothing here runs a command."""

import re
from collections.abc import Iterable, Sequence

from coordinate_eval.clusters.protocol import End, Hold, State, TaskStatus, Waits
from coordinate_eval.errors import ClusterSilent
from coordinate_eval.slurm.answers.reasons import Reason, read_reason

# A record separator begins each record and the job's name ends it, because a name may contain any
# other character, such as a newline or a bar.
RECORD = "\x1e"

SQUEUE_FORMAT = f"{RECORD}%i|%T|%r|%N|%j"
"""For `squeue -h -a -r -t all -o`: task id, state, reason, node, job name."""

_HELD = {"REQUEUE_HOLD", "SPECIAL_EXIT"}
"""States of jobs that somebody has held. `scontrol requeuehold` says nobody's name."""

_PREPARING = {"CONFIGURING", "POWER_UP_NODE"}
"""States of jobs that have a node, which starts or runs its prolog."""

_TASK = re.compile(r"(\d{1,19})(?:_(\d{1,9}))?", re.ASCII)

# Not started yet, or to be started again.
PENDING = {
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
ENDED = {
    "BOOT_FAIL": End.NODE_FAILED,
    "CANCELLED": End.CANCELLED,
    "COMPLETED": End.COMPLETED,
    "DEADLINE": End.TIME_LIMIT,
    "FAILED": End.FAILED,
    "LAUNCH_FAILED": End.NODE_FAILED,
    "NODE_FAIL": End.NODE_FAILED,
    "OUT_OF_MEMORY": End.OUT_OF_MEMORY,
    "PREEMPTED": End.PREEMPTED,
    "RECONFIG_FAIL": End.NODE_FAILED,
    "REVOKED": End.CANCELLED,
    "TIMEOUT": End.TIME_LIMIT,
}


def read_tasks(text: str, prefix: str) -> list[TaskStatus]:
    """Return the tasks in squeue's output whose job name starts with `prefix`.

    Raises:
        ClusterSilent: the output is incomplete or has another form, so a task may be missing.
    """
    before, *records = text.split(RECORD)
    if before.strip() or (records and not text.endswith("\n")):
        raise ClusterSilent(
            f"squeue's output is incomplete or has an unknown form: it ends {text[-200:]!r}"
        )
    found = (record.removesuffix("\n").split("|", maxsplit=4) for record in records)
    return [task for fields in found if (task := _task_of(fields, prefix))]


def with_choice(tasks: Iterable[TaskStatus]) -> list[TaskStatus]:
    """Return tasks of jobs that may start in any of several partitions, or with any of several QOS.

    What keeps them out of one of these ends no wait.
    """
    return [
        task.model_copy(
            update={
                "waits": Waits.CLUSTER,
                "means": f"{task.means}, in one of its partitions or QOS",
            }
        )
        if task.never_starts and read_reason(task.reason).of_partition
        else task
        for task in tasks
    ]


def _task_of(fields: Sequence[str], prefix: str) -> TaskStatus | None:
    """Return the task with these fields of `SQUEUE_FORMAT`; None if it is no such task of ours."""
    if len(fields) != 5 or not fields[4].startswith(prefix):
        return None
    task = _TASK.fullmatch(fields[0])
    # Only heterogeneous jobs have other ids, and this program submits none.
    if task is None:
        return None
    preparing = fields[1] in _PREPARING and fields[2] == "None"
    state, reason = _state(fields[1]), read_reason("Prolog" if preparing else fields[2])
    pending = state is State.PENDING
    return TaskStatus(
        name=fields[4],
        job_id=task[1],
        index=int(task[2] or 0),
        state=state,
        end=ENDED.get(fields[1], End.UNKNOWN),
        suspended=fields[1] in ("SUSPENDED", "STOPPED"),
        completing=fields[1] == "COMPLETING",
        reason="" if fields[2] == "None" else fields[2],
        waits=reason.waits if pending else Waits.NOTHING,
        means=reason.means if pending else "",
        cure=reason.cure.replace("JOB", task[1]) if pending else "",
        held=_hold(fields[1], reason) if pending else Hold.NONE,
        node=fields[3],
    )


def _hold(word: str, reason: Reason) -> Hold:
    """Return why a pending task in this state is held."""
    return reason.held or (Hold.USER if word in _HELD else Hold.NONE)


def read_job_id(text: str) -> str:
    """Return the job id in the output of `sbatch --parsable`: `123` or `123;cluster`.

    Raises:
        ClusterSilent: there is none. The job may or may not exist.
    """
    for line in reversed(text.splitlines()):
        if match := re.fullmatch(r"([0-9]{1,19})(;.*)?", line.strip()):
            return match[1]
    raise ClusterSilent(
        f"sbatch printed no job id, but {text[:200]!r}; the job may exist: look it up by its name"
    )


def _state(word: str) -> State:
    """Return the state of a task.

    ENDED is only for states known to be final, because the task's claims are then revoked. A task
    counts as running if it is completing, suspended, or in a state that is unknown here.
    """
    if word in PENDING:
        return State.PENDING
    return State.ENDED if word in ENDED else State.RUNNING
