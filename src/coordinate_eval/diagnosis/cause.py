"""The cause of a job's end: the root of all that its log and Slurm say, not its echoes."""

import os
import re
from collections.abc import Sequence
from enum import StrEnum
from typing import BinaryIO, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from coordinate_eval.diagnosis.compress import Compressed, Kept, compress
from coordinate_eval.diagnosis.rules import Category, Rule, Rules, Then

UNKNOWN = "Unknown"
"""The reason of a job that failed for a cause that no rule knows."""

LASTING = 5
"""Lines of progress after which an error did not end the job."""

UNKNOWN_CURE = "read the line and what is around it in the log"

_STRENGTH = {"decisive": 0, "root": 1, "plain": 2, "end": 4, "echo": 5, "last": 7}
_LOOKS_WRONG = 6
_UNKNOWN_EXCEPTION = 3
_SUSPICIOUS = re.compile(
    r"""(?i)(?<!\bno\s)(?<!\b0\s)(?<!\bwithout\s)
    \b(?:fail(?:ed|ure|ures|s)?|fatal|abort(?:ed|ing)?|can\ ?not|can't|could\ ?n[o']t|unable\ to
    |denied|not\ (?:found|supported|available|allowed|permitted)|no\ such|invalid|killed|terminated
    |panicked|errors?|exception|unexpected|missing|refused|timed\ out|crash(?:ed)?|mismatch)\b
    (?!\s*(?:rate\b|[:=]\s*[-\d.]))""",
    re.VERBOSE,
)
_TAIL = 12
"""Lines at a log's end in which words that sound like a failure are taken for one."""


class Ending(NamedTuple):
    """A job's end, in Slurm's words; empty if it is unknown."""

    state: str = ""
    reason: str = ""
    exit_code: str = ""
    """In sacct's form: `exit status:signal`."""

    @property
    def words(self) -> str:
        """Return state, reason and exit code on one line, as rules read it."""
        return " ".join(part for part in (self.state, self.reason, self.exit_code) if part)

    @property
    def failed(self) -> bool:
        """Return whether the job is known to have failed."""
        return bool(self.state) and self.state.split()[0] not in ("COMPLETED", "RUNNING", "PENDING")


class Remedy(StrEnum):
    """The consequence of a cause. The value is in the words and the JSON that users read."""

    ANOTHER_NODE = "another node"
    LESS_LOAD = "less load"
    WAIT = "wait"
    STOP = "stop"


_REMEDIES = {
    "node": Remedy.ANOTHER_NODE,
    "load": Remedy.LESS_LOAD,
    "wait": Remedy.WAIT,
    "stop": Remedy.STOP,
}


class Cause(BaseModel):
    """The cause of the end of a job."""

    model_config = ConfigDict(frozen=True)

    reason: str
    category: Category
    rule: str = Field(default="", description="its name; empty where no rule knows")
    line: str = Field(default="", description="the root line, or Slurm's words")
    number: int = Field(
        default=0, description="of that line in its log, from 1; 0 for Slurm's words"
    )
    log: str = ""
    cure: str = Field(description="what a person can do")
    then: Then
    others: tuple[str, ...] = Field(
        default=(), description="reasons that were seen, and did not end the job"
    )

    @property
    def remedy(self) -> Remedy:
        """Return what follows. After an unknown cause, another node is tried."""
        return Remedy.ANOTHER_NODE if self.category == "unknown" else _REMEDIES[self.then]

    @property
    def words(self) -> str:
        """Return the reason and what to do, for a person."""
        return f"{self.reason} ({self.category}): {self.cure}"


def unknown(line: str = "", number: int = 0, log: str = "", others: tuple[str, ...] = ()) -> Cause:
    """Return the cause of a job that failed for a reason that no rule knows."""
    return Cause(
        reason=UNKNOWN,
        category="unknown",
        line=line,
        number=number,
        log=log,
        cure=UNKNOWN_CURE,
        then="node",
        others=others,
    )


