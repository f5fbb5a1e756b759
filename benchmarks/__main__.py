"""Runs the benchmarks of this folder and rewrites docs/benchmarks.md with what they print.

    python -m benchmarks [NAME …]

A benchmark is a script whose docstring says in its first line what is compared, and in an
indented line the command: that one is run. Names that begin with an underscore are no
benchmarks. With names, only these are run; the others keep what the page says of them.
"""

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
PAGE = FOLDER.parent / "docs" / "benchmarks.md"
COLUMNS = 100

_HEAD = """# Benchmarks

Written by `python -m benchmarks` (or `make bench`) on 2 noisy cores, no GPU, with
OMP_NUM_THREADS=1. Each command can be run by itself. Ratios mean more than seconds here: compare
what stands in one table.
"""


def main() -> int:
    """Run and write; the exit status."""
    scripts = {p.stem: p for p in sorted(FOLDER.glob("*.py")) if not p.name.startswith("_")}
    names = sys.argv[1:] or list(scripts)
    if unknown := set(names) - scripts.keys():
        sys.stderr.write(f"no such benchmark: {', '.join(sorted(unknown))}\n")
        return 2
    for name in names:
        # Written after each: what took minutes is not lost with a later one that fails.
        sections = written() | {title(scripts[name]): section(scripts[name])}
        shown = [sections[t] for t in map(title, scripts.values()) if t in sections]
        PAGE.write_text("\n".join([_HEAD, *shown]))
    return 0


def written() -> dict[str, str]:
    """The sections of the page as it is, by title."""
    text = PAGE.read_text() if PAGE.exists() else ""
    parts = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    return {part.partition("\n")[0]: f"## {part.rstrip()}\n" for part in parts}


def title(script: Path) -> str:
    """The first line of a benchmark's docstring."""
    return _docstring(script).partition("\n")[0].rstrip(".")


def section(script: Path) -> str:
    """What a benchmark says of itself, and what it printed."""
    about = _docstring(script).partition("\n")[2].strip("\n")
    return f"## {title(script)}\n\n{about}\n\n```text\n{printed(about)}\n```\n"


def printed(about: str) -> str:
    """The output of the command that a docstring names.

    Raises:
        subprocess.CalledProcessError: it failed; its own words are on stderr.
    """
    command = re.search(r"^ {4}python (.+)$", about, re.MULTILINE)
    assert command is not None, "the docstring names no command"
    sys.stderr.write(f"python {command[1]}\n")
    quiet = {"COLUMNS": str(COLUMNS), "NO_COLOR": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(
        [sys.executable, *shlex.split(command[1])],
        cwd=FOLDER.parent,
        env=os.environ | quiet | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return "\n".join(line.rstrip() for line in done.stdout.strip("\n").splitlines())


def _docstring(script: Path) -> str:
    return ast.get_docstring(ast.parse(script.read_text())) or ""


if __name__ == "__main__":
    sys.exit(main())
