"""From save to last score: what surrounds the GPUs, by phase, before and now

    python benchmarks/save_to_score.py --before 9fa2ac6 --scale 1

The seconds from the call of `coordinate-eval CKPT`, the first one of a model, until each phase has
ended, on a real Slurm of one node of eight GPUs on this machine, with engines that answer at once.
So everything that is shown is what surrounds an engine. No prompt was built before.

The suite has 8,739 items and about 22,000 requests, in the shapes of MMLU with five shots,
GSM8K, HellaSwag and TriviaQA. `--scale 1` adds the base suite's full shape, 59 datasets with 419
leaf tasks and 345,293 items, and `--scale 0.1` a tenth of its items.

*Before* is the commit that is named, run on the same machine just before or after, but not on the
full shape. There the engines' part, too, is work of this machine: eight processes write 902,166
responses, from the first one to the last. CPU seconds are
those of all processes of the run. They are less disturbed by other processes than the other rows,
for which the machine's two cores are few: a cluster has more, and pullers that use them.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.runs import Workspace

from benchmarks._instances import played
from benchmarks._phases import Phases, phases
from benchmarks._slurm import Watch, await_empty_queue, cluster, impossible
from benchmarks.full_shape.make import Amount, Made, make, scaled

MIXTURE = Amount({"mmlu": 2420, "hellaswag": 2000, "gsm8k": 1319, "triviaqa": 3000})
ROWS = (
    "the call returns",
    "prompts are built",
    "the plan is made",
    "the first GPU job runs",
    "first response",
    "last response",
    "last score",
)

_ROOT = Path(__file__).resolve().parents[1]


class Run(NamedTuple):
    """A run that has ended."""

    phases: Phases
    cpu_seconds: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--before", help="a commit to compare with")
    parser.add_argument("--scale", type=float, help="share of the full shape's items")
    given = parser.parse_args()
    console = Console()
    if why := impossible():
        console.print(f"Not measured: {why}", soft_wrap=True)
        return
    suites = [("8,739 items", MIXTURE)]
    if given.scale is not None:
        amount = scaled(given.scale)
        suites.append((f"{_scored(amount):,} items of the full shape", amount))
    with _source_of(given.before) as before:
        for title, amount in suites:
            sources = [*before, _ROOT / "src"] if amount is MIXTURE else [_ROOT / "src"]
            console.print(_table(title, measured(amount, sources)))


def _scored(amount: Amount) -> int:
    """Return the number of items of the datasets that are played."""
    names = played()
    return sum(items for name, items in amount.items.items() if name in names)


def measured(amount: Amount, sources: Sequence[Path]) -> list[Run]:
    """Return the runs of these sources on the same suite."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = make(folder / "suite", amount)
        return [run(folder / f"user-{n}", made, source) for n, source in enumerate(sources)]


def run(folder: Path, made: Made, source: Path) -> Run:
    """Evaluate the suite with the program in `source`, on a Slurm that has done nothing else."""
    folder.mkdir()
    user = Workspace(folder)
    user.environ |= {"PYTHONPATH": str(source)}
    for name in ("SUPERVISOR_POLL_SECONDS", "BUILD_JOBS", "SCORING_JOBS"):  # defaults, as for users
        del user.environ[f"COORDINATE_EVAL_{name}"]
    with cluster(folder / "slurm", nodes=1) as conf:
        where = folder / "run"
        watch = Watch()
        began = time.time()
        call = user.start(
            "run", made.checkpoint, "--suite", made.suite, "--run-dir", where, SLURM_CONF=str(conf)
        )
        _, said = call.communicate()
        if call.returncode:
            raise SystemExit(said)
        returned = time.time()
        while not (where / "results.json").exists():
            time.sleep(0.2)
        await_empty_queue(conf)
        found = Run(phases(where, began, returned), watch.cpu_seconds())
    sys.stderr.write(f"{source}: {found}\n")
    return found


@contextmanager
def _source_of(commit: str | None) -> Iterator[list[Path]]:
    """Check a commit out for as long as it is needed; yield its source, or nothing."""
    if commit is None:
        yield []
        return
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name) / "before"
        git = ["git", "-C", str(_ROOT), "worktree"]
        subprocess.run([*git, "add", "-q", "--detach", str(tree), commit], check=True)
        try:
            yield [tree / "src"]
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def _table(title: str, runs: Sequence[Run]) -> Table:
    table = Table("seconds until", title=title, title_justify="left")
    for heading in ("before", "now", "before / now") if len(runs) > 1 else ("now",):
        table.add_column(heading, justify="right")
    rows = [*ROWS, "CPU seconds of all processes"]
    for name, *each in zip(rows, *([*run.phases, run.cpu_seconds] for run in runs), strict=True):
        ratio = [f"{each[0] / each[1]:.1f}"] if len(each) > 1 else []
        table.add_row(name, *(f"{seconds:,.1f}" for seconds in each), *ratio)
    return table


if __name__ == "__main__":
    main()
