"""The one place that runs Slurm's commands: an argv in, its standard output back.

What every command gets is the same: no inherited setting counts (SBATCH_PARTITION, or the
SLURM_* of a job in which this runs), it ends in time, and what it says on failure is sorted
into "no answer" and "no", which are opposite facts about a job.
"""

import json
import os
import shlex
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

from coordinate_eval.errors import ClusterError, ClusterSilent, SubmitRefused, UserError

_OWN_VARIABLES = (
    "SLURM",
    "SBATCH_",
    "SQUEUE_",
    "SINFO_",
    "SCANCEL_",
    "SCONTROL_",
    "SALLOC_",
    "SRUN_",
    # A job sets these for its own GPUs; to the next job they would name GPUs it doesn't have.
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
)
_KEPT_VARIABLES = ("SLURM_CONF", "SLURM_CONF_SERVER")

# Parts of what Slurm's commands print, in lower case, when a controller is down, busy, being
# replaced by its backup, or when munged is away: the same call may succeed later.
_SILENCE = (
    "unable to contact slurm controller",
    "connect failure",
    "connection refused",
    "connection timed out",
    "socket timed out",
    "zero bytes were transmitted or received",
    "message send failure",
    "message receive failure",
    "communication shutdown failure",
    "in standby mode",
    "header lengths are longer than data received",
    "insane message length",
    "authentication credential",
    "protocol authentication error",
    "munge encode failed",
    "munge decode failed",
    "temporarily unable",
    "could not establish a configuration source",
)


class SlurmClient:
    """Runs Slurm commands; `calls` counts them by name.

    Raises:
        UserError: SLURM_CONF names a file that doesn't exist.
    """

    def __init__(self, timeout_seconds: float) -> None:
        self.calls: Counter[str] = Counter()
        self._timeout_seconds = timeout_seconds
        configuration = os.environ.get("SLURM_CONF")
        # Slurm's commands would wait a minute for the file and then say nothing of use.
        if configuration and not Path(configuration).is_file():
            raise UserError(
                f"SLURM_CONF is {configuration!r}, but there is no such file: "
                "correct it, or unset it to go on without Slurm"
            )

    def run(self, command: str, *args: str, script: str | None = None) -> str:
        """Standard output of one command; `script` is its standard input.

        Raises:
            ClusterSilent: no answer, or none in time; what was asked for may have happened.
            SubmitRefused: sbatch said no.
            ClusterError: any other command said no; the text holds its words.
            UserError: there is no such command.
        """
        self.calls[command] += 1
        try:
            done = subprocess.run(
                [command, *args],
                env=_environment(command),
                input=(script or "").encode(),
                capture_output=True,
                timeout=self._timeout_seconds,
                check=False,
            )
        except FileNotFoundError as error:
            raise UserError(
                f"Slurm's command {command} is not on PATH: run this where jobs are submitted, "
                "or install Slurm's client commands"
            ) from error
        except OSError as error:
            raise ClusterError(f"cannot run {_title(command, args)}: {error}") from error
        except subprocess.TimeoutExpired as error:
            raise ClusterSilent(
                f"{_title(command, args)} did not answer in {self._timeout_seconds:g} s; "
                "asking again later may help"
            ) from error
        # Decoded here, not by a text mode, which would change carriage returns in job names.
        output, words = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
        if done.returncode != 0:
            raise _failure(command, args, done.returncode, words.strip() or output.strip())
        return output

    def json(self, command: str, *args: str) -> dict[str, Any]:
        """The JSON object that a command prints.

        Raises:
            ClusterSilent: besides, an empty answer, or one that lists errors: older versions
                print that with exit status 0 when the controller is down.
            ClusterError: besides, the answer is no JSON object.
        """
        text = self.run(command, *args)
        title = _title(command, args)
        if not text.strip():
            raise ClusterSilent(f"{title} printed nothing; asking again later may help")
        try:
            answer = json.loads(text)
        except ValueError as error:
            raise ClusterError(f"{title} printed no JSON: {text[:200]!r}") from error
        if not isinstance(answer, dict):
            raise ClusterError(f"{title} printed no JSON object: {text[:200]!r}")
        if answer.get("errors"):
            raise ClusterSilent(f"{title} did not answer: {_error_words(answer['errors'])}")
        return answer


def _environment(command: str) -> dict[str, str]:
    """This process's variables without those that would change what a command means."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT_VARIABLES or not name.startswith(_OWN_VARIABLES)
    }
    # sbatch hands its environment to the job, whose programs keep the user's language.
    if command != "sbatch":
        environment["LC_ALL"] = "C"
    return environment


def _failure(command: str, args: tuple[str, ...], status: int, words: str) -> ClusterError:
    """The error for a command that failed with these words."""
    title = _title(command, args)
    if any(sign in words.lower() for sign in _SILENCE):
        return ClusterSilent(f"{title} got no answer: {words}")
    if status < 0:
        return ClusterSilent(f"{title} was ended by signal {-status} before it had an answer")
    words = words or f"exit status {status} without a word"
    if command == "sbatch":
        return SubmitRefused(f"Slurm refused the job: {words}\n(submitted with {title})")
    return ClusterError(f"{title} failed: {words}")


def _error_words(errors: object) -> str:
    """The texts of the `errors` of an answer, which are objects or strings by version."""
    entries = errors if isinstance(errors, list) else [errors]
    texts = (
        str(entry.get("description") or entry.get("error") or entry)
        if isinstance(entry, dict)
        else str(entry)
        for entry in entries
    )
    return "; ".join(texts)


def _title(command: str, args: tuple[str, ...]) -> str:
    return shlex.join((command, *args))
