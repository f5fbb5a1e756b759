"""A log of any size, compressed in one pass: what a rule knows, what looks wrong, last lines.

Lines of one template, which differ in numbers only, are kept once and counted. Memory is bounded by
the constants below, whatever the log holds.
"""

import re
from collections import deque
from typing import BinaryIO, Final

from coordinate_eval import _job_log
from coordinate_eval.diagnosis.lines import (
    Part,
    Piece,
    Tracebacks,
    clean,
    is_mild,
    pieces,
    without_prefix,
)
from coordinate_eval.diagnosis.rules import Rule, Rules

MOST_FOUND: Final = 300
"""Lines that a rule knows, or that look wrong, from the beginning; as many from the end."""

MOST_PLAIN: Final = 60
"""Other lines from the beginning, and three times as many from the end."""

MOST_TEMPLATES: Final = 50_000
"""Templates that are remembered. With more, all are forgotten and learned again."""

MOST_TEXT: Final = 2000
"""Characters of a line that are kept."""

_SHORT = 1000
_LINE = _job_log.LINE.encode()
_DIGITS = b"0123456789"
_LOOKS_WRONG = re.compile(
    r"^(?:[\w.]{1,200}\.)?[A-Z]\w{0,100}(?:Error|Exception|Exit|Interrupt|Failure)\b(?::|$)|"
    r"\b(?:FATAL|Fatal|fatal error|CRITICAL|panic|panicked)\b|"
    r"\b[Ee](?:rror|RROR)\s?:(?!\s*[-\d.]+%?(?:$|[\s,|]))"
)
_WRONG_WORDS = re.compile(r"rror|xcep|xit|nterrupt|ailure|atal|anic|CRIT|FATAL|ERR")
_EXCEPTION = re.compile(r"^(?:[\w.]{1,200}\.)?[A-Z]\w{0,100}(?:Error|Exception|Failure)\b(?::|$)")
_LATER = re.compile(
    r"[])>|:-]\s{0,8}((?:\w{1,100}\.){0,20}[A-Z]\w{0,100}(?:Error|Exception)(?::\s.*|:?$))"
)
"""An exception behind a prefix of any form, or behind words that end in a colon."""

_CODE = re.compile(
    r"^ {4,64}(?:raise|return|assert|await|yield)\b|"
    r"^\s{0,64}(?:-{1,9}> ?\d{1,6} |❱ |│ [❱ ] *\d{1,6} │|[~^]*\^{3}[~^]*$)"
)
"""Lines of code that stand apart from their frame, as where processes write at once."""


class Kept:
    """A line that was kept, and how often lines of its template came."""

    __slots__ = (
        "count",
        "first",
        "first_progress",
        "is_exception",
        "last",
        "last_progress",
        "looks_wrong",
        "may_be_wrong",
        "mild",
        "rule",
        "success",
        "text",
    )

    def __init__(self, number: int, text: str, progress: int) -> None:
        self.first = self.last = number
        self.first_progress = self.last_progress = progress
        self.text = text
        self.count = 1
        self.rule: Rule | None = None
        self.mild = self.looks_wrong = self.is_exception = False
        self.may_be_wrong = self.success = False
        """Two answers: it may be an error that ended the job; it says that a program is done."""

    @property
    def found(self) -> bool:
        """Return whether it may say why a job ended."""
        return self.rule is not None or self.looks_wrong


class Compressed:
    """A log, compressed."""

    def __init__(self) -> None:
        self.kept: list[Kept] = []
        """In the order in which they came first."""
        self.lines = self.bytes = self.progress = 0
        """Counts of the whole log; `progress` counts lines that say that work goes on."""

    def text(self) -> str:
        """Return it as people read it: number, times, line."""
        return "".join(
            f"{each.first}{f' (×{each.count:,})' if each.count > 1 else ''}: {each.text}\n"
            for each in self.kept
        )


def compress(log: BinaryIO, rules: Rules) -> Compressed:
    """Return what is left of a log. It is read once, in small pieces.

    Of the log of a job of this program, only what is below the line that says so counts.
    """
    counting = _Counting(log)
    reader, above = _Reader(rules), 0
    for piece in pieces(counting):  # type: ignore[arg-type]  # only read
        if piece.content == _LINE:
            reader, above = _Reader(rules), piece.number
        else:
            reader.take(piece)
    result = reader.end()
    result.lines = max(result.lines, above)
    result.bytes = counting.bytes
    return result


