"""One job per dataset, on a Slurm of its own, with all times of the jobs simulated.

`python -m benchmarks._one_job_each` reads a JSON list of `Arm` and prints the list of their seconds
from the first submission to the end of the last job. All arms run at the same time, each on its own
Slurm: their jobs sleep.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from benchmarks._slurm import CPUS_PER_NODE, GPUS_PER_NODE, cluster

CPUS_PER_JOB = CPUS_PER_NODE // GPUS_PER_NODE
"""Cores of a job of one dataset: its share of a node."""

_JOB = Path(__file__).with_name("_dataset_job.py")


class Arm(NamedTuple):
    """One job per dataset on some nodes."""

    nodes: int
    load_seconds: float
    """Of one copy of the weights that has the link of its node for itself."""
    held_seconds: Mapping[str, float]
    """How long the job of each dataset holds its GPU after that, in the order of submission."""


def main() -> None:
    """Run the arms that stdin names."""
    arms = [Arm(*each) for each in json.load(sys.stdin)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        confs = [
            stack.enter_context(cluster(folder / f"slurm-{number}", arm.nodes))
            for number, arm in enumerate(arms)
        ]
        places = [folder / f"arm-{number}" for number in range(len(arms))]
        began = [_submit(*each) for each in zip(arms, confs, places, strict=True)]
        ends = [_await(arm, place) for arm, place in zip(arms, places, strict=True)]
    seconds = [end - begin for begin, end in zip(began, ends, strict=True)]
    sys.stdout.write(json.dumps(seconds))


def _submit(arm: Arm, conf: Path, place: Path) -> float:
    """Submit all jobs of an arm; return the time of the first submission."""
    place.mkdir()
    began = time.time()
    for dataset, seconds in arm.held_seconds.items():
        job = shlex.join([sys.executable, "-I", "-S", str(_JOB)])
        words = f"{arm.load_seconds} {seconds} {place}/{dataset}.done"
        subprocess.run(
            [
                "sbatch", "--parsable", "--gres=gpu:1", f"--cpus-per-task={CPUS_PER_JOB}",
                "--mem=1000M", "--time=120", f"--output={place}/{dataset}.log",
                "--wrap", f"exec {job} {place}/link-$SLURMD_NODENAME {words}",
            ],
            env=os.environ | {"SLURM_CONF": str(conf)}, capture_output=True, check=True,
        )  # fmt: skip
    return began


def _await(arm: Arm, place: Path) -> float:
    """Return the time of the end of an arm's last job."""
    while len(done := list(place.glob("*.done"))) < len(arm.held_seconds):
        time.sleep(1)
    return max(float(path.read_text()) for path in done)


if __name__ == "__main__":
    main()
