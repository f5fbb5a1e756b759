"""Two users of one machine, for tests that root runs: one plants files, the other one acts."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runs import PATIENCE_SECONDS

ALICE, MALLORY = 61001, 61002
"""User and group ids that need no entry in any list of users."""

_SBATCH = """\
#!/bin/bash
# Stands in for sbatch: the job runs here and now, and is over.
bash -s >"$HOME/job.log" 2>&1
echo 7
"""


def give(path: Path, uid: int) -> Path:
    """Make everything at a path this user's own."""
    for each in (path, *path.rglob("*")):
        os.chown(each, uid, uid, follow_symlinks=False)
    return path


class People:
    """Alice, Mallory, and folders that both can write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.chmod(0o755)
        self.home = give(self._made("alice", 0o755), ALICE)
        self.malice = give(self._made("mallory", 0o755), MALLORY)
        self.runs = self._made("runs", 0o1777)
        self.canary = self._made("canaries", 0o777) / "sang"
        commands = self._made("commands", 0o755)
        for name, text in (
            ("sbatch", _SBATCH),
            *((n, "#!/bin/sh\n") for n in ("squeue", "scontrol")),
        ):
            (commands / name).write_text(text)
            (commands / name).chmod(0o755)
        self.environ = {
            "HOME": str(self.home),
            "PATH": f"{commands}:/usr/bin:/bin",
            "SLURM_CONF": str(commands / "squeue"),
            "COORDINATE_EVAL_RUNS_DIR": str(self.runs),
            "COORDINATE_EVAL_CLUSTER": "slurm",
            "COORDINATE_EVAL_ENGINE_NAME": "simulated",
        }
        # Another Python than that of the tests finds the same packages.
        self.environ["PYTHONPATH"] = ":".join(p for p in sys.path if Path(p).is_dir())
        self.python = sys.executable

    def _made(self, name: str, mode: int) -> Path:
        made = self.folder / name
        made.mkdir()
        made.chmod(mode)
        return made

    def singer(self, path: Path, uid: int = MALLORY) -> Path:
        """A program of this user that leaves a canary."""
        path.write_text(f"#!/bin/sh\n{self.song}\n")
        path.chmod(0o755)
        return give(path, uid)

    @property
    def song(self) -> str:
        """A line of shell that leaves a canary."""
        return f"id -u >> '{self.canary}'"

    def sang(self) -> bool:
        """Whether anything planted was run."""
        return self.canary.exists()

    def alice(
        self,
        *args: object,
        cwd: Path | None = None,
        flags: tuple[str, ...] = ("-P",),
        **environ: str,
    ) -> subprocess.CompletedProcess[str]:
        """`coordinate-eval ARGS`, typed by Alice."""
        return subprocess.run(
            [self.python, *flags, "-m", "coordinate_eval", *map(str, args)],
            user=ALICE,
            group=ALICE,
            extra_groups=[],
            env=self.environ | environ,
            cwd=cwd or self.home,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )


@contextlib.contextmanager
def people() -> Iterator[People]:
    """Alice and Mallory, or skip the test."""
    if os.geteuid() != 0:
        pytest.skip("only root can act as two users")
    # The folders that pytest makes are closed to others.
    with tempfile.TemporaryDirectory(prefix="people-") as folder:
        yield _able(People(Path(folder)))


_found: list[str] = []
"""The Python that other users can run, once it is found."""


def _able(made: People) -> People:
    """Find a Python that other users can run, or skip the test."""
    if _found:
        (made.python,) = _found
        return made
    # A Python in root's home is nobody else's.
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for made.python in (sys.executable, f"/usr/bin/python{version}"):
        try:
            if made.alice("--version").returncode == 0:
                _found.append(made.python)
                return made
        except OSError:
            continue
    pytest.skip("other users can run no Python of this version")
