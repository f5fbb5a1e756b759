"""Plans against the ways suites are dealt today: the base suite, and random suites

    python benchmarks/plan_quality.py --suites 24 --draws 5

Every way is played by one event simulator (`_simulator.py`, which shares nothing with the
planner) with the same true costs on the same nodes. True costs are drawn around the priors that
the ways are told: each dataset's is off by a lognormal factor with the σ that a table names,
seeds fixed, the same draws for all ways. Numbers are medians over draws, and over suites where
there are several.

- *plan, as dealt*: the plan's queues to the end. *plan, pulling*: as trials do at run time, their
  own shards first and then the longest that nobody has begun. Metrics run as shards land.
- *one job per dataset*: in the suite's order, the metric holding the GPU.
- *OpenCompass by size* and *by workers*: its partitioners (`_partitioners.py`), followed by
  evaluation on CPUs, as it does, or with evaluation as datasets become complete, which it does
  not. Runs as many tasks at once as there are GPUs, though its default is at most 32.
- *equal shards*: every dataset in as many equal pieces as there are GPUs, metrics overlapped.

Cells say how many times as long as *plan, pulling* a way takes, and how many times as long as
the bound that nobody can beat with those true costs. Random suites have 5 to 500 datasets with
heavy-tailed costs on 1 to 2,048 GPUs of uneven nodes; the number in brackets is the least ratio
of all, below 1 where a way beat the plan. The last table is about plans alone: their estimate
over their own lower bound.
"""

import argparse
import random
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import _partitioners, _simulator
from benchmarks._instances import (
    CHECKPOINT,
    Instance,
    answers_per_item,
    base,
    drawn,
    planned,
    random_instance,
    told,
)
from coordinate_eval.coordinator.plan import Cost

NODES = (1, 2, 4, 32)
SIGMAS = (0.0, 0.25, 0.5, 1.0)
CHOICES = 4
"""Of an item of a random dataset that does not generate."""

OURS = "plan, pulling"
BOUND = "bound"

Play = Callable[[Mapping[str, Cost]], float]
Ratios = dict[str, list[float]]
"""By way: one number a draw."""


