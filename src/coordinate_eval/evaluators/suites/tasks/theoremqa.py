"""Scoring of TheoremQA. Each type of answer has its own rule."""

import ast
import re
from typing import Any

TOLERANCE = 0.04
"""Relative error up to which a float is right, as in the dataset's own scoring."""

_NUMBER = r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_POWER = re.compile(rf"({_NUMBER})\s*(?:\\times|\\cdot|×|\*|x)\s*10\s*(?:\^|\*\*)\s*\{{?([-+]?\d+)")
_FRACTION = re.compile(rf"({_NUMBER})\s*/\s*({_NUMBER})")
_TEX_FRACTION = re.compile(rf"(-?)\\d?frac\s*\{{({_NUMBER})\}}\s*\{{({_NUMBER})\}}")


def without_pictures(docs: Any) -> Any:  # noqa: ANN401  datasets has no types
    """Return the documents without the column of pictures, which is slow to decode and unused."""
    return docs.remove_columns([name for name in ("Picture",) if name in docs.column_names])


def process_results(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """Return 1 if the text after the last "the answer is" is right for its type, else 0."""
    said = _last_answer(results[0])
    return {"exact_match": float(is_right(said, str(doc["Answer"]), str(doc["Answer_type"])))}


def is_right(said: str, answer: str, kind: str) -> bool:
    """Return whether the text `said` is the right answer of type `kind`."""
    if kind == "bool":
        truth = re.search(r"true|false|yes|no\b", said.lower())
        return truth is not None and (truth[0] in ("true", "yes")) == (answer.lower() == "true")
    if kind == "option":
        letter = re.search(r"\(([a-z])\)|\b([a-z])\b", said.lower())
        return letter is not None and (letter[1] or letter[2]) == answer.strip("() ").lower()
    wanted = ast.literal_eval(answer)
    if not isinstance(wanted, list):
        found = number(said)
        return found is not None and _near(found, wanted)
    inside = re.search(r"[\[({](.*)[\])}]", said)
    parts = (inside[1] if inside else said).split(",")
    numbers = [number(part) for part in parts]
    return len(numbers) == len(wanted) and all(
        found is not None and _near(found, value)
        for found, value in zip(numbers, wanted, strict=True)
    )


def number(text: str) -> float | None:
    """Return the first number of a text: 1,234.5, 1.2e-3, 1.2 × 10^-3, 2/3 or \\frac{2}{3}."""
    text = text.replace("−", "-").replace("\\,", "").replace("$", "")
    try:
        if found := _TEX_FRACTION.search(text):
            sign = -1 if found[1] else 1
            return sign * _plain(found[2]) / _plain(found[3])
        first = re.search(_NUMBER, text)
        if first is None:
            return None
        rest = text[first.start() :]
        if found := _POWER.match(rest):
            return _plain(found[1]) * 10.0 ** int(found[2])
        if found := _FRACTION.match(rest):
            return _plain(found[1]) / _plain(found[2])
        return _plain(first[0])
    except (ValueError, OverflowError, ZeroDivisionError):
        return None


def _plain(text: str) -> float:
    return float(text.replace(",", ""))


def _near(found: float, wanted: float) -> bool:
    if isinstance(wanted, int):
        return abs(found - wanted) < 1e-9 * max(1, abs(wanted))
    return abs(found - wanted) <= TOLERANCE * abs(wanted)


def _last_answer(text: str) -> str:
    """Return the line after the last "the answer is", without its full stop."""
    tail = re.split(r"(?i)the (?:final )?answer is:?", text)
    if len(tail) == 1:
        return ""
    lines = tail[-1].strip().splitlines()
    return lines[0].strip().rstrip(".") if lines else ""
