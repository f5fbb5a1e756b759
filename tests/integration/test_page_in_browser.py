"""A browser renders the pages of a plan and of a training."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.plans import reviewed
from tests.runs import PATIENCE_SECONDS
from tests.trainings import call, keep

from coordinate_eval.coordinator.display import show

HOSTILE = "</title></svg></script><script>alert(1)</script>\"' onload=x {{ 7*7 }}"
CHROMIUM = shutil.which("chromium")


def opened(page: Path) -> tuple[str, list[str]]:
    """What a browser makes of a page, and what its console says."""
    if CHROMIUM is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("needs chromium on PATH")
    done = subprocess.run(
        [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         f"--user-data-dir={page.parent / 'profile'}", "--enable-logging=stderr",
         "--window-size=1280,9000", "--virtual-time-budget=5000", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True,
    )  # fmt: skip
    assert done.stdout.rstrip().endswith("</html>")
    return done.stdout, re.findall(r"^.*CONSOLE.*$", done.stderr, re.MULTILINE)


def test_a_browser_renders_a_plan(tmp_path: Path) -> None:
    (tmp_path / "plan.html").write_text(show.render(reviewed(name=HOSTILE[:60])))

    found, console = opened(tmp_path / "plan.html")

    assert found.count("<rect") > 30
    assert "<script" not in found
    assert console == []


def test_a_browser_draws_the_curves_of_a_training(tmp_path: Path) -> None:
    """What the page's policy refuses, such as a request, the console tells."""
    for step in range(100, 1300, 100):
        keep(
            tmp_path, step, {HOSTILE: 0.3 + step / 10_000, "b": 0.5 if step < 1200 else 0.1},
            groups={HOSTILE: HOSTILE, "b": HOSTILE}, training="/ckpts/seven",
            gpu_seconds=60.0, seconds=2.0, planned_seconds=1.0,
        )  # fmt: skip
    page = tmp_path / "seven.html"
    assert call(tmp_path, "report", "seven", "--output", str(page)).exit_code == 0

    found, console = opened(page)

    assert console == []
    charts = re.findall(r'<div class="plot">(.*?)</div>', found, re.DOTALL)
    assert len(charts) == 6  # the mean, a group, two datasets, GPU hours, planned time
    assert all(re.search(r'<svg[^>]* role="img"', chart) for chart in charts)
    assert all(chart.count("<circle") == 12 for chart in charts)
    assert sum('stroke="var(--alarm)"' in chart for chart in charts) > 0
    assert len(re.findall("<tbody>", found)) == 2  # what has changed, and the cost
    assert "<script>alert" not in found


def test_what_a_page_asks_for_from_a_network_would_be_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    policy = "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'\">"
    page.write_text(f"<!DOCTYPE html>{policy}<img src=http://127.0.0.1:9/x><script>x()</script>")

    assert len(opened(page)[1]) == 2
