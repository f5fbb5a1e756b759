"""Evaluators of small tasks: a tokenizer of bytes, and the requests that are built."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from coordinate_eval.evaluators.harness.evaluator import HarnessEvaluator
from coordinate_eval.records import Dataset, Request
from tests.runs import TASKS

BOS = 0
Evaluators = Callable[..., HarnessEvaluator]


def byte_tokenizer(folder: Path) -> Path:
    """Save a tokenizer of one token a byte, with a BOS in front, in a folder; the folder."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    alphabet = ["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    made = Tokenizer(models.BPE({text: number for number, text in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", BOS)]
    )
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # not typed there
        tokenizer_object=made, bos_token="<s>", eos_token="</s>"
    )
    fast.save_pretrained(folder)
    return folder


def evaluator_of(tokenizer: Path, *folders: Path, **options: Any) -> HarnessEvaluator:
    """An evaluator of the tasks in these folders, or of those that all tests have."""
    include = [str(folder) for folder in folders or (TASKS,)]
    return HarnessEvaluator(
        tokenizer=tokenizer, include_path=include, **{"max_length": 2000, **options}
    )


def requests_of(evaluator: HarnessEvaluator, dataset: Dataset) -> list[Request]:
    """The requests of a dataset."""
    requests: list[Request] = []
    evaluator.build(dataset, requests.append)
    return requests
