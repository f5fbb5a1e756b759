"""The corpus of logs whose cause is known, in tests/fixtures/logs."""

import io
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from coordinate_eval.diagnosis.cause import Cause, Ending, Log, find_cause
from coordinate_eval.diagnosis.compress import compress
from coordinate_eval.diagnosis.rules import Rules, shipped

FOLDER = Path(__file__).parent / "fixtures" / "logs"


class Case(NamedTuple):
    """The logs of a job, and why it ended."""

    name: str
    reason: str | None
    """None: nothing failed."""
    logs: list[str]
    end: str
    source: str


def corpus(name: str) -> list[Case]:
    """Return the cases of a file."""
    listed: list[dict[str, Any]] = yaml.safe_load((FOLDER / name).read_text())
    return [
        Case(each["name"], each["reason"], each["logs"], each.get("end", ""), each["source"])
        for each in listed
    ]


def whole_corpus() -> list[Case]:
    """Return the cases of all files."""
    return [case for path in sorted(FOLDER.glob("*.yaml")) for case in corpus(path.name)]


def diagnosed(logs: list[str], end: str = "", rules: Rules | None = None) -> Cause | None:
    """Return the cause that `coordinate-eval diagnose` finds in logs."""
    rules = rules or shipped()
    read = []
    for number, log in enumerate(logs):
        read.append(Log(f"{number}.log", compress(io.BytesIO(log.encode()), rules)))
    return find_cause(read, rules, Ending(end), by_words=True)


def cause_of(*logs: str, end: str = "") -> Cause:
    """Return the cause that is found in logs that have one."""
    found = diagnosed([*logs], end)
    assert found is not None
    return found
