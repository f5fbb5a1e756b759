"""The `code_eval` metric with the execution taken out of it.

Tasks that run generated programs get them judged by `evaluate.load("code_eval")`, which lives on
a hub and executes what it is given, some of them already on import. While `stand_in` is active
that load returns `CodeEval` instead, whose verdicts come from a *judge*: by default everything
passes (the trial run of a task's import), `Collector` writes down what would have to be run, and
`AnswerBook` looks up what a sandbox found. Every other metric is loaded as ever.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from coordinate_eval.records import Answer, Question, QuestionKind

Verdict = tuple[bool, str]
"""Whether a program passed, and 'passed', 'timed out' or 'failed: …'."""

Judge = Callable[[str, float], Verdict]
"""From a program and its time limit in seconds to a verdict."""

_METRIC = "code_eval"
_DEFAULT_TIMEOUT_SECONDS = 3.0  # of the metric that is stood in for
_DEFAULT_KS = (1, 10, 100)  # likewise


def _everything_passes(program: str, timeout_seconds: float) -> Verdict:
    return True, "passed"


_judge: ContextVar[Judge] = ContextVar("_judge", default=_everything_passes)


def program_question(program: str, timeout_seconds: float) -> Question:
    """The question whether a program passes, known by its content."""
    known_by = [QuestionKind.PROGRAM.value, program, timeout_seconds]
    return Question(
        id=hashlib.sha256(json.dumps(known_by, separators=(",", ":")).encode()).hexdigest(),
        kind=QuestionKind.PROGRAM,
        content=program,
        timeout_seconds=timeout_seconds,
    )


class Collector:
    """A judge that writes every question down and fails all programs."""

    def __init__(self) -> None:
        self._questions: dict[str, Question] = {}

    def __call__(self, program: str, timeout_seconds: float) -> Verdict:
        """Write it down."""
        question = program_question(program, timeout_seconds)
        self._questions.setdefault(question.id, question)
        return False, "failed: not run yet"

    @property
    def questions(self) -> list[Question]:
        """What was asked, each once, in the order of asking."""
        return list(self._questions.values())


class AnswerBook:
    """A judge that looks answers up.

    An unknown program fails and is counted in `missing`, for the caller to look at afterwards:
    an exception here could be swallowed by the code of a task and end as a wrong score.
    """

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self._answers = answers
        self.missing: set[str] = set()

    def __call__(self, program: str, timeout_seconds: float) -> Verdict:
        """Look it up."""
        identifier = program_question(program, timeout_seconds).id
        answer = self._answers.get(identifier)
        if answer is None:
            self.missing.add(identifier)
            return False, "failed: never answered"
        return answer.passed, answer.result


@contextmanager
def judged_by(judge: Judge) -> Iterator[None]:
    """Let `judge` decide about every program inside the block."""
    token = _judge.set(judge)
    try:
        yield
    finally:
        _judge.reset(token)


class CodeEval:
    """What `evaluate.load("code_eval")` returns while tasks are ours."""

    def compute(
        self,
        *,
        predictions: Sequence[Sequence[str]],
        references: Sequence[str],
        k: int | Sequence[int] = _DEFAULT_KS,
        timeout: float = _DEFAULT_TIMEOUT_SECONDS,
        **_tuning: Any,  # noqa: ANN401  the number of workers and its like: nothing runs here
    ) -> tuple[dict[str, float], dict[int, list[tuple[int, dict[str, Any]]]]]:
        """Judge each candidate of each task followed by its test.

        `predictions` holds the candidates of every task, `references` its test. Returns
        `{"pass@k": mean over tasks}` for those `k` that every task has candidates for, and per
        task its verdicts, as the metric does.
        """
        judge = _judge.get()
        verdicts: dict[int, list[tuple[int, dict[str, Any]]]] = {}
        for task, (candidates, test) in enumerate(zip(predictions, references, strict=True)):
            verdicts[task] = []
            for completion, candidate in enumerate(candidates):
                passed, result = judge(f"{candidate}\n{test}", float(timeout))
                entry = {
                    "task_id": task,
                    "passed": passed,
                    "result": result,
                    "completion_id": completion,
                }
                verdicts[task].append((completion, entry))
        counts = [
            (len(entries), sum(entry["passed"] for _, entry in entries))
            for entries in verdicts.values()
        ]
        ks = [k] if isinstance(k, int) else list(k)
        scores = {
            f"pass@{wanted}": sum(pass_at(wanted, n, c) for n, c in counts) / len(counts)
            for wanted in ks
            if counts and all(n >= wanted for n, _ in counts)
        }
        return scores, verdicts


def pass_at(k: int, samples: int, correct: int) -> float:
    """Chance that one of `k` of the samples is correct: 1 - C(n - c, k) / C(n, k).

    The unbiased estimator of "Evaluating Large Language Models Trained on Code" (2021), with the
    quotient written as a product, which does not overflow.
    """
    if samples - correct < k:
        return 1.0
    all_wrong = 1.0
    for drawn in range(samples - correct + 1, samples + 1):
        all_wrong *= 1.0 - k / drawn
    return 1.0 - all_wrong


@contextmanager
def stand_in() -> Iterator[None]:
    """Have `evaluate.load` return a `CodeEval` for `code_eval` inside the block."""
    import evaluate

    real = evaluate.load

    def load(path: str, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  any metric there is
        if str(path).rpartition("/")[2] == _METRIC:
            return CodeEval()
        return real(path, *args, **kwargs)

    evaluate.load = load
    try:
        yield
    finally:
        evaluate.load = real


def asks_code_eval(function: object) -> bool:
    """Whether a function of a task may ask `code_eval`.

    It does when it is the metric's own method, when its module holds the metric, or when it
    names the metric, to load it at the last moment.
    """
    if isinstance(getattr(function, "__self__", None), CodeEval):
        return True
    module_globals = getattr(function, "__globals__", {})
    if any(isinstance(value, CodeEval) for value in module_globals.values()):
        return True
    return _METRIC in getattr(getattr(function, "__code__", None), "co_consts", ())
