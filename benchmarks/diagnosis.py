"""Causes of failed jobs, found in their logs

    python benchmarks/diagnosis.py

*Precision* of a reason is the share that is right of the jobs given this reason, *recall* of those
that have it; a reason with both at 1.00 is not listed. Of a file, precision is the share that is
right of all jobs for which a reason is named, recall of those that failed; jobs that ended well are
counted apart. The logs are in `tests/fixtures/logs`, each with its source:

- `written.yaml` follows the forms that programs print, `provoked.yaml` has failures that were
  provoked on this machine, and `kinds.yaml` follows public reports of kinds that had been wrong.
  The rules were written beside these three.
- `lines.yaml` has single lines, written later. The rules knew 95 of the 99 of that time before
  they were mended.
- `reports.yaml` follows public reports, and was written by people who did not write the rules. The
  rules knew 35 of its 62 jobs. When they had been mended for the first 24, they knew 34 of the
  other 38 at once.
- `held-out.yaml` is the other half of these reports, which the writers of the rules never saw. Of
  its 60 jobs 53 are right, against 33 before, and every failure is called one. **Its figures are
  those to expect of other logs.**

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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.failed_logs import FOLDER, corpus, diagnosed, whole_corpus

from coordinate_eval.diagnosis.cause import UNKNOWN, read_log
from coordinate_eval.diagnosis.compress import compress
from coordinate_eval.diagnosis.rules import shipped

HEALTHY = "no failure"


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--mb", type=int, default=20, help="size of each large log, in MB")
    size = parser.parse_args().mb * 1_000_000
    console = Console()
    answered = {path.name: _answers(path.name) for path in sorted(FOLDER.glob("*.yaml"))}
    console.print(_files(answered))
    console.print(_reasons([pair for pairs in answered.values() for pair in pairs]))
    console.print(_sizes(size))


class _Answer(NamedTuple):
    """A job's reason, and the one that was found."""

    true: str
    found: str


def _answers(name: str) -> list[_Answer]:
    answers = []
    for case in corpus(name):
        cause = diagnosed(case.logs, case.end)
        answers.append(_Answer(case.reason or HEALTHY, cause.reason if cause else HEALTHY))
    return answers


def _files(answered: dict[str, list[_Answer]]) -> Table:
    """Return, of each file, how many jobs failed, and how often a reason was named and right."""
    table = Table(title="by file")
    for heading in ("file", "failed", "right", "precision", "recall", "healthy", "called healthy"):
        table.add_column(heading, justify="left" if heading == "file" else "right")
    for name, answers in answered.items():
        failed = [each for each in answers if each.true != HEALTHY]
        healthy = [each for each in answers if each.true == HEALTHY]
        named = [each for each in answers if each.found not in (HEALTHY, UNKNOWN)]
        right = sum(each.true == each.found for each in failed)
        named_right = sum(each.true == each.found for each in named)
        table.add_row(
            name,
            str(len(failed)),
            str(right),
            f"{named_right / len(named):.2f}" if named else "",
            f"{right / len(failed):.2f}" if failed else "",
            str(len(healthy)),
            str(sum(each.found == HEALTHY for each in healthy)),
        )
    return table


def _reasons(answers: Sequence[_Answer]) -> Table:
    found = Counter(each.found for each in answers)
    true = Counter(each.true for each in answers)
    right = Counter(each.true for each in answers if each.true == each.found)
    table = Table(title=f"{len(answers)} jobs; {_left():.0f} % of their logs is left")
    for heading in ("reason", "jobs", "precision", "recall"):
        table.add_column(heading, justify="left" if heading == "reason" else "right")
    for reason in sorted(true):
        if found[reason] == true[reason] == right[reason]:
            continue
        precision = f"{right[reason] / found[reason]:.2f}" if found[reason] else ""
        table.add_row(reason, str(true[reason]), precision, f"{right[reason] / true[reason]:.2f}")
    share = sum(right.values()) / len(answers)
    table.add_row("all: right", str(len(answers)), f"{share:.2f}", f"{share:.2f}")
    return table


def _left() -> float:
    """Return the percentage of the corpus that is left when it is compressed."""
    logs = [log for case in whole_corpus() for log in case.logs]
    left = sum(len(compress(io.BytesIO(log.encode()), shipped()).text()) for log in logs)
    return 100 * left / sum(map(len, logs))


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
