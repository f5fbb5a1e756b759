"""A day of fifty checkpoints of two users on a busy cluster: from save to last score

    python benchmarks/day_of_checkpoints.py --nodes 16 --checkpoints 50 --load 0.8

Two users train models of 7B parameters. Every 29 minutes one of them, in turn, saves a checkpoint
and asks for its scores on the base suite, with `--queue`; prompts were built before. Supervisors
are the real ones, on a simulated controller in virtual time (see the section on many runs), with
what runs know of each other as it is. Each user's plans know what his earlier runs have measured.

Others use so much of the cluster: jobs of one, two, four or eight GPUs of a node that arrive at
random times, each for two hours on average. Of two jobs that wait, the first that fits starts.
The seconds of each dataset are the predicted ones times a lognormal factor (σ = 0.25).

Nine of ten took 409 s at most, and the second longest 492 s. Before runs could grow where GPUs
become free later, the worst took 3,163 s, all on the two GPUs that were free when it began.

*Median* and *worst* are from the call of the command to the last score. *Idle* is the part of the
GPU time that runs held in which no engine answered: the copy of the weights, engine starts, the end
of a run, and what was lost. *Calls* are Slurm's commands of both users, in each hour of the day.
"""

import argparse
import random
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._controller import CPUS, GPUS, Controller, nodes
from benchmarks._simulated_site import Site, datasets, folder
from benchmarks._virtual_time import VirtualTime
from coordinate_eval.coordinator.report.time_ledger import Use

SPREAD = 0.25
"""Standard deviation of the logarithm of true seconds over predicted ones, of each dataset."""

USERS = ("ada", "bo")
MINUTES_BETWEEN = 29
JOB_MINUTES = 120
"""Mean length of the others' jobs."""

JOB_GPUS = (1, 2, 4, 8)
WARM_UP_SECONDS = 4 * 3600
"""Time for which the others use the cluster before the first checkpoint."""


class Day(NamedTuple):
    """The outcome of a day."""

    load: float
    """Part of the GPUs that the others held, on average."""
    seconds: list[float]
    gpu_hours: float
    idle: float
    calls: float
    """In an hour."""
    complete: bool


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--checkpoints", type=int, default=50)
    parser.add_argument("--load", type=float, nargs="+", default=[0.8])
    parser.add_argument("--datasets", type=int, help="of the suite; all by default")
    given = parser.parse_args()
    table = Table(title=f"{given.checkpoints} checkpoints, {given.nodes} nodes of eight GPUs")
    for heading in (
        "GPUs of others", "median", "worst", "GPU hours each", "idle", "calls an hour",
    ):  # fmt: skip
        table.add_column(heading, justify="right")
    for load in given.load:
        found = day(given.nodes, given.checkpoints, load, given.datasets)
        assert found.complete, "a run has ended without all scores"
        table.add_row(
            f"{found.load:.0%}",
            f"{statistics.median(found.seconds):,.0f} s",
            f"{max(found.seconds):,.0f} s",
            f"{found.gpu_hours / given.checkpoints:.2f}",
            f"{found.idle:.0%}",
            f"{found.calls:,.0f}",
        )
    Console().print(table)


def day(count: int, checkpoints: int, load: float, parts: int | None = None) -> Day:
    """Let so many checkpoints be evaluated on a cluster of which others use this part."""
    with folder() as name, VirtualTime() as clock:
        site, what = Site(clock, Path(name), nodes(count)), datasets(parts)
        dice = random.Random(0)  # noqa: S311  # times, not secrets
        arrivals = load * count * GPUS / (JOB_MINUTES * 60 * statistics.mean(JOB_GPUS))
        runs = []

        def arrive() -> None:
            _submit(site.controller, dice.choice(JOB_GPUS), dice.expovariate(1 / JOB_MINUTES))
            clock.after(dice.expovariate(arrivals), arrive)

        def ask(number: int) -> None:
            user = USERS[number % len(USERS)]
            settings = site.settings(user, queue=True)
            runs.append(site.ask(user, f"{user}-{number}", what, settings, SPREAD, number))

        if arrivals:
            arrive()
        for number in range(checkpoints):
            clock.after(WARM_UP_SECONDS + number * MINUTES_BETWEEN * 60, partial(ask, number))
        begun = clock.now + WARM_UP_SECONDS
        clock.run(lambda: len(runs) == checkpoints and all(run.ended for run in runs))
        took = clock.now - begun
        uses = [run.results["ledger"]["gpu_seconds"] for run in runs if run.results]
        held = sum(sum(each.values()) - each[Use.QUEUE] for each in uses)
        return Day(
            site.controller.held_by("others") / (count * GPUS * (took + WARM_UP_SECONDS)),
            [run.last_score - run.asked for run in runs],
            sum(site.controller.held_by(user) for user in USERS) / 3600,
            1 - sum(each[Use.REQUESTS] for each in uses) / held,
            len(site.controller.calls) / (took / 3600),
            all(run.results is not None and run.results["complete"] for run in runs),
        )


def _submit(controller: Controller, gpus: int, minutes: float) -> None:
    """Submit a job of somebody else, which ends with its time limit."""
    options = {"--job-name": "train", "--gres": f"gpu:{gpus}", "--mem": f"{gpus * 100_000}M"}
    options |= {"--cpus-per-task": f"{gpus * CPUS // GPUS}", "--time": f"{max(1, round(minutes))}"}
    controller.submit("others", options)


if __name__ == "__main__":
    main()
