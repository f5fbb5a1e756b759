"""The arguments with which vLLM is started where the user gives none."""

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coordinate_eval._engines import kind_of
from coordinate_eval._text_config import text_config
from coordinate_eval.evaluators import own_code
from coordinate_eval.evaluators.engines.base import Loading
from coordinate_eval.evaluators.engines.scoring import MOST_IDS
from coordinate_eval.evaluators.engines.vllm_arguments import check_args

OWN_PROCESSES = "VLLM_ENABLE_V1_MULTIPROCESSING"
"""The variable that is 0 where vLLM with one GPU runs in the process that asks for it."""

_GPU_SHARE = 0.9
"""Part of a GPU's memory that vLLM fills: weights, keys and values, activations."""

_SCORING_SHARE = 0.8
"""Part of the rest in which the probabilities of a scored prompt have to fit."""

_SCORING_BYTES = 10
"""Bytes for each token of a step and of the vocabulary while a prompt is scored: its logits in 16
bits, gathered from several GPUs, and their logarithms and ranks in 32."""

_STEP_TOKENS = (1024, 8192)
"""Fewest and most tokens of a step that are chosen here."""

_STEP_MULTIPLE = 256
"""Steps have a multiple of so many tokens. Their number is part of the key of what vLLM compiles,
and the memory of the same GPU differs by some hundred MiB between drivers."""

_LEAST_STEP = 512
"""Fewest tokens of a step after engines ran out of memory."""

_LARGE_MEMORY = 70 << 30
"""Bytes of a GPU from which on vLLM runs more sequences at once by default."""

_BOUND = ("is_attention_free", "is_encoder_decoder", "is_hybrid", "is_multimodal_model")
"""Properties of vLLM's `ModelConfig`. Where one holds, smaller steps may not start: a block of a
state-space model has to fit into one, an image, or a whole prompt: thousands of tokens."""


def engine_arguments(what: Loading) -> dict[str, Any]:
    """Return the arguments of `EngineArgs`: those of the user, and defaults for the others.

    Steps have so many times fewer tokens as `lighter` says, whoever has chosen them, where the
    model starts with any.
    """
    model, args = what.model, what.args
    check_args(args)
    chosen: dict[str, Any] = {
        "load_format": "safetensors",
        "max_model_len": what.max_length,
        "gpu_memory_utilization": _GPU_SHARE,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "max_logprobs": MOST_IDS,
        **(_cpu_arguments(model) if on_cpu() else _gpu_arguments(what)),
        **args,
    }
    if what.lighter > 1 and not _bounds_steps(model, chosen):
        chosen |= lighter_steps(chosen, what.lighter)
    return chosen | {
        "model": f"./{model.name}",
        "tensor_parallel_size": what.tensor_parallel,
        "trust_remote_code": False,
    }


def on_cpu() -> bool:
    """Return whether vLLM runs on the CPU of this machine."""
    return bool(importlib.import_module("vllm.platforms").current_platform.is_cpu())


def _gpu_arguments(what: Loading) -> dict[str, Any]:
    """Return the defaults for a GPU."""
    args = what.args
    try:
        memory, is_slice = _gpu(what.tensor_parallel, args)
    except Exception:  # vLLM will say what is wrong with the GPU
        return {}
    chosen = {}
    if is_slice:
        # vLLM would take the memory of the whole GPU, or none, for that of the slice.
        kind = kind_of("vllm")
        large = memory >= _LARGE_MEMORY
        chosen["max_num_seqs"] = kind.sequences_on_large_gpus if large else kind.sequences
    if args.get("enable_chunked_prefill") is False:  # a step must have room for a whole prompt
        return chosen
    filled = args.get("gpu_memory_utilization", _GPU_SHARE)
    tokens = step_tokens(own_code.json_object(what.model / "config.json"), memory, filled)
    return chosen | {"max_num_batched_tokens": max(tokens, args.get("max_num_seqs") or 0)}


def _gpu(tensor_parallel: int, args: Mapping[str, Any]) -> tuple[int, bool]:
    """Return the bytes of a GPU, and whether it is known to be a slice of one (MIG)."""
    platform = importlib.import_module("vllm.platforms").current_platform
    in_process = tensor_parallel == 1 and os.environ.get(OWN_PROCESSES) == "0"
    in_process &= args.get("distributed_executor_backend") in (None, "uni")
    if not in_process or not platform.is_cuda_alike():
        return platform.get_device_total_memory(), False
    # An engine in this process uses CUDA here anyway. In others it must find CUDA untouched.
    properties = importlib.import_module("torch").cuda.get_device_properties(0)
    return properties.total_memory, " MIG " in properties.name


def step_tokens(config: Mapping[str, Any], memory: int, filled: float) -> int:
    """Return so few tokens of a step that one long prompt can be scored in it.

    The model runner V1 computes the probabilities of all tokens of a prompt in a step at once, in
    memory that vLLM does not reckon with.

    Args:
        memory: bytes of a GPU.
        filled: part of it that vLLM fills.
    """
    vocabulary = text_config(config, Path("config.json")).number("vocab_size", most=10**9)
    each = _SCORING_BYTES * (vocabulary or 0)
    fewest, most = _STEP_TOKENS
    spare = (1 - filled) * memory * _SCORING_SHARE
    tokens = int(spare / max(1, each)) // _STEP_MULTIPLE * _STEP_MULTIPLE
    return max(fewest, min(most, tokens))


def lighter_steps(args: Mapping[str, Any], lighter: int) -> dict[str, int]:
    """Return arguments for steps with so many times fewer tokens; none where vLLM chooses them.

    vLLM wants a token for each sequence, and room for a whole prompt where it may not cut one.
    What it needs to score prompts follows from the tokens of a step, not from the sequences.
    """
    tokens, sequences = args.get("max_num_batched_tokens"), args.get("max_num_seqs") or 0
    if not isinstance(tokens, int):
        return {}
    least = max(_LEAST_STEP, sequences)
    if args.get("enable_chunked_prefill") is False:
        least = max(least, args["max_model_len"])
    fewer = {"max_num_batched_tokens": max(min(tokens, least), tokens // lighter)}
    # Of its own accord vLLM runs no more sequences than a step has tokens.
    return fewer | ({"max_num_seqs": min(sequences, *fewer.values())} if sequences else {})


def _bounds_steps(model: Path, args: Mapping[str, Any]) -> bool:
    """Return whether vLLM may not start the model with smaller steps.

    It would say so late, after weights are loaded, and not in this process if there are others.
    """
    try:
        arguments = importlib.import_module("vllm").EngineArgs(**args, model=str(model))
        config = arguments.create_model_config()
        return any(getattr(config, name) for name in _BOUND)
    except Exception:  # the start itself will say what is wrong
        return True


def _cpu_arguments(model: Path) -> dict[str, Any]:
    """Return the defaults for a machine without a GPU."""
    # Compilation takes longer than the whole evaluation of a small model. By default vLLM turns
    # float32 into bfloat16 to save GPU memory, which gains nothing here.
    chosen: dict[str, Any] = {"enforce_eager": True}
    config = own_code.json_object(model / "config.json")
    if "float32" in (config.get("dtype"), config.get("torch_dtype")):
        chosen["dtype"] = "float32"
    return chosen
