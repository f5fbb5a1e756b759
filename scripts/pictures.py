"""Draw docs/history.png: the page of a training, with scores that are made up.

    python scripts/pictures.py [--keep FOLDER]

The scores are drawn at random around curves: no model has them, and the training is called made-up.
Chromium takes the picture of the page that `coordinate-eval report` writes.
"""

import argparse
import math
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from typer.testing import CliRunner

from coordinate_eval.coordinator.cli.app import app
from coordinate_eval.coordinator.history import measured
from coordinate_eval.coordinator.history.measured import Measured, Plain
from coordinate_eval.coordinator.inputs.suites import suite

PICTURE = Path(__file__).parents[1] / "docs" / "history.png"
WIDTH, HEIGHT = 1100, 1230
CHECKPOINTS, STEPS_BETWEEN = 60, 2000
JUMP_AT, DROP_AT = 34, 57
"""Checkpoints from which some datasets are better, as after new data, and all are worse."""


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", type=Path, help="a folder for the page and its records")
    kept = parser.parse_args().keep
    with tempfile.TemporaryDirectory() as scratch:
        page = page_of(Path(kept or scratch))
        taken = Path(scratch) / "page.png"
        take(page, taken, Path(scratch) / "profile")
        Image.open(taken).convert("RGB").quantize(256).save(PICTURE, optimize=True)
    sys.stdout.write(f"{PICTURE}: {PICTURE.stat().st_size // 1000} kB\n")


def page_of(home: Path) -> Path:
    """Write the page of a training with made-up scores."""
    for record in records():
        measured.keep(str(home), record)
    page = home / "made-up-7b.html"
    arguments = ["report", "made-up-7b", "--output", str(page)]
    done = CliRunner().invoke(app, arguments, env={"COORDINATE_EVAL_RUNS_DIR": str(home)})
    if done.exit_code:
        raise SystemExit(done.output)
    return page


def records() -> list[Measured]:
    """Return what runs of the base suite might have measured."""
    draw = np.random.default_rng(7)
    datasets = suite.load("base").datasets
    groups = {each.name: each.group for each in datasets if each.group}
    items = np.array([max(each.items or 1000, 30) for each in datasets])
    start, gain = draw.uniform(0.05, 0.3, len(items)), draw.uniform(0.05, 0.45, len(items))
    pace = draw.uniform(8, 40, len(items))
    jumps = np.array([0.06 * (each.group in ("maths", "code")) for each in datasets])
    made = []
    for number in range(CHECKPOINTS):
        level = start + gain * (1 - np.exp(-number / pace)) + jumps * (number >= JUMP_AT)
        level = level - 0.02 * (number >= DROP_AT) + draw.normal(0, 0.004, len(items))
        values = draw.binomial(items, np.clip(level, 0.01, 0.99)) / items
        scores: dict[str, Plain] = {
            each.name: (float(value), math.sqrt(value * (1 - value) / count), int(count),
                        "acc", True, "made up")
            for each, value, count in zip(datasets, values, items, strict=True)
        }  # fmt: skip
        step = (number + 1) * STEPS_BETWEEN
        seconds = float(draw.normal(290, 12))
        record = Measured(
            run=f"made-up-{step}", dir="/none", identity=f"{step}", suite="base",
            training="/ckpts/made-up-7b", checkpoint=f"/ckpts/made-up-7b/step-{step}", step=step,
            created=float(step), ended=float(step) + 1, complete=True, scores=scores,
            groups=groups, seconds=seconds, planned_seconds=277.0,
            gpu_seconds=float(28 * 250 * draw.uniform(0.97, 1.05)),
        )  # fmt: skip
        made.append(record)
    return made


def take(page: Path, to: Path, profile: Path) -> None:
    """Have a browser draw a page."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("install chromium: it draws the page")
    subprocess.run(
        [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
         "--no-first-run", "--disable-background-networking", f"--user-data-dir={profile}",
         f"--window-size={WIDTH},{HEIGHT}", "--virtual-time-budget=5000",
         f"--screenshot={to}", page.as_uri()],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip


if __name__ == "__main__":
    main()
