"""A check's outcome: one line, and what to do about it."""

from collections.abc import Iterable, Mapping
from enum import StrEnum

from pydantic import Field

from coordinate_eval.clusters.containers import Kind
from coordinate_eval.records import Record


class State(StrEnum):
    """A finding's severity."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


class Role(StrEnum):
    """The purpose of a place, which decides what is checked and how bad a finding is."""

    LOGIN = "login"
    """Commands are called here, and jobs run elsewhere."""
    MACHINE = "machine"
    """All of it happens on this machine."""
    GPU_JOB = "gpu-job"
    """A job like a trial."""
    CPU_JOB = "cpu-job"
    """A job like one that builds prompts or scores."""


KIND: Mapping[Role, Kind] = {Role.GPU_JOB: "trial", Role.CPU_JOB: "score"}
"""The kind of job whose container each job is in, if that has one."""


class Finding(Record):
    """The outcome of one check."""

    check: str = Field(description="what was looked at")
    state: State
    found: str
    do: str = Field(default="", description="what to do, unless all is well")


class Answer(Record):
    """The findings at one place."""

    where: str
    host: str = Field(description="empty if no job has answered")
    findings: tuple[Finding, ...]


def ok(check: str, found: str) -> Finding:
    """Return a finding that all is well."""
    return Finding(check=check, state=State.OK, found=found)


def warning(check: str, found: str, do: str) -> Finding:
    """Return a finding with which runs work, less well or not in each case."""
    return Finding(check=check, state=State.WARNING, found=found, do=do)


def failure(check: str, found: str, do: str) -> Finding:
    """Return a finding with which no run works."""
    return Finding(check=check, state=State.FAILURE, found=found, do=do)


def fails(answers: Iterable[Answer]) -> bool:
    """Return whether any check at any place has failed."""
    return any(each.state is State.FAILURE for one in answers for each in one.findings)
