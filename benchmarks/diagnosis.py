"""Causes of failed jobs, found in their logs

    python benchmarks/diagnosis.py

*Right* is the share of jobs whose reason is found. *Precision* of a reason is the share that is
right of the jobs given this reason, *recall* of those that have it. The logs are in
`tests/fixtures/logs`, each with its source: whole ones were written after the forms that programs
print, or come from failures that were provoked on this machine, and the rules were written beside
them. Single lines (`lines.yaml`) were written later; the rules knew 95 of 99 before they were
mended. So these figures are no promise for other logs. Jobs that ended well are in the corpus.

Below that, logs of a size that occurs, made of lines such as jobs write: what is left of them, the
seconds that takes, and the most memory of the process beyond what it had before.
"""

import argparse
import io
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.failed_logs import diagnosed, whole_corpus

from coordinate_eval.diagnosis.cause import read_log
from coordinate_eval.diagnosis.compress import compress
from coordinate_eval.diagnosis.rules import shipped


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--mb", type=int, default=20, help="size of each large log, in MB")
    size = parser.parse_args().mb * 1_000_000
    console = Console()
    console.print(_reasons())
    console.print(_sizes(size))


def _reasons() -> Table:
    found: Counter[str] = Counter()
    true: Counter[str] = Counter()
    right: Counter[str] = Counter()
    raw = left = 0
    for case in whole_corpus():
        cause = diagnosed(case.logs, case.end)
        said, is_ = (cause.reason if cause else "no failure"), case.reason or "no failure"
        found[said] += 1
        true[is_] += 1
        right[is_] += said == is_
        for log in case.logs:
            raw += len(log)
            left += len(compress(io.BytesIO(log.encode()), shipped()).text())
    table = Table(
        title=f"{sum(true.values())} jobs; {100 * left / raw:.0f} % of their logs is left"
    )
    for heading in ("reason", "jobs", "precision", "recall"):
        table.add_column(heading, justify="left" if heading == "reason" else "right")
    for reason in sorted(true):
        precision = f"{right[reason] / found[reason]:.2f}" if found[reason] else ""
        table.add_row(reason, str(true[reason]), precision, f"{right[reason] / true[reason]:.2f}")
    share = sum(right.values()) / sum(true.values())
    table.add_row("all: right", str(sum(true.values())), f"{share:.2f}", f"{share:.2f}")
    return table


def _sizes(size: int) -> Table:
    table = Table(title=f"logs of {size // 1_000_000} MB, each with one error in it")
    for heading in ("log", "MB / s", "left, kB", "more memory, MB", "found"):
        table.add_column(heading, justify="left" if heading == "log" else "right")
    shipped()
    for name, lines in (
        ("metrics", _metrics),
        ("metrics of 64 ranks, with warnings", _ranks),
        ("a bar without line breaks", _bar),
        ("one line", _one_line),
        ("prose, each line another", _prose),
    ):
        with tempfile.NamedTemporaryFile(suffix=".log") as file:
            _write(Path(file.name), lines(), size)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            began = time.perf_counter()
            with Path(file.name).open("rb") as opened:
                log = read_log(opened, file.name, shipped())
            seconds = time.perf_counter() - began
            more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        rules = [kept.rule.name for kept in log.left.kept if kept.rule]
        table.add_row(
            name,
            f"{log.left.bytes / 1e6 / seconds:.1f}",
            f"{len(log.left.text()) / 1000:.1f}",
            f"{more / 1000:.0f}",
            "yes" if "gpu-memory" in rules else "no",
        )
    return table


def _write(path: Path, lines: Iterator[str], size: int) -> None:
    written, told = 0, False
    with path.open("w") as file:
        for line in lines:
            written += file.write(line)
            if not told and written > size * 0.9:
                file.write("\ntorch.OutOfMemoryError: CUDA out of memory.\n")
                told = True
            if written > size:
                return


def _metrics() -> Iterator[str]:
    for n in range(1 << 40):
        when = f"2025-01-01 10:00:{n % 60:02d},120"
        yield f"{when} - INFO - iteration {n}/ 90000 | lm loss: {n % 97}.2\n"


def _ranks() -> Iterator[str]:
    for n in range(1 << 40):
        yield f"[rank{n % 64}]: step {n // 64} | loss 2.{n % 997} | lr 3.0e-04\n"
        if n % 50 == 0:
            yield f"[rank{n % 64}]:[W101 10:00:00.1 socket.cpp:7] Warning: retry {n} of connect\n"


def _bar() -> Iterator[str]:
    for n in range(1 << 40):
        bar = "#" * (n % 50)
        yield f"\r {n % 100}%|{bar:50}| {n}/90000 [10:00<{n % 60:02d}:00, 4.{n % 97}it/s]"


def _one_line() -> Iterator[str]:
    while True:
        yield "0.123, 0.456, " * 1000


def _prose() -> Iterator[str]:
    source = random.Random(0)  # noqa: S311 - no secret
    words = ["".join(source.choices("etaoinsrhldcum", k=source.randint(2, 9))) for _ in range(9000)]
    while True:
        yield " ".join(source.choices(words, k=15)) + "\n"


if __name__ == "__main__":
    main()
