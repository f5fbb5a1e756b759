"""A training loop that submits the evaluation of each checkpoint it saves.

`evaluate` is what you need. The rest is a loop so small that this file runs anywhere:

    python after_each_save.py --checkpoints FOLDER [OPTIONS OF coordinate-eval]

With `--dry-run --cluster cluster.yaml` among the options nothing is submitted.
"""

import argparse
import json
import os
import subprocess
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

# torchrun sets these for its ranks. An engine that inherited them would look for the others.
TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def evaluate(checkpoint: Path, options: list[str]) -> subprocess.Popen[bytes]:
    """Start the submission of a checkpoint's evaluation and return without waiting for it.

    Call it on one rank, when all files of the checkpoint are in place. The first submission builds
    the prompts, which takes minutes; training goes on meanwhile. A refusal is in the log beside the
    checkpoint. It must not end the training.
    """
    environment = {name: value for name, value in os.environ.items() if name not in TORCHRUN}
    with checkpoint.with_suffix(".evaluation.log").open("wb") as log:
        return subprocess.Popen(
            # With --queue a run waits for GPUs: a full cluster loses no checkpoint.
            ["coordinate-eval", str(checkpoint), "--queue", *options],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C in the training's terminal does not end it
        )


def save(weights: dict[str, np.ndarray], folder: Path) -> None:
    """Save a checkpoint so that it appears complete or not at all."""
    draft = folder.with_name(f".{folder.name}.tmp")
    draft.mkdir(parents=True)
    save_file(weights, draft / "model.safetensors")
    config = {"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 1}
    config |= {"num_attention_heads": 4, "vocab_size": 256, "max_position_embeddings": 2048}
    (draft / "config.json").write_text(json.dumps(config))
    (draft / "tokenizer.json").write_text("{}")  # yours: tokenizer.save_pretrained(draft)
    draft.rename(folder)


def main() -> None:
    """Train for 200 steps and save twice."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoints", type=Path, required=True)
    arguments, options = parser.parse_known_args()
    weights = {"model.embed_tokens.weight": np.zeros((256, 64), dtype=np.float32)}
    started = []
    for step in range(1, 201):
        weights["model.embed_tokens.weight"] += 0.01  # your training step
        if step % 100 == 0:
            folder = arguments.checkpoints / f"step-{step}"
            save(weights, folder)
            started.append(evaluate(folder, options))
    for submission in started:  # at the end only, so that none is left half done
        submission.wait()


if __name__ == "__main__":
    main()
