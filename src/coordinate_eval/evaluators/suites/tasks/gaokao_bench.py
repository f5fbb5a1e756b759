"""Scoring of GAOKAO-Bench: the letters after the last "答案", one or several a question."""

import re
from typing import Any

_MARK = re.compile(r"答案|故选|(?i:answer is)")
_LETTERS = r"[A-G](?:[\s,，、;；和与]*[A-G](?![a-z]))*(?![a-z])"


def process_results(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """The share of a question's parts that are answered right; most questions are of one part.

    The order of the letters counts between parts, and not within one that has several.
    """
    wanted = [str(part).strip() for part in doc["answer"]]
    said = letters(results[0])
    if len(wanted) == 1:
        return {"acc": float(set(said) == set(wanted[0]))}
    right = sum(one == other for one, other in zip(said, wanted, strict=False))
    return {"acc": right / len(wanted)}


def letters(text: str) -> str:
    """The option letters that a text ends with; none where it names no answer.

    Several parts may be numbered: "答案：1. B 2. D".
    """
    marks = list(_MARK.finditer(text))
    if not marks:
        return ""
    tail = text[marks[-1].end() :]
    numbered = re.findall(r"\d+\s*[.．、:：)）]\s*([A-G])(?![A-Za-z])", tail)
    if numbered:
        return "".join(numbered)
    found = re.search(_LETTERS, tail)
    return re.sub(r"[^A-G]", "", found[0]) if found else ""
