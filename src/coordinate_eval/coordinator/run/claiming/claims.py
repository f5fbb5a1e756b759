"""Claims: who works on which span. Attempts are numbered; nothing is locked or deleted.

A ledger has the claims on one kind of a run's work. Its name is that of the folder with the results
of this work. A span is a part of a dataset in some ledgers, and a whole dataset in others: see
`whole`.

Attempt n at a span belongs to whoever creates `<span>.<n>.json`. It is over when
`<span>.<n>.revoked` exists: its owner writes that when it stops early, the supervisor when the
owner's job has ended, and an idle trial that answers the span, too. Only then can attempt n+1 be
created.

An attempt at responses or answers appends its lines to a file of its own, and publishes them with
link(2) under one name for all attempts. So an owner that was declared dead or slow, and still runs,
does no harm: it loses that race, or wins it with lines that are just as good. Owners of other work
write its file in one step, for the same reason.

An owner may note what it is running, such as a program that may take its job down with it. Its
death is then laid to that, and not to the whole span.

Listings serve to skip spans that are surely taken; creating a file decides. A stale listing
costs time and nothing else.
"""

import contextlib
import math
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple, get_args

from pydantic import Field

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import TASK_VARIABLE, End
from coordinate_eval.coordinator.run.claiming.decided import stopped
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.records import Record, Span

MAX_DEATHS = 5
"""A span on which this many owners died is left alone: it may be what kills its owners. A shard is
not: its owners die at ever fewer of its items, see `workers/open_shards.py`."""

MAX_ATTEMPTS = 10_000
"""Attempts at one span: more than any run makes."""

LedgerName = Literal[
    "outputs", "answers", "questions", "requests", "looks", "comparisons", "results", "estimates"
]

OF_DATASETS: frozenset[LedgerName] = frozenset({"requests", "results", "estimates", "comparisons"})
"""Ledgers of whole datasets, or runs. Each is done when it has a file `.json` or `.error`."""

LEDGERS: tuple[LedgerName, ...] = get_args(LedgerName)

ClaimEnd = Literal["released", "lost", "died", "given up", "doubled"]
"""The reasons why an attempt is over, in this order: its owner gave the span back; was ended by
something that is no work's fault, such as a preemption; died; found that the rest of the span ends
every owner; or is so slow that another owner makes the next attempt meanwhile. Only deaths count
against the span."""


class Claim(Record):
    """The owner of one attempt at a span."""

    owner: str
    task: str
    host: str
    pid: int
    time: float
    token: str

    @property
    def task_id(self) -> str:
        """Return the id of the owner's task, without its restarts."""
        return self.task.rsplit(".", 1)[0]


class Revocation(Record):
    """The end of an attempt that published nothing: its owner gave the span back, or ended."""

    cause: ClaimEnd
    time: float
    end: End | None = Field(default=None, description="of the owner's task, if it has ended")
    items: list[int] = Field(default=[], description="that are given up")


class OpenClaim(NamedTuple):
    """A claim that is not revoked, on a span that is not published."""

    span: Span
    attempt: int
    claim: Claim


def whole(dataset: str) -> Span:
    """Return the span that is a whole dataset in the ledgers of these, whatever its items are."""
    return Span(dataset, 0, 0)


def own_task() -> str:
    """Return this process's task, by which the supervisor knows whether it is alive."""
    return os.environ.get(TASK_VARIABLE, f"{os.uname().nodename}:{os.getpid()}")


