"""One job per dataset against coordinate-eval: the base suite of a 7B model, on 1 and 4 nodes

    python benchmarks/one_job_per_dataset.py

Scripts around a scheduler submit one job per dataset. The jobs start in the suite's order. Each
takes a GPU, loads the weights through its node's one storage link, starts an engine, answers its
dataset, and holds the GPU while its metric runs.

*Computed*: both ways with the same predicted costs, on nodes of eight H200. For coordinate-eval it
is the makespan of the simulated plan. For one job per dataset it is the result of `one_job_each`,
in the suite's order and with the longest dataset first, as a careful user would submit them.

*Measured*, with `--speed 20`: the same suite at 20 times its speed, on a real Slurm on this machine
with nodes of four GPUs, and with engines that sleep instead of computing. Submission, queues,
processes, files and metrics are real, so they weigh 20 times as much as they would. One job per
dataset gets its requests and its metrics' questions for free. The time of coordinate-eval ends when
the harness has scored.

Single runs at 40 times the speed took, on two noisy cores: on one node 181 s against 98 s (ratio
1.85), on four nodes 87 s against 78 s (ratio 1.12), where all processes share the same two cores.
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.plans import CHECKPOINT

from benchmarks import _rehearsal
from coordinate_eval.coordinator.dry_run.one_job_each import (
    JobConditions,
    longest_first,
    one_job_each,
)
from coordinate_eval.coordinator.inputs import suite
from coordinate_eval.coordinator.planning import plan, planner
from coordinate_eval.coordinator.planning.costs import conditions, dataset_cost
from coordinate_eval.coordinator.planning.plan import Capacity, Cost, NodeCapacity, Plan
from coordinate_eval.priors import catalogue
from coordinate_eval.priors.predict import Priors
from coordinate_eval.records import EngineSettings

NODES = (1, 4)
GPUS_PER_NODE = 8
CPUS_PER_GPU = 16
GPU = "h200"

STORAGE_GIGABITS = 25.0
"""The storage link of one node in 10⁹ bits per second; all loads of the node share it."""

ENGINE_START_SECONDS = 20.0
"""Seconds from loaded weights to the first request: a cluster file's default for vLLM."""

LOAD_SECONDS = CHECKPOINT.bytes * 8 / (STORAGE_GIGABITS * 1e9)


def main() -> None:
    """Compute and print; with `--speed` measure as well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--speed", type=float, help="also measure a rehearsal at this multiple of the speed"
    )
    parser.add_argument("--repeat", type=int, default=1, help="measurements of each (default 1)")
    given = parser.parse_args()
    console = Console()
    console.print(computed())
    if given.speed is None:
        return
    costs = predicted()
    shape = _rehearsal.Shape(NODES, LOAD_SECONDS, ENGINE_START_SECONDS, given.speed)
    if why := _rehearsal.impossible():
        console.print(f"Not measured: {why}", soft_wrap=True)
        return
    measured = _rehearsal.measure(costs, shape, max(1, given.repeat))
    title = (
        f"Measured, at {given.speed:g} times the speed, {_rehearsal.GPUS_PER_NODE} GPUs per node"
    )
    table = _table(title, "one job each", "coordinate-eval", "ratio")
    for nodes, (theirs, ours) in measured.items():
        table.add_row(str(nodes), f"{theirs:.0f} s", f"{ours:.0f} s", f"{theirs / ours:.2f}")
    console.print(table)


def computed() -> Table:
    """Return the makespans by predicted costs."""
    table = _table(
        f"Computed, {GPUS_PER_NODE} H200 per node",
        "one job each",
        "longest first",
        "coordinate-eval",
        "lower bound",
        "ratio",
        "to longest first",
    )
    for nodes in NODES:
        costs = predicted()
        gpus = nodes * GPUS_PER_NODE
        place = JobConditions(
            [GPUS_PER_NODE] * nodes, LOAD_SECONDS, ENGINE_START_SECONDS, CPUS_PER_GPU
        )
        as_listed = one_job_each(costs, place)
        sorted_ = one_job_each(longest_first(costs, CPUS_PER_GPU), place)
        planned = _plan(costs, nodes, gpus * CPUS_PER_GPU).estimate
        ours = planned.makespan_seconds
        table.add_row(
            str(nodes),
            *(f"{x:,.0f} s" for x in (as_listed, sorted_, ours, planned.lower_bound_seconds)),
            f"{as_listed / ours:.2f}",
            f"{sorted_ / ours:.2f}",
        )
    return table


def predicted() -> list[Cost]:
    """Return the costs of the base suite on one GPU per trial, by the shipped priors."""
    found = []
    on = conditions(CHECKPOINT, EngineSettings(), GPU, 1)
    for dataset in suite.load("base").datasets:
        work = catalogue.predicted_work(dataset)
        assert work is not None, f"{dataset.name} is not in the catalogue"
        found.append(dataset_cost(dataset, work, on, Priors(), built=False))
    return found


def _nodes(count: int) -> list[NodeCapacity]:
    names = [f"node{number}" for number in range(1, count + 1)]
    return [
        NodeCapacity(name=name, gpus=GPUS_PER_NODE, gpu_type=GPU, trials=GPUS_PER_NODE)
        for name in names
    ]


def _plan(costs: list[Cost], nodes: int, metric_cpus: int) -> Plan:
    capacity = Capacity(
        nodes=_nodes(nodes),
        gpus_per_trial=1,
        engine_start_seconds=ENGINE_START_SECONDS,
        storage_gigabits_per_node=STORAGE_GIGABITS,
        metric_cpus=metric_cpus,
    )
    name = plan.PlanSuite(name="base", digest="")
    return planner.make(CHECKPOINT, name, plan.PlanEngine(name="vllm", args={}), costs, capacity)


def _table(title: str, *columns: str) -> Table:
    table = Table("nodes", title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right")
    return table


if __name__ == "__main__":
    main()
