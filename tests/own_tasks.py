"""Harness tasks that a test writes into a folder of its own."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coordinate_eval.records import Dataset

Rows = Sequence[dict[str, Any]]

_WRITTEN: dict[str, Any] = {
    "doc_to_text": "q",
    "doc_to_target": "a",
    "generation_kwargs": {"until": ["\n"], "max_gen_toks": 7},
    "metric_list": [{"metric": "exact_match"}],
}


def write_task(
    folder: Path, rows: Rows | Mapping[str, Rows], name: str = "own", **config: Any
) -> Dataset:
    """Write a task and its data; the dataset. A string `!module.name` is a function.

    The rows are those of the split `test`, or of several splits by name. A task of another output
    type than generated text gets nothing but its own configuration.
    """
    files = {}
    for split, each in (rows if isinstance(rows, Mapping) else {"test": rows}).items():
        path = folder / f"{name}'s {split}.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in each))
        files[split] = str(path)
    task = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": files},
        "test_split": "test",
        "output_type": "generate_until",
        **config,
    }
    if task["output_type"] == "generate_until":
        task = _WRITTEN | task
    text = re.sub(r'"!(\w+\.\w+)"', r"!function \1", json.dumps(task))
    (folder / f"{name} task.yaml").write_text(text)
    return Dataset(name=name, task=name)
