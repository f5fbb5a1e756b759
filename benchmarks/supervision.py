"""Supervision: what one decision of a supervisor costs in the middle of a large run

    python benchmarks/supervision.py --nodes 4 125 --repeat 7

The base suite of a 7B model, planned for nodes of eight GPUs, in the middle of its run: half of the
shards are published, each trial holds a claim, half of the answers are there, and half of the
datasets are scored. A supervisor decides after each poll, by default every five seconds. The rows
are its CPU seconds for one decision, and how often it opens a file or lists a folder for that: on
a network file system each of these is a request to a server. Seconds are medians.

The answers of the scheduler are read beside it: of squeue for 100 runs of one user, with 40 tasks
each. A supervisor reads one a poll. The more runs a user has at a time, the less often each polls.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.plans import CHECKPOINT

from benchmarks._instances import base, planned
from coordinate_eval import _files
from coordinate_eval.clusters.protocol import State, TaskStatus
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.inputs.suites import suite
from coordinate_eval.coordinator.planning.plan_run import (
    first_round,
    with_plan,
)
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.claiming.claims import Ledger
from coordinate_eval.coordinator.run.claiming.pullers import Pullers
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import (
    Round,
    Run,
    StageProgress,
    Submitted,
    TrialProgress,
)
from coordinate_eval.coordinator.supervisor.decide import decide
from coordinate_eval.coordinator.supervisor.gather import gather_facts
from coordinate_eval.slurm.answers.queue import read_tasks

RUNS, TASKS = 100, 40
"""Runs of one user at the same time, and tasks of each that squeue lists."""

_opened = 0


def _count(event: str, arguments: tuple[Any, ...]) -> None:
    global _opened
    # A number is a file that is open already.
    named = bool(arguments) and not isinstance(arguments[0], int)
    _opened += named and event in ("open", "os.listdir", "os.scandir")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[4, 125])
    parser.add_argument("--repeat", type=int, default=7)
    given = parser.parse_args()
    sys.addaudithook(_count)
    table = Table("nodes", "trials", "shards", "CPU s a decision", "files and folders", "squeue, s")
    for nodes in given.nodes:
        with tempfile.TemporaryDirectory() as name:
            numbers = measured(Path(name) / "run", nodes, given.repeat)
        table.add_row(*(f"{n:,.3f}" if isinstance(n, float) else f"{n:,}" for n in numbers))
    Console().print(table)


def measured(folder: Path, nodes: int, repeat: int) -> tuple[int | float, ...]:
    """Return a row of the table."""
    run_dir, run, round_, tasks = halfway(folder, nodes)
    facts_and_actions(run_dir, run, tasks)
    before = _opened
    facts_and_actions(run_dir, run, tasks)
    opened = _opened - before
    answer = _squeue(jobs.prefix(run))
    return (
        len(round_.nodes),
        sum(node.trials for node in round_.nodes),
        len(run.shards),
        _median(lambda: facts_and_actions(run_dir, run, tasks), repeat),
        opened,
        _median(lambda: read_tasks(answer, jobs.prefix(run)), repeat),
    )


def facts_and_actions(run_dir: RunDir, run: Run, tasks: list[TaskStatus]) -> None:
    """Gather the facts of a run, and decide."""
    idle = dict.fromkeys(Pullers, 0)
    decide(run, run_dir, gather_facts(run_dir, run, tasks, time.time(), idle))


def halfway(folder: Path, nodes: int) -> tuple[RunDir, Run, Round, list[TaskStatus]]:
    """Write the directory of a run that is half done. Return it with what the scheduler says."""
    run_dir = RunDir(folder)
    plan = planned(*base(nodes))
    unplanned = Run(
        id="r", nonce="0", created=time.time(), cluster="slurm", python=sys.executable, folder="/",
        checkpoint=CHECKPOINT, suite=suite.load("base"), settings=Settings(), max_length=4096,
        staged_bytes=CHECKPOINT.bytes, exclusive=False,
    )  # fmt: skip
    run = with_plan(unplanned, plan, {})
    round_ = first_round(run, plan, time.time())
    _files.write_record(run_dir.round(0), round_)
    tasks = list(_submitted(run_dir, run, round_))
    half = len(run.shards) // 2
    for shard in run.shards[:half]:
        _files.write(run_dir.published("outputs", shard.span), "")
        for portion in run.portions(shard) if shard.dataset in run.asks else []:
            _files.write(run_dir.questions(portion), "")
            _files.write(run_dir.published("answers", portion), "")
    for task, shard in zip(tasks, run.shards[half:], strict=False):
        Ledger(run_dir, "outputs").claim(shard.span, task.name, f"{task.job_id}_{task.index}.0")
    names = [dataset.name for dataset in run.suite.datasets]
    for name in names[: len(names) // 2]:
        _files.write(run_dir.dataset_results(name), "{}")
    return run_dir, run, round_, tasks


def _submitted(run_dir: RunDir, run: Run, round_: Round) -> Iterator[TaskStatus]:
    """Write what the jobs of a round have written so far, and yield their trials' tasks."""
    now = time.time()
    for number, node in enumerate(round_.nodes, 1):
        keeper = jobs.keeper_job(run, run_dir, round_, node)
        trials = jobs.trials_job(run, run_dir, round_, node)
        for job_id, job in ((f"{number}1", keeper), (f"{number}2", trials)):
            found = Submitted(job=job, job_id=job_id, time=now)
            _files.write_record(run_dir.job(job.name), found)
        ready = StageProgress(state="ready", done_bytes=1, total_bytes=1, started=now, updated=now)
        _files.write_record(run_dir.stage(0, node.name), ready)
        for index in range(node.trials):
            trial = jobs.trial_id(node.name, index, 0)
            progress = TrialProgress(
                trial=trial, task=f"{number}2_{index}.0", node=node.name, state="running",
                started=now, updated=now, responses=1000,
            )  # fmt: skip
            _files.write_record(run_dir.trial(trial), progress)
            yield TaskStatus(
                name=trials.name, job_id=f"{number}2", index=index, state=State.RUNNING,
                node=node.name,
            )  # fmt: skip


def _squeue(prefix: str) -> str:
    """Return squeue's answer for all runs of a user, the last of which has this prefix."""
    prefixes = [f"other-{number}-" for number in range(RUNS - 1)] + [prefix]
    return "".join(
        f"\x1e{run}{task}_{task}|RUNNING|None|node{task}|{name}trials-{task}\n"
        for run, name in enumerate(prefixes)
        for task in range(TASKS)
    )


def _median(call: Callable[[], object], repeat: int) -> float:
    """Return the median CPU seconds of a call."""
    found = []
    for _ in range(max(1, repeat)):
        began = time.process_time()
        call()
        found.append(time.process_time() - began)
    return statistics.median(found)


if __name__ == "__main__":
    main()
