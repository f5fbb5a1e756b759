"""Functions of the tasks, which do what those of the harness's own tasks do, in their style."""

import math
import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Any

import datasets

Doc = dict[str, Any]
Pairs = Sequence[tuple[float, bool]]

_BRACKETS = re.compile(r"\[.*?\]")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_FINAL = re.compile(r"Final Answer: The final answer is(.*?)\.", re.DOTALL)
_BOXED = re.compile(r"\\boxed\{(.*?)\}")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def tidy(dataset: datasets.Dataset) -> datasets.Dataset:
    """Return items without traces of the page that they were taken from."""

    def one(doc: Doc) -> Doc:
        return {"query": _clean(doc["query"]), "choices": [_clean(c) for c in doc["choices"]]}

    return dataset.map(one)


def _clean(text: str) -> str:
    return _BRACKETS.sub("", text.strip().replace(" [title]", ". ")).replace("  ", " ")


def article_text(doc: Doc) -> str:
    """Return an article and a question."""
    return f"Article: {doc['article']}\n\nQuestion: {doc['question']}\nAnswer:"


def article_choices(doc: Doc) -> list[str]:
    """Return the options."""
    return list(doc["options"])


def article_target(doc: Doc) -> int:
    """Return the number of the right option."""
    return int(doc["label"])


def blank_text(doc: Doc) -> int:
    """Return the number of the right beginning."""
    return int(doc["label"])


def blank_choices(doc: Doc) -> list[str]:
    """Return the beginnings, each with another word for the blank."""
    before = doc["sentence"][: doc["sentence"].index("_")]
    return [before + option for option in doc["options"]]


def blank_target(doc: Doc) -> str:
    """Return what follows the blank."""
    return str(doc["sentence"][doc["sentence"].index("_") + 1 :].strip())


def true_results(doc: Doc, results: Pairs) -> dict[str, float]:
    """Return the probability of the true answers."""
    labels = doc["mc2_targets"]["labels"]
    weights = [math.exp(logprob) for logprob, _ in results]
    true = sum(weight for weight, label in zip(weights, labels, strict=True) if label)
    return {"acc": true / sum(weights) if sum(weights) else 0.0}


def entities_docs(dataset: datasets.Dataset) -> datasets.Dataset:
    """Return items with each entity once."""

    def one(doc: Doc) -> Doc:
        return {key: sorted(set(doc[key])) for key in ("entities", "answers")}

    return dataset.map(one)


def entities_text(doc: Doc) -> str:
    """Return a passage with its highlights."""
    initial, *highlights = doc["passage"].strip().split("\n@highlight\n")
    text = f"{initial}\n\n"
    for highlight in highlights:
        text += f"  - {highlight}.\n"
    return text


def entities_choices(doc: Doc) -> list[str]:
    """Return a line for each entity."""
    return [_line(doc, entity) for entity in doc["entities"]]


def entities_target(doc: Doc) -> str:
    """Return the line of the first right entity."""
    return _line(doc, doc["answers"][0])


def entities_results(doc: Doc, results: Pairs) -> dict[str, float]:
    """Return how well the likeliest entity fits."""
    best = max(range(len(results)), key=lambda place: results[place][0])
    return _best(doc["entities"][best], doc["answers"])


def _line(doc: Doc, entity: str) -> str:
    return f"  - {doc['query']}".replace("@placeholder", entity)


def maths_docs(dataset: datasets.Dataset) -> datasets.Dataset:
    """Return problems with the answers in their solutions."""

    def one(doc: Doc) -> Doc:
        return {"answer": _last(_BOXED, doc["solution"])}

    return dataset.map(one)


def maths_text(doc: Doc) -> str:
    """Return a problem."""
    return f"Problem:\n{doc['problem']}\n\nSolution:"


def maths_results(doc: Doc, results: Sequence[str]) -> dict[str, float]:
    """Return whether the final answer is the right one."""
    found = _last(_FINAL, results[0] + " Final Answer: The final answer is $?$.")
    return {"exact_match": float(_plain(found) == _plain(doc["answer"]))}


def _last(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.findall(text)
    return str(found[-1]) if found else ""


def _plain(answer: str) -> str:
    for before, after in (("$", ""), ("\\text", ""), ("\\%", "%"), (" ", ""), ("dfrac", "frac")):
        answer = answer.replace(before, after)
    return answer


def span_results(doc: Doc, results: Sequence[str]) -> dict[str, float]:
    """Return how well a text fits the best of the answers."""
    return _best(results[0], doc["answers"])


def _best(text: str, answers: Sequence[str]) -> dict[str, float]:
    words = _normal(text)
    pairs = [_overlap(words, _normal(answer)) for answer in answers]
    return {"em": max(em for em, _ in pairs), "f1": max(f1 for _, f1 in pairs)}


def _normal(text: str) -> list[str]:
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def _overlap(one: Sequence[str], other: Sequence[str]) -> tuple[float, float]:
    """Return exact match and F1 of two lists of words."""
    common = sum((Counter(one) & Counter(other)).values())
    f1 = 2 * common / (len(one) + len(other)) if common else 0.0
    return float(list(one) == list(other)), f1


def summary_results(doc: Doc, results: Sequence[str]) -> dict[str, float]:
    """Return ROUGE-L, the F1 of the longest common subsequence, of the best reference."""
    words = _normal(results[0])
    return {"rouge_l": max(_rouge_l(words, _normal(answer)) for answer in doc["answers"])}


def _rouge_l(one: Sequence[str], other: Sequence[str]) -> float:
    lengths = [0] * (len(other) + 1)
    for word in one:
        diagonal = 0
        for place, against in enumerate(other, start=1):
            above = lengths[place]
            lengths[place] = diagonal + 1 if word == against else max(above, lengths[place - 1])
            diagonal = above
    return 2 * lengths[-1] / (len(one) + len(other)) if one or other else 0.0


def found_results(doc: Doc, results: Sequence[str]) -> dict[str, float]:
    """Return the share of the hidden texts that was found."""
    hits = [output.lower() in results[0].lower() for output in doc["outputs"]]
    return {"found": sum(hits) / len(hits)}


def instructed_results(doc: Doc, results: Sequence[str]) -> dict[str, Any]:
    """Return which instructions a text follows, as it is and with lines left out."""
    lines = results[0].split("\n")
    loose = ["\n".join(part) for part in (lines, lines[1:], lines[:-1], lines[1:-1])]
    strict_met = [word in results[0].lower() for word in doc["wanted"]]
    loose_met = [any(word in text.lower() for text in loose) for word in doc["wanted"]]
    return {
        "prompt_level_strict_acc": all(strict_met),
        "prompt_level_loose_acc": all(loose_met),
        "inst_level_strict_acc": strict_met,
        "inst_level_loose_acc": loose_met,
    }


def flat_mean(items: Sequence[Sequence[bool]]) -> float:
    """Return the mean over all instructions of all items."""
    flat = [met for item in items for met in item]
    return sum(flat) / len(flat)