def main() -> None:
    """Play everything and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--suites", type=int, default=24, help="random ones to play (default 24)")
    parser.add_argument("--draws", type=int, default=5, help="of true costs of each (default 5)")
    parser.add_argument("--plans", type=int, default=200, help="of random suites (default 200)")
    given = parser.parse_args()
    console = Console()
    answers = answers_per_item()
    for sigma in SIGMAS:
        console.print(base_table(sigma, answers, 2 * given.draws))
    console.print(random_table(given.suites, given.draws))
    console.print(estimates_table(given.plans))


def base_table(sigma: float, answers: Mapping[str, int], draws: int) -> Table:
    """The base suite on each number of nodes."""
    columns = {}
    for nodes in NODES:
        instance = base(nodes)
        seed = f"base {nodes}"
        columns[f"{nodes} node{'s' if nodes > 1 else ''}"] = seconds(
            instance, answers, sigma, draws, seed
        )
    table = Table(title=f"Base suite, 7B, 8 H200 a node, σ = {sigma:g}", title_justify="left")
    table.add_column("")
    for heading in columns:
        table.add_column(heading, justify="right")
    for way in next(iter(columns.values())):
        if way == BOUND:
            cells = [f"{statistics.median(c[way]):,.0f} s" for c in columns.values()]
        else:
            cells = [
                f"{median_ratio(c, way, OURS):.2f} / {median_ratio(c, way, BOUND):.2f}"
                for c in columns.values()
            ]
        table.add_row(way, *cells)
    table.caption = "median seconds of the bound; then × plan, pulling / × bound"
    return table


def random_table(suites: int, draws: int) -> Table:
    """Random suites: medians over all of them and their draws, and the least."""
    table = Table(title=f"{suites} random suites", title_justify="left")
    table.add_column("")
    found: dict[float, list[Ratios]] = {}
    for sigma in SIGMAS:
        table.add_column(f"σ = {sigma:g}", justify="right")
        found[sigma] = []
        for number in range(suites):
            instance = random_instance(random.Random(f"suite {number}"))  # noqa: S311
            answers = {c.name: 0 if c.floor_seconds else CHOICES for c in instance.costs}
            found[sigma].append(seconds(instance, answers, sigma, draws, f"suite {number}"))
    for way in found[SIGMAS[0]][0]:
        if way != BOUND:
            table.add_row(way, *(_over_suites(found[sigma], way) for sigma in SIGMAS))
    table.caption = "× plan, pulling (least) / × bound"
    return table


def _over_suites(played: Sequence[Ratios], way: str) -> str:
    to_ours = [a / b for each in played for a, b in zip(each[way], each[OURS], strict=True)]
    to_bound = [a / b for each in played for a, b in zip(each[way], each[BOUND], strict=True)]
    least = f" ({min(to_ours):.2f})" if way != OURS else ""
    return f"{statistics.median(to_ours):.2f}{least} / {statistics.median(to_bound):.2f}"


def estimates_table(plans: int) -> Table:
    """How far plans are from their lower bounds by their own account."""
    table = Table(title="Estimated makespan / lower bound", title_justify="left")
    table.add_column("")
    for heading in ("median", "95th percentile", "worst"):
        table.add_column(heading, justify="right")
    for nodes in NODES:
        ratio = estimated(base(nodes))
        table.add_row(f"base suite, {nodes * 8} GPUs", f"{ratio:.3f}", "", "")
    ratios = [
        estimated(random_instance(random.Random(f"plan {number}")))  # noqa: S311
        for number in range(plans)
    ]
    row = (statistics.median(ratios), statistics.quantiles(ratios, n=20)[-1], max(ratios))
    table.add_row(f"{plans} random suites", *(f"{ratio:.3f}" for ratio in row))
    return table


def estimated(instance: Instance) -> float:
    """Estimate over lower bound of a plan, both its own."""
    estimate = planned(*instance).estimate
    return estimate.makespan_seconds / estimate.lower_bound_seconds


def median_ratio(played: Ratios, way: str, to: str) -> float:
    """The median over draws of how many times as long one way took as another."""
    return statistics.median(a / b for a, b in zip(played[way], played[to], strict=True))


def seconds(
    instance: Instance, answers: Mapping[str, int], sigma: float, draws: int, seed: str
) -> Ratios:
    """Makespans of every way, and the bound, for each draw of true costs."""
    costs, capacity = instance
    where = _simulator.cluster(capacity, CHECKPOINT.bytes)
    ways = dict(_ways(instance, answers, sigma, where))
    found: Ratios = {way: [] for way in (BOUND, *ways)}
    rng = random.Random(f"{seed} {sigma}")  # noqa: S311
    for _ in range(draws if sigma else 1):
        true = drawn(rng, costs, sigma)
        truth = {cost.name: cost for cost in true}
        found[BOUND].append(_simulator.bound(true, where))
        for way, play in ways.items():
            found[way].append(play(truth))
    return found


def _ways(
    instance: Instance, answers: Mapping[str, int], sigma: float, where: _simulator.Cluster
) -> Iterable[tuple[str, Play]]:
    """Each way by its name, with all of its decisions made."""
    costs, capacity = instance
    plan = planned(told(costs, sigma), capacity)
    yield OURS, lambda truth: _simulator.play_plan(plan, truth, where, pulling=True)
    yield "plan, as dealt", lambda truth: _simulator.play_plan(plan, truth, where, pulling=False)
    each = _partitioners.one_job_per_dataset(costs)
    yield "one job per dataset", lambda truth: _simulator.play_jobs(each, truth, where, "held")
    partitions = {
        "OpenCompass by size": _partitioners.by_size(costs, answers),
        "OpenCompass by 8 workers": _partitioners.by_workers(costs),
        "OpenCompass by a worker a GPU": _partitioners.by_workers(costs, where.engines),
    }
    for name, jobs in partitions.items():
        yield name, lambda truth, jobs=jobs: _simulator.play_jobs(jobs, truth, where, "after")
        yield (
            f"{name}, overlapped",
            lambda truth, jobs=jobs: _simulator.play_jobs(jobs, truth, where, "overlapped"),
        )
    equal = _partitioners.equal_shards(costs, where.engines)
    yield (
        "equal shards, overlapped",
        lambda truth: _simulator.play_jobs(equal, truth, where, "overlapped"),
    )


if __name__ == "__main__":
    main()
