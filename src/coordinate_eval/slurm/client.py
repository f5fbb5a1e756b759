"""The only module that runs Slurm's commands.

No command inherits a setting from the environment, such as SBATCH_PARTITION (see `environment.py`).
Each command has a time limit. An error is either "no answer" or a refusal, which mean opposite
things for a job: after "no answer" it may exist.
"""

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from coordinate_eval.errors import ClusterError, ClusterSilent, SubmitRefused, UserError
from coordinate_eval.slurm.answers.partitions import read_config
from coordinate_eval.slurm.environment import ANOTHER_CLUSTER, NAMING_CLUSTERS, of_command

# Parts of error messages, in lower case, of Slurm's commands if the controller is down, busy or
# being replaced by its backup, or if munged is down. The same call may succeed later.
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

# sbatch has been refused because Slurm is full, and would ask again for two minutes by itself.
_ASKS_AGAIN = re.compile(rb"sleeping and retrying|temporarily disabled, retrying")

_LOOK_SECONDS = 0.2
"""Time between two looks at what a command says. sbatch sleeps for a second before it asks again.
"""

MOST_BYTES = 1 << 30
"""Longest answer. A million tasks take 64 MB."""

_CONFIGURATIONS = (Path("/etc/slurm/slurm.conf"), Path("/run/slurm/conf/slurm.conf"))
_PROBE_SECONDS = 15.0

TIMEOUT_SECONDS = 60.0
"""Time limit of one command."""


def slurm_configured() -> bool:
    """Return whether this machine belongs to a Slurm cluster, reachable or not.

    The answer is yes even if the configuration is missing or the controller is silent. The user
    should then see that error, and not get a run on another scheduler.
    """
    if os.environ.get("SLURM_CONF") or os.environ.get("SLURM_CONF_SERVER"):
        return True
    if any(path.exists() for path in _CONFIGURATIONS):
        return True
    if shutil.which("scontrol") is None:
        return False
    # The configuration may have another path, or be found through DNS: scontrol knows.
    try:
        SlurmClient(_PROBE_SECONDS).run("scontrol", "ping")
    except ClusterError as error:
        return "configuration source" not in str(error)
    return True


class SlurmClient:
    """A runner of Slurm's commands. `calls` counts them by name.

    Raises:
        UserError: SLURM_CONF names a file that is missing or cannot be read.
    """

    def __init__(self, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self.calls: Counter[str] = Counter()
        self._timeout_seconds = timeout_seconds
        self._knows_cluster = False
        configuration = os.environ.get("SLURM_CONF")
        # Slurm's commands would wait a minute for the file, and then fail with no useful message.
        if configuration and not _can_be_read(Path(configuration)):
            raise UserError(
                f"SLURM_CONF is {configuration!r}, but there is no such file that you can read: "
                "correct it, or unset it to run without Slurm"
            )

    def run(
        self,
        command: str,
        *args: str,
        script: str | None = None,
        environment: Mapping[str, str] | None = None,
        folder: str = "/",
    ) -> str:
        """Run one command and return its standard output. `script` is its standard input.

        `environment` is what it gets in place of this process's own, as a job does, and `folder`
        is where it runs: a job's shell begins there, and no node lacks `/`.

        Raises:
            ClusterSilent: no answer in time. The command may have taken effect.
            SubmitRefused: sbatch refused, or was refused for now; the message is its words.
            ClusterError: any other command failed; the message has its words.
            UserError: the command is not installed, or a variable names another cluster than the
                one that Slurm's commands ask.
        """
        self._check_cluster()
        self.calls[command] += 1
        try:
            status, *printed = self._done(
                command,
                args,
                (script or "").encode(),
                of_command(os.environ) if environment is None else environment,
                folder,
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
                f"{_title(command, args)} did not answer in {self._timeout_seconds:g} s"
                f"{_said(error.stderr)}; try again later"
            ) from error
        # Decoded here, because text mode would change carriage returns in job names.
        output, words = (text.decode(errors="replace") for text in printed)
        if status != 0:
            raise _failure(command, args, status, words.strip() or output.strip())
        return output

    def answer(self, *words: str) -> str | None:
        """Run one command and return its standard output; None if it failed.

        Raises:
            ClusterSilent, UserError: as `run` does.
        """
        try:
            return self.run(*words)
        except ClusterSilent:
            raise
        except ClusterError:
            return None

    def _check_cluster(self) -> None:
        """Refuse variables that name other clusters, which no command here would ask.

        All commands have to ask one cluster, which is that of SLURM_CONF.
        """
        if self._knows_cluster:
            return
        self._knows_cluster = True
        named = [name for name in NAMING_CLUSTERS if os.environ.get(name)]
        own = read_config(self.run("scontrol", "show", "config")).name if named else ""
        for name in named:
            if os.environ[name].lower() != own.lower():
                self._knows_cluster = False
                raise UserError(
                    f"{name} is {os.environ[name]!r}, but Slurm's commands ask cluster {own!r} "
                    f"here, where all jobs would go: unset it to use {own!r}; {ANOTHER_CLUSTER}"
                )

    def _done(
        self,
        command: str,
        args: tuple[str, ...],
        text: bytes,
        environment: Mapping[str, str],
        folder: str,
    ) -> tuple[int, bytes, bytes]:
        """Run one command to its end. Return its exit status, output and messages.

        Raises:
            SubmitRefused: sbatch was refused for now and was ended, in place of asking again. It
                may have done so just before.
        """
        end = time.monotonic() + self._timeout_seconds
        with subprocess.Popen(
            [command, *args],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            try:
                while True:
                    left = max(0.0, end - time.monotonic())
                    wait = min(left, _LOOK_SECONDS)
                    try:
                        output, words = process.communicate(text, wait)
                    except subprocess.TimeoutExpired as error:
                        said = error.stderr or b""
                        if len(said) + len(error.output or b"") > MOST_BYTES:
                            raise ClusterSilent(
                                f"{_title(command, args)} printed more than {MOST_BYTES >> 20} "
                                "MiB; try again later"
                            ) from error
                        if command == "sbatch" and _ASKS_AGAIN.search(said):
                            refused = said.decode(errors="replace").strip()
                            raise SubmitRefused(refused) from error
                        if wait == left:
                            raise
                        text = b""  # the process goes on reading what it was given before
                    else:
                        return process.returncode, output, words
            finally:
                process.kill()  # does nothing to one that has ended


def _failure(command: str, args: tuple[str, ...], status: int, words: str) -> ClusterError:
    """Return the error for a failed command and its message."""
    title = _title(command, args)
    said = words.lower()
    if command == "sbatch":  # it tries some errors again, and says so, before the one that counts
        said = said.rpartition("job submission failed:")[2]
    if any(sign in said for sign in _SILENCE):
        return ClusterSilent(f"{title} got no answer: {words}")
    if status < 0:
        return ClusterSilent(f"{title} was ended by signal {-status} before it answered")
    words = words or f"exit status {status} without a message"
    if command == "sbatch":
        return SubmitRefused(words)
    return ClusterError(f"{title} failed: {words}")


def _said(words: bytes | None) -> str:
    """Return what a command said before it was ended, to be added to a message."""
    text = (words or b"").decode(errors="replace").strip()
    return f" and said: {text}" if text else ""


def _title(command: str, args: tuple[str, ...]) -> str:
    return shlex.join((command, *args))


def _can_be_read(path: Path) -> bool:
    with contextlib.suppress(OSError):  # a folder above it is closed
        return path.is_file() and os.access(path, os.R_OK)
    return False
