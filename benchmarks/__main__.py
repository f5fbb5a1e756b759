"""Runs every benchmark of this folder and rewrites docs/benchmarks.md with what they print.

    python -m benchmarks [NAME …]

A benchmark is a script whose docstring says in its first line what is compared, and in an
indented line the command: that one is run. Names that begin with an underscore are no
benchmarks. With names, only these are run, and printed instead of written.
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

Written by `python -m benchmarks` (or `make bench`) on 2 noisy cores, no GPU. Each command can be
run by itself. Ratios mean more than seconds here: compare what stands in one table.
"""


def main() -> int:
    """Run and write; the exit status."""
    names = sys.argv[1:]
    scripts = [p for p in sorted(FOLDER.glob("*.py")) if not p.name.startswith("_")]
    if unknown := set(names) - {path.stem for path in scripts}:
        sys.stderr.write(f"no such benchmark: {', '.join(sorted(unknown))}\n")
        return 2
    sections = [section(path) for path in scripts if not names or path.stem in names]
    if names:
        sys.stdout.write("\n".join(sections))
    else:
        PAGE.write_text("\n".join([_HEAD, *sections]))
    return 0


def section(script: Path) -> str:
    """What a benchmark says of itself, and what it printed."""
    text = ast.get_docstring(ast.parse(script.read_text())) or ""
    title, _, about = text.partition("\n")
    return f"## {title.rstrip('.')}\n\n{about.strip(chr(10))}\n\n```text\n{printed(about)}\n```\n"


def printed(about: str) -> str:
    """The output of the command that a docstring names.

    Raises:
        subprocess.CalledProcessError: it failed; its own words are on stderr.
    """
    command = re.search(r"^ {4}python (.+)$", about, re.MULTILINE)
    assert command is not None, "the docstring names no command"
    sys.stderr.write(f"python {command[1]}\n")
    done = subprocess.run(
        [sys.executable, *shlex.split(command[1])],
        cwd=FOLDER.parent,
        env=os.environ | {"COLUMNS": str(COLUMNS), "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return "\n".join(line.rstrip() for line in done.stdout.strip("\n").splitlines())


if __name__ == "__main__":
    sys.exit(main())
