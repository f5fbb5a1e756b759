"""A browser renders the page of a plan."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.plans import reviewed
from tests.runs import PATIENCE_SECONDS

from coordinate_eval.coordinator.display import show

HOSTILE = "</title></svg></script><script>alert(1)</script>\"' onload=x {{ 7*7 }}"
CHROMIUM = shutil.which("chromium")


def test_a_browser_renders_it(tmp_path: Path) -> None:
    if CHROMIUM is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("needs chromium on PATH")
    (tmp_path / "plan.html").write_text(show.render(reviewed(name=HOSTILE[:60])))
    done = subprocess.run(
        [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom",
         f"file://{tmp_path / 'plan.html'}"],
        capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True,
    )  # fmt: skip
    found = done.stdout
    assert found.count("<rect") > 30
    assert "<script" not in found
    assert found.rstrip().endswith("</html>")
