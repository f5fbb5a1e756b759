"""Runs of coordinate-eval on a real Slurm on this machine, with engines that sleep.

A `Rehearsal` holds a suite of the base suite's full shape, whose seconds are those of a 7B model,
divided by the time scale. All seconds that it returns are multiplied by the scale again.
"""

import json
import math
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import yaml
from tests.runs import Workspace

from benchmarks._one_job_each import CPUS_PER_JOB, Arm
from benchmarks._phases import Phases, phases
from benchmarks._slurm import Watch, await_empty_queue
from benchmarks.full_shape.make import Amount, Made, make
from coordinate_eval import _files
from coordinate_eval.coordinator.planning.lower_bound import lower_bound
from coordinate_eval.coordinator.planning.plan import Cost, Plan
from coordinate_eval.priors import catalogue, roofline

METRIC_CPUS = 32
"""Cores of all metric jobs together: a quarter of one node."""

ITEM_SECONDS = 1.0
"""GPU seconds of an item, at least: fewer items than the real suite has, and as easy to cut."""

LEAST_ITEMS = 30
PROGRAM_SECONDS = 2.0
"""Longest that a program sleeps here; the harness's limit is 3 s."""

PROMPT_LENGTH = 0.05
"""Share of the real tokens of a prompt, since reading them takes as long whatever the scale."""

POLL_SECONDS = 5.0
"""Time between two looks of the supervisor at the queue: the default."""


class Conditions(NamedTuple):
    """The conditions that both ways meet; seconds are not divided by the scale."""

    nodes: int
    load_seconds: float
    """Of one copy of the weights that has the link of its node for itself."""
    start_seconds: float
    sigma: float
    """Standard deviation of the logarithm of true seconds over predicted ones, of each dataset."""
    seed: int


class Coordinated(NamedTuple):
    """A run of coordinate-eval; all seconds but `cpu_seconds` are multiplied by the scale."""

    seconds: float
    estimate: float
    bound: float
    """With the true times of all datasets."""
    phases: Phases
    cpu_seconds: float
    busy: float
    """Share of this machine's cores that were in use, by anybody."""


class Rehearsal:
    """A suite whose time runs `scale` times as fast as it would, and a user who runs it."""

    def __init__(self, folder: Path, costs: Sequence[Cost], scale: float) -> None:
        self._folder, self._scale = folder, scale
        self._costs = [_scaled(cost, scale) for cost in costs]
        folder.mkdir()
        self._user = Workspace(folder)
        self._made = _make(folder / "suite", self._costs)
        self._runs = 0

    def coordinated(self, conf: Path, on: Conditions) -> Coordinated:
        """Run coordinate-eval on the Slurm of this SLURM_CONF. Prompts are built before.

        Each engine takes the time of the copy as well, since the weights are small here.
        """
        self._user.environ["SLURM_CONF"] = str(conf)
        self._call("--dry-run")
        self._runs += 1
        run = self._folder / f"run-{self._runs}"
        truth = self._truth(on)
        times = self._folder / f"times-{self._runs}.json"
        times.write_text(json.dumps({cost.name: _time_of(cost) for cost in truth}))
        ready = (on.load_seconds + on.start_seconds) / self._scale
        args = {"start_seconds": ready, "times": str(times), "concurrency": 8}
        watch = Watch()
        began = time.time()
        self._call(
            "--nodes", f"node[1-{on.nodes}]", "--run-dir", run,
            "--engine-args", json.dumps(args),
            COORDINATE_EVAL_STAGE_GIGABITS_PER_NODE=str(self._gigabits(on)),
            COORDINATE_EVAL_TRIAL_ENGINE_START_SECONDS=str(on.start_seconds / self._scale),
            COORDINATE_EVAL_SUPERVISOR_POLL_SECONDS=str(max(0.5, POLL_SECONDS / self._scale)),
            COORDINATE_EVAL_METRICS_CPUS=str(METRIC_CPUS),
        )  # fmt: skip
        returned = time.time()
        while not (run / "results.json").exists():
            time.sleep(0.5)
        busy = watch.busy()
        found = json.loads((run / "results.json").read_text())
        if not found["complete"]:
            raise SystemExit(f"the run did not end well: {found['missing']}")
        await_empty_queue(conf)
        plan = _files.read_record(run / "plan.json", Plan)
        bound = lower_bound(truth, plan.ready_seconds, len(plan.trials), METRIC_CPUS)
        parts = phases(run, began, returned).times(self._scale)
        return Coordinated(
            parts.last_score,
            plan.estimate.makespan_seconds * self._scale,
            bound * self._scale,
            parts,
            watch.cpu_seconds(),
            busy,
        )

    def one_job_each(self, on: Conditions, harness: Mapping[str, float]) -> Arm:
        """Return what one job per dataset takes; `harness` are seconds of prompts and scores.

        Programs run on all cores of a job.
        """
        held = {}
        for cost in self._truth(on):
            metric = cost.metric_cpu_seconds / min(CPUS_PER_JOB, cost.items)
            answering = max(cost.gpu_seconds, cost.floor_seconds)
            around = (on.start_seconds + harness.get(cost.name, 0.0)) / self._scale
            held[cost.name] = around + answering + metric
        return Arm(on.nodes, on.load_seconds / self._scale, held)

    def _call(self, *options: object, **environ: str) -> None:
        """Call the command, however long it takes."""
        made = self._made
        call = self._user.start("run", made.checkpoint, "--suite", made.suite, *options, **environ)
        _, said = call.communicate()
        if call.returncode:
            raise SystemExit(said)

    def _truth(self, on: Conditions) -> list[Cost]:
        """Return what the datasets really take, which nothing but the engines reads."""
        dice = random.Random(on.seed)  # noqa: S311  # times, not secrets
        return [_times(cost, math.exp(dice.gauss(0, on.sigma))) for cost in self._costs]

    def _gigabits(self, on: Conditions) -> float:
        """Return the bandwidth at which the small checkpoint takes the seconds of a copy."""
        size = (self._made.checkpoint / "model.safetensors").stat().st_size
        return size * 8e-9 * self._scale / on.load_seconds


