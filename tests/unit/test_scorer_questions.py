"""The questions that the scorer writes for metric jobs."""

from pathlib import Path

import pytest

from coordinate_eval import _files
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.workers import scorer
from coordinate_eval.records import Question, QuestionKind, Span

PORTIONS = [Span("d", 0, 2), Span("d", 2, 4), Span("d", 4, 6)]


def question(name: str) -> Question:
    return Question(id=name, kind=QuestionKind.PROGRAM, content=name, timeout_seconds=1)


def written(run_dir: RunDir) -> list[list[str]]:
    return [
        [Question.model_validate_json(line).id for line in _files.lines(run_dir.questions(portion))]
        for portion in PORTIONS
    ]


def test_every_question_is_in_one_portion(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    scorer.write_questions(run_dir, PORTIONS, [question(name) for name in "abcd"])
    assert written(run_dir) == [["a"], ["b"], ["c", "d"]]


def test_what_a_killed_scorer_wrote_stays_and_nothing_is_left_out(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    _files.write(run_dir.questions(PORTIONS[0]), question("a").line() + question("x").line())
    # A task's own code may give them in another order the next time, or others.
    scorer.write_questions(run_dir, PORTIONS, [question(name) for name in "fedcba"])
    assert written(run_dir) == [["a", "x"], ["c", "d"], ["e", "f", "b"]]


@pytest.mark.parametrize("first", range(4))
def test_two_scorers_at_once_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """The second one works while the first is held up before its next portion."""
    run_dir = RunDir(tmp_path)
    questions = [question(name) for name in "fedcba"]
    create = _files.create
    created: list[Path] = []

    def held_up(path: Path, text: str) -> bool:
        if len(created) == first:
            monkeypatch.setattr(_files, "create", create)
            scorer.write_questions(run_dir, PORTIONS, questions[::-1])
        created.append(path)
        return create(path, text)

    monkeypatch.setattr(_files, "create", held_up)
    scorer.write_questions(run_dir, PORTIONS, questions)
    assert written(run_dir) == [["a", "b"], ["c", "d"], ["e", "f"]]
