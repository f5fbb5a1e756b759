"""31 of 32 trials preempted at a third of the way: with replacements, and without

    python benchmarks/replacements.py --free 0 1 4 16

A 7B checkpoint on 32 GPUs of four nodes, on a simulated controller in virtual time, with a real
supervisor. When a third of the GPU work is published, 31 trials are preempted at once, without
notice, by jobs that keep their GPUs. Beside them there are so many free nodes of eight GPUs.

*Without* replacements a round ends when its last trial does: here with its time limit, which is
four times the makespan that was planned. The next round then takes what is free. *With* them, as
it is, the trials that are lost are replaced while the last one answers, as far as the work that is
left pays. Seconds are from the call of the command to the last score; *undisturbed* is the same run
without the preemption.
"""

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._controller import CPUS, GPUS, Task, nodes
from benchmarks._simulated_site import Site, datasets, folder
from benchmarks._virtual_time import VirtualTime
from coordinate_eval.coordinator.supervisor import decide

TRIALS, NODES = 32, 4
SHARE = 1 / 3
"""Of the predicted GPU seconds, published when the trials are preempted."""

SPREAD = 0.25
"""Standard deviation of the logarithm of true seconds over predicted ones, of each dataset."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--free", type=int, nargs="+", default=[0, 1, 4, 16])
    parser.add_argument("--datasets", type=int, help="of the suite; all by default")
    given = parser.parse_args()
    undisturbed = makespan(0, parts=given.datasets, preempts=False)
    table = Table("free nodes", "without", "with", "without / with", "with / undisturbed")
    for free in given.free:
        without = makespan(free, parts=given.datasets, replaces=False)
        now = makespan(free, parts=given.datasets)
        ratios = (f"{without / now:.1f}", f"{now / undisturbed:.1f}")
        table.add_row(f"{free}", f"{without:,.0f} s", f"{now:,.0f} s", *ratios)
    Console().print(f"undisturbed: {undisturbed:,.0f} s")
    Console().print(table)


def makespan(
    free: int, *, parts: int | None = None, preempts: bool = True, replaces: bool = True
) -> float:
    """Return the seconds of a run on `NODES` nodes, with so many free ones beside them."""
    with ExitStack() as stack:
        if not replaces:
            stack.enter_context(patch.object(decide, "replace_lost", lambda *_: []))
        place = Path(stack.enter_context(folder()))
        clock = stack.enter_context(VirtualTime())
        site = Site(clock, place, nodes(NODES + free))
        # Without restraint, all 32 GPUs are taken.
        settings = site.settings("user", max_gpus=TRIALS, restraint=0.0)
        run = site.ask("user", "step", datasets(parts), settings, SPREAD, seed=1)
        if preempts:
            clock.run(lambda: run.published_share > SHARE)
            _preempt(site, [trial.task for trial in run.trials.values()])
        clock.run(lambda: run.ended)
        assert run.results is not None and run.results["complete"], "the run has not all scores"
        return run.last_score - run.asked


def _preempt(site: Site, tasks: list[Task]) -> None:
    """Give the GPUs of all of these tasks but one that runs to another user's jobs."""
    running = [task for task in tasks if task.alive]
    for task in running[1:]:
        site.controller.kill(task, "PREEMPTED")
        options = {"--job-name": "another's", "--nodelist": task.node, "--gres": "gpu:1"}
        options |= {"--cpus-per-task": f"{CPUS // GPUS // 2}", "--mem": "1000M", "--time": "1440"}
        site.controller.submit("another", options)


if __name__ == "__main__":
    main()
