"""Scores of some items: the harness's own with the same samples, and never taken for results."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.tiny import tiny_model

from coordinate_eval.coordinator.cli.output import first_signal_table

pytest.importorskip("lm_eval")
pytest.importorskip("transformers")

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.evaluator import simple_evaluate
from lm_eval.tasks import TaskManager
from rich.console import Console

from coordinate_eval.coordinator.report import first_signal
from coordinate_eval.errors import RecordError, UserError
from coordinate_eval.evaluators.engines.common import respond
from coordinate_eval.evaluators.harness.built_dataset import prompt_hash
from coordinate_eval.evaluators.harness.code_eval import AnswerBook, answered_by
from coordinate_eval.evaluators.harness.evaluator import HarnessEvaluator
from coordinate_eval.records import (
    Answer,
    Dataset,
    DatasetRequests,
    DatasetResults,
    Question,
    Request,
    RequestKind,
    Response,
)

TASKS = Path(__file__).parents[1] / "fixtures" / "tasks"
TEXTS = (" 3", " 4", "    return a + b", "    return a + a", "    return a")


def said(asked: str, repeat: int) -> str:
    """Return what the model of these tests writes to the request with this hash."""
    return TEXTS[(int(asked, 16) + repeat) % len(TEXTS)]


def scored(asked: str) -> tuple[float, bool]:
    return -int(asked[:6], 16) / 1e6, asked < "8"


class Reference(LM):  # type: ignore[misc]  # lm_eval has no types
    """The same model for the harness."""

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        return [scored(prompt_hash(request)) for request in requests]

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        return [scored(prompt_hash(request))[0] for request in requests]

    def generate_until(self, requests: list[Instance]) -> list[str]:
        seen: Counter[str] = Counter()
        texts = []
        for asked in map(prompt_hash, requests):
            texts.append(said(asked, seen[asked]))
            seen[asked] += 1
        return texts


def answered(request: Request) -> Response:
    if request.kind is RequestKind.GENERATE:
        text = said(request.prompt_hash, request.repeat)
        return respond(request, text=text, tokens=1, finish="stop")
    logprob, greedy = scored(request.prompt_hash)
    return respond(request, logprob=logprob, greedy=greedy, tokens=1, finish="scored")


def judge(question: Question) -> Answer:
    """Half of all programs pass."""
    return Answer(id=question.id, passed=question.id < "8", result="made up", seconds=0)


class Scored:
    """All responses and answers of a dataset, and its evaluator."""

    def __init__(self, name: str, **options: Any) -> None:
        self.dataset = Dataset.model_validate(
            {"name": name, "num_fewshot": 0, **options}, extra="forbid"
        )
        self.evaluator = HarnessEvaluator(
            tokenizer=tiny_model(), max_length=1024, include_path=[str(TASKS)]
        )
        requests: list[Request] = []
        self.evaluator.build(self.dataset, requests.append)
        self.responses = [answered(request) for request in requests]
        questions = self.evaluator.questions(self.dataset, self.responses)
        self.answers = {question.id: judge(question) for question in questions}

    def part(self, samples: dict[str, list[int]]) -> DatasetResults:
        chosen = [r for r in self.responses if r.doc in samples.get(r.task, ())]
        return self.evaluator.finish(self.dataset, reversed(chosen), self.answers, part=True)

    def whole(self) -> DatasetResults:
        return self.evaluator.finish(self.dataset, self.responses, self.answers)


def reference(task: str, samples: dict[str, list[int]]) -> dict[str, Any]:
    found = simple_evaluate(
        model=Reference(),
        tasks=[task],
        task_manager=TaskManager(include_path=[str(TASKS)], include_defaults=False),
        num_fewshot=0,
        samples=samples,
        log_samples=False,
        confirm_run_unsafe_code=True,
    )
    results: dict[str, Any] = found["results"]
    return results


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(TASKS)
    # The reference's bootstrap: the same numbers without forks of this process and its threads.
    monkeypatch.setenv("DISABLE_MULTIPROC", "1")


@pytest.mark.parametrize(
    ("name", "samples"),
    [
        ("tiny_group", {"tiny_choice": [0, 5, 6, 11], "tiny_short": [2, 3]}),
        ("tiny_mutual", {"tiny_mutual": [1, 2, 7]}),
        ("tiny_sums", {"tiny_sums": [0, 1, 4, 8, 9]}),
        ("tiny_votes", {"tiny_votes": [3, 4, 10]}),
        ("tiny_cloze", {"tiny_cloze": [2, 3, 9]}),
        ("tiny_code", {"tiny_code": [0, 2, 4]}),
    ],
)
def test_some_items_score_as_the_harness_scores_these_samples(
    name: str, samples: dict[str, list[int]]
) -> None:
    ours = Scored(name)
    found = ours.part(samples)
    # The harness keeps what it loaded: the programs are looked up here too.
    with answered_by(AnswerBook(ours.answers)):
        theirs = reference(name, samples)
    assert found.items == sum(map(len, samples.values()))
    assert found.results.keys() == theirs.keys()
    for task, metrics in theirs.items():
        for metric, value in metrics.items():
            assert found.results[task][metric] == (
                pytest.approx(value) if isinstance(value, float) else value
            ), (task, metric)


def test_the_whole_scores_the_same_after_a_part() -> None:
    """Even where a metric draws random numbers."""
    for name in ("tiny_group", "tiny_guess", "tiny_code"):
        alone = Scored(name).whole()
        ours = Scored(name)
        ours.part({r.task: [0, 3] for r in ours.responses})
        assert ours.whole() == alone


def test_leaf_tasks_of_less_than_two_items_are_left_out() -> None:
    """One has no standard error, and its group would have none either."""
    ours = Scored("tiny_group")
    found = ours.part({"tiny_choice": [1, 2, 3], "tiny_short": [5]})
    assert found.items == 3
    assert found.n_samples == {"tiny_choice": {"original": 12, "effective": 3}}
    assert found.results["tiny_group"]["acc,none"] == found.results["tiny_choice"]["acc,none"]
    assert "acc,none" not in found.results["tiny_group::tiny_inner"]


def test_one_item_alone_is_scored_all_the_same() -> None:
    found = Scored("tiny_choice").part({"tiny_choice": [4]})
    assert found.results["tiny_choice"]["acc_stderr,none"] == "N/A"


def test_the_table_has_a_dataset_s_own_scores() -> None:
    found = Scored("tiny_group").part({"tiny_choice": [1, 2, 3], "tiny_short": [0, 5]})
    index = INDEX.model_copy(update={"items": 18})
    signal = first_signal.estimate(found, index)
    known = first_signal.FirstSignal(
        run="r", seconds=7, datasets={"tiny_group": signal}, pending=["late"]
    )
    console = Console(width=150)
    with console.capture() as captured:
        console.print(first_signal_table(known.model_dump(mode="json")))
    text = captured.get()
    assert "5 of 18, 2 of 2 tasks" in text
    assert "tiny_short" not in text
    assert "late" in text


def test_a_limit_does_not_disturb_a_part() -> None:
    found = Scored("tiny_sums", limit=6).part({"tiny_sums": [1, 5]})
    assert found.n_samples["tiny_sums"]["effective"] == 2


def test_half_an_item_or_none_is_no_score() -> None:
    ours = Scored("tiny_votes")
    with pytest.raises(RecordError, match="repeat 2"):
        ours.evaluator.finish(ours.dataset, ours.responses[:2], {}, part=True)
    with pytest.raises(UserError, match="no item"):
        ours.evaluator.finish(ours.dataset, [], {}, part=True)


def results(metrics: dict[str, dict[str, Any]]) -> DatasetResults:
    samples = {task: {"effective": 40} for task in metrics}
    return DatasetResults(dataset="d", items=40, results=metrics, n_samples=samples)


INDEX = DatasetRequests(
    dataset="d",
    key="",
    items=800,
    requests=800,
    prompt_tokens=0,
    generate_requests=0,
    max_output_tokens=0,
    longest_output_tokens=0,
    asks=False,
    versions={"d": "1", "e": "1"},
    offsets=[],
)


def test_an_interval_is_two_standard_errors_to_either_side() -> None:
    metrics = {
        "alias": "d",
        "sample_len": 40,
        "acc,none": 0.5,
        "acc_stderr,none": 0.1,
        "ppl,none": 7.0,
        "ppl_stderr,none": "N/A",
        "odd,none": "N/A",
    }
    found = first_signal.estimate(results({"d": metrics, "e": {"alias": "e"}}), INDEX)
    assert (found.items, found.of_items, found.tasks, found.of_tasks) == (40, 800, 2, 2)
    assert found.estimates.keys() == {"d"}
    acc, ppl = found.estimates["d"]["acc,none"], found.estimates["d"]["ppl,none"]
    assert (acc.value, acc.stderr) == (0.5, 0.1)
    assert [acc.low, acc.high] == [pytest.approx(0.304), pytest.approx(0.696)]
    assert (ppl.value, ppl.stderr, ppl.low, ppl.high) == (7.0, None, None, None)
    assert found.estimates["d"].keys() == {"acc,none", "ppl,none"}
