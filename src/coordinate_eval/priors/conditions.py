"""The conditions of an evaluation: engine, GPU, and the model's shape."""

import hashlib
import json
from pathlib import Path
from typing import Any

from coordinate_eval import _owner
from coordinate_eval.priors import gpus, roofline
from coordinate_eval.priors.roofline import Conditions
from coordinate_eval.records import Checkpoint, EngineSettings

LARGE_GPU_SEQUENCES, LARGE_MEMORY = 1024, 70 * 2**30
"""Sequences that vLLM runs at once by default, on GPUs with this memory in bytes."""


def conditions(engine: EngineSettings, version: str, gpu: str, of: roofline.Model) -> Conditions:
    """Return the conditions under which an engine evaluates a model."""
    return Conditions(
        engine=engine.name,
        engine_version=version,
        sequences=sequences(engine, gpu),
        gpu=gpu,
        model=of,
    )


def on_processor(gpu: str, processor: str) -> str:
    """Return a GPU type unchanged, and for a CPU `cpu/` and the processor's name."""
    return f"cpu/{processor}" if gpus.name(gpu) == "cpu" else gpu


def model_of(checkpoint: Checkpoint, tensor_parallel: int, config: Path | None) -> roofline.Model:
    """Return the figures of a checkpoint that decide its speed; `config` is its `config.json`."""
    return roofline.Model(
        parameters=max(1, checkpoint.parameters),
        bytes=max(1, checkpoint.bytes),
        kv_bytes_per_token=checkpoint.kv_bytes_per_token,
        kv_heads=checkpoint.kv_heads,
        activation_bytes_per_token=checkpoint.activation_bytes_per_token,
        tensor_parallel=tensor_parallel,
        dtype=checkpoint.dtype,
        family=_family(config),
    )


def sequences(engine: EngineSettings, gpu: str) -> int:
    """Return how many sequences the engine runs at once, by its arguments or its default.

    vLLM runs 1,024 offline on GPUs with 70 GiB or more, but not on an A100, and 256 on others
    (`EngineArgs.get_batch_defaults` in vllm/engine/arg_utils.py, version 0.32).
    """
    large = gpus.lookup(gpu).memory >= LARGE_MEMORY and gpus.name(gpu) != "a100"
    name, default = {
        "vllm": ("max_num_seqs", LARGE_GPU_SEQUENCES if large else roofline.MAX_SEQUENCES),
        "transformers": ("batch_size", 8),
        "simulated": ("", 1),
    }[engine.name]
    given = engine.args.get(name)
    return given if isinstance(given, int) and given > 0 else default


def _family(config: Path | None) -> str:
    """Return the architecture and a digest of all integers in a configuration, such as widths."""
    try:
        tree = _json_value(config) if config else {}
    except (OSError, ValueError):
        return ""
    text, names = tree.get("text_config"), tree.get("architectures")
    sizes = {
        key: value
        for key, value in sorted({**tree, **(text if isinstance(text, dict) else {})}.items())
        if type(value) is int and not key.endswith("_token_id")
    }
    name = names[0] if isinstance(names, list) and names else ""
    return f"{name}-{hashlib.sha256(json.dumps(sizes).encode()).hexdigest()[:8]}"


def _json_value(file: Path) -> Any:  # noqa: ANN401  whatever it holds
    # In a folder that others write to a pipe may lie there by now, and keep a reader waiting.
    with open(_owner.open_file(file.resolve(), anybodys=True), "rb") as opened:
        return json.load(opened)
