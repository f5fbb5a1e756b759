"""Who works on what: claims on spans, numbered by attempt, never deleted.

Attempt n of a span belongs to whoever creates `<span>.<n>.json`; it is over when
`<span>.<n>.revoked` exists, which its owner writes when it stops early and the supervisor when
the owner's job has ended. Only then can attempt n+1 be created. The lines of an attempt are
appended to a file of its own and published with link(2) under one name for all attempts, so an
owner that was declared dead and still runs can do no harm: it loses that race, or wins it with
lines that are just as good.

Listings are used to skip what is surely taken; creating decides. So a stale listing costs time
and nothing else.
"""

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from coordinate_eval import _files
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.records import Record, Span

MAX_DEATHS = 5
"""A span on which this many owners died is left alone: it may be what kills them."""

LedgerName = Literal["outputs", "answers"]


class Claim(Record):
    """What a claim file holds."""

    owner: str
    task: str
    host: str
    pid: int
    time: float
    token: str


class Revocation(Record):
    """Why an attempt is over: its owner gave it back, or it or its engine died."""

    cause: Literal["released", "died"]
    time: float


class Held(NamedTuple):
    """A claim that is neither revoked nor published."""

    span: Span
    attempt: int
    claim: Claim


class Ledger:
    """The claims on one kind of work of a run."""

    def __init__(self, run: RunDir, name: LedgerName) -> None:
        self.run = run
        self.name = name

    def done(self, span: Span) -> bool:
        """Whether the span's lines are published."""
        return self.run.published(self.name, span).exists()

    def undone(self, spans: Iterable[Span]) -> list[Span]:
        """Those not yet published, in the order given."""
        published: dict[str, set[str]] = {}
        for span in (spans := list(spans)):
            if span.dataset not in published:
                folder = self.run.published(self.name, span).parent
                published[span.dataset] = _files.names(folder)
        return [s for s in spans if f"{s.stem}.jsonl" not in published[s.dataset]]

    def claim(self, span: Span, owner: str, task: str) -> int | None:
        """Take the span; the attempt's number, or None when somebody else has it."""
        claim = Claim(
            owner=owner,
            task=task,
            host=os.uname().nodename,
            pid=os.getpid(),
            time=time.time(),
            token=_files.token(),
        )
        for attempt in range(1, 10_000):
            path = self._claim(span, attempt)
            if not path.exists() and _files.create(path, claim.model_dump_json()):
                return None if self.done(span) else attempt
            if not self._revoked(span, attempt).exists():
                return None
        return None

    def claimable(self, spans: Iterable[Span]) -> list[Span]:
        """Those that look free and have not killed too many owners, in the order given."""
        free = []
        listings: dict[str, set[str]] = {}
        for span in self.undone(spans):
            if span.dataset not in listings:
                listings[span.dataset] = _files.names(self.run.claims(self.name, span.dataset))
            last = _last_attempt(listings[span.dataset], span)
            if last and f"{span.stem}.{last}.revoked" not in listings[span.dataset]:
                continue
            if last < MAX_DEATHS or self.deaths(span, last) < MAX_DEATHS:
                free.append(span)
        return free

    def deaths(self, span: Span, attempts: int | None = None) -> int:
        """How many owners of the span died since the run was last resumed."""
        if attempts is None:
            attempts = _last_attempt(_files.names(self.run.claims(self.name, span.dataset)), span)
        since = _files.modified(self.run.resumed)
        ends = (
            _files.read_record_if_there(self._revoked(span, n), Revocation)
            for n in range(1, attempts + 1)
        )
        return sum(1 for end in ends if end and end.cause == "died" and end.time >= since)

    def held(self, spans: Iterable[Span]) -> list[Held]:
        """Claims on spans not yet published that nobody has revoked."""
        found = []
        listings: dict[str, set[str]] = {}
        for span in self.undone(spans):
            if span.dataset not in listings:
                listings[span.dataset] = _files.names(self.run.claims(self.name, span.dataset))
            last = _last_attempt(listings[span.dataset], span)
            if last and f"{span.stem}.{last}.revoked" not in listings[span.dataset]:
                claim = _files.read_record_if_there(self._claim(span, last), Claim)
                if claim is not None:
                    found.append(Held(span, last, claim))
        return found

    def revoke(self, span: Span, attempt: int, cause: Literal["released", "died"]) -> None:
        """End an attempt, so that the span can be claimed again; idempotent."""
        end = Revocation(cause=cause, time=time.time())
        _files.create(self._revoked(span, attempt), end.model_dump_json())

    def lines_so_far(self, span: Span, attempt: int) -> Iterator[bytes]:
        """Whole lines of the attempts before this one."""
        for earlier in range(1, attempt):
            yield from _files.whole_lines(self.run.part(self.name, span, earlier))

    def _claim(self, span: Span, attempt: int) -> Path:
        return self.run.claims(self.name, span.dataset) / f"{span.stem}.{attempt}.json"

    def _revoked(self, span: Span, attempt: int) -> Path:
        return self.run.claims(self.name, span.dataset) / f"{span.stem}.{attempt}.revoked"


class PartWriter:
    """Appends the lines of one attempt and publishes them when they are all there."""

    def __init__(self, ledger: Ledger, span: Span, attempt: int) -> None:
        self._ledger, self._span, self._attempt = ledger, span, attempt
        self._path = ledger.run.part(ledger.name, span, attempt)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("wb")

    def write(self, line: bytes | str) -> None:
        """Append one line and hand it to the operating system."""
        self._file.write(line.encode() if isinstance(line, str) else line)
        self._file.flush()

    def publish(self) -> bool:
        """Make the lines durable and known; False when another attempt was first."""
        os.fsync(self._file.fileno())
        self._file.close()
        span = self._span
        won = _files.publish(self._path, self._ledger.run.published(self._ledger.name, span))
        for earlier in range(1, self._attempt):
            self._ledger.run.part(self._ledger.name, span, earlier).unlink(missing_ok=True)
        return won

    def give_back(self, cause: Literal["released", "died"]) -> None:
        """Keep the lines for whoever comes next, and let them come."""
        self._file.close()
        self._ledger.revoke(self._span, self._attempt, cause)


def _last_attempt(listing: set[str], span: Span) -> int:
    attempt = 0
    while f"{span.stem}.{attempt + 1}.json" in listing:
        attempt += 1
    return attempt