def compress_text(text: str, rules: Rules) -> Compressed:
    """Return what is left of a text that is short, such as an error's message."""
    reader = _Reader(rules)
    for number, line in enumerate(text.encode(errors="replace").splitlines(), 1):
        reader.take(Piece(number, line[:4096]))
    return reader.end()


class _Counting:
    """A log whose bytes are counted as they are read."""

    def __init__(self, log: BinaryIO) -> None:
        self._log, self.bytes = log, 0

    def read(self, most: int) -> bytes:
        chunk = self._log.read(most)
        self.bytes += len(chunk)
        return chunk


class _Reader:
    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._known: dict[int, Kept | bool | None] = {}
        """The line that was kept of each template; True for progress, None for what is dropped."""
        self._found: list[Kept] = []
        self._found_last: deque[Kept] = deque(maxlen=MOST_FOUND)
        self._plain: list[Kept] = []
        self._plain_last: deque[Kept] = deque(maxlen=3 * MOST_PLAIN)
        self._progress = 0
        self._tracebacks = Tracebacks()
        self._code: Kept | None = None
        self._last = 0

    def take(self, piece: Piece) -> None:
        content = piece.content
        self._last = piece.number
        short = content if len(content) <= _SHORT else content[:_SHORT] + content[-_SHORT:]
        part, exception = self._tracebacks.take(content)
        key = hash(short.translate(None, _DIGITS)) ^ part
        known = self._known.get(key, False)
        if known is None:
            return
        if known is True:
            self._progress += 1
        elif known is False:
            if len(self._known) >= MOST_TEMPLATES:
                self._known.clear()
            known = self._known[key] = self._look(piece, part, exception)
        else:
            known.count += 1
            known.last, known.last_progress = piece.number, self._progress
        if part is Part.CODE and isinstance(known, Kept):
            self._code = known

    def end(self) -> Compressed:
        result = Compressed()
        result.lines, result.progress = self._last, self._progress
        if self._code is not None and self._tracebacks.is_open:
            self._code.looks_wrong = True  # the process was ended while it said why
        plain = [*self._plain, *self._plain_last]
        plain = [kept for kept in plain if not self._rules.is_startup(without_prefix(kept.text))]
        each = [*plain, *self._found, *self._found_last]
        unique = {id(kept): kept for kept in each}.values()
        result.kept = sorted(unique, key=lambda kept: kept.first)
        for kept in plain:
            said = without_prefix(kept.text)
            kept.success = self._rules.is_success(said)
            mild = is_mild(kept.text) or self._rules.is_harmless(said)
            kept.may_be_wrong = kept.may_be_wrong and not mild
        return result

    def _look(self, piece: Piece, part: Part, exception: str) -> Kept | bool | None:
        """Return what becomes of the first line of a template. No rule knows a line of code."""
        text = clean(piece.content)
        if not text:
            return None
        said = exception or without_prefix(text)
        is_code = part is Part.CODE or bool(_CODE.match(said))
        rule = None if is_code else self._rules.find(said)
        if rule is None and not exception and self._rules.is_progress(said[:_SHORT]):
            self._progress += 1
            return True
        kept = Kept(piece.number, text[:MOST_TEXT], self._progress)
        kept.may_be_wrong = not is_code
        if not is_code and (rule or exception or _WRONG_WORDS.search(said[:_SHORT])):
            kept.is_exception = bool(exception or _EXCEPTION.match(said))
            if not kept.is_exception and (later := _LATER.search(said[:_SHORT])):
                kept.is_exception, said = True, later[1]
                rule = rule or self._rules.find(said)
            wrong = rule or kept.is_exception or _LOOKS_WRONG.search(said[:_SHORT])
            if wrong and (exception or not self._rules.is_harmless(said)):
                own = said if kept.is_exception else ""
                kept.mild = part is Part.IGNORED or is_mild(text, own)
                kept.rule = rule
                kept.looks_wrong = rule is None and not kept.mild
        return self._keep(kept)

    def _keep(self, kept: Kept) -> Kept:
        first, last, most = self._plain, self._plain_last, MOST_PLAIN
        if kept.found:
            first, last, most = self._found, self._found_last, MOST_FOUND
        if len(first) < most:
            first.append(kept)
        else:
            if len(last) == last.maxlen:
                last[0].text = ""  # it drops out, and only its template stays known
            last.append(kept)
        return kept
