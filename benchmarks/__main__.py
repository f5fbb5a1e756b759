"""Run the benchmarks of this folder and write their output to docs/benchmarks.md.

    python -m benchmarks [NAME …]
    python -m benchmarks NAME OPTION …
    python -m benchmarks --order

A benchmark is a script. The first line of its docstring is the title of its section, and an
indented line of the docstring is the command to run. Scripts whose names begin with an underscore
are not benchmarks. With names, only these benchmarks run; the other sections stay as they are.
With options, such as --help, one benchmark runs with these, and nothing is written. `--order` runs
nothing: it writes the contents of the page, and the sections in their order.
"""

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parent
PAGE = FOLDER.parent / "docs" / "benchmarks.md"
COLUMNS = 100

_HEAD = """# Benchmarks

`python -m benchmarks` (or `make bench`) writes this page. It ran on 2 noisy cores without a GPU,
with OMP_NUM_THREADS=1. Each command also runs by itself. Ratios mean more than seconds here, and
only numbers of one table are comparable.
"""

_PARTS = {
    "How soon the scores are there": ("makespan", "save_to_score", "day_of_checkpoints"),
    "Plans, and the seconds that they predict": (
        "plan_quality",
        "planner_ablation",
        "planning_time",
        "priors",
    ),
    "Full engines": ("streaming", "conversations", "scored_tokens"),
    "Weights": ("staging", "conversion"),
    "Prompts, metrics and judges": ("harness_cost", "sandbox_cost", "judge_rate"),
    "Large clusters, and preemption": ("many_runs", "supervision", "replacements"),
    "Decisions": ("history", "alarms", "agreement", "deciding"),
    "Training that goes on": ("saving", "diagnosis", "spikes", "training_month"),
}
"""The benchmarks in the order of the page."""


def main() -> int:
    """Run the named benchmarks and write the page; return the exit status."""
    scripts = {name: FOLDER / f"{name}.py" for part in _PARTS.values() for name in part}
    if lost := {p.stem for p in FOLDER.glob("[!_]*.py")} - scripts.keys():
        sys.stderr.write(f"no part of the page has {', '.join(sorted(lost))}\n")
        return 2
    names = sys.argv[1:] or list(scripts)
    if names[0] in ("-h", "--help"):
        sys.stdout.write(f"{__doc__}\n{', '.join(scripts)}\n")
        return 0
    if names[0] in scripts and names[1:2] and names[1].startswith("-"):
        command = [sys.executable, str(scripts[names[0]]), *names[1:]]
        return subprocess.run(command, check=False).returncode
    if names == ["--order"]:
        names = []
        write(written(), scripts)
    if unknown := set(names) - scripts.keys():
        sys.stderr.write(f"no such benchmark: {', '.join(sorted(unknown))}\n")
        return 2
    for name in names:
        # Write after each benchmark, so that a later failure loses nothing.
        write(written() | {title(scripts[name]): section(scripts[name])}, scripts)
    return 0


def write(sections: Mapping[str, str], scripts: Mapping[str, Path]) -> None:
    """Write the page of these sections, by title: its contents, and each in its place."""
    titles = {name: title(script) for name, script in scripts.items()}
    contents = [
        f"- **{part}**\n" + "\n".join(f"    - [{t}](#{anchor(t)})" for t in shown)
        for part, names in _PARTS.items()
        if (shown := [titles[name] for name in names if titles[name] in sections])
    ]
    texts = [sections[each] for each in titles.values() if each in sections]
    PAGE.write_text("\n".join([_HEAD, *contents, "", *texts]))


def anchor(heading: str) -> str:
    """Return the name by which a page links to a heading of its own."""
    return re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip())


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
