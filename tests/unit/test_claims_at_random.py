"""Claims in any order of what their owners do: one owner at a time, and nothing is lost."""

import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule
from tests.random_examples import examples

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import End
from coordinate_eval.coordinator.incidents.remedies import NOT_BY_ITSELF, claim_end
from coordinate_eval.coordinator.run.claiming.claims import (
    MAX_DEATHS,
    AttemptWriter,
    Ledger,
    whole,
)
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.records import Span


class Protocol(RuleBasedStateMachine):
    """Workers claim, write, die, come back as orphans and publish in any order."""

    working = Bundle("working")

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.book = Ledger(RunDir(Path(self.folder.name)), "outputs")
        self.live: dict[Span, int] = {}
        self.published: dict[Span, bytes] = {}
        self.helped: set[tuple[Span, int]] = set()
        self.count = 0

    def teardown(self) -> None:
        self.folder.cleanup()

    @rule(target=working, start=st.integers(0, 3))
    def claim(self, start: int) -> tuple[Span, int, AttemptWriter] | None:
        span = Span("d", start, start + 1)
        self.count += 1
        attempt = self.book.claim(span, f"w{self.count}", f"{self.count}.0")
        if span in self.live or span in self.published:
            assert attempt is None or span not in self.live
            if span in self.published:
                assert attempt is None
        if attempt is None:
            return None
        assert span not in self.live
        self.live[span] = attempt
        writer = AttemptWriter(self.book, span, attempt)
        writer.write(f"{self.count}\n")
        return span, attempt, writer

    @rule(work=working)
    def die(self, work: tuple[Span, int, AttemptWriter] | None) -> None:
        if work is not None and self.live.get(work[0]) == work[1]:
            self.book.revoke(work[0], work[1], "died")
            del self.live[work[0]]

    @rule(target=working, work=working)
    def attempt_again(
        self, work: tuple[Span, int, AttemptWriter] | None
    ) -> tuple[Span, int, AttemptWriter] | None:
        """Another owner makes the next attempt. The first one goes on."""
        if work is None or self.live.get(work[0]) != work[1]:
            return None
        self.book.revoke(work[0], work[1], "doubled")
        self.helped.add((work[0], work[1]))
        del self.live[work[0]]
        assert self.book.count_deaths(work[0]) <= work[1] - 1
        span = work[0]
        self.count += 1
        attempt = self.book.claim(span, f"w{self.count}", f"{self.count}.0")
        assert (attempt is None) == (span in self.published)
        if attempt is None:
            return None
        self.live[span] = attempt
        return span, attempt, AttemptWriter(self.book, span, attempt)

    @rule(work=working)
    def publish(self, work: tuple[Span, int, AttemptWriter] | None) -> None:
        if work is None or work[2]._file.closed:
            return
        span, _, writer = work
        won = writer.publish()
        assert won == (span not in self.published)
        if won:
            self.published[span] = self.book.run.published("outputs", span).read_bytes()
        self.live.pop(span, None)

    @rule(work=working)
    def look(self, work: tuple[Span, int, AttemptWriter] | None) -> None:
        """An owner that sees another one's lines published removes its own."""
        if work is None or work[2]._file.closed or not self.book.is_published(work[0]):
            return
        work[2].drop()
        self.live.pop(work[0], None)
        assert not work[2]._path.exists()

    @rule()
    def see_who_goes_on(self) -> None:
        """Whoever has a second attempt beside it may go on until somebody publishes."""
        spans = [Span("d", start, start + 1) for start in range(4)]
        helped = {(h.span, h.attempt) for h in self.book.claims_with_second_attempt(spans)}
        assert helped == {each for each in self.helped if each[0] not in self.published}

    @invariant()
    def published_lines_never_change(self) -> None:
        for span, content in getattr(self, "published", {}).items():
            assert self.book.run.published("outputs", span).read_bytes() == content


Protocol.TestCase.settings = examples(40, steps=25)
TestProtocol = Protocol.TestCase


class WholeDatasets(RuleBasedStateMachine):
    """Workers score datasets: they finish, fail, die, are late, and errors are removed."""

    working = Bundle("working")

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.book = Ledger(RunDir(Path(self.folder.name)), "results")
        self.live: dict[Span, int] = {}
        self.results: dict[Span, str] = {}
        self.failed: set[Span] = set()
        self.deaths: Counter[Span] = Counter()
        self.count = 0

    def teardown(self) -> None:
        self.folder.cleanup()

    @rule(target=working, name=st.sampled_from("ab"))
    def claim(self, name: str) -> tuple[Span, int] | None:
        span = whole(name)
        self.count += 1
        looks_free = span in self.book.claimable([span])
        attempt = self.book.claim(span, f"w{self.count}", f"{self.count}.0")
        done = span in self.results or span in self.failed
        assert looks_free == (not done and span not in self.live and self.deaths[span] < MAX_DEATHS)
        assert (attempt is None) == (done or span in self.live)
        if attempt is None:
            return None
        self.live[span] = attempt
        return span, attempt

    @rule(work=working, end=st.sampled_from(End))
    def die(self, work: tuple[Span, int] | None, end: End) -> None:
        if work is not None and self.live.get(work[0]) == work[1]:
            self.book.revoke(*work, claim_end(end), end)
            self.deaths[work[0]] += end not in NOT_BY_ITSELF
            del self.live[work[0]]

    @rule(work=working)
    def finish(self, work: tuple[Span, int] | None) -> None:
        """Also one that was taken for dead."""
        if work is None:
            return
        span, attempt = work
        _files.create(self.book.folder(span.dataset) / f"{span.dataset}.json", f"{attempt}")
        self.results.setdefault(span, f"{attempt}")
        if self.live.get(span) == attempt:
            del self.live[span]

    @rule(work=working)
    def fail(self, work: tuple[Span, int] | None) -> None:
        if work is None or self.live.get(work[0]) != work[1] or work[0] in self.results:
            return
        span, attempt = work
        _files.write(self.book.folder(span.dataset) / f"{span.dataset}.error", "no")
        self.book.revoke(span, attempt, "released")
        self.failed.add(span)
        del self.live[span]

    @rule()
    def next_supervisor(self) -> None:
        """Errors are removed. What they concern can be claimed again, by whoever is there."""
        for span in self.failed:
            (self.book.folder(span.dataset) / f"{span.dataset}.error").unlink()
        self.failed.clear()

    @invariant()
    def results_never_change(self) -> None:
        for span, content in getattr(self, "results", {}).items():
            path = self.book.folder(span.dataset) / f"{span.dataset}.json"
            assert path.read_text() == content
            assert self.book.open_claims([span]) == []


WholeDatasets.TestCase.settings = examples(40, steps=25)
TestWholeDatasets = WholeDatasets.TestCase
