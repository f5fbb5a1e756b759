"""Tasks whose answers a judge rates: their own metrics are replaced by a rubric's.

The harness's `evaluate` still makes the results. Asking the judge is a look-up there, as running a
program is: see `code_eval.py`. Answers reach the judge as the model gave them: no filter of the
task is applied.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lm_eval.api.filter import Filter, FilterEnsemble
from lm_eval.api.task import ConfigurableTask, Task

from coordinate_eval import _files
from coordinate_eval.errors import UserError
from coordinate_eval.evaluators.harness.code_eval import ask
from coordinate_eval.evaluators.judged.baselines import BaselineAnswer
from coordinate_eval.evaluators.judged.prompts import (
    MOST_CHARACTERS,
    MOST_SECONDS,
    PLACEHOLDER,
    Prompts,
    TooLong,
    judge_question,
    rubric_digest,
)
from coordinate_eval.evaluators.judged.verdicts import (
    STYLE_CONTROLLED,
    Verdict,
    battles,
    differences,
    document_metrics,
    look_for_verdict,
    main_metric,
    metrics_of,
)
from coordinate_eval.records import DatasetResults, Question, Rubric, judge_name

MOST_VALUES = 100
"""Most values of a rubric's field `by`. Each value has scores of its own."""

_FILTER = "none"


@dataclass(frozen=True)
class Panel:
    """The judge and the baselines."""

    model: str = ""
    """The judge; empty where nobody asks."""
    revision: str = ""
    baselines: Path | None = None
    """Folder with the answers of baselines, a file for each dataset."""


NOBODY = Panel()


@dataclass
class Count:
    """The questions that a scoring asked, and the number without a verdict or refused.

    `odd` counts what else is odd about answers: why they have no verdict (`Lack`), those that were
    cut, and by parameter those that the judge gave without it.
    """

    questions: set[str] = field(default_factory=set)
    without_verdict: int = 0
    refused: int = 0
    left_out: int = 0
    odd: Counter[str] = field(default_factory=Counter)


