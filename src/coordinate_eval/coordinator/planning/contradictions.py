"""Contradictions in a plan that somebody may have written by hand, or changed."""

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

from coordinate_eval.coordinator.planning.plan import Plan


def contradictions(plan: Plan) -> Iterator[str]:
    """Yield the contradictions in a plan; every item must be in exactly one shard, for example."""
    yield from _of_names(plan)
    yield from _of_trials(plan)
    for value in _numbers(plan.model_dump()):
        if value < 0 or not (isinstance(value, int) or math.isfinite(value)):
            yield f"{value} is not a time, size or count"
    yield from _of_shards(plan)
    yield from _of_jobs(plan)


def _of_names(plan: Plan) -> Iterator[str]:
    nodes = {node.name for node in plan.nodes}
    for what, names in (
        ("dataset", [cost.name for cost in plan.datasets]),
        ("node", [node.name for node in plan.nodes]),
        ("trial", [trial.id for trial in plan.trials]),
    ):
        if not names:
            yield f"it has no {what}"
        for name in (name for name, count in Counter(names).items() if count > 1):
            yield f"{what} {name} is listed twice"
    for name in {trial.node for trial in plan.trials} ^ nodes:
        yield f"node {name} has no trial" if name in nodes else f"no node {name}, but trials on it"
    for name in {stage.node for stage in plan.stages} ^ nodes:
        yield f"node {name} has no stage" if name in nodes else f"no node {name}, but a stage of it"


def _of_trials(plan: Plan) -> Iterator[str]:
    if min(plan.estimate.makespan_seconds, plan.estimate.lower_bound_seconds) <= 0:
        yield "its estimate is 0 seconds"
    for node, count in Counter(trial.node for trial in plan.trials).items():
        usual = {f"{node}-{index}" for index in range(count)}
        for name in {trial.id for trial in plan.trials if trial.node == node} - usual:
            yield f"trial {name} of node {node} is not one of {node}-0 to {node}-{count - 1}"
    for trial in plan.trials:
        if trial.gpus != plan.gpus_per_trial or trial.gpus < 1:
            yield f"trial {trial.id} has {trial.gpus} GPUs, not {plan.gpus_per_trial}"


def _of_shards(plan: Plan) -> Iterator[str]:
    spans: dict[str, list[tuple[int, int]]] = {cost.name: [] for cost in plan.datasets}
    for shard in (shard for trial in plan.trials for shard in trial.shards):
        if shard.dataset in spans:
            spans[shard.dataset].append((shard.start, shard.stop))
        else:
            yield f"a shard is of dataset {shard.dataset}, which the plan does not list"
    for cost in plan.datasets:
        found = sorted(spans[cost.name])
        yield from _uncovered(cost.name, cost.items, found)
        if not cost.splittable and len(found) > 1:
            yield f"dataset {cost.name} cannot be split but has {len(found)} shards"


def _of_jobs(plan: Plan) -> Iterator[str]:
    items = {cost.name: cost.items for cost in plan.datasets}
    for job in plan.metric_jobs:
        if not 0 <= job.start < job.stop <= items.get(job.dataset, 0):
            yield f"a metric job is of {job.dataset} {job.start}-{job.stop}, which does not exist"
        if job.cpus < 1:
            yield f"a metric job of {job.dataset} has no core"
    for name, count in Counter(job.dataset for job in plan.score_jobs).items():
        if name not in items:
            yield f"score jobs are of dataset {name}, which the plan does not list"
        elif count > 1:
            yield f"score jobs are of dataset {name}, which is scored once"


def _uncovered(name: str, items: int, spans: list[tuple[int, int]]) -> Iterator[str]:
    """Yield items that are in no shard or in several."""
    for start, stop in spans:
        if not 0 <= start < stop <= items:
            yield f"shard {start}-{stop} of dataset {name} is not within its {items} items"
    edges = [(0, 0), *spans, (items, items)]
    for (_, stop), (start, _) in itertools.pairwise(edges):
        if stop < start:
            yield f"items {stop}-{start} of dataset {name} are in no shard"
        elif stop > start:
            yield f"items {start}-{stop} of dataset {name} are in more than one shard"


def _numbers(tree: Any) -> Iterator[float]:  # noqa: ANN401 - any JSON value
    """Yield every number in a tree but those in the engine's arguments."""
    if isinstance(tree, bool):
        return
    if isinstance(tree, int | float):
        yield tree
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield from () if key == "args" else _numbers(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _numbers(value)
