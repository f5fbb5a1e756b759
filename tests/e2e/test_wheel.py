"""The wheel holds everything that a command needs, and asks for what it imports."""

import os
import subprocess
import sys
from pathlib import Path

from tests.runs import PATIENCE_SECONDS

SCRIPT = Path(__file__).parents[2] / "scripts" / "wheel.sh"


def test_wheel_in_a_fresh_environment(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", str(SCRIPT), str(tmp_path)],
        env=os.environ | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(tmp_path.glob("*.whl"))) == 1
