"""A task that loads the model's tokenizer and trusts its code, as RULER's and Babilong's do."""

from functools import cache
from typing import Any

import datasets
from transformers import AutoTokenizer

TEXT = "the cat sat on the mat, 東京"


@cache
def get_tokenizer(pretrained: str) -> Any:
    return AutoTokenizer.from_pretrained(pretrained, trust_remote_code=True)


def documents(pretrained: str, **_: object) -> dict[str, datasets.Dataset]:
    tokens = get_tokenizer(pretrained)(TEXT).input_ids
    row = {"text": TEXT, "tokens": " ".join(map(str, tokens))}
    return {"test": datasets.Dataset.from_list([row])}
