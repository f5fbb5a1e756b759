"""Metric jobs that die at any instruction: each question gets one answer, and the right one."""

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st
from tests.random_examples import examples

from coordinate_eval import _files
from coordinate_eval.coordinator.run.claiming.claims import MAX_DEATHS, Ledger
from coordinate_eval.coordinator.run.claiming.work import Piece
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.workers import metric
from coordinate_eval.evaluators.sandbox.sandbox import Sandbox
from coordinate_eval.records import Answer, Question, QuestionKind, Span

PORTION = Span("d", 0, 4)
NAMES = "abcd"


class Machine:
    """A sandbox in which some programs end the job that runs them."""

    def __init__(self, deadly: set[str]) -> None:
        self._deadly = deadly

    def run_many(self, questions: Iterable[Question], workers: int) -> Iterator[Answer]:
        for question in questions:
            if question.id in self._deadly:
                os._exit(9)
            yield Answer(id=question.id, passed=True, result="passed", seconds=1.0)


def answer(run_dir: RunDir, attempt: int, deadly: set[str], lines: int) -> int:
    """A metric job's work on the portion, killed before its `lines`-th line. Its exit status."""
    child = os.fork()
    if child == 0:
        left = lines

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal left
            if "coordinate_eval" not in frame.f_code.co_filename:
                return None
            if event == "line":
                left -= 1
                if left == 0:
                    os._exit(9)
            return trace

        sys.settrace(trace)
        sandbox = cast("Sandbox", Machine(deadly))
        piece = Piece(Ledger(run_dir, "answers"), PORTION, attempt)
        metric.MetricJob(sandbox).do(piece)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@given(
    deadly=st.sets(st.sampled_from(NAMES)),
    deaths=st.lists(st.integers(1, 400), max_size=MAX_DEATHS - 1),
)
@examples(8)
def test_nothing_is_lost_and_nothing_doubled(deadly: set[str], deaths: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run_dir = RunDir(Path(folder))
        ledger = Ledger(run_dir, "answers")
        lines = [
            Question(id=name, kind=QuestionKind.PROGRAM, content="", timeout_seconds=1.0).line()
            for name in NAMES
        ]
        _files.write(run_dir.questions(PORTION), "".join(lines))
        blamed = dict.fromkeys(NAMES, 0)
        died = 0
        while not ledger.is_published(PORTION):
            assert ledger.claimable([PORTION])
            attempt = ledger.claim(PORTION, "m", f"{died}.0")
            assert attempt is not None
            if answer(run_dir, attempt, deadly, deaths[died] if died < len(deaths) else 0):
                died += 1
                running = run_dir.running("answers", PORTION, attempt)
                if running.exists() and running.read_text():
                    blamed[running.read_text()] += 1
            for claim in ledger.open_claims([PORTION]):
                ledger.revoke(claim.span, claim.attempt, "died")
        published = _files.lines(run_dir.published("answers", PORTION))
        answers = [Answer.model_validate_json(line) for line in published]
        assert sorted(found.id for found in answers) == sorted(NAMES)
        for found in answers:
            assert found.passed or found.result == metric.DEADLY
            assert found.passed or blamed[found.id] >= metric.MAX_DEATHS_OF_JOBS
            assert found.passed == (found.id not in deadly) or len(deaths) >= 3
        assert died <= len(deaths) + metric.MAX_DEATHS_OF_JOBS * len(deadly)
