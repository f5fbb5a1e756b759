"""Draw docs/plan.png, the page of a dry run, and docs/history.png, that of a training.

    python scripts/pictures.py [--keep FOLDER]

The plan is that of the base suite for a 7B model without weights, on a cluster file of four nodes
whose last one is half in use. The scores are drawn at random around curves: no model has them, and
the training is called made-up. Chromium takes the pictures of the pages that `coordinate-eval`
writes.
"""

import argparse
import json
import math
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from typer.testing import CliRunner

from coordinate_eval.coordinator.cli.app import app
from coordinate_eval.coordinator.history import measured
from coordinate_eval.coordinator.history.columns import Plain
from coordinate_eval.coordinator.history.measured import Measured
from coordinate_eval.coordinator.inputs.suites import suite

ROOT = Path(__file__).parents[1]
WIDTH = 1100
HISTORY_HEIGHT, PLAN_HEIGHT = 1212, 1420
CHECKPOINTS, STEPS_BETWEEN = 60, 2000
JUMP_AT, DROP_AT = 34, 57
"""Checkpoints from which some datasets are better, as after new data, and all are worse."""


def main() -> None:
    """Write the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", type=Path, help="a folder for the pages and the records")
    kept = parser.parse_args().keep
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(kept or scratch)
        for name, page, height in (
            ("plan", plan_page(home), PLAN_HEIGHT),
            ("history", page_of(home), HISTORY_HEIGHT),
        ):
            taken, picture = Path(scratch) / f"{name}.png", ROOT / "docs" / f"{name}.png"
            take(page, taken, height, Path(scratch) / "profile")
            Image.open(taken).convert("RGB").quantize(256).save(picture, optimize=True)
            sys.stdout.write(f"{picture}: {picture.stat().st_size // 1000} kB\n")


def plan_page(home: Path) -> Path:
    """Write the page of a dry run on four nodes, one of which has four of eight GPUs free."""
    node = {"gpus": 8, "gpu_type": "h200", "gpu_memory_gib": 141, "cpus": 128, "memory_gib": 1000}
    nodes = [{"name": f"node{n}", **node, "free_gpus": 4 if n == 4 else 8} for n in range(1, 5)]
    described = home / "cluster.yaml"
    described.write_text(json.dumps({"nodes": nodes}))
    there, page = llama(home / "step-1000"), home / "plan.html"
    arguments = [
        str(there), "--dry-run", "--cluster", str(described), "--html", str(page),
    ]  # fmt: skip
    env = {f"COORDINATE_EVAL_{name}_DIR": str(home / name) for name in ("RUNS", "PRIORS", "CACHE")}
    done = CliRunner().invoke(app, arguments, env=env)
    if not page.exists():
        raise SystemExit(done.output or repr(done.exception))
    page.write_text(page.read_text().replace(str(there), "/ckpts/step-1000"))
    return page


def llama(folder: Path) -> Path:
    """Write a Llama of 7B in one safetensors file whose weights take no space on disk."""
    width, inner, words = 4096, 11008, 32000
    square, wide, long = [width, width], [inner, width], [width, inner]
    layer = {
        **{f"self_attn.{name}_proj": square for name in "qkvo"},
        "mlp.gate_proj": wide, "mlp.up_proj": wide, "mlp.down_proj": long,
        "input_layernorm": [width], "post_attention_layernorm": [width],
    }  # fmt: skip
    shapes = {
        "model.embed_tokens.weight": [words, width], "lm_head.weight": [words, width],
        "model.norm.weight": [width],
        **{f"model.layers.{n}.{name}.weight": of for n in range(32) for name, of in layer.items()},
    }  # fmt: skip
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": width,
        "intermediate_size": inner, "num_hidden_layers": 32, "num_attention_heads": 32,
        "vocab_size": words, "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
    }  # fmt: skip
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    head = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        file.truncate(8 + len(head) + end)
    return folder


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


def take(page: Path, to: Path, height: int, profile: Path) -> None:
    """Have a browser draw a page, to this height in pixels."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("install chromium: it draws the page")
    subprocess.run(
        [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
         "--no-first-run", "--disable-background-networking", f"--user-data-dir={profile}",
         f"--window-size={WIDTH},{height}", "--virtual-time-budget=5000",
         f"--screenshot={to}", page.as_uri()],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip


if __name__ == "__main__":
    main()