class Log(NamedTuple):
    """A compressed log, and its name."""

    name: str
    left: Compressed


class _Candidate(NamedTuple):
    order: tuple[int, int, int]
    """The least is the cause: how little it is believed, the log, the line."""
    rule: Rule | None
    kept: Kept | None
    log: str

    @property
    def doubtful(self) -> bool:
        return self.order[0] >= _DOUBT

    @property
    def is_exception(self) -> bool:
        return self.kept is not None and self.kept.is_exception


_DOUBT = 10


def read_log(
    file: BinaryIO, name: str, rules: Rules, most_bytes: int | None = None, begin: int = 0
) -> Log:
    """Return a log of any size, compressed: all, or its last bytes; nothing before `begin`."""
    if most_bytes is not None:
        begin = max(begin, os.fstat(file.fileno()).st_size - most_bytes)
    if begin:
        file.seek(begin)
    return Log(name, compress(file, rules))


def find_cause(
    logs: Sequence[Log],
    rules: Rules,
    end: Ending | None = None,
    said: Log | None = None,
    *,
    by_words: bool = False,
) -> Cause | None:
    """Return why a job ended, from the logs of its ranks, Slurm's words, and what the job said.

    Args:
        end: how it ended, in Slurm's words.
        said: the job's own words about its end. A log may also have harmless lines.
        by_words: take last lines that sound like a failure for one. A job may still be running, or
            have ended well, so this is for logs that a person asks about.

    Returns:
        The cause; None if nothing says that it failed.
    """
    end = end or Ending()
    found = _of_end(end, rules)
    logs = logs if said is None else [*logs, said]
    for number, log in enumerate(logs):
        found += _of_log(number, log, rules)
    found.sort(key=lambda each: each.order)
    if not found or (found[0].doubtful and not end.failed):
        suspicious = _suspicious(logs) if by_words or end.failed else None
        return _unknown(end, logs, suspicious) if suspicious or (end.failed and not found) else None
    first = _believed(found, len(logs) - 1 if said else None, rules)
    others = {each.rule.reason for each in found if each.rule is not None}
    text = first.kept.text if first.kept else end.words
    number = first.kept.first if first.kept else 0
    if first.rule is None:
        return unknown(text, number, first.log, tuple(sorted(others)))
    reason = rules.of(first.rule)
    return Cause(
        reason=first.rule.reason,
        category=reason.category,
        rule=first.rule.name,
        line=text,
        number=number,
        log=first.log,
        cure=reason.cure,
        then=reason.then,
        others=tuple(sorted(others - {first.rule.reason})),
    )


def _believed(found: Sequence[_Candidate], said: int | None, rules: Rules) -> _Candidate:
    """Return the cause among what was found, where log number `said` is what the job itself says.

    A log's line that every job would die of may be one that every job survives, such as a warning
    that a folder cannot be written. So the first exception of a known cause counts before a line
    that is none, and neither counts where the job itself names what others may survive. A line of a
    shell or a tool also gives way to whatever else a log names, but for its own echoes: work began.
    """
    first, root = found[0], _STRENGTH["root"]
    if _then(first, rules) != "stop" or first.order[0] != root:
        return first
    roots = [each for each in found if each.order[0] == root]
    first = next((each for each in roots if each.is_exception), first)
    own = [each for each in roots if each.order[1] == said]
    own_stop = next((each for each in own if _then(each, rules) == "stop"), None)
    if own and not (own_stop and _then(first, rules) == "stop"):
        return own_stop or own[0]
    if first.rule is None or first.is_exception or not _of_script(first.rule, rules):
        return first
    others = (each for each in found if each.order[1] != said and _is_of_work(each, rules))
    return next(others, first)


