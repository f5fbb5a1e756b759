"""The planner without each of its parts: how much longer its plans take

    python benchmarks/planner_ablation.py --suites 100 --played 24 --draws 5

Each row plans the same random suites with one part of the planner taken away or changed. A number
is a ratio to the makespan of the full planner, so a part that wins nothing shows 1.000.

*Estimate* is the makespan by the plan's own account, with predictions taken as exact. *Played* is
the makespan in the event simulator of `plan_quality.py`, with trials that pull, when the true costs
differ from the predictions by a lognormal factor with σ = 0.25, 0.5 and 1. Suites that are played
have 5 to 200 datasets on 2 to 128 GPUs. The base suite of a 7B model on 8, 16 and 32 GPUs is
played, too.

Half of the suites that are estimated have scorings, of 0.8 ms per item. The mean and the worst loss
show parts that matter on few suites. Dealing whole datasets in turn, which the planner also tries,
is not listed: it wins on no suite here, and guarantees that no plan is worse than that simple rule.
"""

import argparse
import math
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import NamedTuple
from unittest import mock

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.plans import CHECKPOINT

from benchmarks import _simulator
from benchmarks._instances import Instance, base, drawn, planned, random_instance, told
from coordinate_eval.coordinator.planning import planner
from coordinate_eval.coordinator.planning.dealing import packing
from coordinate_eval.coordinator.planning.plan import Cost

SIGMAS = (0.25, 0.5, 1.0)
NODES = (1, 2, 4)


class Change(NamedTuple):
    """One replacement for a name of a module of the planner."""

    module: ModuleType
    name: str
    value: object


def main() -> None:
    """Plan and play all variants, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--suites", type=int, default=100, help="to plan (default 100)")
    parser.add_argument("--played", type=int, default=24, help="to play (default 24)")
    parser.add_argument("--draws", type=int, default=5, help="of true costs (default 5)")
    given = parser.parse_args()
    estimated: list[list[float]] = [[] for _ in range(given.suites)]
    played: list[list[float]] = []
    names = list(variants())
    for number in range(given.suites):
        instance = scored(f"plan {number}")
        for changes in variants().values():
            with changed(changes):
                estimated[number].append(planned(*instance).estimate.makespan_seconds)
    for seed, instance in to_play(given.played):
        by_variant = [
            list(makespans(instance, seed, given.draws, changes)) for changes in variants().values()
        ]
        played += map(list, zip(*by_variant, strict=True))
    Console().print(table(names, estimated, played))


def variants() -> dict[str, list[Change]]:
    """Return each variant by its name; the first is the full planner."""
    return {
        "full planner": [],
        "no cores kept for scoring": [Change(planner, "_cores_for_scores", _none_kept)],
        "pieces shorter than long items": [Change(packing, "LONG", math.inf)],
        "pieces of a tenth": [Change(packing, "SHORT", 0.1)],
        "pieces of a hundredth": [Change(packing, "SHORT", 0.01)],
    }


def _none_kept(costs: Sequence[Cost], cpus: int, bound: float) -> list[int]:
    return [0]


def scored(seed: str) -> Instance:
    """Return a random suite; in every second one, datasets are scored for some seconds."""
    rng = random.Random(seed)  # noqa: S311
    costs, capacity = random_instance(rng)
    if rng.random() < 0.5:
        costs = [c.model_copy(update={"score_seconds": 0.0008 * c.items}) for c in costs]
    return Instance(costs, capacity)


def changed(changes: Sequence[Change]) -> ExitStack:
    """Return a context in which these changes hold."""
    stack = ExitStack()
    for change in changes:
        stack.enter_context(mock.patch.object(*change))
    return stack


def to_play(suites: int) -> Iterator[tuple[str, Instance]]:
    """Yield the suites to play, with a seed for each."""
    for nodes in NODES:
        yield f"base {nodes}", base(nodes)
    for number in range(suites):
        seed = f"suite {number}"
        yield seed, random_instance(random.Random(seed), (5, 200), (2, 128))  # noqa: S311


def makespans(
    instance: Instance, seed: str, draws: int, changes: Sequence[Change]
) -> Iterator[float]:
    """Yield the makespan of each draw of true costs, the same draws for all changes."""
    where = _simulator.cluster(instance.capacity, CHECKPOINT.bytes)
    for sigma in SIGMAS:
        costs = told(instance.costs, sigma)
        with changed(changes):
            plan = planned(costs, instance.capacity)
        rng = random.Random(f"{seed} {sigma}")  # noqa: S311
        for _ in range(draws):
            truth = {cost.name: cost for cost in drawn(rng, costs)}
            yield _simulator.play_plan(plan, truth, where, pulling=True)


def table(
    names: Sequence[str], estimated: Sequence[Sequence[float]], played: Sequence[Sequence[float]]
) -> Table:
    """Return the ratios of each variant to the first, over all suites and draws."""
    found = Table(title="Makespan without a part / with it: mean, p95, worst", title_justify="left")
    found.add_column("", no_wrap=True)
    for heading in ("estimate", "played"):
        found.add_column(heading, justify="right")
    for index, name in enumerate(names[1:], start=1):
        cells = []
        for rows in (estimated, played):
            ratios = [row[index] / row[0] for row in rows]
            p95 = statistics.quantiles(ratios, n=20)[-1]
            cells.append(f"{statistics.mean(ratios):.3f}  {p95:.3f}  {max(ratios):.3f}")
        found.add_row(name, *cells)
    return found


if __name__ == "__main__":
    main()
