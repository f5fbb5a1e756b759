"""Plans against the ways suites are dealt today: the base suite, and random suites

    python benchmarks/plan_quality.py --suites 32 --draws 5

One event simulator (`_simulator.py`, independent of the planner) plays every way with the same true
costs on the same nodes. True costs are drawn around the predicted costs: each dataset is off by a
lognormal factor with the σ that a table names. All ways get the same draws, from fixed seeds.
Numbers are medians over draws, and over suites if there are several.

- *plan, pulling*: trials claim shards as in a real run, first their own and then the longest that
  no trial has begun. Metrics run as shards are complete, on the cores that the plan gives them.
  The scoring of a dataset follows its metrics on one core.
- *plan, as dealt*: each trial runs its planned queue to the end.
- *one job per dataset*: jobs in the suite's order; the metric holds the GPU.
- *OpenCompass, size* and *workers* (8 workers, or n for n GPUs): its partitioners with their
  default sizes (`_partitioners.py`). Evaluation on CPUs follows, as in OpenCompass. In the
  *overlapped* variants, which OpenCompass does not have, it starts as datasets become complete. A
  dataset's metric has 16 cores. As many tasks run at once as there are GPUs, although the default
  of OpenCompass is at most 32.
- *equal shards*: every dataset in one equal piece per GPU, metrics overlapped.

Ratios are to *plan, pulling* and to the lower bound for the true costs. The base suite is that of a
7B model on nodes of eight H200. Random suites have 5 to 500 datasets with heavy-tailed costs on 1
to 2,048 GPUs of uneven nodes. A number in brackets is the extreme of all draws of all suites; below
1 in the first of these tables means that a way beat the plan. The simulator gives a metric at most
one core per item, while the bound lets it have all, as plan@1 does. So the few suites in which the
metric of one item outlasts everything else are far above the bound in every way.

The last table is about plans alone: their estimate over their own lower bound.
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

from tests.plans import CHECKPOINT

from benchmarks import _partitioners, _simulator
from benchmarks._instances import (
    Instance,
    answers_per_item,
    base,
    drawn,
    planned,
    random_instance,
    told,
)
from coordinate_eval.coordinator.planning.plan import Cost

NODES = (1, 2, 4, 32)
SIGMAS = (0.0, 0.25, 0.5, 1.0)
CHOICES = 4
"""Choices per item of a random dataset that does not generate."""

OURS = "plan, pulling"
BOUND = "bound"

Play = Callable[[Mapping[str, Cost]], float]
Seconds = dict[str, list[float]]
"""Makespans of all draws, by way."""


def main() -> None:
    """Play everything and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--suites", type=int, default=32, help="random ones to play (default 32)")
    parser.add_argument("--draws", type=int, default=5, help="of true costs of each (default 5)")
    parser.add_argument("--plans", type=int, default=200, help="of random suites (default 200)")
    given = parser.parse_args()
    console = Console()
    answers = answers_per_item()
    for sigma in SIGMAS:
        console.print(base_table(sigma, answers, 2 * given.draws))
    console.print(*random_tables(given.suites, given.draws))
    console.print(estimates_table(given.plans))


def base_table(sigma: float, answers: Mapping[str, int], draws: int) -> Table:
    """Return the table of the base suite on each number of nodes."""
    title = f"Base suite, σ = {sigma:g}: times as long as {OURS} / as the {BOUND}"
    table = Table(title=title, title_justify="left")
    table.add_column("")
    played = []
    for nodes in NODES:
        table.add_column(f"{nodes} node{'s' if nodes > 1 else ''}", justify="right")
        played.append(seconds(base(nodes), answers, sigma, draws, f"base {nodes}"))
    for way in played[0]:
        if way == BOUND:
            cells = [f"{statistics.median(each[way]):,.0f} s" for each in played]
        else:
            cells = [
                " / ".join(
                    f"{statistics.median(ratios(each, way, to)):.2f}" for to in (OURS, BOUND)
                )
                for each in played
            ]
        table.add_row(way, *cells)
    return table


def random_tables(suites: int, draws: int) -> list[Table]:
    """Return the tables of random suites: medians and extremes over all suites and draws."""
    found: dict[float, list[Seconds]] = {sigma: [] for sigma in SIGMAS}
    for number in range(suites):
        seed = f"suite {number}"
        instance = random_instance(random.Random(seed))  # noqa: S311
        answers = {c.name: 0 if c.floor_seconds else CHOICES for c in instance.costs}
        for sigma in SIGMAS:
            found[sigma].append(seconds(instance, answers, sigma, draws, seed))
    title = f"{suites} random suites: times as long as"
    return [
        _over_suites(f"{title} {OURS}, median (least)", found, OURS, min),
        _over_suites(f"{title} the {BOUND}, median (most)", found, BOUND, max),
    ]