def _make(folder: Path, costs: Sequence[Cost]) -> Made:
    """Write a suite that says what its datasets take here."""
    amount = Amount(
        {cost.name: cost.items for cost in costs},
        PROMPT_LENGTH,
        {c.name: c.metric_cpu_seconds / c.items for c in costs if c.metric_cpu_seconds},
    )
    made = make(folder, amount)
    content = yaml.safe_load(made.suite.read_text())
    by_name = {cost.name: cost for cost in costs}
    for dataset in content["datasets"]:
        cost = by_name[dataset["name"]]
        dataset["prior"] = {
            "gpu_seconds": cost.gpu_seconds,
            "floor_seconds": cost.floor_seconds,
            "chunk_overhead_seconds": cost.chunk_overhead_seconds,
            "cpu_seconds": cost.metric_cpu_seconds,
            "score_seconds": cost.score_seconds,
            "spread": cost.spread,
        }
    made.suite.write_text(yaml.safe_dump(content))
    return made


def _scaled(cost: Cost, scale: float) -> Cost:
    """Return a cost in the seconds of this rehearsal, with fewer items.

    The harness scores, and computes metrics other than programs, in the time that it takes.
    """
    entry = catalogue.entries()[cost.name]
    programs = cost.metric_cpu_seconds if cost.metric_cpu_seconds >= cost.items else 0.0
    least = max(
        LEAST_ITEMS,
        2 * entry.tasks,
        math.ceil(cost.gpu_seconds / ITEM_SECONDS),
    )
    # A program that sleeps for longer than its limit would be run again, alone.
    each = math.ceil(programs / scale / PROGRAM_SECONDS)
    items = max(each, min(cost.items, least))
    return cost.model_copy(
        update={
            "items": items,
            "gpu_seconds": cost.gpu_seconds / scale,
            "floor_seconds": cost.floor_seconds / scale,
            "chunk_overhead_seconds": cost.chunk_overhead_seconds / scale,
            "metric_cpu_seconds": programs / scale,
            "score_seconds": roofline.score_seconds(items, items * entry.requests_per_item),
        }
    )


def _time_of(cost: Cost) -> Mapping[str, float]:
    requests = cost.items * catalogue.entries()[cost.name].requests_per_item
    return {
        "seconds_per_request": cost.gpu_seconds / requests,
        "floor_seconds": cost.floor_seconds,
    }


def _times(cost: Cost, factor: float) -> Cost:
    longer = {
        "gpu_seconds": cost.gpu_seconds * factor,
        "floor_seconds": cost.floor_seconds * factor,
    }
    return cost.model_copy(update=longer)
