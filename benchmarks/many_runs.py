"""Many runs of one user at once on a large cluster: calls, CPU, memory, and time to react

    python benchmarks/many_runs.py --nodes 300 --datasets 10 --runs 1 10 50

A simulated controller of nodes with eight GPUs, and checkpoints of 7B parameters of one user, which
are all asked for at the same moment. The supervisors are the real ones, with the real backend: what
they parse is text of the size that Slurm prints. Time is virtual: keepers, engines and
pullers are events which write the files that real ones write. A command of Slurm takes 0.1 s (the
list of nodes 0.3 s), and what a supervisor computes takes as long as it does here.

- *Calls* are Slurm's commands of all runs: the mean of all minutes after the first one, in which
  the runs begin, and the *most* of any minute.
- *First trial* is the time from the call of the command until a run's first trial begins: the
  median, and that of the last run. Runs that choose the same nodes at the same moment look again.
  They leave the first nodes to the older ones of them: eight runs of six datasets on 100 nodes
  began 3 to 9 s after the call, and 3 to 39 s before they did, one with each poll.
- *Reaction* is the time from the end of a trial's job to the decision that follows, after a poll.
  Each run asks squeue for itself, less often the more runs there are. While one answer in a file
  served all runs, ten made 26 calls a minute and fifty 113, with a median reaction of 2.6 s; the
  first trial of the last of fifty runs began after 85 s.
- *CPU* is that of a supervisor, for each minute of its run, without the processes of Slurm's
  commands, which are the scheduler's own.
- *Memory* is the most that the process of one supervisor takes, with everything that it imports.

Below that, what answers of a large cluster take to be read: nodes in the text of `scontrol`, and
tasks in that of `squeue`, of which a supervisor lists only its own user's.
"""

import argparse
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._controller import SimulatedSlurm, nodes
from benchmarks._simulated_site import Site, datasets, folder
from benchmarks._virtual_time import VirtualTime
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.slurm.answers.queue import read_tasks
from coordinate_eval.slurm.settings import SlurmSettings

SPREAD = 0.25
"""Standard deviation of the logarithm of true seconds over predicted ones, of each dataset."""

MEBI = 2**20


class Found(NamedTuple):
    """The measurements for a number of runs."""

    most_calls: int
    calls: float
    first_trial: float
    last_first_trial: float
    reaction: float
    worst_reaction: float
    cpu_seconds: float
    complete: bool


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--datasets", type=int, help="of the suite; all by default")
    parser.add_argument("--tasks", type=int, default=10_000, help="in the answer of squeue")
    parser.add_argument("--memory", action="store_true", help="print bytes of one supervisor")
    given = parser.parse_args()
    if given.memory:
        measured(given.nodes, 1, given.datasets)
        status = Path("/proc/self/status").read_text()
        # What getrusage tells has the parent's memory in it.
        (most,) = re.findall(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
        sys.stdout.write(f"{int(most) * 1024}\n")
        return
    found = {runs: measured(given.nodes, runs, given.datasets) for runs in given.runs}
    Console().print(_table(given.nodes, found))
    parsed = Table("what", "bytes", "CPU s")
    for row in read(given.nodes, given.tasks):
        parsed.add_row(*row)
    Console().print(parsed)
    Console().print(
        f"memory of one supervisor: {memory(given.nodes, given.datasets) / MEBI:.0f} MiB"
    )


def _table(count: int, found: Mapping[int, Found]) -> Table:
    table = Table(title=f"{count:,} nodes of eight GPUs")
    for heading in (
        "runs", "calls a minute", "most", "first trial", "of the last run", "reaction", "worst",
        "CPU s / min",
    ):  # fmt: skip
        table.add_column(heading, justify="right")
    for runs, each in found.items():
        assert each.complete, "a run has ended without all scores"
        seconds = each.first_trial, each.last_first_trial, each.reaction, each.worst_reaction
        table.add_row(
            f"{runs:,}",
            f"{each.calls:,.0f}",
            f"{each.most_calls:,}",
            *(f"{value:,.1f} s" for value in seconds),
            f"{each.cpu_seconds:.2f}",
        )
    return table


def measured(count: int, runs: int, parts: int | None) -> Found:
    """Let so many runs go on at once on so many nodes."""
    with folder() as name, VirtualTime() as clock:
        site, what = Site(clock, Path(name), nodes(count)), datasets(parts)
        settings = site.settings("user")
        asked = [
            site.ask("user", f"step-{number}", what, settings, SPREAD, number)
            for number in range(runs)
        ]
        begun = clock.now
        clock.run(lambda: all(run.ended for run in asked))
        minutes = Counter(int((when - begun) // 60) for when, _, _ in site.controller.calls)
        later = [minutes[minute] for minute in range(1, max(minutes))] or [minutes[0]]
        firsts = [min(t.task.began for t in run.trials.values()) - begun for run in asked]
        reactions = [seconds for run in asked for seconds in run.reactions]
        took = sum(run.last_score - begun for run in asked) / 60
        return Found(
            max(minutes.values()),
            statistics.mean(later),
            statistics.median(firsts),
            max(firsts),
            statistics.median(reactions),
            max(reactions),
            sum(run.cpu_seconds for run in asked) / took,
            all(run.results is not None and run.results["complete"] for run in asked),
        )


def read(count: int, tasks: int) -> list[tuple[str, str, str]]:
    """Return what it takes to read the answers of a cluster of so many nodes and tasks."""
    with folder() as name, VirtualTime() as clock:
        site = Site(clock, Path(name), nodes(count))
        cluster = SimulatedSlurm(SlurmSettings(), site.controller, "user")
        texts: list[float] = []

        def look() -> None:
            for _ in range(5):
                answering = cluster.client.answering_seconds
                begun = time.thread_time()
                cluster.nodes()
                spent = time.thread_time() - begun
                texts.append(spent - (cluster.client.answering_seconds - answering))

        clock.process(look)
        clock.run(lambda: False)
        size = sum(len(node.shown()) for node in site.controller.nodes.values())
    squeue = "".join(
        f"\x1e{task}_0|RUNNING|None|gpu{task % count}|{jobs.PREFIX}step-{task % 100}.0-trial0-x\n"
        for task in range(tasks)
    )
    return [
        (f"{count:,} nodes, text", f"{size:,}", f"{statistics.median(texts):.3f}"),
        (
            f"{tasks:,} tasks, text",
            f"{len(squeue):,}",
            f"{_median(lambda: read_tasks(squeue, jobs.PREFIX)):.3f}",
        ),
    ]


def memory(count: int, parts: int | None) -> int:
    """Return the most bytes that a process with one supervisor takes."""
    words = ["--memory", "--nodes", str(count)]
    if parts is not None:
        words += ["--datasets", str(parts)]
    done = subprocess.run(
        [sys.executable, __file__, *words], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def _median(call: Callable[[], object]) -> float:
    """Return the median CPU seconds of a call."""
    found = []
    for _ in range(5):
        begun = time.process_time()
        call()
        found.append(time.process_time() - begun)
    return statistics.median(found)


if __name__ == "__main__":
    main()
