"""From what a dataset asks of a model to seconds on one trial.

Prefill is bound by arithmetic: 2 FLOP a parameter and token. Decoding is bound by memory: each
step reads all weights and the keys and values of every sequence in flight (the roofline of
Pope et al., "Efficiently Scaling Transformer Inference", 2022). Both are taken at the part of
the peak that serving engines reach; figures only predict, and trials pull, so that a wrong one
costs balance and nothing else.
"""

from pydantic import Field

from coordinate_eval.priors.gpus import Gpu
from coordinate_eval.records import Record

PREFILL_EFFICIENCY = 0.5
"""Part of peak FLOP/s that prefill reaches."""

DECODE_EFFICIENCY = 0.6
"""Part of peak bandwidth that decoding reaches."""

MAX_SEQUENCES = 256
"""Sequences that an engine runs at once, vLLM's default."""

REQUEST_SECONDS = 0.0008
"""Host time that a request costs the engine."""

CHUNK_OVERHEAD_SECONDS = 0.2
"""What a further shard of a dataset costs: file work, and the dip between shards."""


class Work(Record):
    """What a dataset asks of a model, over all of its items."""

    items: int
    requests: float
    prompt_tokens: float
    output_tokens: float = Field(description="expected, not the limit")
    longest_output_tokens: float = Field(description="expected of the longest item")
    metric_cpu_seconds: float = 0.0


class Model(Record):
    """What of a model decides its speed."""

    parameters: int
    bytes: int
    kv_bytes_per_token: int
    tensor_parallel: int


def gpu_seconds(work: Work, model: Model, gpu: Gpu) -> float:
    """Seconds of one trial for all of the work, engine start apart."""
    degree = model.tensor_parallel
    prefill = 2 * model.parameters * work.prompt_tokens / (gpu.flops * PREFILL_EFFICIENCY * degree)
    sequences = max(1.0, min(MAX_SEQUENCES, work.requests))
    decode = work.output_tokens / sequences * _step_seconds(work, model, gpu, sequences)
    return max(1e-3, prefill + decode + work.requests * REQUEST_SECONDS)


def floor_seconds(work: Work, model: Model, gpu: Gpu) -> float:
    """Latency of the longest item alone, which splitting does not shorten."""
    return work.longest_output_tokens * _step_seconds(work, model, gpu, 1.0)


def _step_seconds(work: Work, model: Model, gpu: Gpu, sequences: float) -> float:
    """One decoding step of so many sequences, half of their output behind them."""
    context = (work.prompt_tokens + work.output_tokens / 2) / max(1.0, work.requests)
    read = model.bytes + sequences * context * model.kv_bytes_per_token
    return read / (gpu.bandwidth * DECODE_EFFICIENCY * model.tensor_parallel)
