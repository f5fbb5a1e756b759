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


def _bits_of(answer: Callable[[Doc], str]) -> Callable[[Doc, Sequence[Any]], dict[str, float]]:
    """Return what makes the metric of an item with this answer of its log-likelihood in nats."""

    def bits(doc: Doc, results: Sequence[Any]) -> dict[str, float]:
        ((log_likelihood, _),) = results
        return {"bits_per_byte": -log_likelihood / math.log(2) / len(answer(doc).encode())}

    return bits


def labelled(doc: Doc) -> str:
    """Return the right answer where choices have labels: ARC, OpenBookQA, CommonsenseQA."""
    place = doc["choices"]["label"].index(doc["answerKey"].strip())
    return f" {doc['choices']['text'][place].strip()}"


labelled_bits = _bits_of(labelled)


def mmlu(doc: Doc) -> str:
    """Return the right answer of MMLU."""
    return f" {doc['choices'][int(doc['answer'])].strip()}"


mmlu_bits = _bits_of(mmlu)


def hellaswag_text(doc: Doc) -> str:
    """Return a prompt of HellaSwag, as the harness writes it."""
    return _without_marks(f"{doc['activity_label']}: {doc['ctx_a']} {doc['ctx_b'].capitalize()}")


def hellaswag(doc: Doc) -> str:
    """Return the right ending of HellaSwag."""
    return f" {_without_marks(doc['endings'][int(doc['label'])])}"


hellaswag_bits = _bits_of(hellaswag)


def _without_marks(text: str) -> str:
    text = text.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ")


def piqa(doc: Doc) -> str:
    """Return the right solution of PIQA."""
    return f" {doc[('sol1', 'sol2')[int(doc['label'])]].strip()}"


piqa_bits = _bits_of(piqa)


def social_iqa(doc: Doc) -> str:
    """Return the right answer of Social IQa."""
    return f" {doc[('answerA', 'answerB', 'answerC')[int(doc['label']) - 1]].strip()}"


social_iqa_bits = _bits_of(social_iqa)


def first(doc: Doc) -> str:
    """Return the first of the right answers of Natural Questions."""
    return f" {doc['answer'][0].strip()}"


first_bits = _bits_of(first)


def gsm8k(doc: Doc) -> str:
    """Return the worked answer of GSM8K, without the marks of its calculator."""
    return f" {re.sub(r'<<.*?>>', '', doc['answer']).strip()}"


gsm8k_bits = _bits_of(gsm8k)


def math500(doc: Doc) -> str:
    """Return the worked solution of MATH-500."""
    return f" {doc['solution'].strip()}"


math500_bits = _bits_of(math500)


def humaneval(doc: Doc) -> str:
    """Return the solution of HumanEval, which follows the head of its function."""
    return str(doc["canonical_solution"]).rstrip()


humaneval_bits = _bits_of(humaneval)


def mbpp(doc: Doc) -> str:
    """Return the solution of MBPP, with the line ends of a program."""
    return str(doc["code"]).replace("\r\n", "\n").strip()


mbpp_bits = _bits_of(mbpp)
