"""What the sandbox adds to a program

    python benchmarks/sandbox_cost.py --repeat 200

The time of a program that does nothing, from question to answer, with its sandbox built and taken
down. Below it, what starting a bare Python takes, which each level does once. Each way takes its
turn in every round, so that a busy moment meets all of them. Times are medians in milliseconds,
with the fastest in brackets. `--beside SRC` measures the `src` folder of another version, too.

As root, the columns of an ordinary user come from processes of one. Without a sandbox, root runs
nothing.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.sandboxes import SOURCE, as_ordinary_user, ordinary_python

from coordinate_eval.evaluators.sandbox.sandbox import Level

_SERVER = """
import sys, time
from coordinate_eval.evaluators.sandbox.sandbox import Level, Sandbox
from coordinate_eval.records import Question
sandbox = Sandbox(Level(sys.argv[1]))
question = Question(id="q", kind="program", content="pass", timeout_seconds=60)
for line in sys.stdin:
    began = time.perf_counter()
    answer = sandbox.run(question)
    print(time.perf_counter() - began if answer.passed else answer.result, flush=True)
"""

Way = tuple[str, bool, Path]
"""A level, whether its user is an ordinary one, and the version."""


def main() -> None:
    """Measure every level with every user, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--repeat", type=int, default=50, help="programs of each way (default 50)")
    parser.add_argument("--beside", type=Path, help="the src folder of another version")
    given = parser.parse_args()
    sources = [SOURCE, *([given.beside.resolve()] if given.beside else [])]
    users = [os.geteuid() != 0, True] if ordinary_python() else [False]
    ways = [(str(v), user, source) for v in Level for user in dict.fromkeys(users)
            for source in sources]  # fmt: skip
    servers = {way: start(*way) for way in ways}
    # The first one also loads what all later ones find loaded.
    servers = {way: server for way, server in servers.items() if one_run(server) is not None}
    seconds: dict[Way, list[float]] = {way: [] for way in servers}
    bare: list[float] = []
    for _ in range(max(1, given.repeat)):
        bare.append(bare_start())
        for way, server in servers.items():
            taken = one_run(server)
            assert taken is not None, f"{way} worked once, but not again"
            seconds[way].append(taken)
    for server in servers.values():
        server.communicate()
    show(seconds, bare, sources)


def start(level: str, ordinary: bool, source: Path) -> "subprocess.Popen[str]":
    """Start a process that runs the program whenever it is given a line."""
    environment = dict(os.environ)
    if ordinary and os.geteuid() == 0:
        command = as_ordinary_user(_SERVER, source)
    else:
        command = [sys.executable, "-c", _SERVER]
        environment["PYTHONPATH"] = str(source)
    return subprocess.Popen(
        [*command, level],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
        cwd="/",
    )


def one_run(server: "subprocess.Popen[str]") -> float | None:
    """Return the seconds of one program, or None if the level does not work."""
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        server.stdin.write("\n")
        server.stdin.flush()
        return float(server.stdout.readline())
    except (OSError, ValueError):
        return None


def bare_start() -> float:
    """Return the seconds that Python takes to start and end."""
    began = time.perf_counter()
    subprocess.run([ordinary_python() or sys.executable, "-I", "-S", "-c", ""], check=True)
    return time.perf_counter() - began


def show(seconds: dict[Way, list[float]], bare: list[float], sources: list[Path]) -> None:
    """Print a line for each level and user, and a column for each version."""
    table = Table(title=f"milliseconds a program, {len(bare)} of each")
    for heading in ("level", "user"):
        table.add_column(heading)
    for name in ("this version", "other version")[: len(sources)]:
        table.add_column(name, justify="right")
    for level, ordinary in dict.fromkeys((level, ordinary) for level, ordinary, _ in seconds):
        cells = [cell(seconds.get((level, ordinary, source), [])) for source in sources]
        table.add_row(level, "ordinary" if ordinary else "root", *cells)
    table.add_section()
    table.add_row("a bare Python", "", cell(bare))
    Console().print(table)


def cell(seconds: list[float]) -> str:
    """Return the median and the minimum in milliseconds."""
    if not seconds:
        return "-"
    return f"{1000 * statistics.median(seconds):.1f} ({1000 * min(seconds):.1f})"


if __name__ == "__main__":
    main()
