"""One job per dataset against coordinate-eval, computed, and measured to the last score

    python benchmarks/makespan.py --scale 4 1

The base suite of a 7B model, on one and on four nodes of eight H200. Scripts around a scheduler
submit one job per dataset. The jobs start in the suite's order. Each takes a GPU, loads the weights
through its node's one storage link, starts an engine, answers its dataset, and holds the GPU while
its metric runs.

*Computed*: both ways in an event simulator, with the same costs, a link of 25 Gb/s, and an engine
that starts in 20 s; one job per dataset in the suite's order, and with the longest dataset first.
The rows change one thing at a time: the storage link, the start of an engine, and by how much
predictions are wrong (σ of a lognormal factor of each dataset; medians of 9 draws).

*Measured*, on a real Slurm on this machine whose engines sleep. Supervisor, keepers, trials, metric
jobs, scoring by the harness, files, queues and claims are real. What the rows mean:

- *Time* runs as many times as fast as the first column says, for both ways, for copies, engine
  starts, requests and programs. All seconds are shown as if it had not. Real processes are not
  faster, so coordinate-eval's own overhead weighs as many times as much. `--check` repeats the last
  row in another time: what differs then is the machine, not the plan.
- *True times* of datasets are the predicted ones times lognormal factors. They are in a file that
  only engines read. Both ways have the same. Metrics that run programs take what was predicted.
  In all rows the plan is told that predictions may be off by σ = 0.5, as those that are shipped.
- *Jobs* is one job per dataset: a process that sleeps, submitted to a Slurm of its own, in time
  that is always four times as fast. The job holds its GPU while the harness makes its prompts and
  scores, by CPU seconds measured here on 2 % of the items. In *free*, nothing but the engine and
  programs takes time.
- *coordinate-eval* counts from the call of the command to the last score. Prompts were built
  before, as they are from the second checkpoint of a model on. Weights are read once a node, over
  a link of its own. There are two scoring jobs, as this machine has two cores. The ratios to
  *estimate* (the plan's) and *bound* (of the true times) count scoring by the shipped figures.
- The suite has the base suite's 59 datasets that need no judge and no compiler, and their 419 leaf
  tasks, with at most one item per predicted GPU second, at least 30 of each, and prompts of 5 % of
  their length: what bytes cost the CPU does not get faster with the time. There are 9,000 items,
  not 345,000.
- *Cores* are the CPU seconds of all processes of the run per second and core; *busy* is what all
  processes of this machine used, Slurm's daemons and others' among them: a
  row where it is far above *cores* was disturbed. The two cores stand for up to 512. They are full
  for some real seconds when 32 trials start at once.
"""

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.plans import CHECKPOINT

from benchmarks import _simulator
from benchmarks._instances import (
    ENGINE_START_SECONDS,
    STORAGE_GIGABITS,
    base,
    drawn,
    planned,
    played,
    predicted,
    told,
)
from benchmarks._partitioners import one_job_per_dataset
from benchmarks._phases import Phases
from benchmarks._rehearsal import Conditions, Coordinated, Rehearsal
from benchmarks._slurm import cluster, impossible
from benchmarks.full_shape.make import make, scaled
from coordinate_eval.priors import catalogue

NODES = (1, 4)
SIGMAS = (0.0, 0.5)
LOAD_SECONDS = CHECKPOINT.bytes * 8 / (STORAGE_GIGABITS * 1e9)
DRAWS = 9
JOBS_SCALE = 4.0
"""Time of one job per dataset, whatever that of a row: these jobs sleep."""

HARNESS_SCALE = 0.02
"""Share of the items on which the harness is timed."""

_ROOT = Path(__file__).resolve().parents[1]


_Row = tuple[float, Conditions, Coordinated]
"""A run: its time scale, its conditions, and what was measured."""


class Computed(NamedTuple):
    """Makespans of one case, in seconds."""

    suite_order: float
    longest_first: float
    ours: float
    bound: float


