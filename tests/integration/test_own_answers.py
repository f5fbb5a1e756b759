"""Items whose few-shot examples show their own answer are counted, and their prompts unchanged."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.evaluators import byte_tokenizer, evaluator_of
from tests.own_tasks import write_task
from transformers import PreTrainedTokenizerFast

from coordinate_eval.coordinator.report.warnings import own_answers
from coordinate_eval.records import DatasetRequests, OwnAnswers, Request

QUESTIONS = [{"q": f"What is {n} plus {n}?", "a": str(2 * n), "id": n} for n in range(12)]
OTHERS = [{"q": f"What is {n} times {n}?", "a": str(n * n), "id": n} for n in range(9)]
TEXTS: dict[str, Any] = {
    "output_type": "generate_until",
    "doc_to_text": "Q: {{q}}",
    "doc_to_target": "{{a}}",
    "generation_kwargs": {"until": ["\n"], "max_gen_toks": 7},
    "metric_list": [{"metric": "exact_match"}],
}
CHOICES: dict[str, Any] = {
    "output_type": "multiple_choice",
    "doc_to_text": "Q: {{q}}",
    "doc_to_choice": "{{[a, 'none']}}",
    "doc_to_target": 0,
}
BEGINNINGS: dict[str, Any] = {  # a text for each choice, as in winogrande
    "output_type": "multiple_choice",
    "doc_to_text": 1,
    "doc_to_choice": "{{['No, not ' + q, 'Q: ' + q]}}",
    "doc_to_target": "{{a}} in all",
}

Make = Callable[..., tuple[DatasetRequests, list[Request]]]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return byte_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def make(tokenizer: Path, tmp_path: Path) -> Make:
    """Build the requests of a task with these splits."""

    def made(splits: dict[str, Any], **config: Any) -> tuple[DatasetRequests, list[Request]]:
        dataset = write_task(tmp_path, splits, **{"test_split": None, "num_fewshot": 3} | config)
        requests: list[Request] = []
        index = evaluator_of(tokenizer, tmp_path).build(dataset, requests.append)
        return index, requests

    return made


def showing(requests: list[Request], tokenizer: Path) -> int:
    """Count the items whose prompt has their question with its answer."""
    fast = PreTrainedTokenizerFast.from_pretrained(tokenizer)
    shown = set()
    for request in requests:
        own, prompt = QUESTIONS[request.doc], fast.decode(request.tokens)
        if any(f"Q: {own['q']} {own['a']}{end}\n\n" in prompt for end in ("", " in all")):
            shown.add(request.item)
    return len(shown)


@pytest.mark.parametrize(
    "config",
    [
        TEXTS | {"test_split": "test"},
        CHOICES | {"test_split": "test"},
        BEGINNINGS | {"test_split": "test"},
        TEXTS | {"validation_split": "test", "fewshot_split": "test"},
    ],
)
def test_examples_out_of_the_only_split_show_answers(
    make: Make, tokenizer: Path, config: dict[str, Any]
) -> None:
    index, requests = make({"test": QUESTIONS}, **config)
    own = showing(requests, tokenizer)
    assert own > 0
    assert index.own_answers == {"own": OwnAnswers(items=12, own=own)}


@pytest.mark.parametrize(
    "splits",
    [
        {"test_split": "test", "fewshot_split": "test"},  # the harness leaves out the item itself
        {"validation_split": "test"},
    ],
)
def test_other_items_as_examples_are_said_too(
    make: Make, tokenizer: Path, splits: dict[str, Any]
) -> None:
    index, requests = make({"test": QUESTIONS}, **splits, **TEXTS)
    assert index.own_answers == {"own": OwnAnswers(items=12, own=0)}
    assert showing(requests, tokenizer) == 0


def test_a_copy_of_an_item_in_another_split_shows_its_answer(make: Make, tokenizer: Path) -> None:
    train = [*OTHERS[:2], {**QUESTIONS[5], "id": 99}]
    index, requests = make(
        {"test": QUESTIONS, "train": train}, test_split="test", training_split="train", **TEXTS
    )
    assert index.own_answers == {"own": OwnAnswers(items=12, own=1)}
    assert showing(requests, tokenizer) == 1


def test_a_question_with_another_answer_is_not_shown(make: Make) -> None:
    train = [*OTHERS[:2], {**QUESTIONS[5], "a": "7"}]
    index, _ = make(
        {"test": QUESTIONS, "train": train}, test_split="test", training_split="train", **TEXTS
    )
    assert index.own_answers == {}


@pytest.mark.parametrize("shots", [0, 3])
def test_examples_of_their_own_split_are_not_mentioned(make: Make, shots: int) -> None:
    index, _ = make(
        {"test": QUESTIONS, "train": OTHERS}, test_split="test", fewshot_split="train",
        **TEXTS | {"num_fewshot": shots},
    )  # fmt: skip
    assert index.own_answers == {}


def test_no_examples_show_nothing(make: Make) -> None:
    index, _ = make({"test": QUESTIONS}, test_split="test", **TEXTS | {"num_fewshot": 0})
    assert index.own_answers == {}


def test_prompts_are_those_that_nobody_watches(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    _, watched = make({"test": QUESTIONS}, test_split="test", **CHOICES)
    monkeypatch.setattr(
        "coordinate_eval.evaluators.harness.built_dataset._has_examples", lambda _: False
    )
    assert make({"test": QUESTIONS}, test_split="test", **CHOICES)[1] == watched


def test_people_are_told_how_many() -> None:
    one, none = OwnAnswers(items=4, own=3), OwnAnswers(items=9, own=0)
    assert own_answers("d", {}) == []
    assert own_answers("d", {"d": one})[0].startswith("d: 3 of 4 items show their own answer")
    assert own_answers("d", {"a": one, "b": none})[0].startswith("d (a): 3 of 4 items")
    assert "no item shows its own answer" in own_answers("d", {"d": none})[0]
    many = {f"t{n}": one for n in range(57)}
    assert own_answers("d", many)[0].startswith("d (t0, t1, t2, t3, t4 and 52 more): 171 of 228")
