"""The roofline: predict the seconds of a dataset on one trial from its tokens.

Prefill is bound by arithmetic: 2 FLOP per parameter and token. Decoding is bound by memory: each
step reads all weights and the keys and values of every sequence in flight (Pope et al.,
"Efficiently Scaling Transformer Inference", 2022). Both run at the share of the GPU's peak that
serving engines reach, until finished runs show the real rate (`predict`). A wrong prediction costs
balance and nothing else, because trials pull their work.
"""

from typing import NamedTuple

from pydantic import Field

from coordinate_eval.priors.gpus import Gpu
from coordinate_eval.records import Record

PREFILL_EFFICIENCY = 0.5
"""Share of peak FLOP/s that prefill reaches."""

DECODE_EFFICIENCY = 0.6
"""Share of peak bandwidth that decoding reaches."""

MAX_SEQUENCES = 256
"""Sequences that an engine runs at once; vLLM's default."""

REQUEST_SECONDS = 0.0008
"""Host seconds that a request costs the engine."""

CHUNK_OVERHEAD_SECONDS = 0.2
"""Seconds that each further shard of a dataset costs: file work, and a less full engine."""


SCORE_SECONDS_PER_DATASET, SCORE_SECONDS_PER_ITEM, SCORE_SECONDS_PER_REQUEST = 0.5, 4e-4, 1e-4
"""Seconds on one core that the harness takes to score: to load a task's items, and to apply its
filters and metrics; see `benchmarks/full_shape`."""


class Work(Record):
    """The tokens and metric seconds of a dataset, over all of its items."""

    items: int
    requests: float
    prompt_tokens: float
    output_tokens: float = Field(description="expected, not the limit")
    longest_output_tokens: float = Field(description="expected of the longest item")
    metric_cpu_seconds: float = 0.0


class Model(Record):
    """The figures of a model that decide its speed."""

    parameters: int = Field(gt=0, lt=10**18)
    bytes: int = Field(gt=0, lt=10**18)
    kv_bytes_per_token: int = Field(ge=0, lt=10**18)
    tensor_parallel: int = Field(gt=0, lt=10**6)
    dtype: str = ""
    family: str = Field(default="", description="architecture and a digest of its sizes")


class Conditions(Record):
    """The conditions on which a dataset's seconds depend."""

    engine: str
    engine_version: str = ""
    sequences: int = Field(default=MAX_SEQUENCES, gt=0, description="most that run at once")
    gpu: str = Field(description="GPU type as the cluster spells it; for a CPU its model name")
    model: Model


class Features(NamedTuple):
    """Quantities that cost time: seconds are the sum of each field times its coefficient."""

    prefill: float
    """Seconds of the prompts' arithmetic at the GPU's peak."""
    weights: float
    """Seconds of reading the weights, once a decoding step, at peak bandwidth."""
    cache: float
    """Seconds of reading keys and values while decoding, at peak bandwidth."""
    requests: float
    steps: float
    """Decoding steps; their coefficient is the cost of a step at any model size."""
    output_tokens: float

    def seconds(self, coefficients: "Features") -> float:
        """Return the sum of each feature times its coefficient."""
        return sum(a * b for a, b in zip(self, coefficients, strict=True))


SHIPPED = Features(
    prefill=1 / PREFILL_EFFICIENCY,
    weights=1 / DECODE_EFFICIENCY,
    cache=1 / DECODE_EFFICIENCY,
    requests=REQUEST_SECONDS,
    steps=0.0,
    output_tokens=0.0,
)
"""Coefficients of the roofline, used before any run."""


def features(work: Work, model: Model, gpu: Gpu, most: int = MAX_SEQUENCES) -> Features:
    """Return the features of this work on one trial with `most` sequences at once."""
    degree, requests = model.tensor_parallel, max(1.0, work.requests)
    steps = work.output_tokens / max(1.0, min(most, work.requests))
    # On average, half of a sequence's output is in its context.
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
    """Return the seconds of one trial for all of the work, without the engine's start."""
    return max(1e-3, features(work, model, gpu, most).seconds(coefficients))


def score_seconds(items: float, requests: float) -> float:
    """Return the seconds of scoring a dataset on one core, before any run has measured them."""
    each = SCORE_SECONDS_PER_ITEM * items + SCORE_SECONDS_PER_REQUEST * requests
    return SCORE_SECONDS_PER_DATASET + each


def floor_seconds(work: Work, model: Model, gpu: Gpu, coefficients: Features = SHIPPED) -> float:
    """Return the latency of the longest item's output, which splitting does not shorten."""
    alone = Work(
        items=1,
        requests=1,
        prompt_tokens=work.prompt_tokens / max(1.0, work.requests),
        output_tokens=work.longest_output_tokens,
        longest_output_tokens=work.longest_output_tokens,
    )
    decoding = features(alone, model, gpu)._replace(prefill=0.0, requests=0.0)
    return decoding.seconds(coefficients)
