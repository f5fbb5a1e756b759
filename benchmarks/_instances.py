"""Suites, nodes and true costs to plan for: the base suite, and random suites from a seed.

Random suites vary more than real ones: a few datasets may hold most of the work, metrics may take
longer than everything else, and nodes have any number of free GPUs. The same seed gives the same
values on every machine.
"""

import math
import random
from collections.abc import Sequence
from typing import NamedTuple

from tests.plans import CHECKPOINT

from coordinate_eval.coordinator.inputs.suites import suite
from coordinate_eval.coordinator.planning import plan, planner
from coordinate_eval.coordinator.planning.costs import conditions, dataset_cost
from coordinate_eval.coordinator.planning.plan import Capacity, Cost, NodeCapacity, Plan
from coordinate_eval.priors import catalogue
from coordinate_eval.priors.predict import Priors
from coordinate_eval.records import EngineSettings

GPU = "h200"
GPUS_PER_NODE = 8
CPUS_PER_GPU = 16

STORAGE_GIGABITS = 25.0
"""The storage link of one node in 10⁹ bits per second; all loads of the node share it."""

ENGINE_START_SECONDS = 20.0
"""Seconds from loaded weights to the first request: a cluster file's default for vLLM."""


class Instance(NamedTuple):
    """A suite's costs, and the nodes to plan on."""

    costs: list[Cost]
    capacity: Capacity


def base(nodes: int) -> Instance:
    """Return the base suite of a 7B model, by the shipped priors, on nodes of eight H200."""
    names = [f"node{number}" for number in range(1, nodes + 1)]
    capacity = Capacity(
        nodes=[
            NodeCapacity(name=name, gpus=GPUS_PER_NODE, gpu_type=GPU, trials=GPUS_PER_NODE)
            for name in names
        ],
        gpus_per_trial=1,
        engine_start_seconds=ENGINE_START_SECONDS,
        storage_gigabits_per_node=STORAGE_GIGABITS,
        metric_cpus=nodes * GPUS_PER_NODE * CPUS_PER_GPU,
    )
    return Instance(predicted(), capacity)


def played() -> set[str]:
    """Return the datasets of the base suite that are played: all that need no judge or compiler."""
    names = {dataset.name for dataset in suite.load("base").datasets if not dataset.rubric}
    return names - {"humaneval_x"}


def predicted() -> list[Cost]:
    """Return the costs of the base suite on one GPU per trial, by the shipped priors."""
    found = []
    on = conditions(CHECKPOINT, EngineSettings(), GPU, 1)
    for dataset in suite.load("base").datasets:
        work = catalogue.predicted_work(dataset)
        assert work is not None, f"{dataset.name} is not in the catalogue"
        found.append(dataset_cost(dataset, work, on, Priors(), built=False))
    return found


def answers_per_item() -> dict[str, int]:
    """Return the choices per item of each dataset of the base suite; 0 if it generates."""
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
    """Return a random suite on random nodes, with log-uniform numbers within these bounds."""
    return Instance(
        random_costs(rng, _log_uniform(rng, *datasets)),
        random_capacity(rng, _log_uniform(rng, *gpus)),
    )


def random_costs(rng: random.Random, datasets: int) -> list[Cost]:
    """Return the costs of datasets with heavy-tailed seconds and items.

    Half of the datasets generate text and have a floor. A sixth have a metric that runs programs;
    some of these take far longer than the GPUs. One in fifteen cannot be split.
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
    """Return nodes with one to eight free GPUs each, and one, two or four GPUs per trial."""
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
    """Return the costs with this spread."""
    return [cost.model_copy(update={"spread": sigma}) for cost in costs]


def drawn(rng: random.Random, costs: Sequence[Cost]) -> list[Cost]:
    """Draw true costs: predicted costs times lognormal factors with median 1.

    A dataset's GPU time and floor have one factor, because both follow the length of the model's
    texts. Its metric has another. Both have the spread of the cost.
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
    """Plan these costs for the 7B checkpoint."""
    suite_ = plan.PlanSuite(name="benchmark", digest="")
    return planner.plan_on_capacity(
        CHECKPOINT, suite_, plan.PlanEngine(name="vllm", args={}), costs, capacity
    )


def _log_uniform(rng: random.Random, least: int, most: int) -> int:
    return round(math.exp(rng.uniform(math.log(least), math.log(most))))