class Ledger:
    """The claims on one kind of a run's work.

    - "outputs": shards, which trials answer.
    - "answers": portions of questions, which metric jobs answer.
    - "questions": those of a shard, by its last portion, which is written last.
    - "requests": datasets to build.
    - "results": datasets to score.
    - "estimates": datasets with a slice of the first signal to score.
    - "looks": the items up to the end of a dataset's stage, to be scored.
    - "comparisons": looks of all datasets, each by its number.

    What a decision has withdrawn counts as done: see `decided.py`.
    """

    def __init__(self, run: RunDir, name: LedgerName) -> None:
        self.run = run
        self.name = name

    def folder(self, dataset: str) -> Path:
        """Return the folder in which what is made of a dataset's spans appears."""
        return self.run.published_folder(self.name, "" if self.name in OF_DATASETS else dataset)

    def is_published(self, span: Span) -> bool:
        """Return whether the span is done: its result is there, or an error."""
        return any((self.folder(span.dataset) / name).exists() for name in self._marks(span))

    def unpublished(self, spans: Iterable[Span]) -> list[Span]:
        """Return the spans that are not yet done, in the order given."""
        listings: dict[str, frozenset[str]] = {}
        found = []
        used = stopped(self.run)
        for span in spans:
            if self._is_withdrawn(span, used):
                continue
            folder = "" if self.name in OF_DATASETS else span.dataset
            if folder not in listings:
                listings[folder] = _files.names(self.folder(folder))
            if listings[folder].isdisjoint(self._marks(span)):
                found.append(span)
        return found

    def _is_withdrawn(self, span: Span, used: Mapping[str, int]) -> bool:
        """Return whether nobody wants a span, given the items that are used of stopped datasets."""
        match self.name:
            case "outputs" | "questions" | "answers":
                return span.start >= used.get(span.dataset, math.inf)
            case "results":
                look = Span(span.dataset, 0, used.get(span.dataset, 0))
                return span.dataset in used and self.run.published("looks", look).exists()
            case "looks":
                over = self.run.decided.exists() and span.stop != used.get(span.dataset)
                return over or self.run.full.exists()
            case "comparisons":
                return self.run.decided.exists() or self.run.full.exists()
            case _:
                return False

    def _marks(self, span: Span) -> tuple[str, ...]:
        """Return the names of the files that say that a span is done."""
        if self.name in OF_DATASETS:
            return f"{span.dataset}.json", f"{span.dataset}.error"
        return (f"{span.stem}.jsonl",)

    def claim(self, span: Span, owner: str, task: str) -> int | None:
        """Claim the span. Return the attempt's number, or None if somebody else has the span."""
        claim = Claim(
            owner=owner,
            task=task,
            host=os.uname().nodename,
            pid=os.getpid(),
            time=time.time(),
            token=_files.token(),
        )
        if self._is_withdrawn(span, stopped(self.run)):
            return None
        for attempt in range(1, MAX_ATTEMPTS):
            path = self.run.claim(self.name, span, attempt)
            if not path.exists() and _files.create(path, claim.model_dump_json()):
                if self.unpublished([span]):
                    return attempt
                # An error or a decision may be taken back. The span must not be this owner's then.
                self.revoke(span, attempt, "released")
                return None
            if not self.run.revocation(self.name, span, attempt).exists():
                return None
        return None

    def claimable(self, spans: Iterable[Span]) -> list[Span]:
        """Return the spans that look free and that do not end all of their owners."""
        return [
            span
            for span, attempt, is_open in self._last_attempts(spans)
            if not is_open and not self._ends_all(span, attempt)
        ]

    def suspects(self, spans: Iterable[Span]) -> Counter[Span]:
        """Return the spans on which owners died since the run was last resumed, and how many."""
        deaths = {span: self.deaths(span, last) for span, last, _ in self._last_attempts(spans)}
        return Counter({span: len(died) for span, died in deaths.items() if died})

    def open_claims(self, spans: Iterable[Span]) -> list[OpenClaim]:
        """Return the claims on unpublished spans that nobody has revoked."""
        found = []
        for span, attempt, is_open in self._last_attempts(spans):
            if is_open:
                path = self.run.claim(self.name, span, attempt)
                claim = _files.read_record_if_there(path, Claim)
                if claim is not None:
                    found.append(OpenClaim(span, attempt, claim))
        return found

    def claims_with_second_attempt(self, spans: Iterable[Span]) -> list[OpenClaim]:
        """Return the claims on unpublished spans whose owners may go on beside a second attempt."""
        found = []
        for span, last, is_open in self._last_attempts(spans):
            for attempt in range(1, last + 1 - is_open):
                path = self.run.revocation(self.name, span, attempt)
                end = _files.read_record_if_there(path, Revocation)
                path = self.run.claim(self.name, span, attempt)
                if end is not None and end.cause == "doubled":
                    claim = _files.read_record_if_there(path, Claim)
                    if claim is not None:
                        found.append(OpenClaim(span, attempt, claim))
        return found

    def count_deaths(self, span: Span, attempts: int | None = None) -> int:
        """Return how many owners of the span died since the run was last resumed.

        Deaths that are blamed on what was running do not count: see `deaths_while_running`.
        """
        if attempts is None:
            attempts = self._attempts(span)
        return sum(not running for running in self.deaths(span, attempts))

    def deaths(self, span: Span, attempts: int) -> list[str]:
        """Return what was running when each owner of the span died; an empty text if unknown.

        Only deaths since the run was last resumed count.
        """
        found = []
        for attempt, end in self._ends(span, attempts):
            running = self.run.running(self.name, span, attempt)
            note = _files.read(running).decode(errors="replace") if running.exists() else ""
            # Of an owner beside a second attempt nothing else tells that it has died.
            if end.cause == "died" or (end.cause == "doubled" and note):
                found.append(note)
        return found

    def count_lost(self, span: Span) -> int:
        """Return how many owners gave the span back for a reason that is no work's fault.

        Only those since the run was last resumed count, and none that somebody else ended.
        """
        ends = self._ends(span, self._attempts(span))
        return sum(end.cause == "lost" and end.end is None for _, end in ends)

    def has_second_attempt(self, span: Span) -> bool:
        """Return whether a second attempt was begun while the owner of the span went on."""
        return any(end.cause == "doubled" for _, end in self._ends(span, self._attempts(span)))

    def given_up(self, span: Span) -> list[int] | None:
        """Return the items of a span that end every owner, or None if it can be claimed again.

        There are none where the span is given up as a whole.
        """
        last = self._attempts(span)
        for _, end in self._ends(span, last):
            if end.cause == "given up":
                return end.items
        return [] if self._ends_all(span, last) else None

    def deaths_while_running(self, spans: Iterable[Span]) -> Counter[str]:
        """Return how many owners of unpublished spans died while each of these was running.

        Like for `count_deaths`, only deaths since the run was last resumed count.
        """
        deaths: Counter[str] = Counter()
        for span, last, _ in self._last_attempts(spans):
            deaths.update(filter(None, self.deaths(span, last)))
        return deaths

    def revoke(
        self,
        span: Span,
        attempt: int,
        cause: ClaimEnd,
        end: End | None = None,
        items: Iterable[int] = (),
    ) -> None:
        """End an attempt, so that the span can be claimed again. Doing it twice does no harm.

        `end` is how the owner's task ended, if it has, and `items` are those that are given up.
        """
        over = Revocation(cause=cause, time=time.time(), end=end, items=list(items))
        _files.create(self.run.revocation(self.name, span, attempt), over.model_dump_json())

    @contextlib.contextmanager
    def held(self, span: Span, attempt: int) -> Iterator[None]:
        """Give the span back if the block ends with an exception."""
        try:
            yield
        except BaseException:
            self.revoke(span, attempt, "released")
            raise

    def earlier_lines(self, span: Span, attempt: int) -> Iterator[bytes]:
        """Yield the whole lines that the attempts before this one wrote."""
        for earlier in range(1, attempt):
            yield from _files.whole_lines(self.run.unpublished(self.name, span, earlier))

    def _attempts(self, span: Span) -> int:
        """Return the number of the last attempt at a span; 0 if there is none."""
        return _last_attempt(_files.names(self.run.claims_folder(self.name, span.dataset)), span)

    def _ends(self, span: Span, attempts: int) -> Iterator[tuple[int, Revocation]]:
        """Yield the attempts at a span that ended since the run was last resumed."""
        if not attempts:
            return
        since = _files.modified(self.run.resumed)
        for attempt in range(1, attempts + 1):
            path = self.run.revocation(self.name, span, attempt)
            end = _files.read_record_if_there(path, Revocation)
            if end is not None and _files.modified(path) >= since:
                yield attempt, end

    def _ends_all(self, span: Span, attempts: int) -> bool:
        """Return whether what is left of a span has ended too many owners."""
        if self.name != "outputs":
            return attempts >= MAX_DEATHS and self.count_deaths(span, attempts) >= MAX_DEATHS
        return any(end.cause == "given up" for _, end in self._ends(span, attempts))

    def _last_attempts(self, spans: Iterable[Span]) -> Iterator[tuple[Span, int, bool]]:
        """Yield each unpublished span, its last attempt (0 for none), and whether that is open."""
        listings: dict[str, frozenset[str]] = {}
        for span in self.unpublished(spans):
            if span.dataset not in listings:
                folder = self.run.claims_folder(self.name, span.dataset)
                listings[span.dataset] = _files.names(folder)
            listing = listings[span.dataset]
            last = _last_attempt(listing, span)
            yield span, last, last > 0 and f"{span.stem}.{last}.revoked" not in listing