class JudgedTask:
    """The rubric's side of one task."""

    def __init__(self, task: Task, dataset: str, rubric: Rubric, panel: Panel) -> None:
        """Replace the metrics and filters of a loaded task.

        Raises:
            ValueError: the task writes no text, or is of a class of its own.
        """
        if task.OUTPUT_TYPE != "generate_until" or not isinstance(task, ConfigurableTask):
            raise ValueError("a rubric needs a task with output_type generate_until")
        self._rubric, self._dataset, self._panel = rubric, dataset, panel
        self._judge = judge_name(panel.model, panel.revision)
        self._prompts = Prompts(rubric)
        self._turns = (task.config.metadata or {}).get("follow_ups")
        self._baseline: dict[str, list[str]] | None = None
        self.count = Count()
        self.example = ""
        self._metrics = metrics_of(rubric)
        self._aggregations = {name: found for name, (found, _) in self._metrics.items()}
        self._higher = {name: higher for name, (_, higher) in self._metrics.items()}
        task.UNSAFE_CODE = False  # what was, in the metrics that are replaced
        task._metric_fn_list, task._metric_fn_kwargs = {}, {}
        task._aggregation_list, task._higher_is_better = self._aggregations, self._higher
        task._filters = [FilterEnsemble(_FILTER, [_AsGiven])]

        def process_results(doc: Mapping[str, Any], results: Sequence[Any]) -> dict[str, Any]:
            return self.process(doc, results)

        task.config.process_results = process_results  # configurations are copied, but no function

    def check(self, documents: Sequence[Mapping[str, Any]]) -> list[str]:
        """Try all prompts with made-up answers. Return the ids of a pair's questions.

        The first prompt becomes the `example` of a question.

        Raises:
            UserError: the templates, or a field that the rubric names, do not suit a document.
        """
        ids = []
        groups: set[str] = set()
        for number, document in enumerate(documents):
            made_up = [PLACEHOLDER] * self._answers_of(document)
            try:
                for fields in self._sides(document, made_up, made_up):
                    for messages in self._filled(document, fields, number).values():
                        made = (
                            judge_question("", self._rubric, messages) if not self.example else None
                        )
                        self.example = made.content if made else self.example
            except TooLong as error:
                raise UserError(
                    f"rubric {self._rubric.name!r}: what the judge is told about "
                    f"{self._where(document, number)} takes more than {MOST_CHARACTERS:,} "
                    f"characters or {MOST_SECONDS:g} seconds to make"
                ) from error
            if self._rubric.pair:
                ids.append(self._id(document, number))
            if (by := self._by(document, number)) is not None:
                groups.add(by)
        self._check_groups(groups)
        if len(set(ids)) < len(ids):
            twice = next(each for n, each in enumerate(ids) if each in ids[:n])
            raise UserError(
                f"dataset {self._dataset!r}: two documents have the {self._rubric.id} {twice!r}, "
                "by which a baseline's answer is found"
            )
        return ids

    def questions(
        self, document: Mapping[str, Any], answers: Sequence[str]
    ) -> dict[str, list[Question | None]]:
        """Return what the judge is asked about an answer, by prompt; two games of a pair.

        A question that is too long for any judge is None.

        Raises:
            UserError: a baseline's answer is missing.
        """
        baseline = self._baseline_of(document) if self._rubric.pair else []
        found: dict[str, list[Question | None]] = {}
        for fields in self._sides(document, answers, baseline):
            try:
                filled = self._filled(document, fields)
            except TooLong:
                made_up = [PLACEHOLDER] * len(answers)
                short = next(self._sides(document, made_up, [PLACEHOLDER] * len(baseline)))
                for name in self._filled(document, short):
                    found.setdefault(name, []).append(None)
                continue
            for name, messages in filled.items():
                question = judge_question(self._judge, self._rubric, messages)
                found.setdefault(name, []).append(question)
        return found

    def process(self, document: Mapping[str, Any], results: Sequence[Any]) -> dict[str, Any]:
        """Return the values of a document by metric, from all answers to it.

        An answer is a text, or the list of those of all turns.
        """
        verdicts: dict[str, list[list[Verdict]]] = {}
        styled: list[list[float]] = []
        for of_request in results:
            for given in of_request:
                answers = [given] if isinstance(given, str) else list(given)
                for name, questions in self.questions(document, answers).items():
                    games = [self._verdict(question) for question in questions]
                    self.count.left_out += self._rubric.pair and None in games
                    verdicts.setdefault(name, []).append(games)
                    if self._rubric.style_control:
                        baseline = "\n".join(self._baseline_of(document))
                        style = differences("\n".join(answers), baseline)
                        styled += [[outcome, *style] for outcome in battles(*games)]
        found: dict[str, Any] = document_metrics(self._rubric, self._by(document), verdicts)
        if self._rubric.style_control:
            found |= {name: styled for name in self._metrics if name.startswith(STYLE_CONTROLLED)}
        for name in found.keys() - self._aggregations.keys():
            self._aggregations[name], self._higher[name] = self._metrics[main_metric(self._rubric)]
        return found

    def digest(self, documents: Sequence[Mapping[str, Any]]) -> str:
        """Return 16 hex digits for all that the judge is told except the answers to be judged."""
        told = hashlib.sha256()
        for document in documents:
            made_up = [PLACEHOLDER] * self._answers_of(document)
            baseline = self._baseline_of(document) if self._rubric.pair else []
            for fields in self._sides(document, made_up, baseline):
                for messages in self._filled(document, fields).values():
                    told.update(judge_question("", self._rubric, messages).id.encode())
        return told.hexdigest()[:16]

    def _verdict(self, question: Question | None) -> Verdict:
        if question is None:
            self.count.refused += 1
            self.count.without_verdict += 1
            return None
        said = ask(question)
        self.count.questions.add(question.id)
        if not said.passed:
            self.count.refused += 1
            self.count.without_verdict += 1
            return None
        found = look_for_verdict(said.result, self._rubric)
        odd = ["cut"] * said.cut + [f"without_{name}" for name in said.without]
        if found.lack is not None:
            self.count.without_verdict += 1
            odd.append(found.lack.value)
        self.count.odd.update(odd)
        return found.verdict

    def _sides(
        self, document: Mapping[str, Any], answers: Sequence[str], baseline: Sequence[str]
    ) -> Iterator[dict[str, Any]]:
        """Yield the fields of each game's templates. The baseline begins as side A."""
        known = {**document, "doc": document}
        if not self._rubric.pair:
            yield {**known, "answer": answers[-1], "answers": list(answers)}
            return
        for a, b in ((baseline, answers), (answers, baseline)):
            sides = {"answer_a": a[-1], "answers_a": list(a)}
            yield {**known, **sides, "answer_b": b[-1], "answers_b": list(b)}

    def _filled(
        self, document: Mapping[str, Any], fields: Mapping[str, Any], number: int | None = None
    ) -> dict[str, Any]:
        return self._prompts.filled(self._where(document, number), fields)

    def _where(self, document: Mapping[str, Any], number: int | None = None) -> str:
        name = self._rubric.id or ""
        named = f" ({document[name]})" if name in document else ""
        which = "a document" if number is None else f"document {number}"
        return f"{which}{named} of dataset {self._dataset!r}"

    def _field(self, document: Mapping[str, Any], name: str, number: int | None) -> Any:  # noqa: ANN401  what a document has
        if name not in document:
            raise UserError(
                f"rubric {self._rubric.name!r} needs the field {name!r}, which "
                f"{self._where(document, number)} lacks"
            )
        return document[name]

    def _id(self, document: Mapping[str, Any], number: int | None = None) -> str:
        return str(self._field(document, self._rubric.id or "id", number))

    def _by(self, document: Mapping[str, Any], number: int | None = None) -> str | None:
        if self._rubric.by is None:
            return None
        value = str(self._field(document, self._rubric.by, number))
        return re.sub(r"[^\w.+-]+", "_", value)[:100]

    def _answers_of(self, document: Mapping[str, Any]) -> int:
        return 1 + len(document.get(self._turns) or ()) if self._turns else 1

    def _check_groups(self, groups: set[str]) -> None:
        if len(groups) > MOST_VALUES:
            raise UserError(
                f"rubric {self._rubric.name!r}: the field {self._rubric.by!r} has {len(groups)} "
                f"values in dataset {self._dataset!r}, each with a score of its own: at most "
                f"{MOST_VALUES}"
            )
        main, prompts = main_metric(self._rubric), self._rubric.prompts
        if clash := sorted(g for g in groups if g in prompts or f"{main}_{g}" in self._metrics):
            raise UserError(
                f"rubric {self._rubric.name!r}: the value {clash[0]!r} of the field "
                f"{self._rubric.by!r} in dataset {self._dataset!r} is also the name of another "
                "score"
            )

    def _baseline_of(self, document: Mapping[str, Any]) -> list[str]:
        if self._baseline is None:
            self._baseline = read_answers(self._panel.baselines, self._dataset)
        identifier = self._id(document)
        if identifier not in self._baseline:
            raise UserError(
                f"dataset {self._dataset!r}: the baseline has no answer to {identifier!r}"
            )
        return self._baseline[identifier]


