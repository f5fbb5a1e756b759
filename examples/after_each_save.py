"""A training loop that asks for the evaluation of each checkpoint it saves.

`coordinate_eval.after_save` is all that you need. The rest is a loop so small that this file runs
anywhere:

    python after_each_save.py --checkpoints FOLDER [OPTIONS OF coordinate-eval]

With `--dry-run --cluster cluster.yaml` among the options nothing is submitted.
"""

import argparse
import json
import logging
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

import coordinate_eval


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
    logging.basicConfig(level=logging.INFO)  # `after_save` logs what came of it
    weights = {"model.embed_tokens.weight": np.zeros((256, 64), dtype=np.float32)}
    for step in range(1, 201):
        weights["model.embed_tokens.weight"] += 0.01  # your training step
        if step % 100 == 0:
            folder = arguments.checkpoints / f"step-{step}"
            save(weights, folder)
            # When all ranks have saved. It acts on rank 0, returns at once, and never raises.
            coordinate_eval.after_save(folder, step=step, options=options)


if __name__ == "__main__":
    main()
