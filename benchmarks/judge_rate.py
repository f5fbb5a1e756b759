"""Questions per second to a judge, compared with what its server allows

    python benchmarks/judge_rate.py --repeat 3

A server on this machine answers each question after a fixed time, however many it has. So it can
answer `concurrency` questions in that time, and the ratio says how much of that a run's judge job
brings about, from its first question to the last answer: claims, files, and answers kept for later
runs included. Medians of the repetitions. Client and server share the cores.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.decisions import make_run
from tests.judges import Judge, Reply, question, says
from tests.runs import command

from coordinate_eval import _files
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run.claiming.work import all_portions
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.records import Shard

ROUNDS = 10
"""Times that the server has all of its questions at once."""

PORTION = 50
"""Questions of a portion."""


def main() -> None:
    """Ask at several concurrencies and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeat", type=int, default=3, help="times each (default 3)")
    repeat = parser.parse_args().repeat
    table = Table(title=f"{ROUNDS} × concurrency questions")
    for heading in ("concurrency", "answer after", "limit / s", "answered / s", "ratio"):
        table.add_column(heading, justify="right")
    for concurrency, delay in ((1, 0.1), (8, 0.5), (32, 0.5), (32, 2.0), (128, 2.0)):
        limit = concurrency / delay
        rate = statistics.median(answered(concurrency, delay) for _ in range(repeat))
        table.add_row(
            str(concurrency), f"{delay:g} s", f"{limit:.0f}", f"{rate:.1f}", f"{rate / limit:.2f}"
        )
    Console().print(table)


def answered(concurrency: int, delay: float) -> float:
    """Return the questions that a judge job has answered in a second."""
    begun: list[float] = []

    def behave(body: dict[str, Any], number: int) -> Reply:
        begun.append(time.monotonic())
        reply = says("The answer is good. [[7]] " + "It explains itself. " * 50)
        reply.after_seconds = delay
        return reply

    count = ROUNDS * concurrency
    with tempfile.TemporaryDirectory() as folder, Judge(behave) as server:
        run_dir = _run(Path(folder), server.url, concurrency, count)
        subprocess.run(
            command("_judge", run_dir.root), check=True, stdout=subprocess.DEVNULL, env=os.environ
        )
    assert len(begun) == count, "each question once"
    return count / (max(begun) + delay - min(begun))


def _run(folder: Path, url: str, concurrency: int, count: int) -> RunDir:
    """Write a run whose questions wait for the judge."""
    run_dir = RunDir(folder / "run")
    settings = Settings.model_validate(
        {
            "cache_dir": str(folder / "cache"),
            "judge": {"base_url": url, "model": "judge", "concurrency": concurrency},
        }
    )
    shards = [
        Shard(
            dataset="a", start=n, stop=min(n + PORTION, count), gpu_seconds=1, metric_cpu_seconds=0
        )
        for n in range(0, count, PORTION)
    ]
    run = make_run(asks=["a"], judged=["a"], shards=shards, settings=settings)
    _files.write_record(run_dir.run, run)
    _files.write(run_dir.supervisors_folder / "1.json", "{}")
    for portion in all_portions(run):
        questions = [question(f"Rate {n}. " * 200) for n in range(portion.start, portion.stop)]
        _files.write(run_dir.questions(portion), "".join(each.line() for each in questions))
    return run_dir


if __name__ == "__main__":
    main()
