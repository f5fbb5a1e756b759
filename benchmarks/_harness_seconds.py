"""The CPU seconds in which the harness by itself makes prompts and scores, without an engine.

    python -m benchmarks._harness_seconds FOLDER

prints them by dataset, per item, for a suite of `full_shape` in FOLDER. The harness runs as its own
command does, but for standard errors that are drawn (it draws them in many processes), and for
datasets whose answers are programs, which it fetches its metric for from a hub.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import yaml
from lm_eval.api.model import LM
from lm_eval.evaluator import evaluate
from lm_eval.tasks import TaskManager


class _Answering(LM):  # type: ignore[misc]  # lm_eval has no types
    """A model that answers at once."""

    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
        return [(-float(len(request.args[1])), False) for request in requests]

    def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
        return [-1.0] * len(requests)

    def generate_until(self, requests: list[Any]) -> list[str]:
        return ["It is so. The answer is 7."] * len(requests)


def seconds_per_item(folder: Path) -> dict[str, float]:
    """Return the seconds by dataset."""
    content = yaml.safe_load((folder / "suite.yaml").read_text())
    manager = TaskManager(include_path=content["include_path"], include_defaults=False)
    found = {}
    for dataset in content["datasets"]:
        if "task" not in dataset:
            continue
        try:
            loaded = manager.load([dataset["task"]])
        except Exception as error:
            sys.stderr.write(f"{dataset['name']} left out: {error}\n")
            continue
        for task in loaded["tasks"].values():
            task.set_fewshot_seed(seed=1234)
        began = time.process_time()
        evaluate(_Answering(), loaded, bootstrap_iters=0, log_samples=False)
        items = sum(len(task.eval_docs) for task in loaded["tasks"].values())
        found[dataset["name"]] = (time.process_time() - began) / items
    return found


if __name__ == "__main__":
    os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    sys.stdout.write(json.dumps(seconds_per_item(Path(sys.argv[1]))))
