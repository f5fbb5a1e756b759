"""What a run's engine answered, beside what the engine says of other weights in this process."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from coordinate_eval.evaluators.engines.base import Loading, by_name
from coordinate_eval.evaluators.harness.evaluator import HarnessEvaluator
from coordinate_eval.evaluators.harness.prompts.language_models import Backend
from coordinate_eval.records import Dataset, Request, Response
from tests.runs import TASKS, published, scores
from tests.tiny import MAX_LENGTH

PRECISE = {"dtype": "float32"}
"""Arguments of transformers with which the other prompts of a batch do not matter."""
ENGINE = ("--engine", "transformers", "--engine-args", json.dumps(PRECISE), "--max-gpus", "1")


def assert_answered(
    run: Path, datasets: Sequence[str], weights: Path, backend: Backend = "hf"
) -> None:
    """A complete run with `ENGINE` has the answers of the weights in a folder, and their scores.

    Equal answers have equal scores: how they are scored knows nothing of weights. `backend` is that
    for which the run's prompts are cut.
    """
    assert set(scores(run)) >= set(datasets)
    found = [Response.model_validate_json(line) for path in published(run) for line in path.open()]
    asked: list[Request] = []
    evaluator = HarnessEvaluator(
        tokenizer=weights, max_length=MAX_LENGTH, include_path=[str(TASKS)], backend=backend
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(TASKS)  # where their data is
        for name in datasets:
            evaluator.build(Dataset(name=name, task=name), asked.append)
    engine = by_name("transformers").start(Loading(weights, 1, MAX_LENGTH, dict(PRECISE)))
    expected = {each.identity(): each for each in engine.run(iter(asked))}
    engine.close()
    assert len(found) == len(expected) == len(asked)
    for answer in found:
        wanted = expected[answer.identity()]
        if answer.logprob is not None:
            assert answer.logprob == pytest.approx(wanted.logprob, abs=1e-3)
        assert answer.model_copy(update={"logprob": None}) == wanted.model_copy(
            update={"logprob": None}
        )
