"""`cd CKPT && coordinate-eval .`: nothing that lies in the checkpoint's folder is run."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from tests.runs import PATIENCE_SECONDS, TASKS, Workspace
from tests.tiny import tiny_model

MODULES = (
    "coordinate_eval", "typer", "yaml", "numpy", "psutil", "lm_eval", "datasets", "evaluate",
    "transformers", "tokenizers", "jinja2", "_pytest", "sitecustomize", "usercustomize",
)  # fmt: skip
FOLDERS = ("json", "exact_match", "acc", "code_eval", "tiny_choice", "base")


def test_a_run_in_the_checkpoints_folder_runs_nothing_of_it(user: Workspace) -> None:
    place = user.folder / "in the folder"
    checkpoint = Path(shutil.copytree(tiny_model(), place / "step-1"))
    canary = place / "sang"
    song = f"open({str(canary)!r}, 'a').write(__file__ + '\\n')\nraise ImportError('planted')\n"
    for name in MODULES:
        (checkpoint / f"{name}.py").write_text(song)
    for name in FOLDERS:
        (checkpoint / name).mkdir()
        for module in ("__init__", name):
            (checkpoint / name / f"{module}.py").write_text(song)
    for name in ("nvidia-smi", "git", "bwrap", "scontrol", "date"):
        (checkpoint / name).write_text(f"#!/bin/sh\necho $0 >> '{canary}'\n")
        (checkpoint / name).chmod(0o755)
    # A task of the user's own. Its data are named absolutely, as they must be here.
    tasks = place / "tasks"
    tasks.mkdir()
    for name in ("tiny_choice", "tiny_sums"):
        text = (TASKS / f"{name}.yaml").read_text()
        (tasks / f"{name}.yaml").write_text(text.replace("data/", f"{TASKS}/data/"))
    suite = place / "suite.yaml"
    suite.write_text(f"include_path: '{tasks}'\ndatasets: [tiny_choice, tiny_sums]\n")
    path = user.environ["PATH"]
    program = Path(sys.executable).with_name("coordinate-eval")
    done = subprocess.run(
        # What a user types. `python -m coordinate_eval` would look for this very name there.
        [program, "run", ".", "--suite", suite, "--run-dir", place / "run", "--json"],
        env=user.environ | {"PATH": f".:{path}:"},
        cwd=checkpoint,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert not canary.exists(), canary.read_text()
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["complete"]
    assert "absolute paths" in done.stderr
    assert list((place / "run" / "work").iterdir()) == []
