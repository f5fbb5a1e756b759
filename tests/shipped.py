"""Shipped harness tasks with rows of our own in place of the hub's, and real items."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.tiny import tiny_model

pytest.importorskip("lm_eval")

from coordinate_eval.coordinator.inputs.suites.suite_yaml import shipped_folder
from coordinate_eval.evaluators.engines.common import respond
from coordinate_eval.evaluators.harness.code_eval import answer_to
from coordinate_eval.evaluators.harness.evaluator import HarnessEvaluator
from coordinate_eval.records import Dataset, Request

SHIPPED = shipped_folder() / "tasks"
_BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data" / "benchmarks"
BENCHMARKS = Path(os.environ.get("BENCHMARKS_FOLDER", _BESIDE))

Row = dict[str, Any]


class Bench:
    """One shipped task with rows of our own in place of the hub's."""

    def __init__(self, folder: Path, original: Path, rows: list[Row], **more: Any) -> None:
        data = folder / "rows.jsonl"
        data.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        split = "train" if original.stem.endswith("_train") else "test"
        content = {
            "include": str(original),
            "task": "here",
            "dataset_path": "json",
            "dataset_name": None,
            "training_split": None,
            "dataset_kwargs": {"data_files": {split: str(data)}},
            **more,
        }
        (folder / "here.yaml").write_text(yaml.safe_dump(content))
        self.evaluator = HarnessEvaluator(
            tokenizer=tiny_model(), include_path=[str(folder)], max_length=50_000
        )
        self.dataset = Dataset(name="here", task="here")
        self.requests: list[Request] = []
        self.built = self.evaluator.build(self.dataset, self.requests.append)

    def prompt(self, item: int = 0) -> str:
        """Return the prompt of an item as text, with the answer whose likelihood is asked for."""
        from tests.tiny import tokenizer

        request = self.requests[item]
        text = tokenizer(tiny_model()).decode([*request.tokens, *request.continuation])
        assert isinstance(text, str)
        return text

    def score(self, texts: list[str], metric: str, passes: Callable[[str], bool] = bool) -> float:
        """The metric where the model says these texts, and programs pass as told."""
        responses = [
            respond(request, text=text, tokens=1, finish="stop")
            for request, text in zip(self.requests, texts, strict=True)
        ]
        asked = self.evaluator.questions(self.dataset, responses)
        answers = {
            each.id: answer_to(each, passed=passes(each.content), result="") for each in asked
        }
        results = self.evaluator.finish(self.dataset, responses, answers)
        return float(results.results["here"][metric])


def bench(folder: Path, task: str, rows: list[Row]) -> Bench:
    return Bench(folder, SHIPPED / f"{task}.yaml", rows)


def real(path: str) -> Path:
    """Real items, if they are on this machine."""
    if not (BENCHMARKS / path).exists():
        pytest.skip(f"needs {path} below the folder that BENCHMARKS_FOLDER names")
    return BENCHMARKS / path