def _over_suites(
    title: str,
    found: Mapping[float, Sequence[Seconds]],
    to: str,
    extreme: Callable[[Sequence[float]], float],
) -> Table:
    played = next(iter(found.values()))
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for sigma in found:
        table.add_column(f"σ = {sigma:g}", justify="right")
    for way in played[0]:
        if way in (to, BOUND):
            continue
        cells = []
        for suites in found.values():
            all_ = [ratio for suite in suites for ratio in ratios(suite, way, to)]
            cells.append(f"{statistics.median(all_):.2f} ({_short(extreme(all_))})")
        table.add_row(way, *cells)
    return table


def _short(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:,.0f}"


def estimates_table(plans: int) -> Table:
    """Return the table of plans' estimates over their own lower bounds."""
    table = Table(title="Plans: estimated makespan / lower bound", title_justify="left")
    table.add_column("")
    for heading in ("median", "95th percentile", "worst"):
        table.add_column(heading, justify="right")
    for nodes in NODES:
        table.add_row(f"base suite, {nodes * 8} GPUs", f"{estimated(base(nodes)):.3f}", "", "")
    found = []
    for number in range(plans):
        instance = random_instance(random.Random(f"plan {number}"))  # noqa: S311
        gpus = sum(node.gpus for node in instance.capacity.nodes)
        found.append((estimated(instance), number, len(instance.costs), gpus))
    all_ = [ratio for ratio, *_ in found]
    row = (statistics.median(all_), statistics.quantiles(all_, n=20)[-1], max(all_))
    table.add_row(f"{plans} random suites", *(f"{ratio:.3f}" for ratio in row))
    _, number, datasets, gpus = max(found)
    table.caption = f"worst: random suite {number}, {datasets} datasets on {gpus} GPUs"
    return table


def estimated(instance: Instance) -> float:
    """Return a plan's estimate over its own lower bound."""
    estimate = planned(*instance).estimate
    return estimate.makespan_seconds / estimate.lower_bound_seconds


def ratios(played: Seconds, way: str, to: str) -> list[float]:
    """Return the ratio of two ways' makespans for each draw."""
    return [a / b for a, b in zip(played[way], played[to], strict=True)]


def seconds(
    instance: Instance, answers: Mapping[str, int], sigma: float, draws: int, seed: str
) -> Seconds:
    """Return the makespans of every way, and the bound, for each draw of true costs."""
    costs, capacity = instance
    where = _simulator.cluster(capacity, CHECKPOINT.bytes)
    ways = dict(_ways(instance, answers, sigma, where))
    found: Seconds = {way: [] for way in (BOUND, *ways)}
    rng = random.Random(f"{seed} {sigma}")  # noqa: S311
    for _ in range(draws if sigma else 1):
        true = drawn(rng, told(costs, sigma))
        truth = {cost.name: cost for cost in true}
        found[BOUND].append(_simulator.bound(true, where))
        for way, play in ways.items():
            found[way].append(play(truth))
    return found


def _ways(
    instance: Instance, answers: Mapping[str, int], sigma: float, where: _simulator.Cluster
) -> Iterable[tuple[str, Play]]:
    """Yield each way by its name, ready to play any true costs."""

    def jobs(made: _partitioners.Jobs, metrics: _simulator.When) -> Play:
        return lambda truth: _simulator.play_jobs(made, truth, where, metrics)

    costs, capacity = instance
    plan = planned(told(costs, sigma), capacity)
    yield OURS, lambda truth: _simulator.play_plan(plan, truth, where, pulling=True)
    yield "plan, as dealt", lambda truth: _simulator.play_plan(plan, truth, where, pulling=False)
    yield "one job per dataset", jobs(_partitioners.one_job_per_dataset(costs), "held")
    partitions = {
        "OpenCompass, size": _partitioners.by_size(costs, answers),
        "OpenCompass, 8 workers": _partitioners.by_workers(costs),
        "OpenCompass, n workers": _partitioners.by_workers(costs, where.engines),
    }
    for name, made in partitions.items():
        yield name, jobs(made, "after")
        yield f"{name}, overlapped", jobs(made, "overlapped")
    equal = _partitioners.equal_shards(costs, where.engines)
    yield "equal shards, overlapped", jobs(equal, "overlapped")


if __name__ == "__main__":
    main()