class AttemptWriter:
    """Appends the lines of one attempt, and publishes them when all are there."""

    def __init__(self, ledger: Ledger, span: Span, attempt: int) -> None:
        self._ledger, self._span, self._attempt = ledger, span, attempt
        self._path = ledger.run.unpublished(ledger.name, span, attempt)
        _files.make_folder(self._path.parent)
        self._file = _files.open_to_write(self._path)
        self._note: BinaryIO | None = None

    def write(self, line: bytes | str) -> None:
        """Append one line and hand it to the operating system."""
        self._file.write(line.encode() if isinstance(line, str) else line)
        self._file.flush()

    def note_running(self, what: str) -> None:
        """Note what the owner is going to run, or with an empty text that it has ended."""
        if self._note is None:
            path = self._ledger.run.running(self._ledger.name, self._span, self._attempt)
            self._note = _files.open_to_write(path)
        self._note.seek(0)
        self._note.truncate()
        self._note.write(what.encode())
        self._note.flush()

    def publish(self) -> bool:
        """Make the lines durable and publish them. Return False if another attempt was first."""
        os.fsync(self._file.fileno())
        self.close()
        run, name, span = self._ledger.run, self._ledger.name, self._span
        won = _files.publish(self._path, run.published(name, span))
        for earlier in range(1, self._attempt):
            end = _files.read_record_if_there(run.revocation(name, span, earlier), Revocation)
            # A slow owner is alive, and removes its lines itself: on NFS they would be gone for it.
            if end is None or end.cause != "doubled":
                run.unpublished(name, span, earlier).unlink(missing_ok=True)
        return won

    def drop(self) -> None:
        """Remove the lines: another attempt was published. This one need not be complete.

        Where storage fails for a moment they stay, which does no harm.
        """
        with contextlib.suppress(OSError):
            self.close()
            self._path.unlink(missing_ok=True)

    def give_back(self, cause: ClaimEnd, items: Iterable[int] = ()) -> None:
        """End the attempt. Its lines stay, for whoever claims the span next.

        `items` are those that are given up.
        """
        self.close()
        self._ledger.revoke(self._span, self._attempt, cause, items=items)

    def close(self) -> None:
        """Close the files. The attempt goes on; another process may make the next one."""
        self._file.close()
        if self._note is not None:
            self._note.close()


def _last_attempt(listing: frozenset[str], span: Span) -> int:
    attempt = 0
    while f"{span.stem}.{attempt + 1}.json" in listing:
        attempt += 1
    return attempt
