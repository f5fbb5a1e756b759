"""From what a dataset asks of a model to seconds on one trial.

Prefill is bound by arithmetic: 2 FLOP a parameter and token. Decoding is bound by memory: each
step reads all weights and the keys and values of every sequence in flight (the roofline of
Pope et al., "Efficiently Scaling Transformer Inference", 2022). Both are taken at the part of
the peak that serving engines reach, until finished runs say better (`learn`); figures only
predict, and trials pull, so that a wrong one costs balance and nothing else.
"""

from typing import NamedTuple

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

    parameters: int = Field(gt=0, lt=10**18)
    bytes: int = Field(gt=0, lt=10**18)
    kv_bytes_per_token: int = Field(ge=0, lt=10**18)
    tensor_parallel: int = Field(gt=0, lt=10**6)
    dtype: str = ""
    family: str = Field(default="", description="architecture and a digest of its sizes")


class Conditions(Record):
    """What a dataset's seconds depend on beside the dataset."""

    engine: str
    engine_version: str = ""
    sequences: int = Field(default=MAX_SEQUENCES, gt=0, description="run at once, at most")
    gpu: str = Field(description="GPU type as the cluster spells it; of a CPU its model name")
    model: Model


class Features(NamedTuple):
    """What costs time. Each field times its coefficient, summed, is seconds."""

    prefill: float
    """Seconds of the prompts' arithmetic at the GPU's peak."""
    weights: float
    """Seconds of reading the weights, once a decoding step, at peak bandwidth."""
    cache: float
    """Seconds of reading keys and values while decoding, at peak bandwidth."""
    requests: float
    steps: float
    """Decoding steps: what each costs whatever the model's size."""
    output_tokens: float

    def seconds(self, coefficients: "Features") -> float:
        """The sum of each feature times its coefficient."""
        return sum(a * b for a, b in zip(self, coefficients, strict=True))


SHIPPED = Features(
    prefill=1 / PREFILL_EFFICIENCY,
    weights=1 / DECODE_EFFICIENCY,
    cache=1 / DECODE_EFFICIENCY,
    requests=REQUEST_SECONDS,
    steps=0.0,
    output_tokens=0.0,
)
"""Coefficients before anything was run: the roofline."""


def features(work: Work, model: Model, gpu: Gpu, most: int = MAX_SEQUENCES) -> Features:
    """What of this work costs time on one trial, `most` sequences at once."""
    degree, requests = model.tensor_parallel, max(1.0, work.requests)
    steps = work.output_tokens / max(1.0, min(most, work.requests))
    # Half of a sequence's output is behind it, on average.
    context = (work.prompt_tokens + work.output_tokens / 2) / requests
    return Features(
        prefill=2 * model.parameters * work.prompt_tokens / (gpu.flops * degree),
        weights=steps * model.bytes / (gpu.bandwidth * degree),
        cache=work.output_tokens * context * model.kv_bytes_per_token / (gpu.bandwidth * degree),
        requests=work.requests,
        steps=steps,
        output_tokens=work.output_tokens,
    )


def gpu_seconds(
    work: Work,
    model: Model,
    gpu: Gpu,
    most: int = MAX_SEQUENCES,
    coefficients: Features = SHIPPED,
) -> float:
    """Seconds of one trial for all of the work, engine start apart."""
    return max(1e-3, features(work, model, gpu, most).seconds(coefficients))


def floor_seconds(work: Work, model: Model, gpu: Gpu, coefficients: Features = SHIPPED) -> float:
    """Latency of the longest item's output alone, which splitting does not shorten."""
    alone = Work(
        items=1,
        requests=1,
        prompt_tokens=work.prompt_tokens / max(1.0, work.requests),
        output_tokens=work.longest_output_tokens,
        longest_output_tokens=work.longest_output_tokens,
    )
    decoding = features(alone, model, gpu)._replace(prefill=0.0, requests=0.0)
    return decoding.seconds(coefficients)
