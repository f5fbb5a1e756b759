"""A real torch training of four ranks, as in `examples/guarded_training`, and what it has done."""

import importlib
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from tests.runs import PATIENCE_SECONDS, lasting_port

EXAMPLE = Path(__file__).parents[1] / "examples" / "guarded_training"
_SCRIPTS = Path(__file__).parent / "scripts"
NODES = 6
"""Of the cluster at most. A training has four: of the others, one may be bad and one may die."""

STEPS = 450
SAVE_EVERY = 50
STEP_SECONDS = 0.01


class Read(NamedTuple):
    """That a rank has read the data of a step: a line of the journal."""

    attempt: str
    job: int
    rank: int
    pid: int
    node: str
    step: int
    saved: int
    """The newest step saved at that time; 0 if there is none, or if it is not of rank 0."""


class Training:
    """A training of its own data in a folder, as the job of a Slurm whose nodes are one machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self.journal = folder / "journal"
        self.script = folder / "train.sbatch"
        self._interfaces = folder / "interfaces"
        self._interfaces.mkdir(parents=True)
        self.checkpoints.mkdir()
        shutil.copy(EXAMPLE / "train.py", folder)
        for node in range(1, NODES + 1):
            self.interface(f"node{node}", "lo")
        self.slow_after(STEPS)
        python = shlex.join([sys.executable, str(_SCRIPTS / "read_training.py")])
        noted = f"{python} train.py {shlex.quote(str(self.journal))}"
        text = (EXAMPLE / "train.sbatch").read_text()
        assert "python train.py" in text
        text = text.replace("python train.py", f"env DRILL={shlex.quote(str(folder))} {noted}")
        sizes = f"--steps {STEPS} --save-every {SAVE_EVERY} --step-seconds {STEP_SECONDS}"
        self.script.write_text(f"{text.rstrip()} {sizes}\n")

    def interface(self, node: str, name: str) -> None:
        """Have the ranks of a node talk to others over this network interface from now on."""
        (self._interfaces / node).write_text(name)

    def slow_after(self, step: int) -> None:
        """Have each step after this one take a second more from now on."""
        (self.folder / "slow-after").write_text(f"{step}\n")

    def reads(self) -> list[Read]:
        """What has been read until now, in the order of reading."""
        lines = self.journal.read_text().splitlines() if self.journal.exists() else []
        return [
            Read(attempt, int(job), int(rank), int(pid), node, int(step), int(saved))
            for attempt, job, rank, pid, node, step, saved in map(str.split, lines)
        ]

    def saves(self) -> list[int]:
        """The steps of complete checkpoints."""
        return sorted(int(path.name[5:]) for path in self.checkpoints.glob("step-*"))


def undisturbed(folder: Path, skip: str = "") -> Path:
    """The last checkpoint of a training that nobody disturbed; `folder` keeps it."""
    made = folder / f"skip-{skip}" / "checkpoints"
    last = made / f"step-{STEPS}"
    if not last.exists():
        sizes = ["--steps", STEPS, "--save-every", STEPS, "--checkpoints", made]
        script = EXAMPLE / "train.py"
        argv = [sys.executable, _SCRIPTS / "ranks_here.py", lasting_port(), script, *sizes]
        environ = {"COORDINATE_EVAL_SKIP": skip, "COORDINATE_EVAL_RESUME_FROM": ""}
        made.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [str(word) for word in argv], env=os.environ | environ | {"GLOO_SOCKET_IFNAME": "lo"},
            check=True, timeout=PATIENCE_SECONDS, stdout=subprocess.DEVNULL,
        )  # fmt: skip
    return last


def tensors(checkpoint: Path) -> dict[str, Any]:
    """All that a checkpoint of torch DCP holds, flat; tensors as bytes."""
    # Torch has no types for these, and may be absent while types are checked.
    dcp: Any = importlib.import_module("torch.distributed.checkpoint")
    loading: Any = importlib.import_module("torch.distributed.checkpoint.state_dict_loader")
    planning: Any = importlib.import_module("torch.distributed.checkpoint.default_planner")
    state: dict[str, Any] = {}
    reader, planner = dcp.FileSystemReader(checkpoint), planning._EmptyStateDictLoadPlanner()
    loading._load_state_dict(state, storage_reader=reader, planner=planner, no_dist=True)
    found: dict[str, Any] = {}

    def note(name: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, each in value.items():
                note(f"{name}.{key}", each)
        else:
            found[name] = value.numpy().tobytes() if hasattr(value, "numpy") else value

    note("", state)
    return found


def assert_one_at_a_time(reads: list[Read]) -> None:
    """No rank of a job has read a step after one of a later job."""
    jobs: list[int] = []
    for read in reads:
        if not jobs or read.job != jobs[-1]:
            jobs.append(read.job)
    assert len(jobs) == len(set(jobs)), f"two trainings at once: jobs {jobs}"
