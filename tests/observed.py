"""A made-up engine whose costs are known, and what its runs would have observed."""

import math

from coordinate_eval.priors import gpus
from coordinate_eval.priors.observations import DatasetSeen, Subject
from coordinate_eval.priors.roofline import (
    DECODE_EFFICIENCY,
    Conditions,
    Model,
    Work,
    sequences_with_room,
)

DAY = 86_400.0
NOW = 1000 * DAY

SLOWER = 2.4
"""Multiple of the shipped seconds that a made-up engine takes to read its weights."""

DATASETS = {
    # name: (requests, prompt tokens and output tokens a request, its own factor)
    "short-choice": (4000, 60, 0, 0.8),
    "long-choice": (800, 3000, 0, 1.1),
    "huge-context": (60, 20_000, 20, 1.25),
    "short-text": (1000, 400, 12, 0.9),
    "long-text": (500, 150, 900, 1.2),
    "thinking": (64, 200, 6000, 1.4),
}


def on(
    billions: float = 7.0, gpu: str = "h100", engine: str = "vllm", family: str = ""
) -> Conditions:
    """Conditions of a 16-bit model of so many billion parameters."""
    size = int(billions * 1e9)
    return Conditions(
        engine=engine,
        engine_version="1",
        gpu=gpu,
        model=Model(
            parameters=size,
            bytes=2 * size,
            kv_bytes_per_token=int(131_072 * math.sqrt(billions)),
            tensor_parallel=1,
            dtype="bfloat16",
            family=family or f"Llama-{billions}",
        ),
    )


def work_of(name: str, outputs: float = 1.0) -> Work:
    """Return the work of a dataset, with `outputs` times the text that is really written."""
    requests, prompt, output, _ = DATASETS[name]
    return Work(
        items=requests,
        requests=requests,
        prompt_tokens=requests * prompt,
        output_tokens=requests * output * outputs,
        longest_output_tokens=4 * output * outputs,
    )


def true_seconds(name: str, conditions: Conditions) -> float:
    """Return the seconds that the made-up engine takes."""
    work, model, gpu = work_of(name), conditions.model, gpus.lookup(conditions.gpu)
    context = (work.prompt_tokens + work.output_tokens / 2) / work.requests
    room = sequences_with_room(model, gpu, context) or math.inf
    at_once = max(1.0, min(256, work.requests, room))
    steps = work.output_tokens / at_once
    prefill = 3.5 * 2 * model.parameters * work.prompt_tokens / gpu.flops
    weights = SLOWER / DECODE_EFFICIENCY * steps * model.bytes / gpu.bandwidth
    cache = 2.0 * work.output_tokens * model.kv_bytes(context) / gpu.bandwidth
    rest = 0.002 * work.requests + 0.004 * steps + 2e-5 * work.output_tokens
    return (prefill + weights + cache + rest) * DATASETS[name][3]


def subject(name: str, settings: str = "as is") -> Subject:
    """Of a dataset."""
    return Subject(task=name, settings=settings)


def seen(
    name: str,
    conditions: Conditions,
    *,
    run: str = "run",
    noise: float = 1.0,
    days_ago: float = 0.0,
    settings: str = "as is",
) -> DatasetSeen:
    """Return what one run would have observed of a dataset: `noise` times the truth."""
    work = work_of(name)
    return DatasetSeen(
        run=run,
        time=NOW - days_ago * DAY,
        conditions=conditions,
        dataset=name,
        subject=subject(name, settings),
        shards=3,
        items=work.items,
        requests=int(work.requests),
        prompt_tokens=int(work.prompt_tokens),
        output_tokens=int(work.output_tokens),
        scored_tokens=0,
        longest_output_tokens=int(work.longest_output_tokens),
        gpu_seconds=true_seconds(name, conditions) * noise,
    )


def run_of(conditions: Conditions, **values: object) -> list[DatasetSeen]:
    """All datasets of one run."""
    return [seen(name, conditions, **values) for name in DATASETS]  # type: ignore[arg-type]
