"""The script of a supervisor's job, run by bash: signals that come before anybody listens."""

import signal
import subprocess
from pathlib import Path

import pytest

from coordinate_eval.clusters.protocol import Job
from coordinate_eval.slurm.scripts import submission
from coordinate_eval.slurm.settings import SlurmSettings


def run(*argv: str, setup: str, log: Path) -> int:
    """Run the script of a job that Slurm may requeue; its exit status."""
    job = Job(
        name="super", argv=argv, minutes=60, requeue=True, folder=str(log.parent), log=str(log)
    )
    script = submission(job, SlurmSettings(setup=(setup,))).script
    return subprocess.run(["bash", "-c", script], check=False).returncode


def test_a_warning_during_the_setup_ends_nothing(tmp_path: Path) -> None:
    assert run("mkdir", "began", setup="kill -s USR1 $$", log=tmp_path / "log") == 0
    assert (tmp_path / "began").exists()


@pytest.mark.parametrize(
    ("name", "status"), [("USR1", 0), ("KILL", 0), ("TERM", 128 + signal.SIGTERM)]
)
def test_a_program_that_does_not_listen_yet_begins_again_unless_slurm_ends_it(
    name: str, status: int, tmp_path: Path
) -> None:
    """The first time, it has the job signalled and never ends by itself."""
    to = "$$" if name == "KILL" else "$PPID"
    program = f"mkdir tried 2>/dev/null || exit 0; kill -s {name} {to}; exec tail -f /dev/null"
    assert run("bash", "-c", program, setup=":", log=tmp_path / "log") == status
