"""Run the benchmarks of this folder and write their output to docs/benchmarks.md.

    python -m benchmarks [NAME …]
    python -m benchmarks NAME OPTION …

A benchmark is a script. The first line of its docstring is the title of its section, and an
indented line of the docstring is the command to run. Scripts whose names begin with an underscore
are not benchmarks. With names, only these benchmarks run; the other sections stay as they are.
With options, such as --help, one benchmark runs with these, and nothing is written.
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

`python -m benchmarks` (or `make bench`) writes this page. It ran on 2 noisy cores without a GPU,
with OMP_NUM_THREADS=1. Each command also runs by itself. Ratios mean more than seconds here, and
only numbers of one table are comparable.
"""


def main() -> int:
    """Run the named benchmarks and write the page; return the exit status."""
    scripts = {p.stem: p for p in sorted(FOLDER.glob("*.py")) if not p.name.startswith("_")}
    names = sys.argv[1:] or list(scripts)
    if names[0] in ("-h", "--help"):
        sys.stdout.write(f"{__doc__}\n{', '.join(scripts)}\n")
        return 0
    if names[0] in scripts and names[1:2] and names[1].startswith("-"):
        command = [sys.executable, str(scripts[names[0]]), *names[1:]]
        return subprocess.run(command, check=False).returncode
    if unknown := set(names) - scripts.keys():
        sys.stderr.write(f"no such benchmark: {', '.join(sorted(unknown))}\n")
        return 2
    for name in names:
        # Write after each benchmark, so that a later failure loses nothing.
        sections = written() | {title(scripts[name]): section(scripts[name])}
        shown = [sections[t] for t in map(title, scripts.values()) if t in sections]
        PAGE.write_text("\n".join([_HEAD, *shown]))
    return 0


def written() -> dict[str, str]:
    """Return the sections of the present page by title."""
    text = PAGE.read_text() if PAGE.exists() else ""
    parts = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    return {part.partition("\n")[0]: f"## {part.rstrip()}\n" for part in parts}


def title(script: Path) -> str:
    """Return the first line of a benchmark's docstring."""
    return _docstring(script).partition("\n")[0].rstrip(".")


def section(script: Path) -> str:
    """Run a benchmark and return its section: its docstring and its output."""
    about = _docstring(script).partition("\n")[2].strip("\n")
    return f"## {title(script)}\n\n{about}\n\n```text\n{printed(about)}\n```\n"


def printed(about: str) -> str:
    """Run the command that a docstring names and return its output.

    Raises:
        subprocess.CalledProcessError: The command failed; its message is on stderr.
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
