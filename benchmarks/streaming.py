"""Streaming over dataset borders against one run per dataset, on vLLM and a tiny model

    python benchmarks/streaming.py --repeat 5

The same engine answers twelve datasets of different sizes in two ways: each dataset in a run of its
own, which waits for its longest text with ever emptier batches, and all datasets in one run. The
number of engine steps is exact and the same on every machine. Times are medians, given as a ratio
only, since seconds say more about the machine than about the engine.
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.tiny import MAX_LENGTH, VOCABULARY, tiny_model

from coordinate_eval.evaluators.engines.base import Loading
from coordinate_eval.evaluators.engines.vllm import VllmEngine
from coordinate_eval.records import Request, RequestKind

DATASETS = 12
RUNNING = 32


def main() -> None:
    """Run both ways and print their ratios."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--repeat", type=int, default=3, help="runs of each way (default 3)")
    repeat = max(1, parser.parse_args().repeat)
    engine = VllmEngine(Loading(tiny_model(), 1, MAX_LENGTH, {"max_num_seqs": RUNNING}))
    datasets = workload(random.Random(0))  # noqa: S311  # a workload, not a secret
    everything = [request for dataset in datasets for request in dataset]

    def apart() -> dict[str, str | None]:
        return {name: text for dataset in datasets for name, text in texts(engine, dataset).items()}

    def streamed() -> dict[str, str | None]:
        return texts(engine, everything)

    if apart() != streamed():  # which also warms the engine up
        raise SystemExit("the two ways gave different texts")
    ways = [measure(engine, way, repeat) for way in (apart, streamed)]
    engine.close()
    show(len(everything), ways)


def workload(dice: random.Random) -> list[list[Request]]:
    """Return datasets of 8 to 60 prompts; most texts are short, a few in each are long."""
    datasets = []
    for number in range(DATASETS):
        datasets.append(
            [
                Request(
                    dataset=f"dataset-{number}",
                    item=item,
                    task=f"dataset-{number}",
                    doc=item,
                    prompt_hash="",
                    kind=RequestKind.GENERATE,
                    tokens=[dice.randrange(3, VOCABULARY) for _ in range(dice.randint(8, 80))],
                    max_tokens=min(400, 8 + int(dice.expovariate(1 / 80))),
                )
                for item in range(dice.randint(8, 60))
            ]
        )
    return datasets


def texts(engine: VllmEngine, requests: list[Request]) -> dict[str, str | None]:
    """Return the engine's texts by request."""
    return {f"{r.dataset}/{r.item}": r.text for r in engine.run(iter(requests))}


def measure(engine: VllmEngine, way: Callable[[], object], repeat: int) -> tuple[int, float]:
    """Return the engine steps of one run and its median seconds."""
    seconds = []
    for _ in range(repeat):
        before, began = engine.steps, time.perf_counter()
        way()
        seconds.append(time.perf_counter() - began)
        steps = engine.steps - before
    return steps, statistics.median(seconds)


def show(requests: int, ways: list[tuple[int, float]]) -> None:
    """Print a table of both ways as ratios to the first."""
    table = Table(title=f"{requests} requests of {DATASETS} datasets, {RUNNING} at once")
    table.add_column("way")
    for heading in ("engine steps", "steps, ratio", "time, ratio"):
        table.add_column(heading, justify="right")
    (first_steps, first_seconds), *_ = ways
    for name, (steps, seconds) in zip(("a run per dataset", "streamed"), ways, strict=True):
        table.add_row(
            name, f"{steps:,}", f"{steps / first_steps:.2f}", f"{seconds / first_seconds:.2f}"
        )
    Console().print(table)


if __name__ == "__main__":
    main()
