"""Scoring of GAOKAO-Bench by the letters after the last "答案", one or more per question."""

import re
from typing import Any

_MARK = re.compile(r"答案|故选|(?i:answer is)")
_LETTERS = r"[A-G](?:[\s,，、;；和与]*[A-G](?![a-z]))*(?![a-z])"


def process_results(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """Return the share of a question's parts with the right answer. Most have one part.

    The order of parts counts. The order of several letters within one part does not.
    """
    wanted = [str(part).strip() for part in doc["answer"]]
    said = letters(results[0])
    if len(wanted) == 1:
        return {"acc": float(set(said) == set(wanted[0]))}
    right = sum(one == other for one, other in zip(said, wanted, strict=False))
    return {"acc": right / len(wanted)}


def letters(text: str) -> str:
    """Return the option letters at the end of a text, or "" if it names no answer.

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
