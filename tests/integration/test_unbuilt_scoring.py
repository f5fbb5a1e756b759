"""Scoring without prompts gives the scores, and finds the changes, of scoring with them."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval")
pytest.importorskip("transformers")

from lm_eval.api.task import ConfigurableTask
from tests.own_tasks import write_task
from tests.tiny import tiny_model

from coordinate_eval.errors import RecordError
from coordinate_eval.evaluators.engines.common import respond
from coordinate_eval.evaluators.harness.evaluator import HarnessEvaluator
from coordinate_eval.records import (
    Dataset,
    DatasetRequests,
    DatasetResults,
    Request,
    RequestKind,
    Response,
)

ITEMS = 12
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "red", "green", "blue", "warm"]

FUNCTIONS = '''
"""Functions of tasks: some leave something behind."""

import random

seen = []


def text(doc):
    seen.append(doc["question"])
    return doc["question"]


def drawn(doc):
    return f"{doc['question']} {random.random()}"


def choices(doc):
    return list(doc["options"])


def seen_so_far(doc, results):
    found = len(seen)
    seen.clear()
    return {"acc": found + results[0][0]}


def by_chance(doc, results):
    return {"acc": random.random() + len(str(results))}


def length(doc, results):
    return {"acc": len(doc["options"]) + len(str(results))}


def marked(resps, docs):
    return [[f"{doc['options']} {resp}" for resp in each] for each, doc in zip(resps, docs)]


def tidy(data):
    return data.map(lambda doc: {"question": doc["question"].strip()})
'''

CHOICE = {"output_type": "multiple_choice", "doc_to_choice": "options", "doc_to_target": "gold"}
WRITTEN = {
    "output_type": "generate_until",
    "doc_to_target": "{{options[0]}}",
    "generation_kwargs": {"until": ["\n"], "max_gen_toks": 8},
    "metric_list": [{"metric": "exact_match"}],
}
PLAIN: dict[str, dict[str, Any]] = {
    "choice": CHOICE,
    "choice with examples": {**CHOICE, "num_fewshot": 3, "fewshot_split": "train"},
    "first examples": {
        **CHOICE,
        "num_fewshot": 2,
        "fewshot_split": "train",
        "fewshot_config": {"sampler": "first_n"},
    },
    "its own examples": {**CHOICE, "num_fewshot": 1, "fewshot_split": "test"},
    "mutual information": {**CHOICE, "metric_list": [{"metric": "acc_mutual_info"}]},
    "pairs of metrics": {**CHOICE, "metric_list": [{"metric": m} for m in ("brier_score", "acc")]},
    "text": {**WRITTEN, "num_fewshot": 2, "fewshot_split": "train"},
    "several filters": {
        **WRITTEN,
        "repeats": 2,
        "filter_list": [
            {"name": n, "filter": [{"function": "regex", "regex_pattern": r}, {"function": f}]}
            for n, r, f in (("a", "(\\d+)", "take_first"), ("b", "(\\w+)", "majority_vote"))
        ],
    },
    "own filter": {
        **WRITTEN,
        "filter_list": [
            {"name": "own", "filter": [{"function": "custom", "filter_fn": "!functions.marked"}]}
        ],
    },
    "own metric": {**CHOICE, "process_results": "!functions.by_chance"},
    "own text": {**CHOICE, "doc_to_text": "!functions.text"},
    "tidied": {**CHOICE, "process_docs": "!functions.tidy"},
    "many targets": {**WRITTEN, "doc_to_target": "{{options}}"},
    "windows": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{% for _ in range(40) %}{{question}}{% endfor %}",
        "metric_list": [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}],
    },
    "next word": {
        "output_type": "loglikelihood",
        "doc_to_target": "{{options[0]}}",
        "metric_list": [{"metric": "perplexity"}, {"metric": "acc"}],
    },
}
MADE_AGAIN: dict[str, dict[str, Any]] = {
    "what was seen": {
        **CHOICE,
        "doc_to_text": "!functions.text",
        "process_results": "!functions.seen_so_far",
    },
    "chance": {
        **CHOICE,
        "doc_to_text": "!functions.drawn",
        "process_results": "!functions.by_chance",
    },
    "drawn text": {**CHOICE, "doc_to_text": "!functions.drawn"},
    "drawn by a template": {**CHOICE, "doc_to_text": "{{ options|random }}"},
    "own choices": {**CHOICE, "doc_to_choice": "!functions.choices"},
    "changed documents": {
        **WRITTEN,
        "doc_to_text": "{% set _ = options.append('more') %}{{question}}",
        "filter_list": PLAIN["own filter"]["filter_list"],
        "process_results": "!functions.length",
    },
}


class Task:
    """A task in a folder of its own, with the responses to its requests."""

    def __init__(self, folder: Path, seed: int, **config: Any) -> None:
        dice = random.Random(seed)
        self.folder, self.config = folder, config
        (folder / "functions.py").write_text(FUNCTIONS)
        self.rows = {split: [_row(dice) for _ in range(ITEMS)] for split in ("train", "test")}
        self.write()
        self.dataset = Dataset(name="own", limit=dice.choice([None, 7]))
        requests: list[Request] = []
        builder = self.evaluator(tiny_model())
        self.index: DatasetRequests = builder.build(self.dataset, requests.append)
        self.responses = [_response(request, dice) for request in requests]

    def write(self) -> None:
        text = "Question: {{question}}?\nAnswer:"
        write_task(self.folder, self.rows, **{"doc_to_text": text, **self.config})

    def evaluator(self, tokenizer: Path) -> HarnessEvaluator:
        return HarnessEvaluator(tokenizer=tokenizer, max_length=96, include_path=[str(self.folder)])

    def scored(self, *, load: bool, part: int | None = None) -> DatasetResults:
        """Return the scores of all items or of the first ones, with or without loading before."""
        copied = self.folder / "model"  # a run scores with a copy
        shutil.copytree(tiny_model(), copied, dirs_exist_ok=True)
        evaluator = self.evaluator(copied)
        if load:
            evaluator.load(self.dataset, self.index)
        if part is not None:
            given = [response for response in self.responses if response.item < part]
            return evaluator.finish(self.dataset, given, {}, part=True)
        return evaluator.finish(self.dataset, self.responses, {})


def _row(dice: random.Random) -> dict[str, Any]:
    return {
        "question": " ".join(dice.choices(WORDS, k=dice.randrange(3, 9))),
        "options": dice.sample(WORDS, 3),
        "gold": dice.randrange(3),
    }


def _response(request: Request, dice: random.Random) -> Response:
    if request.kind is RequestKind.GENERATE:
        return respond(request, text=" ".join(dice.choices(WORDS, k=4)), tokens=4, finish="stop")
    nats, greedy = -9 * dice.random(), dice.random() < 0.5
    return respond(request, logprob=nats, greedy=greedy, tokens=2, finish="scored")


Forbid = Callable[[], None]


@pytest.fixture
def no_prompts(monkeypatch: pytest.MonkeyPatch) -> Forbid:
    """Let the harness make no prompt from now on."""

    def forbid() -> None:
        def made(*_: object, **__: object) -> None:
            raise AssertionError("a prompt is made")

        monkeypatch.setattr(ConfigurableTask, "fewshot_context", made)
        monkeypatch.setattr(ConfigurableTask, "construct_requests", made)

    return forbid


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", PLAIN)
def test_scores_without_prompts_are_those_with_them(
    tmp_path: Path, no_prompts: Forbid, name: str, seed: int
) -> None:
    task = Task(tmp_path, seed, **PLAIN[name])
    whole, part = task.scored(load=False), task.scored(load=False, part=5)
    no_prompts()
    assert task.scored(load=True) == whole
    assert task.scored(load=True, part=5) == part


@pytest.mark.parametrize("name", MADE_AGAIN)
def test_prompts_are_made_again_where_scoring_might_notice(tmp_path: Path, name: str) -> None:
    task = Task(tmp_path, 0, **MADE_AGAIN[name])
    task.scored(load=False)  # what building has left behind in this process is then gone
    assert task.scored(load=True) == task.scored(load=False)


@pytest.mark.parametrize("split", ["test", "train"])
def test_changed_data_are_found(tmp_path: Path, split: str) -> None:
    task = Task(tmp_path, 0, **PLAIN["choice with examples"])
    task.rows[split] = [_row(random.Random(9)) for _ in range(ITEMS)]
    task.write()
    with pytest.raises(RecordError, match="another prompt"):
        task.scored(load=True)


def test_a_changed_template_is_found(tmp_path: Path) -> None:
    task = Task(tmp_path, 0, **CHOICE)
    task.config["doc_to_text"] = "Problem: {{question}}"
    task.write()
    with pytest.raises(RecordError, match="another prompt"):
        task.scored(load=True)


def test_a_changed_function_is_found(tmp_path: Path) -> None:
    task = Task(tmp_path, 0, **PLAIN["tidied"])
    functions = tmp_path / "functions.py"
    functions.write_text(FUNCTIONS.replace("].strip()", "].strip().upper()"))
    with pytest.raises(RecordError, match="another prompt"):
        task.scored(load=True)


def test_what_changes_no_prompt_is_no_change(tmp_path: Path) -> None:
    task = Task(tmp_path, 0, **PLAIN["tidied"])
    before = task.scored(load=True)
    (tmp_path / "functions.py").write_text(FUNCTIONS + "\n# a remark\n")
    assert task.scored(load=True) == before


def test_a_response_to_another_prompt_is_refused(tmp_path: Path) -> None:
    task = Task(tmp_path, 0, **CHOICE)
    task.responses[4] = task.responses[4].model_copy(update={"prompt_hash": "0" * 16})
    with pytest.raises(RecordError, match="document 1, request 1 answers another prompt"):
        task.scored(load=True)
    del task.responses[4]
    with pytest.raises(RecordError, match="document 1, request 1, repeat 0, window 0 is missing"):
        task.scored(load=True)
    with pytest.raises(RecordError, match="missing"):
        task.scored(load=True, part=2)
