"""The ways in which suites are dealt to jobs today: each returns jobs as lists of spans, in order.

They follow published behaviour. Each way also gets advantages that it may lack in practice: as many
jobs at once as there are GPUs, no pause between jobs, and sizes at no cost. A dataset that cannot
be split stays whole in all of them.
"""

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch

from coordinate_eval.coordinator.planning.plan import Cost
from coordinate_eval.records import Span

Jobs = list[list[Span]]

_HARD = ("bbh*", "gsm8k*", "math*", "strategyqa*", "*professional_law")
"""Datasets whose size OpenCompass multiplies by ten, among those a suite here can have."""


def one_job_per_dataset(costs: Sequence[Cost]) -> Jobs:
    """Return one job per whole dataset, in the suite's order, as scripts around a scheduler do.

    This is also OpenCompass's NaivePartitioner (opencompass/partitioners/naive.py).
    """
    return [[_whole(cost)] for cost in costs]


def equal_shards(costs: Sequence[Cost], gpus: int) -> Jobs:
    """Cut every dataset into one piece per GPU, with equally many items.

    Data-parallel launchers do this, such as `accelerate launch -m lm_eval`, in which each process
    answers its part of every task (lm-evaluation-harness, README.md, "Multi-GPU Evaluation").
    """
    jobs: Jobs = [[] for _ in range(gpus)]
    for number, cost in enumerate(costs):
        if not cost.splittable:
            jobs[number % gpus].append(_whole(cost))
            continue
        edges = [cost.items * gpu // gpus for gpu in range(gpus + 1)]
        for job, start, stop in zip(jobs, edges[:-1], edges[1:], strict=True):
            if start < stop:
                job.append(Span(cost.name, start, stop))
    return [job for job in jobs if job]


def by_size(
    costs: Sequence[Cost],
    answers: Mapping[str, int],
    max_task_size: int = 40_000,
    gen_task_coef: int = 20,
) -> Jobs:
    """Deal like OpenCompass's SizePartitioner with the defaults of its command line.

    A dataset's size is its items times `gen_task_coef` if it generates, and times its choices
    (`answers`) otherwise; for some names it is ten times that. A dataset larger than a task is cut
    into parts with equally many items, each a whole task. Then all parts are sorted by size, and
    each task takes the next parts that fit.

    Source: github.com/open-compass/opencompass, opencompass/partitioners/size.py at 11ce0348
    (strategy 'heuristic') and opencompass/cli/main.py at 01338e40 (40,000 and 20).
    """
    pieces: list[tuple[int, Span]] = []
    for cost in costs:
        factor = (answers[cost.name] or gen_task_coef) * (10 if _hard(cost.name) else 1)
        size = cost.items * factor
        if size > max_task_size and cost.splittable:
            most = max(1, max_task_size // factor)
            step = math.ceil(cost.items / math.ceil(cost.items / most))
            pieces += [(max_task_size, span) for span in _steps(cost, step)]
        else:
            pieces.append((size, _whole(cost)))
    pieces.sort(key=lambda piece: -piece[0])
    jobs: Jobs = []
    room = 0
    for size, span in pieces:
        if not jobs or size > room:
            jobs.append([])
            room = max_task_size
        jobs[-1].append(span)
        room -= size
    return jobs


def by_workers(costs: Sequence[Cost], num_worker: int = 8, min_task_size: int = 16) -> Jobs:
    """Deal like OpenCompass's NumWorkerPartitioner.

    Each dataset is cut into `num_worker` parts with equally many items, but at least
    `min_task_size`. All parts are dealt in turn to `num_worker` tasks, in the suite's order.

    Source: github.com/open-compass/opencompass, opencompass/partitioners/num_worker.py at
    24f6ab02 (strategy 'heuristic', its defaults 8 and 16).
    """
    jobs: Jobs = [[] for _ in range(num_worker)]
    dealt = 0
    for cost in costs:
        step = max(math.ceil(cost.items / num_worker), min_task_size)
        for span in _steps(cost, step) if cost.splittable else [_whole(cost)]:
            jobs[dealt % num_worker].append(span)
            dealt += 1
    return [job for job in jobs if job]


def _whole(cost: Cost) -> Span:
    return Span(cost.name, 0, cost.items)


def _steps(cost: Cost, step: int) -> list[Span]:
    starts = range(0, cost.items, step)
    return [Span(cost.name, start, min(start + step, cost.items)) for start in starts]


def _hard(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in _HARD)
