"""The time that planning takes as datasets and GPUs grow, and the time of the command around it

    python benchmarks/planning_time.py --repeat 5

The first table compares planning with a plain sort-and-deal of the same random suite: whole
datasets, longest first, each to the GPU with the least work (LPT; R. L. Graham, 1969). It cuts
nothing and ignores floors and metrics. Both run alternately in one process. Seconds are medians of
CPU time, which other processes disturb least.

The second table shows the time that a user waits: the whole command as a process of its own, as a
multiple of `python -c pass`. All commands run in turn. The dry run is of the base suite for a 7B
checkpoint, which the benchmark makes from a real header and a sparse file for the weights.
"""

import argparse
import heapq
import json
import math
import os
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import yaml
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.plans import CHECKPOINT

from benchmarks._instances import GPUS_PER_NODE, base, planned, random_costs
from coordinate_eval.coordinator.planning.plan import Cost

SIZES = ((63, 8), (63, 256), (125, 1_000), (250, 4_000), (500, 8_000))
"""Numbers of datasets and GPUs."""

NODES = (4, 1_000)
"""Numbers of nodes of eight GPUs in the cluster files of dry runs."""

CONFIG = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "hidden_size": 4096,
    "max_position_embeddings": 4096,
}


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeat", type=int, default=5, help="measurements of each (default 5)")
    repeat = max(1, parser.parse_args().repeat)
    console = Console()
    console.print(planning(repeat))
    with tempfile.TemporaryDirectory() as folder:
        console.print(commands(Path(folder), repeat))


def planning(repeat: int) -> Table:
    """Return the table of seconds of a plan and of a sort-and-deal."""
    table = Table(title="Planning", title_justify="left")
    for heading in ("datasets", "GPUs", "shards", "plan", "sort and deal", "ratio"):
        table.add_column(heading, justify="right")
    for datasets, gpus in SIZES:
        shards, ours, theirs = _planned_in(repeat, datasets, gpus)
        figures = (f"{ours:.3f} s", f"{theirs:.5f} s", f"{ours / theirs:,.0f}")
        table.add_row(f"{datasets:,}", f"{gpus:,}", f"{shards:,}", *figures)
    return table


def _planned_in(repeat: int, datasets: int, gpus: int) -> tuple[int, float, float]:
    """Return the shards of the plan, its seconds, and the seconds of a sort-and-deal."""
    costs = random_costs(random.Random(f"{datasets} on {gpus}"), datasets)  # noqa: S311
    capacity = base(gpus // GPUS_PER_NODE).capacity
    trials = sum(node.trials for node in capacity.nodes)
    shards = sum(len(trial.shards) for trial in planned(costs, capacity).trials)
    ours, theirs = in_turn(
        repeat,
        lambda: planned(costs, capacity),
        lambda: sort_and_deal(costs, trials),
        clock=time.process_time,
    )
    return shards, ours, theirs


def sort_and_deal(costs: Sequence[Cost], trials: int) -> list[list[Cost]]:
    """Deal whole datasets, longest first, each to the trial with the least work."""
    loads = [(0.0, trial) for trial in range(trials)]
    queues: list[list[Cost]] = [[] for _ in range(trials)]
    for cost in sorted(costs, key=lambda cost: -cost.gpu_seconds):
        load, trial = loads[0]
        queues[trial].append(cost)
        heapq.heapreplace(loads, (load + cost.gpu_seconds, trial))
    return queues


def commands(folder: Path, repeat: int) -> Table:
    """Return the table of whole processes, as multiples of an interpreter that does nothing."""
    environ = os.environ | {
        "HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    made = checkpoint(folder / "step-1000")

    def process(*args: object) -> Callable[[], object]:
        argv = [sys.executable, *map(str, args)]
        return lambda: subprocess.run(argv, env=environ, stdout=subprocess.DEVNULL, check=True)

    ways = {"python -c pass": process("-c", "pass")}
    ways["coordinate-eval --help"] = process("-m", "coordinate_eval", "--help")
    for nodes in NODES:
        cluster = folder / f"{nodes}.yaml"
        cluster.write_text(yaml.safe_dump(cluster_of(nodes)))
        ways[f"a dry run on {nodes * GPUS_PER_NODE:,} GPUs"] = process(
            "-m", "coordinate_eval", "run", made, "--cluster", cluster, "--dry-run", "--json"
        )
    measured = in_turn(repeat, *ways.values())
    table = Table(title="The command", title_justify="left")
    table.add_column("")
    for heading in ("seconds", "ratio"):
        table.add_column(heading, justify="right")
    for way, seconds in zip(ways, measured, strict=True):
        table.add_row(way, f"{seconds:.2f} s", f"{seconds / measured[0]:.1f}")
    return table


def in_turn(
    repeat: int, *ways: Callable[[], object], clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Return the median seconds of each, measured in turn: other load on the machine hits all."""
    seconds: list[list[float]] = [[] for _ in ways]
    for _ in range(repeat):
        for way, mine in zip(ways, seconds, strict=True):
            began = clock()
            way()
            mine.append(clock() - began)
    return [statistics.median(mine) for mine in seconds]


def cluster_of(nodes: int) -> dict[str, object]:
    """Return a cluster file of nodes of eight H200."""
    node = {"gpus": 8, "gpu_type": "h200", "gpu_memory_gib": 141, "cpus": 128, "memory_gib": 1000}
    return {"nodes": [{"name": f"node{number}", **node} for number in range(1, nodes + 1)]}


def checkpoint(folder: Path) -> Path:
    """Write a 7B checkpoint in one safetensors file whose weights take no space on disk.

    The format is a length, a JSON header with the dtype, shape and place of each tensor, and
    the tensors (github.com/huggingface/safetensors, README.md, "Format").
    """
    width, layers = CONFIG["hidden_size"], CONFIG["num_hidden_layers"]
    tensors = math.ceil(CHECKPOINT.parameters / layers / width**2)
    names = [f"model.layers.{n}.{m}.weight" for n in range(layers) for m in range(tensors)]
    size = width * width * 2
    header = json.dumps(
        {
            name: {
                "dtype": "BF16",
                "shape": [width, width],
                "data_offsets": [number * size, (number + 1) * size],
            }
            for number, name in enumerate(names)
        }
    ).encode()
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text("{}")
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + len(names) * size)
    return folder


if __name__ == "__main__":
    main()
