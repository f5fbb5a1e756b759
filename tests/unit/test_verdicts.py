"""Verdicts that count only when they come again alone."""

import pytest

from coordinate_eval.coordinator.workers import metric
from coordinate_eval.coordinator.workers.metric import may_be_scarcity
from coordinate_eval.records import Answer, Question, QuestionKind

QUESTION = Question(id="q", kind=QuestionKind.PROGRAM, content="", timeout_seconds=10.0)


def verdict(result: str, cpu_seconds: float = 0.0) -> Answer:
    return Answer(
        id="q", passed=result == "passed", result=result, seconds=1.0, cpu_seconds=cpu_seconds
    )


@pytest.mark.parametrize(
    "result",
    [
        "failed: MemoryError",
        "failed: MemoryError: Unable to allocate 8.00 GiB",
        "failed: RuntimeError: can't start new thread",
        "failed: RuntimeError: can't allocate lock",
        "failed: BlockingIOError: [Errno 11] Resource temporarily unavailable",
        "failed: OSError: [Errno 12] Cannot allocate memory",
        "failed: RuntimeError: no fork: [Errno 11] Resource temporarily unavailable",
        "failed: OSError: [Errno 23] Too many open files in system",
        "failed: OSError: [Errno 28] No space left on device: 'x'",
        "failed: OSError: [Errno 122] Disk quota exceeded",
        "failed: TimeoutError",
        "failed: TimeoutExpired: Command 'x' timed out after 1 seconds",
        "failed: BrokenProcessPool: A process in the process pool was terminated abruptly",
        "failed: its process ended before the program did (exit status 137)",
        "failed: its process ended before the program did (exit status -9)",
    ],
)
def test_a_want_of_resources_may_be_the_machines(result: str) -> None:
    assert may_be_scarcity(QUESTION, verdict(result))


@pytest.mark.parametrize(
    "result",
    [
        "passed",
        "failed: AssertionError",
        "failed: AssertionError: MemoryError",
        "failed: ValueError: [11]",
        "failed: OSError: [Errno 2] No such file or directory",
        "failed: OSError: [Errno 113] No route to host",
        "failed: RuntimeError: dictionary changed size",
        "failed: TimeoutErrors",
        "failed: it used more than 3.5 GiB of memory in all",
        "failed: the program wrote where only its result goes",
        metric.DEADLY,
    ],
)
def test_what_a_program_does_itself_is_its_own_fault(result: str) -> None:
    assert not may_be_scarcity(QUESTION, verdict(result))


@pytest.mark.parametrize(
    ("cpu_seconds", "scarce"), [(0.0, True), (8.9, True), (9.0, False), (40.0, False)]
)
def test_a_timeout_counts_at_once_if_the_program_had_a_core(
    cpu_seconds: float, scarce: bool
) -> None:
    assert may_be_scarcity(QUESTION, verdict("timed out", cpu_seconds)) == scarce
