"""Suites, nodes and true costs to plan for: the base suite, and random ones from a seed.

Random suites are more unlike than real ones: a few datasets may hold most of the work, metrics
may take longer than everything else, and nodes have whatever GPUs others left free. The same
seed gives the same values on every machine.
"""

import math
import random
from collections.abc import Sequence
from typing import NamedTuple

from tests.plans import CHECKPOINT

from benchmarks import one_job_per_dataset as seven_billion
from coordinate_eval.coordinator.inputs import suite
from coordinate_eval.coordinator.planning import plan, planner
from coordinate_eval.coordinator.planning.plan import Capacity, Cost, NodeCapacity, Plan
from coordinate_eval.priors import catalogue

GPU = "h200"
GPUS_PER_NODE = 8
CPUS_PER_GPU = 16


class Instance(NamedTuple):
    """What is planned, and where."""

    costs: list[Cost]
    capacity: Capacity


def base(nodes: int) -> Instance:
    """The base suite of a 7B model on nodes of eight H200, costs as the priors have them."""
    names = [f"node{number}" for number in range(1, nodes + 1)]
    capacity = Capacity(
        nodes=[
            NodeCapacity(name=name, gpus=GPUS_PER_NODE, gpu_type=GPU, trials=GPUS_PER_NODE)
            for name in names
        ],
        gpus_per_trial=1,
        engine_start_seconds=seven_billion.ENGINE_START_SECONDS,
        storage_gigabits_per_node=seven_billion.STORAGE_GIGABITS,
        metric_cpus=nodes * GPUS_PER_NODE * CPUS_PER_GPU,
    )
    return Instance(seven_billion.predicted(), capacity)


def answers_per_item() -> dict[str, int]:
    """Of each dataset of the base suite: how many choices an item has, 0 where it generates."""
    found = {}
    for dataset in suite.load("base").datasets:
        entry = catalogue.find(dataset)
        assert entry is not None, f"{dataset.name} is not in the catalogue"
        choices = max(1, round(entry.requests_per_item))
        found[dataset.name] = choices if entry.kind == "loglikelihood" else 0
    return found


def random_instance(
    rng: random.Random,
    datasets: tuple[int, int] = (5, 500),
    gpus: tuple[int, int] = (1, 2048),
) -> Instance:
    """A random suite on random nodes, their numbers log-uniform within these bounds."""
    return Instance(
        random_costs(rng, _log_uniform(rng, *datasets)),
        random_capacity(rng, _log_uniform(rng, *gpus)),
    )


def random_costs(rng: random.Random, datasets: int) -> list[Cost]:
    """As many datasets, heavy-tailed in their seconds and items.

    Half of them generate and have a floor; a sixth have a metric that executes something, of
    which some take far longer than the GPUs; one in fifteen cannot be split.
    """
    typical = math.exp(rng.uniform(math.log(2), math.log(60)))
    pareto, tail = rng.random() < 0.5, rng.uniform(1.0, 2.0)
    huge_metrics = rng.random() < 0.3
    costs = []
    for number in range(datasets):
        spread = rng.paretovariate(tail) if pareto else rng.lognormvariate(0, tail)
        items = min(70_000, max(1, round(rng.lognormvariate(math.log(1000), 1.6))))
        metric = 0.0
        if rng.random() < 1 / 6:
            metric = items * rng.uniform(0.1, 3.0)
            if huge_metrics and rng.random() < 0.3:
                metric *= rng.uniform(10, 100)
        costs.append(
            Cost(
                name=f"d{number}",
                items=items,
                gpu_seconds=max(0.05, min(50_000, typical * spread)),
                metric_cpu_seconds=metric,
                chunk_overhead_seconds=rng.choice((0.0, 0.2, 0.2, 1.0)),
                floor_seconds=rng.lognormvariate(math.log(4), 1.0) if rng.random() < 0.5 else 0.0,
                splittable=rng.random() > 1 / 15,
            )
        )
    return costs


def random_capacity(rng: random.Random, gpus: int) -> Capacity:
    """So many GPUs on nodes of one to eight free ones; one, two or four a trial."""
    per_trial = rng.choice([n for n in (1, 1, 1, 2, 4) if n <= gpus])
    nodes: list[NodeCapacity] = []
    left = gpus
    while left >= per_trial:
        free = min(left, rng.choice((8, 8, 8, rng.randint(per_trial, 8))))
        left -= free
        nodes.append(
            NodeCapacity(name=f"n{len(nodes)}", gpus=free, gpu_type=GPU, trials=free // per_trial)
        )
    return Capacity(
        nodes=nodes,
        gpus_per_trial=per_trial,
        engine_start_seconds=rng.uniform(10, 60),
        storage_gigabits_per_node=rng.choice((10.0, 25.0, 100.0)),
        metric_cpus=max(1, round(gpus * math.exp(rng.uniform(0, math.log(CPUS_PER_GPU))))),
    )


def told(costs: Sequence[Cost], sigma: float) -> list[Cost]:
    """The same priors, and how sure they are."""
    return [cost.model_copy(update={"spread": sigma}) for cost in costs]


def told_apart(rng: random.Random, costs: Sequence[Cost]) -> list[Cost]:
    """The same priors, every second or so of them unsure (σ = 1) and the others not (0.1)."""
    return [cost.model_copy(update={"spread": rng.choice((0.1, 1.0))}) for cost in costs]


def drawn(rng: random.Random, costs: Sequence[Cost]) -> list[Cost]:
    """What the datasets might really cost: priors times lognormal factors with median 1.

    One factor, with the spread of the prior, is drawn for a dataset's GPU time and floor, which
    both follow the length of what a model writes, and another for its metric.
    """
    return [
        cost.model_copy(
            update={
                "gpu_seconds": cost.gpu_seconds * (written := rng.lognormvariate(0, cost.spread)),
                "floor_seconds": cost.floor_seconds * written,
                "metric_cpu_seconds": cost.metric_cpu_seconds * rng.lognormvariate(0, cost.spread),
            }
        )
        for cost in costs
    ]


def planned(costs: Sequence[Cost], capacity: Capacity) -> Plan:
    """The program's plan of these costs for the 7B checkpoint."""
    suite_ = plan.PlanSuite(name="benchmark", digest="")
    return planner.make(CHECKPOINT, suite_, plan.PlanEngine(name="vllm", args={}), costs, capacity)


def _log_uniform(rng: random.Random, least: int, most: int) -> int:
    return round(math.exp(rng.uniform(math.log(least), math.log(most))))
