"""The roofline: predict the seconds of a dataset on one trial from its tokens.

Prefill is bound by arithmetic: 2 FLOP per token and parameter that it goes through, which of a
mixture of experts are few. Decoding is bound by memory: each step reads the weights and the keys
and values of every sequence in flight (Pope et al., "Efficiently Scaling Transformer Inference",
2022). Of a mixture it reads the experts that some sequence goes through (`ModelCosts`). GPUs that
share a model exchange two activations of the model's width per layer and token (Shoeybi et al.,
"Megatron-LM", 2019). Such an all-reduce sends 2 (n - 1) / n of it from each of n GPUs (Patarasuk
and Yuan, "Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations", 2009). All run at
the share of the GPU's peak that serving engines reach, until finished runs show the real rate
(`predict`). A wrong prediction costs balance and nothing else, because trials pull their work.
"""

import math

from pydantic import Field

from coordinate_eval.priors.gpus import Gpu
from coordinate_eval.records import ModelCosts, Record

PREFILL_EFFICIENCY = 0.5
"""Share of peak FLOP/s that prefill reaches."""

DECODE_EFFICIENCY = 0.6
"""Share of peak bandwidth that decoding reaches."""

EXCHANGE_EFFICIENCY = 0.6
"""Share of peak bandwidth that exchanges between GPUs reach; assumed to be that of decoding."""

MEMORY_FRACTION = 0.85
"""Part of a GPU's memory for weights, keys and values. Activations and runtime take the rest."""

MAX_SEQUENCES = 256
"""Sequences that an engine runs at once, where that is not known."""

WRITTEN_SHARE = 0.3
"""Share of its token limit that a generation is assumed to use."""

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
    cached_tokens: float = Field(
        default=0.0, description="of the prompts, that the engine need not compute again"
    )
    metric_cpu_seconds: float = 0.0


class Model(ModelCosts):
    """The cost of a model in an engine on some GPUs."""

    tensor_parallel: int = Field(gt=0, lt=10**6)
    pipeline_parallel: int = Field(
        default=1,
        gt=0,
        lt=10**6,
        description="groups of so many GPUs, each with a part of the layers",
    )

    @property
    def kv_shares(self) -> int:
        """Return how many GPUs keys and values divide among; further ones hold copies."""
        return min(self.tensor_parallel, self.kv_heads or self.tensor_parallel)

    dtype: str = ""
    family: str = Field(default="", description="architecture and a digest of its sizes")


class Conditions(Record):
    """The conditions on which a dataset's seconds depend."""

    engine: str
    engine_version: str = ""
    sequences: int = Field(default=MAX_SEQUENCES, gt=0, description="most that run at once")
    gpu: str = Field(description="GPU type as the cluster spells it; for a CPU its model name")
    model: Model


def sequences_with_room(model: Model, gpu: Gpu, tokens: float) -> float:
    """Return how many sequences of so many tokens an engine has room for, at least 0."""
    kept = model.kv_bytes(tokens)
    if not (gpu.memory and kept):
        return math.inf
    stages = model.pipeline_parallel
    room = MEMORY_FRACTION * gpu.memory - model.bytes / (model.tensor_parallel * stages)
    return max(0.0, room) * model.kv_shares * stages / kept


def gpu_seconds(work: Work, model: Model, gpu: Gpu, most: int = MAX_SEQUENCES) -> float:
    """Return the seconds of one trial for all of the work, without the engine's start.

    Args:
        most: sequences that run at once.
    """
    flops = gpu.flops * 16 / max(model.multiplied_bits, gpu.least_bits)
    gpus = model.tensor_parallel * model.pipeline_parallel
    prefill = 2 * model.active * _computed(work) / (flops * gpus) / PREFILL_EFFICIENCY
    requests = work.requests * REQUEST_SECONDS
    return max(1e-3, prefill + requests + _decoding_seconds(work, model, gpu, most))


def _computed(work: Work) -> float:
    """Return the tokens of prompts that the engine computes."""
    return max(0.0, work.prompt_tokens - work.cached_tokens)


def _decoding_seconds(work: Work, model: Model, gpu: Gpu, most: int) -> float:
    """Return the seconds of reading weights, keys and values, and of exchanges between GPUs."""
    degree, stages = model.tensor_parallel, model.pipeline_parallel
    requests = max(1.0, work.requests)
    # On average, half of a sequence's output is in its context.
    context = (work.prompt_tokens + work.output_tokens / 2) / requests
    # Where weights leave no room, and it ran all the same, the GPU has more memory.
    room = sequences_with_room(model, gpu, max(1.0, context)) or math.inf
    at_once = max(1.0, min(most, requests, room))
    # The stages of a pipeline work on as many batches at once, each with its part of the sequences.
    # So a stage reads its weights that much more often, in the time of that many GPUs.
    steps = work.output_tokens / at_once
    read = steps * model.read_bytes(max(1.0, at_once / stages)) / degree
    kept = work.output_tokens * model.kv_bytes(context) / (model.kv_shares * stages)
    sent = 4 * (degree - 1) / degree * model.activation_bytes_per_token / stages
    exchanged = sent * (_computed(work) + work.output_tokens)
    return (read + kept) / gpu.bandwidth / DECODE_EFFICIENCY + (
        exchanged / gpu.link / EXCHANGE_EFFICIENCY
    )


def score_seconds(items: float, requests: float) -> float:
    """Return the seconds of scoring a dataset on one core, before any run has measured them."""
    each = SCORE_SECONDS_PER_ITEM * items + SCORE_SECONDS_PER_REQUEST * requests
    return SCORE_SECONDS_PER_DATASET + each


def floor_seconds(work: Work, model: Model, gpu: Gpu) -> float:
    """Return the latency of the longest item's output, which splitting does not shorten."""
    alone = Work(
        items=1,
        requests=1,
        prompt_tokens=work.prompt_tokens / max(1.0, work.requests),
        output_tokens=work.longest_output_tokens,
        longest_output_tokens=work.longest_output_tokens,
    )
    return _decoding_seconds(alone, model, gpu, MAX_SEQUENCES)
