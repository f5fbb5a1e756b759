"""The meaning of sbatch's words when it refuses a job. Nothing here runs a command.

The words are those of `slurm_errno.c` and of the reasons of pending jobs, Slurm 20.11 to 26.05.
A site's submission plugin may use any others.
"""

import re

from coordinate_eval.errors import ArrayRefused, SettingsRefused, SubmitLater, SubmitRefused

# Slurm is full now, or this user's or account's jobs are. Limits on what a single job may ask for
# are not among them.
_LATER = re.compile(
    r"maxsubmit|grpsubmit|maxjobcount|job queue full|resource temporarily unavailable"
    r"|unable to create job record|job creation temporarily disabled|temporarily unable to accept"
    r"|rate limit exceeded|i/o error writing script|error generating job credential"
    r"|operation is presently disabled|required partition not available|try again (in a bit|later)"
)

# Before 20.11 nothing else is said of a limit. Only one on the number of jobs refuses a job by
# default; others leave it pending.
_POLICY = "job violates accounting/qos policy"
_REASON = re.compile(r"error: ((qos|assoc)\w+)")

# The highest index is below MaxArraySize, which may be too small for any array.
_ARRAY = "invalid job array specification"

# What a submission plugin says on lines of its own, Slurm ends with these words.
_OF_THE_SITE = re.compile(r"\S\s*\n[^\n]*unspecified error\s*$")

_PLACES = "[slurm] partition, or cpu_partition for jobs without GPUs"

# Nothing else that is asked for makes a job acceptable: the setting has to change.
_NEVER = (
    (r"invalid account", "correct [slurm] account, or cpu_account for jobs without GPUs"),
    (r"invalid partition|no partition specified", f"correct {_PLACES}"),
    (r"group not permitted", f"choose a partition that takes this user's jobs: {_PLACES}"),
    (r"invalid qos", "correct [slurm] qos, or cpu_qos for jobs without GPUs"),
    (
        r"time limit is invalid|maxwall|invalid time-?min",
        "lower [trial] max_minutes, [supervisor] minutes or [build] minutes to what is allowed",
    ),
    (r"invalid feature|invalid constraint", "correct [slurm] constraint"),
    (
        r"to requested reservation|reservation is invalid|reservation has expired",
        "correct [slurm] reservation, or ask who made it to let you in",
    ),
    (
        r"invalid (license|wckey)|unrecognized option|invalid option|unknown option",
        "correct [slurm] extra_args",
    ),
    (r"usage threshold", "choose another [slurm] account or qos"),
    (r"access/permission denied|invalid user id", "ask who administers the cluster"),
)


def refusal(words: str, command: str, *, gpus: bool) -> SubmitRefused:
    """Return the error for a job that sbatch has refused with these `words`.

    Args:
        words: sbatch's message.
        command: the one that submitted the job, for the second line of the message.
        gpus: the job asks for the partition of GPUs.
    """
    said = words.lower()
    text = f"Slurm refused the job: {_on_one_line(words)}"
    submitted = f"\n(submitted with {command})"
    if _LATER.search(said) or (_POLICY in said and not _REASON.search(said)):
        return SubmitLater(text + submitted)
    if _ARRAY in said:
        return ArrayRefused(text + submitted)
    for pattern, cure in _NEVER:
        if re.search(pattern, said):
            return SettingsRefused(f"{text}: {cure}{submitted}")
    if _OF_THE_SITE.search(said) and "gpu" not in said:
        text += ". If the site asks for an option of sbatch, add it to [slurm] extra_args"
    elif not gpus:
        text += (
            ". If jobs without GPUs are not taken there, set [slurm] cpu_partition, cpu_account or "
            "cpu_qos"
        )
    return SubmitRefused(text + submitted)


def _on_one_line(words: str) -> str:
    lines = (re.sub(r"^sbatch: (error: )?", "", line.strip()) for line in words.splitlines())
    return "; ".join(line for line in lines if line)
