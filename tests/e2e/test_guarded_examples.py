"""Trainings of `examples/guarded_training` begin where they are told, and leave steps out."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.guarded import EXAMPLE
from tests.runs import PATIENCE_SECONDS
from tests.tiny import need


def train(*argv: object, start: Path | str = "", skip: str = "") -> str:
    """What a training prints."""
    need("torch", "transformers")
    told = {"COORDINATE_EVAL_RESUME_FROM": str(start), "COORDINATE_EVAL_SKIP": skip}
    done = subprocess.run(
        [sys.executable, *map(str, argv)],
        cwd=EXAMPLE, env=os.environ | told | {"GLOO_SOCKET_IFNAME": "lo"}, capture_output=True,
        text=True, check=False, timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_under_torchrun(tmp_path: Path) -> None:
    saved = tmp_path / "checkpoints"
    launched = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, "train.py")
    sizes = ("--checkpoints", saved, "--data", tmp_path / "data.npy", "--save-every", 20)
    train(*launched, *sizes, "--steps", 20)
    (tmp_path / "data.npy").unlink()  # of so few steps
    said = train(*launched, *sizes, "--steps", 40, start=saved / "step-20", skip="25-30,38-38")
    steps = [int(step) for step in re.findall(r"^step (\d+) loss", said, re.MULTILINE)]
    assert steps == [21, 22, 23, 24, *range(31, 38), 39, 40]
    assert (saved / "step-40").is_dir()


TWICE = """
import os, runpy, sys
first, second = sys.argv[1:]
for folder, start, skip in (first, "", ""), (second, f"{first}/checkpoint-2", "3-4"):
    os.environ |= {"COORDINATE_EVAL_RESUME_FROM": start, "COORDINATE_EVAL_SKIP": skip}
    sys.argv[1:] = ["--checkpoints", folder]
    runpy.run_path("with_trainer.py", run_name="__main__")
"""
"""Trains from the beginning, and from a save of that; torch is loaded once for both."""


def test_with_the_trainer_of_transformers(tmp_path: Path) -> None:
    train("-c", TWICE, tmp_path / "first", tmp_path / "second")
    weights = {
        name: (tmp_path / name / "model.safetensors").read_bytes()
        for name in ("first/checkpoint-2", "first/checkpoint-4", "second/checkpoint-4")
    }
    before, trained, skipped = weights.values()
    assert trained != before
    assert skipped == before
