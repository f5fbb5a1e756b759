"""A stand-in for the metric `code_eval` that executes nothing.

Tasks with generated programs load `evaluate.load("code_eval")`, which downloads the metric from a
hub and executes the programs in this process. Some tasks run it as soon as they are imported.
After `stand_in`, that call returns a `CodeEval` instead, whose answers come from an *oracle*:

- by default every program passes, which suits the test run on import;
- `Collector` records the programs, as questions for the sandbox;
- `AnswerBook` looks up the sandbox's answers.

What a judge is asked about answers goes the same way: see `judged_task.py`.

All other metrics are loaded as usual.
"""

import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from coordinate_eval.evaluators.around_import import around_import
from coordinate_eval.evaluators.sandbox.toolchains import language as known_language
from coordinate_eval.records import PYTHON, Answer, Question, QuestionKind

Oracle = Callable[[Question], Answer]
"""A function that answers a question."""

_METRIC = "code_eval"
# The default of the real metric.
_DEFAULT_KS = (1, 10, 100)


def answer_to(question: Question, *, passed: bool, result: str) -> Answer:
    """Return an answer of the program's own, which nothing was run for."""
    return Answer(id=question.id, passed=passed, result=result, seconds=0.0)


def _everything_passes(question: Question) -> Answer:
    return answer_to(question, passed=True, result="passed")


_oracle: ContextVar[Oracle] = ContextVar("_oracle", default=_everything_passes)


def program_question(program: str, timeout_seconds: float, language: str = PYTHON) -> Question:
    """Return the question for a program. Its id is a hash of all that it says."""
    known_by = [QuestionKind.PROGRAM.value, program, timeout_seconds]
    known_by += [language] * (language != PYTHON)
    return Question(
        id=hashlib.sha256(json.dumps(known_by, separators=(",", ":")).encode()).hexdigest(),
        kind=QuestionKind.PROGRAM,
        content=program,
        timeout_seconds=timeout_seconds,
        language=language,
    )


class Collector:
    """An oracle that records every question and fails all of them."""

    def __init__(self) -> None:
        self._questions: dict[str, Question] = {}

    def __call__(self, question: Question) -> Answer:
        """Record the question and return a failure."""
        self._questions.setdefault(question.id, question)
        return answer_to(question, passed=False, result="failed: not run yet")

    @property
    def questions(self) -> list[Question]:
        """Return the questions in the order in which they were first asked, without duplicates."""
        return list(self._questions.values())


class AnswerBook:
    """An oracle that looks up answers.

    A question without an answer fails, and its id is added to `missing`, which the caller must
    check afterwards. An exception would not do: the code of a task could catch it and return a
    wrong score.
    """

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self._answers = answers
        self._toolchains: dict[str, set[str]] = {}
        self.missing: set[str] = set()

    @property
    def toolchains(self) -> dict[str, str]:
        """Return the versions of the compilers behind the answers, by language."""
        return {name: ", ".join(sorted(found)) for name, found in self._toolchains.items()}

    def __call__(self, question: Question) -> Answer:
        """Return the answer to this question."""
        answer = self._answers.get(question.id)
        if answer is None:
            self.missing.add(question.id)
            return answer_to(question, passed=False, result="failed: never answered")
        if answer.toolchain:
            self._toolchains.setdefault(question.language, set()).add(answer.toolchain)
        return answer


@contextmanager
def answered_by(oracle: Oracle) -> Iterator[None]:
    """Use `oracle` for every question inside the block."""
    token = _oracle.set(oracle)
    try:
        yield
    finally:
        _oracle.reset(token)


def ask(question: Question) -> Answer:
    """Return the answer to a question."""
    return _oracle.get()(question)


class CodeEval:
    """The object that `evaluate.load("code_eval")` returns after `stand_in`."""

    def compute(
        self,
        *,
        predictions: Sequence[Sequence[str]],
        references: Sequence[str],
        k: int | Sequence[int] = _DEFAULT_KS,
        timeout: float | None = None,
        language: str = PYTHON,
        **_tuning: Any,  # noqa: ANN401  the number of workers and the like, unused as nothing runs
    ) -> tuple[dict[str, float], dict[int, list[tuple[int, dict[str, Any]]]]]:
        """Run each candidate of each task, followed by the task's test.

        `language` is one of the sandbox's `LANGUAGES`; the real metric knows only Python. Its time
        limit is used if no `timeout` is given.

        `predictions` holds the candidates of each task and `references` its test. Returns the same
        as the real metric: `{"pass@k": mean over tasks}` for every `k` for which each task has
        enough candidates, and the verdicts by task.
        """
        seconds = float(known_language(language).timeout_seconds if timeout is None else timeout)
        verdicts: dict[int, list[tuple[int, dict[str, Any]]]] = {}
        for task, (candidates, test) in enumerate(zip(predictions, references, strict=True)):
            verdicts[task] = []
            for completion, candidate in enumerate(candidates):
                answer = ask(program_question(f"{candidate}\n{test}", seconds, language))
                entry = {
                    "task_id": task,
                    "passed": answer.passed,
                    "result": answer.result,
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
    """Return the chance that at least one of `k` samples is correct: 1 - C(n - c, k) / C(n, k).

    This is the unbiased estimator of "Evaluating Large Language Models Trained on Code" (2021).
    The quotient is computed as a product, which does not overflow.
    """
    if samples - correct < k:
        return 1.0
    all_wrong = 1.0
    for drawn in range(samples - correct + 1, samples + 1):
        all_wrong *= 1.0 - k / drawn
    return 1.0 - all_wrong


@functools.cache
def stand_in() -> None:
    """Make `evaluate.load` return a `CodeEval` for `code_eval`, from now on in this process."""
    around_import("evaluate", _standing_in)


@contextmanager
def _standing_in() -> Iterator[None]:
    yield
    import evaluate

    real = evaluate.load

    def load(path: str, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  any metric there is
        if str(path).rpartition("/")[2] == _METRIC:
            return CodeEval()
        return real(path, *args, **kwargs)

    evaluate.load = load


def asks_code_eval(function: object) -> bool:
    """Return whether a function of a task may use `code_eval`.

    It may if it is the metric's own method, if its module holds the metric, or if it names the
    metric, in order to load it when it is called.
    """
    if isinstance(getattr(function, "__self__", None), CodeEval):
        return True
    module_globals = getattr(function, "__globals__", {})
    if any(isinstance(value, CodeEval) for value in module_globals.values()):
        return True
    return _METRIC in getattr(getattr(function, "__code__", None), "co_consts", ())
