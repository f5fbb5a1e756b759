"""The batch script of `examples/` as a job of a real Slurm."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

from tests.dev_cluster import DevCluster
from tests.runs import PATIENCE_SECONDS
from tests.tiny import tiny_model

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_sbatch_script(slurm_cluster: DevCluster, tmp_path: Path) -> None:
    command = tmp_path / "coordinate-eval"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m coordinate_eval "$@"\n')
    command.chmod(0o755)
    log = tmp_path / "evaluate.log"
    planned = ["--suite", "suite.yaml", "--dry-run", "--cluster", "cluster.yaml"]
    done = subprocess.run(
        ["sbatch", "--wait", f"--output={log}", "evaluate.sbatch", str(tiny_model()), *planned],
        cwd=EXAMPLES,
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stderr + log.read_text()
    assert "makespan" in log.read_text()