def judge_results(
    judged: Sequence[tuple[JudgedTask, Sequence[Mapping[str, Any]]]], rubric: Rubric, panel: Panel
) -> dict[str, Any]:
    """Return what the results of a judged dataset say about its judge.

    `judged` has its tasks, each with the documents that were scored.
    """
    told = [task.digest(documents) for task, documents in judged]
    counts = [task.count for task, _ in judged]
    questions = set().union(*(count.questions for count in counts))
    return {
        "model": panel.model,
        "revision": panel.revision,
        "rubric": rubric.name,
        "rubric_digest": rubric_digest(rubric),
        "prompts_digest": hashlib.sha256("".join(told).encode()).hexdigest()[:16],
        "questions": len(questions),
        "without_verdict": sum(count.without_verdict for count in counts),
        "refused": sum(count.refused for count in counts),
        "odd": dict(sorted(sum((count.odd for count in counts), Counter[str]()).items())),
        **({"pairs_left_out": sum(count.left_out for count in counts)} if rubric.pair else {}),
    }


def in_order(results: DatasetResults) -> DatasetResults:
    """Return the results of a judged dataset with what tells of the judge after all scores."""

    def tells_of_judge(metric: tuple[str, Any]) -> bool:
        return metric[0].startswith(("position_bias", "no_verdict"))

    ordered = {
        name: dict(sorted(found.items(), key=tells_of_judge))
        for name, found in results.results.items()
    }
    return results.model_copy(update={"results": ordered})


def read_answers(folder: Path | None, dataset: str) -> dict[str, list[str]]:
    """Return the answers of a dataset's baseline by question, none if it has no baseline."""
    path = folder / f"{dataset}.jsonl" if folder else None
    if path is None or not path.exists():
        return {}
    lines = (BaselineAnswer.model_validate_json(line) for line in _files.lines(path))
    return {line.id: line.answers for line in lines}


class _AsGiven(Filter):  # type: ignore[misc]  # lm_eval has no types
    """A filter that keeps all answers to a request as they are."""

    def apply(self, resps: Any, docs: Any) -> list[Any]:  # noqa: ANN401  as there
        """Return the answers."""
        return list(resps)
