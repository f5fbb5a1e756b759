"""The claim protocol: one owner at a time, nothing lost, the first complete attempt stays."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import End
from coordinate_eval.coordinator.incidents.remedies import NOT_BY_ITSELF, claim_end
from coordinate_eval.coordinator.run.claiming.claims import (
    MAX_DEATHS,
    OF_DATASETS,
    AttemptWriter,
    ClaimEnd,
    Ledger,
    LedgerName,
    whole,
)
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.records import Span

SPAN = Span("d", 0, 10)


def ledger(tmp_path: Path) -> Ledger:
    return Ledger(RunDir(tmp_path), "outputs")


def test_a_claim_has_one_owner(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    assert book.claim(SPAN, "a", "1.0") == 1
    assert book.claim(SPAN, "b", "2.0") is None
    assert book.claimable([SPAN]) == []
    (held,) = book.open_claims([SPAN])
    assert (held.attempt, held.claim.owner, held.claim.task) == (1, "a", "1.0")


def test_of_many_at_once_one_wins(tmp_path: Path) -> None:
    won: list[int] = []
    barrier = threading.Barrier(16)

    def race() -> None:
        book = ledger(tmp_path)
        barrier.wait()
        attempt = book.claim(SPAN, "x", "1.0")
        if attempt is not None:
            won.append(attempt)

    in_threads(race, 16)
    assert won == [1]


def test_many_revocations_at_once_free_a_span_once(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    assert book.claim(SPAN, "a", "1.0") == 1
    in_threads(lambda: ledger(tmp_path).revoke(SPAN, 1, "died"), 8)
    assert book.claimable([SPAN]) == [SPAN]
    assert book.claim(SPAN, "b", "2.0") == 2
    assert book.claim(SPAN, "c", "3.0") is None


def test_a_later_attempt_finds_whole_lines_only(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    attempt = book.claim(SPAN, "a", "1.0")
    assert attempt is not None
    writer = AttemptWriter(book, SPAN, attempt)
    writer.write("one\n")
    writer.write("two\ntorn")
    writer.give_back("released")
    again = book.claim(SPAN, "b", "2.0")
    assert again == 2
    assert list(book.earlier_lines(SPAN, again)) == [b"one\n", b"two\n"]


def test_the_first_complete_attempt_stays(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    first = book.claim(SPAN, "a", "1.0")
    assert first is not None
    slow = AttemptWriter(book, SPAN, first)
    slow.write("slow\n")
    book.revoke(SPAN, first, "died")
    second = book.claim(SPAN, "b", "2.0")
    assert second is not None
    quick = AttemptWriter(book, SPAN, second)
    quick.write("quick\n")
    assert quick.publish()
    assert not slow.publish()
    assert book.run.published("outputs", SPAN).read_text() == "quick\n"
    assert [p.name for p in (tmp_path / "outputs" / "d").iterdir()] == ["0-10.jsonl"]


def test_lines_of_an_owner_beside_a_second_attempt_stay_while_it_lives(tmp_path: Path) -> None:
    """A network file system takes a file away under a living process: its next write would fail."""
    book = ledger(tmp_path)
    lines = [book.run.unpublished("outputs", SPAN, attempt) for attempt in (1, 2)]
    causes: list[ClaimEnd] = ["died", "doubled"]
    for attempt, cause in enumerate(causes, 1):
        assert book.claim(SPAN, "a", "1.0") == attempt
        writer = AttemptWriter(book, SPAN, attempt)
        writer.write("slow\n")
        book.revoke(SPAN, attempt, cause)
    assert book.claim(SPAN, "b", "2.0") == 3
    quick = AttemptWriter(book, SPAN, 3)
    quick.write("quick\n")
    assert quick.publish()
    assert [path.exists() for path in lines] == [False, True]
    writer.write("still slow\n")
    assert lines[1].read_text() == "slow\nstill slow\n"
    assert not writer.publish()
    assert not lines[1].exists(), "its owner removes it"
    assert book.run.published("outputs", SPAN).read_text() == "quick\n"


def test_a_span_that_kills_is_left_alone(tmp_path: Path) -> None:
    book = Ledger(RunDir(tmp_path), "answers")
    for attempt in range(1, MAX_DEATHS + 1):
        assert book.claimable([SPAN]) == [SPAN]
        assert book.given_up(SPAN) is None
        assert book.claim(SPAN, "a", "1.0") == attempt
        book.revoke(SPAN, attempt, "died")
    assert book.claimable([SPAN]) == []
    assert book.count_deaths(SPAN) == MAX_DEATHS
    assert book.given_up(SPAN) == []


def test_items_that_end_every_owner_are_given_up_at_once(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    assert book.claim(SPAN, "a", "1.0") == 1
    book.revoke(SPAN, 1, "given up", items=[3])
    assert book.claimable([SPAN]) == []
    assert book.given_up(SPAN) == [3]
    assert not book.suspects([SPAN])


@pytest.mark.parametrize(
    ("cause", "end"),
    [("released", None), *((claim_end(end), end) for end in sorted(NOT_BY_ITSELF))],
)
def test_only_what_ends_by_itself_counts_against_a_span(
    tmp_path: Path, cause: ClaimEnd, end: End | None
) -> None:
    book = ledger(tmp_path)
    for attempt in range(1, 2 * MAX_DEATHS):
        assert book.claim(SPAN, "a", "1.0") == attempt
        book.revoke(SPAN, attempt, cause, end)
    assert book.claimable([SPAN]) == [SPAN]
    assert book.count_deaths(SPAN) == 0
    for end_ in set(End) - NOT_BY_ITSELF:
        assert claim_end(end_) == "died"


@pytest.mark.parametrize("name", sorted(OF_DATASETS))
@pytest.mark.parametrize("ending", ["json", "error"])
def test_a_dataset_is_done_when_its_file_is_there(
    tmp_path: Path, name: LedgerName, ending: str
) -> None:
    book = Ledger(RunDir(tmp_path), name)
    a, b = whole("a"), whole("b")
    assert book.claim(a, "o", "1.0") == 1
    assert book.claim(a, "p", "2.0") is None
    assert book.unpublished([a, b]) == [a, b]
    assert book.claimable([a, b]) == [b]
    _files.write(book.folder("a") / f"a.{ending}", "")
    assert book.is_published(a)
    assert book.unpublished([a, b]) == [b]
    book.revoke(a, 1, "died")
    assert book.claim(a, "p", "2.0") is None
    assert book.open_claims([a, b]) == []


def test_an_error_that_is_removed_leaves_the_dataset_to_anybody(tmp_path: Path) -> None:
    book, span = Ledger(RunDir(tmp_path), "results"), whole("a")
    assert book.claim(span, "a", "1.0") == 1
    error = book.folder("a") / "a.error"
    _files.write(error, "no")
    book.revoke(span, 1, "released")
    assert book.claim(span, "one that has looked before", "2.0") is None
    error.unlink()
    assert book.claimable([span]) == [span]
    assert book.claim(span, "b", "3.0") is not None


def test_what_ends_an_owner_gives_its_span_back(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    assert book.claim(SPAN, "a", "1.0") == 1
    with pytest.raises(KeyboardInterrupt), book.held(SPAN, 1):
        raise KeyboardInterrupt
    assert book.count_deaths(SPAN) == 0
    assert book.claim(SPAN, "b", "2.0") == 2
    with book.held(SPAN, 2):
        pass
    assert book.claimable([SPAN]) == []


def in_threads(work: Callable[[], None], count: int) -> None:
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_spans_that_nobody_has_claimed_cost_no_look_at_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Path] = []

    def modified(path: Path) -> float:
        looked.append(path)
        return 0.0

    monkeypatch.setattr(_files, "modified", modified)
    spans = [Span("d", n, n + 1) for n in range(100)]
    assert Ledger(RunDir(tmp_path), "outputs").claimable(spans) == spans
    assert not looked
