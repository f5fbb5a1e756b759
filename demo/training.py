"""Trains under the guard while a node dies and the data goes bad, and shows what became of it.

The training is that of `examples/guarded_training`: four ranks on four nodes of a Slurm cluster
that is made up on this machine. What the guard does is printed as it happens. The last screen is
`coordinate-eval guard status`.

    python demo/training.py         needs Slurm, as root: `make demo-training` installs it

Exit status: 0 when the training is complete after both incidents, else 1; 2 without Slurm.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from rich.console import Console

import own_folder

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
from _processes import DevClusterError
from slurm_dev import DevCluster, Shape

_EXAMPLE = Path(__file__).parents[1] / "examples" / "guarded_training"
_STEPS = 700
_NODE_DIES_AT = 150
_BAD_STEPS = (420, 423)
_INCIDENTS = ["lost a node", "rolled back"]
_POLICY = f"last_step = {_STEPS}\ntest_nodes = false\npause_seconds = 1\nsilent_seconds = 60\n"
_PATIENCE_SECONDS = 600.0

_console = Console(highlight=False)


class Training:
    """The example's training in a folder, under a guard in this terminal."""

    def __init__(self, folder: Path, cluster: DevCluster) -> None:
        """Write what a user writes: a script, a policy. An earlier demo's goes.

        Raises:
            SystemExit: the folder holds something that no demo wrote.
        """
        own_folder.begin(folder)
        shutil.copy(_EXAMPLE / "train.py", folder)
        script = (_EXAMPLE / "train.sbatch").read_text().rstrip()
        python = f"env GLOO_SOCKET_IFNAME=lo {shlex.quote(sys.executable)} train.py"
        script = script.replace("python train.py", python)
        (folder / "train.sbatch").write_text(f"{script} --steps {_STEPS} --step-seconds 0.05\n")
        (folder / "guard.toml").write_text(_POLICY)
        self._folder = folder
        self._environment = os.environ | {
            "SLURM_CONF": str(cluster.conf),
            "COORDINATE_EVAL_RUNS_DIR": str(folder / "runs"),
            "COORDINATE_EVAL_CACHE_DIR": str(folder / "cache"),
            "COORDINATE_EVAL_SUPERVISOR_POLL_SECONDS": "1",
        }

    def start(self) -> None:
        """Start the guard, which submits the training."""
        told = ["--checkpoints", "checkpoints", "--policy", "guard.toml", "--obey", "rollback"]
        argv = [*self._command("train.sbatch"), *told, "--wait"]
        self.guard = subprocess.Popen(argv, cwd=self._folder, env=self._environment)

    def reach(self, step: int) -> None:
        """Wait until the training has done a step, or is over."""

        def is_there() -> bool:
            logs = self._folder.glob("train-*.log")
            return any(f"step {step} loss" in log.read_text(errors="replace") for log in logs)

        end = time.monotonic() + _PATIENCE_SECONDS
        while self.guard.poll() is None and not is_there():
            if time.monotonic() > end:
                raise TimeoutError(
                    f"no step {step} in {_PATIENCE_SECONDS:.0f} s: see {self._folder}"
                )
            time.sleep(0.2)

    def spoil(self, first: int, last: int) -> None:
        """Have the targets of some steps be 10,000 times too large from now on."""
        data = np.load(self._folder / "data.npy", mmap_mode="r+")
        data[first - 1 : last, :, -1] *= 1e4
        data.flush()

    def show(self) -> list[str]:
        """Print the guard's own account. Return what each incident was."""
        sys.stdout.flush()
        subprocess.run(self._command("status"), env=self._environment, check=False)
        asked = [*self._command("status"), "--json"]
        said = subprocess.run(asked, env=self._environment, check=True, stdout=subprocess.PIPE)
        return [each["what"] for each in json.loads(said.stdout)["attempts"] if each["incident"]]

    def _command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "coordinate_eval", "guard", *words]


def demonstrate(folder: Path, cluster: DevCluster) -> int:
    """Train, have both things happen, and show the end; the exit status."""
    training = Training(folder, cluster)
    training.start()
    try:
        training.reach(_NODE_DIES_AT)
        _console.rule("node3 dies, with all that runs on it")
        cluster.lose_node("node3")
        first, last = _BAD_STEPS
        _console.rule(f"the data of steps {first} to {last} goes bad")
        training.spoil(first, last)
        complete = training.guard.wait(_PATIENCE_SECONDS) == 0
    finally:
        training.guard.terminate()
    _console.rule("the end")
    incidents = training.show()
    if not complete or incidents != _INCIDENTS:
        _console.print(f"not as it should be: see {folder}", style="red", soft_wrap=True)
        return 1
    return 0


def main() -> int:
    """Have a cluster up for the demo; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--dir", type=Path, default=Path("build/demo-training"), help="the work folder"
    )
    given = parser.parse_args()
    # In a folder with a short name: sockets of jobs lie in it.
    cluster = DevCluster(Path(tempfile.mkdtemp(prefix="slurm-")), Shape(nodes=5, gpus=0, cpus=4))
    try:
        cluster.up()
        return demonstrate(given.dir.absolute(), cluster)
    except DevClusterError as error:
        _console.print(str(error), style="red", markup=False, soft_wrap=True)
        return 2
    finally:
        cluster.down()


if __name__ == "__main__":
    sys.exit(main())
