"""Bits per byte of right answers: how well a model would write them, without asking it to.

A score rises smoothly from the first steps on, where accuracy is still that of guessing, and each
item costs one request. The mean is over items, so it has a standard error, and items can be
compared in pairs. The bytes are those of what is scored, with the space before an answer.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Doc = Mapping[str, Any]


def _bits(answer: Callable[[Doc], str], doc: Doc, results: Sequence[Any]) -> dict[str, float]:
    """Return the metric of an item, from its log-likelihood in nats."""
    ((log_likelihood, _),) = results
    return {"bits_per_byte": -log_likelihood / math.log(2) / len(answer(doc).encode())}


def labelled(doc: Doc) -> str:
    """Return the right answer where choices have labels: ARC, OpenBookQA, CommonsenseQA."""
    place = doc["choices"]["label"].index(doc["answerKey"].strip())
    return f" {doc['choices']['text'][place].strip()}"


def labelled_bits(doc: Doc, results: Sequence[Any]) -> dict[str, float]:
    """Return the bits per byte of `labelled`."""
    return _bits(labelled, doc, results)


def mmlu(doc: Doc) -> str:
    """Return the right answer of MMLU."""
    return f" {doc['choices'][int(doc['answer'])].strip()}"


def mmlu_bits(doc: Doc, results: Sequence[Any]) -> dict[str, float]:
    """Return the bits per byte of `mmlu`."""
    return _bits(mmlu, doc, results)


def hellaswag_text(doc: Doc) -> str:
    """Return a prompt of HellaSwag, as the harness writes it."""
    return _without_marks(f"{doc['activity_label']}: {doc['ctx_a']} {doc['ctx_b'].capitalize()}")


def hellaswag(doc: Doc) -> str:
    """Return the right ending of HellaSwag."""
    return f" {_without_marks(doc['endings'][int(doc['label'])])}"


def hellaswag_bits(doc: Doc, results: Sequence[Any]) -> dict[str, float]:
    """Return the bits per byte of `hellaswag`."""
    return _bits(hellaswag, doc, results)


def _without_marks(text: str) -> str:
    text = text.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ")


def piqa(doc: Doc) -> str:
    """Return the right solution of PIQA."""
    return f" {doc[('sol1', 'sol2')[int(doc['label'])]].strip()}"


def piqa_bits(doc: Doc, results: Sequence[Any]) -> dict[str, float]:
    """Return the bits per byte of `piqa`."""
    return _bits(piqa, doc, results)


def social_iqa(doc: Doc) -> str:
    """Return the right answer of Social IQa."""
    return f" {doc[('answerA', 'answerB', 'answerC')[int(doc['label']) - 1]].strip()}"


def social_iqa_bits(doc: Doc, results: Sequence[Any]) -> dict[str, float]:
    """Return the bits per byte of `social_iqa`."""
    return _bits(social_iqa, doc, results)


def first(doc: Doc) -> str:
    """Return the first of the right answers of Natural Questions."""
    return f" {doc['answer'][0].strip()}"


def first_bits(doc: Doc, results: Sequence[Any]) -> dict[str, float]:
    """Return the bits per byte of `first`."""
    return _bits(first, doc, results)


def gsm8k(doc: Doc) -> str:
    """Return the worked answer of GSM8K, without the marks of its calculator."""
    return f" {re.sub(r'<<.*?>>', '', doc['answer']).strip()}"


def gsm8k_bits(doc: Doc, results: Sequence[Any]) -> dict[str, float]:
    """Return the bits per byte of `gsm8k`."""
    return _bits(gsm8k, doc, results)


def math500(doc: Doc) -> str:
    """Return the worked solution of MATH-500."""
    return f" {doc['solution'].strip()}"


def math500_bits(doc: Doc, results: Sequence[Any]) -> dict[str, float]:
    """Return the bits per byte of `math500`."""
    return _bits(math500, doc, results)


def humaneval(doc: Doc) -> str:
    """Return the solution of HumanEval, which follows the head of its function."""
    return str(doc["canonical_solution"]).rstrip()


def humaneval_bits(doc: Doc, results: Sequence[Any]) -> dict[str, float]:
    """Return the bits per byte of `humaneval`."""
    return _bits(humaneval, doc, results)


def mbpp(doc: Doc) -> str:
    """Return the solution of MBPP, with the line ends of a program."""
    return str(doc["code"]).replace("\r\n", "\n").strip()


def mbpp_bits(doc: Doc, results: Sequence[Any]) -> dict[str, float]:
    """Return the bits per byte of `mbpp`."""
    return _bits(mbpp, doc, results)
