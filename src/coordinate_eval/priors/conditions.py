"""The conditions of an evaluation: engine, GPU, and the model's shape."""

import hashlib
import json
from pathlib import Path
from typing import Any

from coordinate_eval import _files, _owner
from coordinate_eval._engines import kind_of
from coordinate_eval._text_config import text_config
from coordinate_eval.errors import RecordError
from coordinate_eval.priors import gpus, roofline
from coordinate_eval.priors.roofline import Conditions
from coordinate_eval.records import Checkpoint, EngineSettings, ModelCosts

LARGE_MEMORY = 70 * 2**30
"""Memory in bytes of GPUs on which vLLM runs more sequences at once by default."""


WIDE = ("float32", "float64")
"""Types of weights with more than 16 bits."""


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


def model_of(
    checkpoint: Checkpoint,
    engine: EngineSettings,
    tensor_parallel: int,
    config: Path | None,
    pipeline_parallel: int = 1,
) -> roofline.Model:
    """Return the figures of a checkpoint in an engine that decide its speed.

    `config` is its `config.json`.
    """
    weights, other, dtype = checkpoint.loaded_bytes or checkpoint.bytes, 1, checkpoint.dtype
    if dtype in WIDE and _halves(engine):
        weights, other, dtype = min(weights, 2 * checkpoint.parameters), 2, "bfloat16"
    small = 2 if str(engine.args.get("kv_cache_dtype", "")).startswith("fp8") else 1
    costs = {name: getattr(checkpoint, name) for name in ModelCosts.model_fields}
    kept = {name: costs[name] // (other * small) for name in _OF_CACHE}
    share = weights / (checkpoint.loaded_bytes or checkpoint.bytes)
    return roofline.Model(
        **costs
        | kept
        | {
            "bytes": max(1, weights),
            "routed_bytes": int(checkpoint.routed_bytes * share),
            "activation_bytes_per_token": checkpoint.activation_bytes_per_token // other,
        },
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        dtype=dtype,
        family=_family(config),
    )


_OF_CACHE = ("kv_bytes_per_token", "windowed_bytes_per_token")


def _halves(engine: EngineSettings) -> bool:
    """Return whether the engine computes with 16 bits where weights have more."""
    argument = kind_of(engine.name).dtype_argument
    return bool(argument) and engine.args.get(argument) not in ("float32", "float")


def sequences(engine: EngineSettings, gpu: str) -> int:
    """Return how many sequences the engine runs at once, by its arguments or its default.

    To vLLM an A100 is no large GPU, whatever its memory.
    """
    kind = kind_of(engine.name)
    large = gpus.lookup(gpu).memory >= LARGE_MEMORY and gpus.name(gpu) != "a100"
    given = engine.args.get(kind.sequences_argument)
    if isinstance(given, int) and given > 0:
        return given
    return kind.sequences_on_large_gpus if large else kind.sequences


def _family(config: Path | None) -> str:
    """Return the architecture and a digest of all integers in a configuration, such as widths."""
    try:
        tree = _json_value(config) if config else {}
    except (OSError, ValueError, RecordError, RecursionError):
        return ""
    names, text = tree.get("architectures"), text_config(tree, config or Path()).given
    sizes = {
        key: value
        for key, value in sorted({**tree, **text}.items())
        if type(value) is int and not key.endswith("_token_id")
    }
    name = names[0] if isinstance(names, list) and names else ""
    return f"{name}-{hashlib.sha256(json.dumps(sizes).encode()).hexdigest()[:8]}"


def _json_value(file: Path) -> Any:  # noqa: ANN401  whatever it holds
    # In a folder that others write to a pipe may lie there by now, and keep a reader waiting.
    with open(_owner.open_file(file.resolve(), anybodys=True), "rb") as opened:
        return json.loads(_files.read_bounded(opened, file))