def main() -> None:
    """Compute, measure, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    # fmt: off
    parser.add_argument(
        "--scale", type=float, nargs=len(NODES), metavar="TIMES",
        help="measure, with time this many times as fast on one node and on four",
    )
    parser.add_argument("--check", type=float, help="measure four nodes at this time scale, too")
    parser.add_argument("--seed", type=int, default=0, help="of true times (default 0)")
    parser.add_argument(
        "--resume", type=Path, metavar="FOLDER",
        help="keep there what is measured, until all is, and measure only what is not there",
    )
    parser.add_argument(
        "--only", choices=["jobs", *map(str, NODES), "check"],
        help="measure a part, for a later call with the same --resume",
    )
    # fmt: on
    given = parser.parse_args()
    if given.only and not given.resume:
        parser.error("--only needs --resume")
    console = Console()
    if not given.only:
        console.print(computed())
    if given.scale is None:
        return
    if why := impossible():
        console.print(f"Not measured: {why}", soft_wrap=True)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and end what was started
    console.print(*measured(given))


def computed() -> Table:
    """Return the table of makespans by predicted costs, and of what they depend on."""
    table = Table(title="Computed, 8 H200 per node", title_justify="left")
    table.add_column("")
    for heading in ("nodes", "one job each", "longest first", "coordinate-eval", "bound", "ratio"):
        table.add_column(heading, justify="right")
    link, start = STORAGE_GIGABITS, ENGINE_START_SECONDS
    cases = {
        "as above": (link, start, 0.0),
        "link 5 Gb/s": (5.0, start, 0.0),
        "link 100 Gb/s": (100.0, start, 0.0),
        "engine start 5 s": (link, 5.0, 0.0),
        "engine start 90 s": (link, 90.0, 0.0),
        "σ = 0.25": (link, start, 0.25),
        "σ = 0.5": (link, start, 0.5),
        "σ = 1": (link, start, 1.0),
    }
    for name, case in cases.items():
        for nodes in NODES:
            found = _case(nodes, *case)
            seconds = (f"{each:,.0f} s" for each in found)
            table.add_row(name, str(nodes), *seconds, f"{found.suite_order / found.ours:.2f}")
        table.add_section()
    return table


def _case(nodes: int, gigabits: float, start_seconds: float, sigma: float) -> Computed:
    """Return medians over draws of the true costs."""
    instance = base(nodes)
    changed = {"storage_gigabits_per_node": gigabits, "engine_start_seconds": start_seconds}
    capacity = instance.capacity.model_copy(update=changed)
    costs = told(instance.costs, sigma)
    where = _simulator.cluster(capacity, CHECKPOINT.bytes)
    plan = planned(costs, capacity)
    dice = random.Random(f"{nodes} {sigma}")  # noqa: S311  # times, not secrets
    ordered = sorted(costs, key=lambda c: -(c.gpu_seconds + c.metric_cpu_seconds / 16))
    found = []
    for _ in range(DRAWS if sigma else 1):
        truth = {cost.name: cost for cost in drawn(dice, costs)}
        found.append(
            Computed(
                _simulator.play_jobs(one_job_per_dataset(costs), truth, where, "held"),
                _simulator.play_jobs(one_job_per_dataset(ordered), truth, where, "held"),
                _simulator.play_plan(plan, truth, where, pulling=True),
                _simulator.bound(truth.values(), where),
            )
        )
    return Computed(*(statistics.median(each) for each in zip(*found, strict=True)))


def measured(given: argparse.Namespace) -> list[Table]:
    """Return the tables of measured makespans, and of the phases of the runs.

    With `only`, measure that part for a later call, and return nothing.
    """
    if given.resume:
        given.resume.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(1) as beside:
        bench = _Bench(Path(name), given.scale, given.seed, given.resume)
        parts: dict[str, Callable[[], Any]] = {
            "jobs": lambda: bench.jobs(),
            **{str(nodes): partial(bench.runs, nodes) for nodes in NODES},
            **({"check": partial(bench.check, given.check)} if given.check else {}),
        }
        if given.only:
            parts[given.only]()
            return []
        theirs = beside.submit(parts.pop("jobs"))  # they sleep, and disturb nothing
        ours = [row for part in parts.values() for row in part()]
        tables = [_table(ours, theirs.result()), _phases(ours)]
    if given.resume:
        shutil.rmtree(given.resume)
    return tables


class _Bench:
    """What is measured, each time anew or, from a folder of an earlier call, once."""

    def __init__(
        self, folder: Path, scale: Sequence[float], seed: int, resumed: Path | None
    ) -> None:
        self._folder, self._seed, self._resumed = folder, seed, resumed
        self._scales = dict(zip(NODES, scale, strict=True))
        names = played()
        self._costs = [cost for cost in predicted() if cost.name in names]
        self._places: dict[float, Rehearsal] = {}

    def jobs(self) -> Mapping[str, float]:
        """Return the seconds of one job per dataset, by nodes, σ, and whether prompts are free."""
        return dict(self._once("jobs", self._jobs))

    def runs(self, nodes: int) -> list[_Row]:
        """Run coordinate-eval on so many nodes."""
        return [self._run(self._scales[nodes], self._case(nodes, sigma)) for sigma in SIGMAS]

    def check(self, scale: float) -> list[_Row]:
        """Run the last case at another time scale."""
        return [self._run(scale, self._case(NODES[-1], SIGMAS[-1]))]

    def _case(self, nodes: int, sigma: float) -> Conditions:
        return Conditions(nodes, LOAD_SECONDS, ENGINE_START_SECONDS, sigma, self._seed)

    def _place(self, scale: float) -> Rehearsal:
        if scale not in self._places:
            self._places[scale] = Rehearsal(self._folder / f"user-{scale:g}", self._costs, scale)
        return self._places[scale]

    def _run(self, scale: float, case: Conditions) -> _Row:
        """Run coordinate-eval on a Slurm that has done nothing else."""

        def run() -> Coordinated:
            with cluster(self._folder / "slurm", case.nodes) as conf:
                found = self._place(scale).coordinated(conf, case)
            sys.stderr.write(f"{scale:g} x, {case}: {found}\n")
            return found

        found = self._once(f"{case.nodes}-{case.sigma:g}-{scale:g}", run)
        return scale, case, Coordinated._make([*found[:3], Phases(*found[3]), *found[4:]])

    def _jobs(self) -> Mapping[str, float]:
        harness = self._once("harness", lambda: _harness_seconds(self._folder / "harness"))
        place = self._place(JOBS_SCALE)
        arms = {
            _arm(nodes, sigma, free): place.one_job_each(
                self._case(nodes, sigma), {} if free else harness
            )
            for nodes in NODES
            for sigma in SIGMAS
            for free in (True, False)
        }
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks._one_job_each"],
            cwd=_ROOT,
            input=json.dumps(list(arms.values())),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        seconds = zip(arms, json.loads(done.stdout), strict=True)
        return {name: JOBS_SCALE * each for name, each in seconds}

    def _once(self, name: str, measure: Callable[[], Any]) -> Any:  # noqa: ANN401  # as in JSON
        """Return what is kept under a name; measure it if nothing is."""
        path = self._resumed / f"{name}.json" if self._resumed else None
        if path and path.exists():
            return json.loads(path.read_text())
        found = measure()
        if path:
            path.write_text(json.dumps(found))
        return found


def _arm(nodes: int, sigma: float, free: bool) -> str:
    return f"{nodes} nodes, {sigma:g}, {'free' if free else 'whole'}"


def _harness_seconds(folder: Path) -> Mapping[str, float]:
    """Return the CPU seconds in which the harness makes prompts and scores, by dataset."""
    make(folder, scaled(HARNESS_SCALE))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks._harness_seconds", str(folder)],
        cwd=_ROOT,
        env=os.environ | {"HF_DATASETS_CACHE": str(folder / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    entries = catalogue.entries()
    return {name: each * entries[name].items for name, each in json.loads(done.stdout).items()}


def _table(ours: Sequence[_Row], theirs: Mapping[str, float]) -> Table:
    table = Table(title="Measured: seconds to the last score", title_justify="left")
    for heading in ("time", "nodes", "σ", "jobs", "free"):
        table.add_column(heading, justify="right")
    for heading in ("coordinate-eval", "ratio", "to free", "estimate", "bound", "cores"):
        table.add_column(heading, justify="right")
    table.add_column("busy", justify="right")
    for scale, case, run in ours:
        free, whole = (theirs[_arm(case.nodes, case.sigma, each)] for each in (True, False))
        table.add_row(
            f"{scale:g} ×",
            str(case.nodes),
            f"{case.sigma:g}",
            f"{whole:,.0f}",
            f"{free:,.0f}",
            f"{run.seconds:,.0f}",
            *(f"{each / run.seconds:.2f}" for each in (whole, free)),
            *(f"{run.seconds / each:.2f}" for each in (run.estimate, run.bound)),
            f"{run.cpu_seconds * scale / run.seconds / (os.cpu_count() or 1):.0%}",
            f"{run.busy:.0%}",
        )
    return table


def _phases(ours: Sequence[_Row]) -> Table:
    table = Table(title="Seconds of these runs until", title_justify="left")
    for heading in ("time", "nodes", "σ", "call returns", "plan", "first trial"):
        table.add_column(heading, justify="right")
    for heading in ("first response", "last response", "last score"):
        table.add_column(heading, justify="right")
    for scale, case, run in ours:
        times = run.phases
        shown = (times.call_returned, *times[2:])
        seconds = (f"{each:,.0f} s" for each in shown)
        table.add_row(f"{scale:g} ×", str(case.nodes), f"{case.sigma:g}", *seconds)
    return table


if __name__ == "__main__":
    main()