def _is_of_work(candidate: _Candidate, rules: Rules) -> bool:
    """Return whether it was said by more than a shell, and is no echo of what a shell said."""
    if candidate.order[0] > _STRENGTH["end"]:
        return False
    if candidate.rule is None or candidate.is_exception:
        return candidate.rule is None or candidate.rule.reason != "Called Process Error"
    return not _of_script(candidate.rule, rules)


def _then(candidate: _Candidate, rules: Rules) -> Then | None:
    return rules.of(candidate.rule).then if candidate.rule is not None else None


def _of_end(end: Ending, rules: Rules) -> list[_Candidate]:
    rule = rules.find_end(end.words) if end.words else None
    if rule is None:
        return []
    return [_Candidate((_STRENGTH[rule.kind], -1, 0), rule, None, "")]


def _of_log(number: int, log: Log, rules: Rules) -> list[_Candidate]:
    candidates = []
    stopped: int | None = None
    """The line at which the job was ended from outside: what comes later follows from it."""
    for kept in log.left.kept:
        if not kept.found:
            continue
        rule = kept.rule
        if rule is not None:
            strength = _STRENGTH[rule.kind]
        else:
            strength = _UNKNOWN_EXCEPTION if kept.is_exception else _LOOKS_WRONG
        # What is decisive is often told in passing, such as that a job is preempted.
        mild = kept.mild and strength != _STRENGTH["decisive"]
        if mild or _went_on(kept, log.left, rules):
            strength += _DOUBT
        at = kept.first
        if kept.last_progress - kept.first_progress >= LASTING:
            at = kept.last  # the first ones did not end it
        if stopped is not None and at > stopped and strength in (2, 3):
            strength = _STRENGTH["echo"]
        if strength == _STRENGTH["end"] and rule is not None and rule.name != "killed":
            stopped = at if stopped is None else min(stopped, at)
        candidates.append(_Candidate((strength, number, at), rule, kept, log.name))
    return candidates


def _went_on(kept: Kept, left: Compressed, rules: Rules) -> bool:
    """Return whether work went on after a line, as far as the log says.

    Of several ranks, those that have not noticed yet print some more lines. So it takes several, or
    one and a success; but one is enough after the words of a shell, which come before all work.
    """
    progress = left.progress - kept.last_progress
    if progress >= LASTING:
        return True
    if progress and _may_come_first(kept, rules):
        return True
    success = max((each.first for each in left.kept if each.success), default=0)
    if success and kept.rule and _may_come_first(kept, rules):
        return True  # before the work, or when it is done
    return success > kept.last and (progress > 0 or not (kept.rule or kept.is_exception))


def _may_come_first(kept: Kept, rules: Rules) -> bool:
    """Return whether a line is such as shells and launchers write before all work."""
    if kept.rule is None:
        return kept.last_progress == 0 and not kept.is_exception
    return kept.rule.kind == "last" or (_of_script(kept.rule, rules) and not kept.is_exception)


def _of_script(rule: Rule, rules: Rules) -> bool:
    reason = rules.of(rule)
    return reason.category == "script" and reason.then == "stop"


def _suspicious(logs: Sequence[Log]) -> tuple[Log, Kept] | None:
    """Return the last line among a log's last ones that sounds like a failure, if one does."""
    for log in reversed(logs):
        tail = log.left.kept[-_TAIL:]
        if any(kept.success for kept in tail):
            continue
        for kept in reversed(tail):
            went_on = log.left.progress > kept.last_progress
            if kept.may_be_wrong and not went_on and _SUSPICIOUS.search(kept.text):
                return log, kept
    return None


def _unknown(end: Ending, logs: Sequence[Log], suspicious: tuple[Log, Kept] | None) -> Cause:
    log = next((log for log in reversed(logs) if log.left.kept), None)
    line = max(log.left.kept, key=lambda kept: kept.last) if log else None
    if suspicious:
        log, line = suspicious
    elif line is not None and line.count > 1:
        line = None  # a report that came again and again says nothing of the end
    return unknown(
        line.text if line else end.words,
        line.first if line else 0,
        log.name if log else "",
    )
