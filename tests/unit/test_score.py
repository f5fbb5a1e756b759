"""What the scorer writes for metric jobs."""

from pathlib import Path

from coordinate_eval.coordinator import files, score
from coordinate_eval.coordinator.rundir import RunDir, Span
from coordinate_eval.records import Question, QuestionKind

PORTIONS = [Span("d", 0, 2), Span("d", 2, 4), Span("d", 4, 6)]


def question(name: str) -> Question:
    return Question(id=name, kind=QuestionKind.PROGRAM, content=name, timeout_seconds=1)


def written(run_dir: RunDir) -> list[list[str]]:
    return [
        [Question.model_validate_json(line).id for line in files.lines(run_dir.questions(portion))]
        for portion in PORTIONS
    ]


def test_every_question_is_in_one_portion(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    score.write_questions(run_dir, PORTIONS, [question(name) for name in "abcd"])
    assert written(run_dir) == [["a"], ["b"], ["c", "d"]]


def test_what_a_killed_scorer_wrote_stays_and_nothing_is_left_out(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    files.write(run_dir.questions(PORTIONS[0]), question("a").line() + question("b").line())
    # A task's own code may give them in another order the next time.
    score.write_questions(run_dir, PORTIONS, [question(name) for name in "fedcba"])
    assert written(run_dir) == [["a", "b"], ["f", "e"], ["d", "c"]]
