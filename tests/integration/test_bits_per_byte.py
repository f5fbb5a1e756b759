"""Bits per byte of right answers in the tasks of `base-early`: as defined, and as the harness's."""

import csv
import gzip
import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.shipped import SHIPPED, Bench, Row, real

pytest.importorskip("lm_eval")

from coordinate_eval.records import DatasetResults, Response

EARLY: dict[str, Row] = {
    "arc_easy_bpb": {
        "question": "What is hot?", "answerKey": "B",
        "choices": {"label": ["A", "B"], "text": ["ice", "fire"]},
    },
    "openbookqa_bpb": {
        "question_stem": "Hot is", "answerKey": "A ",
        "choices": {"label": ["A", "B"], "text": ["fire", "ice"]},
    },
    "commonsense_qa_bpb": {
        "question": "What is hot?", "answerKey": "A",
        "choices": {"label": ["A", "B"], "text": ["fire", "ice"]},
    },
    "mmlu_bpb": {"question": "What is hot? ", "choices": ["ice", "fire"], "answer": 1},
    "hellaswag_bpb": {
        "activity_label": "Cooking", "ctx_a": "A pan [step] stands on", "ctx_b": "the",
        "endings": ["ice.", "fire [title] It burns."], "label": "1",
    },
    "piqa_bpb": {"goal": "Heat", "sol1": "fire", "sol2": "ice", "label": 0},
    "social_iqa_bpb": {
        "context": "Ann is cold.", "question": "What next?", "answerA": "ice", "answerB": "fire",
        "answerC": "snow", "label": "2",
    },
    "nq_open_bpb": {"question": "what is hot", "answer": ["fire", "a fire"]},
    "gsm8k_bpb": {"question": "2 and 2?", "answer": "It is <<2+2=4>>4.\n#### 4"},
    "math500_bpb": {"problem": "2 + 2?", "solution": "It is $4$."},
    "humaneval_bpb": {"prompt": "def f():\n", "canonical_solution": "    return 4\n"},
    "mbpp_bpb": {
        "text": "Give 4.", "test_list": ["assert f() == 4"], "code": "def f():\r\n  return 4",
    },
}  # fmt: skip

ANSWERS = {
    "hellaswag_bpb": " fire. It burns.",
    "gsm8k_bpb": " It is 4.\n#### 4",
    "math500_bpb": " It is $4$.",
    "humaneval_bpb": "    return 4",
    "mbpp_bpb": "def f():\n  return 4",
}


def of_the_hub(task: str) -> dict[str, Any]:
    """The keys with which a task reads its rows from a file, as its only split."""
    content = yaml.load((SHIPPED / f"{task}.yaml").read_text(), yaml.BaseLoader)
    splits = {"test_split": "test"}
    splits |= {key: "test" for key in ("validation_split", "fewshot_split") if key in content}
    if "validation_split" in content:
        splits["test_split"] = None  # type: ignore[assignment]
    return splits


def scored(made: Bench) -> tuple[dict[str, Any], list[float]]:
    """The results of log-likelihoods that differ from request to request, and these."""
    values = [-1.0 - (7 * place % 11) for place in range(len(made.requests))]
    responses = [
        Response.model_validate(
            request.model_dump()
            | {"logprob": value, "greedy": False, "tokens": 1, "finish": "scored"}
        )
        for request, value in zip(made.requests, values, strict=True)
    ]
    results = made.evaluator.finish(made.dataset, responses, {})
    assert isinstance(results, DatasetResults)
    return dict(results.results["here"]), values


@pytest.mark.parametrize("task", EARLY)
def test_bits_per_byte_are_of_the_right_answer_alone(task: str, tmp_path: Path) -> None:
    rows = [{**EARLY[task], "number": number} for number in range(8)]
    made = Bench(tmp_path, SHIPPED / f"{task}.yaml", rows, **of_the_hub(task))

    answer = ANSWERS.get(task, " fire")
    assert made.prompt().endswith(answer)
    assert len(made.requests) == len(rows)  # one for each item
    found, values = scored(made)
    bits = [-value / math.log(2) / len(answer.encode()) for value in values]
    assert found["bits_per_byte,none"] == pytest.approx(sum(bits) / len(bits))
    assert found["bits_per_byte_stderr,none"] == pytest.approx(
        statistics.stdev(bits) / math.sqrt(len(bits))
    )


def real_rows(task: str) -> list[Row]:
    """Real items, in the columns of the hub."""
    if task == "humaneval_bpb":
        text = gzip.decompress(real("humaneval/HumanEval.jsonl.gz").read_bytes()).decode()
    elif task == "mmlu_bpb":
        with real("mmlu/anatomy_test.csv").open(newline="") as file:
            return [
                {
                    "question": row["question"],
                    "choices": [row[f"choice{number}"] for number in range(4)],
                    "answer": int(row["answer"]),
                }
                for row in csv.DictReader(file)
            ]
    else:
        files = {"gsm8k_bpb": "gsm8k/test.jsonl", "mbpp_bpb": "mbpp/mbpp.jsonl",
                 "math500_bpb": "math500/test.jsonl", "nq_open_bpb": "nq_open/NQ-open.dev.jsonl",
                 "piqa_bpb": "piqa/valid.jsonl"}  # fmt: skip
        text = real(files[task]).read_text()
    rows: list[Row] = [json.loads(line) for line in text.splitlines() if line]
    if task == "piqa_bpb":
        labels = real("piqa/valid-labels.lst").read_text().split()
        rows = [{**row, "label": int(label)} for row, label in zip(rows, labels, strict=True)]
    return rows


@pytest.mark.parametrize(
    "task",
    [
        "gsm8k_bpb",
        "humaneval_bpb",
        "mbpp_bpb",
        "mmlu_bpb",
        "piqa_bpb",
        "math500_bpb",
        "nq_open_bpb",
    ],
)
def test_bits_per_byte_of_real_items_equal_those_of_the_harness(task: str, tmp_path: Path) -> None:
    from lm_eval.api.model import LM
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.tasks import TaskManager

    rows = real_rows(task)[:100]
    made = Bench(tmp_path, SHIPPED / f"{task}.yaml", rows, **of_the_hub(task))
    ours, values = scored(made)

    class Told(LM):  # type: ignore[misc]
        def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
            for place in (0, 57):
                prompt, answer = requests[place].args
                assert made.prompt(place).endswith((prompt + answer)[-80:])
            return [(value, False) for value in values]

        def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
            raise NotImplementedError

        def generate_until(self, requests: list[Any]) -> list[str]:
            raise NotImplementedError

    found = simple_evaluate(
        Told(),
        tasks=["here"],
        task_manager=TaskManager(include_path=str(tmp_path)),
        bootstrap_iters=1000,
    )
    theirs = found["results"]["here"]
    for metric in ("bits_per_byte,none", "bits_per_byte_stderr,none"):
        assert ours[metric] == theirs[metric]
