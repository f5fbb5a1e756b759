"""Numbers and names in the form in which people read them."""

import json
import math
import shlex
from collections.abc import Sequence
from typing import Final

from pydantic import ValidationError

MOST_WORDS: Final = 500
"""Characters of other people's words within a message."""

_LOST = "\N{REPLACEMENT CHARACTER}"

_PYDANTIC = {
    "Input should be a valid tuple": "must be a list",
    "Input should ": "must ",
    "String should ": "must ",
    "Value error, ": "",
    "Extra inputs are not permitted": "unknown key",
    "Field required": "it is missing",
}
"""The beginnings of pydantic's messages, with the words that people read instead."""

_BARS = "▁▂▃▄▅▆▇█"


def duration(seconds: float) -> str:
    """Return a time in seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 90 else f"{minutes / 60:.1f} h"


def whole_duration(seconds: float) -> str:
    """Return seconds in the unit that fits, without fractions of a second."""
    return f"{seconds:.0f} s" if seconds < 90 else duration(seconds)


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: `1 node`, `2 nodes`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def listed(names: Sequence[object], most: int = 5) -> str:
    """Return names on a line; of more than `most`, the others are counted."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


def size(count: float) -> str:
    """Return a number of bytes in B, KiB, MiB or GiB."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def plain(text: str) -> str:
    """Return a name with unprintable characters replaced, so that it stays on one line."""
    return text if text.isprintable() else "".join(c if c.isprintable() else _LOST for c in text)


def quoted(name: object) -> str:
    """Return a name on one line, as a shell takes it for a name and nothing else."""
    return shlex.quote(plain(str(name)))


def visible(text: str) -> str:
    """Return a text of several lines with all else that is unprintable replaced.

    Escape sequences and the like steer a terminal, and turn the order of what a person reads.
    """
    return "\n".join("\t".join(map(plain, line.split("\t"))) for line in text.split("\n"))


def visible_json(text: str) -> str:
    """Return JSON that means the same, in which unprintable characters are written as escapes."""
    if text.isascii() and "\x7f" not in text:  # JSON itself escapes what is below a space
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else json.dumps(c)[1:-1] for c in text)


def brief(text: object, most: int = MOST_WORDS) -> str:
    """Return other people's words on one line, without the middle if they are long."""
    words = plain(" ".join(str(text).split()))
    return words if len(words) <= most else f"{words[: most // 2]} … {words[-most // 2 :]}"


def problem(error: ValidationError) -> str:
    """Return the first problem of an invalid value, in words that follow its name and a colon."""
    text = str(error.errors(include_url=False, include_input=False)[0]["msg"])
    for start, words in _PYDANTIC.items():
        if text.startswith(start):
            return words + text.removeprefix(start)
    return text


def sparkline(values: Sequence[float | None], most: int = 60) -> str:
    """Return a curve of at most so many characters; a gap where nothing is known."""
    drawn, known = bars(values, most)
    return f"{drawn}  {known[0]:.4f} → {known[-1]:.4f}" if known else ""


def drawn_places(count: int, most: int = 60) -> list[int]:
    """Return which of so many values a curve of at most so many characters shows."""
    step = max(1, -(-count // most))
    return [min(place + step, count) - 1 for place in range(0, count, step)]


def bars(values: Sequence[float | None], most: int) -> tuple[str, list[float]]:
    """Return a curve of at most so many characters, and the values in it that are known."""
    kept = [values[place] for place in drawn_places(len(values), most)]
    known = [each for each in kept if each is not None and math.isfinite(each)]
    low, span = (min(known), max(known) - min(known)) if known else (0.0, 0.0)

    def bar(value: float | None) -> str:
        if value is None or not math.isfinite(value):
            return " "
        part = (value - low) / span if span else 0.5
        return _BARS[min(len(_BARS) - 1, int(part * len(_BARS)))]

    return "".join(map(bar, kept)), known
