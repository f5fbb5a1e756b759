"""A log as lines of bounded length, whatever it holds, and which of them are of a traceback.

A frame of a traceback may have no line of code: of `python -c`, of Cython, of what was compiled. So
code is told by its indentation, which is deeper than that of its frame, and the exception by being
less indented. The prefix that a launcher puts before each line is read from the frame's own line.
"""

import functools
import re
from collections.abc import Iterator
from enum import IntEnum
from typing import BinaryIO, NamedTuple

MOST_PIECE = 4096
"""Bytes of a line that are looked at together. A longer line comes in several pieces."""

_CHUNK = 1 << 18

_ESCAPES = re.compile(
    rb"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}[@-~]|\][^\x07\x1b]{0,512}(?:\x07|\x1b\\)|[@-Z\\-_])"
)
_CONTROL = bytes(set(range(32)) - {9}) + b"\x7f"

_PREFIXES = re.compile(
    r"""(?:
      \[(?:rank|default)\s?\d{1,6}\]:?
    | \[\d{1,5},\s?\d{1,6}\]\s?<(?:stderr|stdout)>:?                       # mpirun --tag-output
    | (?:rank\s?)?\d{1,6}:(?=\s)                                           # srun --label
    | \((?:[\w.:-]{1,80}[ ,]+){0,4}(?:rank|pid)=\d{1,9}[^)\n]{0,80}\)      # vLLM, Ray
    | \(\w{0,40}(?:Core|Server|Worker|Actor|Engine)\w{0,40}(?:\ [^)\n]{0,80})?\)
    | \[?[EWIFC]\d{4}\ [\d:.]{8,20}\s+\d{1,9}\s+[\w./<>-]{1,120}:\d{1,7}\]  # glog
    | \[?(?:\d{4}-)?\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]?
    | \[?[A-Z][a-z]{2}\s{1,2}\d{1,2}\s\d\d:\d\d:\d\d(?:\s\d{4})?\]?
    | [\w.-]{1,60}\ [\w./-]{1,60}\[\d{1,9}\]:\ {0,4}                                # syslog
    | \[\s{0,8}\d{1,9}\.\d{6}\]                                            # kernel
    | \[?\b(?:CRITICAL|FATAL|ERROR|WARNING|WARN|INFO|DEBUG|critical|error|warning|info)\b\]?:?
    | \[[\w./<>=-]{1,80}:\d{1,7}(?::\w{1,60})?\]
    | \[[A-Za-z_][\w.\s-]{0,40}\](?=\s)
    | [-|+](?=\s)
    | [^|\n]{0,80}\d%\|[^|\n]{0,200}\|[^\[\n]{0,60}\[[^\]\n]{0,200}\](?=\s?[A-Za-z\[(])  # tqdm
    | [a-z0-9][\w.-]{0,80}\d:\s(?=(?:[\w.]{0,200}(?:Error|Exception)(?::|$)|Traceback\b))  # pdsh
    )[\s,:]*""",
    re.VERBOSE,
)
_LEVEL = re.compile(
    r"(?<!NCCL )\bWARN\b|\b(?:WARNING|INFO|DEBUG|TRACE|Warning)\b|[Ww]arning:|"
    r"(?:\[|^)[WI](?:\d{3,4})? |warnings\.warn"
)
_GOES_ON = re.compile(
    r"\b[Rr]etrying\b|[Ww]ill (?:be )?retr|\b[Rr]etry(?: (?:in|after|loop|attempt|#|\d)|[:(])|"
    r"\b(?:[Ii]gnored|[Ii]gnoring|[Ss]kipping|[Ff]alling back)\b"
)
_SEVERE = re.compile(r"\b(?:ERROR|CRITICAL|FATAL)\b|(?:\[|^)[EFC](?:\d{3,4})? ")
_HEAD = 160


class Piece(NamedTuple):
    """A line of a log, or a part of a long one."""

    number: int
    """Number of the line in the file, from 1. The states of a progress bar share a number."""
    content: bytes


def pieces(log: BinaryIO) -> Iterator[Piece]:
    """Yield what a log has between line breaks and carriage returns, without empty lines.

    A piece has at most `MOST_PIECE` bytes, and no more than a chunk of the log is in memory.
    """
    number, rest = 1, b""
    while chunk := log.read(_CHUNK):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line:
                yield from _cut(number, line)
            number += 1
        if len(rest) > MOST_PIECE:
            # What is whole of it is passed on, so that a line without an end is no burden.
            *states, rest = rest.split(b"\r")
            for state in states:
                yield from _cut(number, state)
            whole = len(rest) - len(rest) % MOST_PIECE
            if whole:
                yield from _cut(number, rest[:whole])
                rest = rest[whole:]
    yield from _cut(number, rest)


def _cut(number: int, line: bytes) -> Iterator[Piece]:
    for state in line.split(b"\r") if b"\r" in line else (line,):
        if len(state) <= MOST_PIECE:
            if state:
                yield Piece(number, state)
            continue
        for start in range(0, len(state), MOST_PIECE):
            yield Piece(number, state[start : start + MOST_PIECE])


def clean(content: bytes) -> str:
    """Return a piece as text without escape sequences and control characters."""
    if b"\x1b" in content:
        content = _ESCAPES.sub(b"", content)
    return content.translate(None, _CONTROL).decode(errors="replace").rstrip()


def without_prefix(text: str) -> str:
    """Return a line without ranks, times, levels and sources that loggers put before a message."""
    at, end = 0, min(len(text), 400)
    while match := _PREFIXES.match(text, at + _spaces(text, at), end):
        at = match.end()
    return text[at:] if at else text


def is_mild(text: str, said: str = "") -> bool:
    """Return whether a line says itself that it is a warning, or that work goes on.

    Args:
        said: an exception that ends it. The words of an exception do not make the line mild.
    """
    head = text[: min(_HEAD, len(text) - len(said))]
    mild = _LEVEL.search(head) or _GOES_ON.search(head)
    return bool(mild) and not _SEVERE.search(head)


def _spaces(text: str, at: int) -> int:
    return len(text) - at - len(text[at:].lstrip(" "))


class Part(IntEnum):
    """The kind of a line of a traceback."""

    NONE = 0
    CODE = 1
    """A frame, or the code at which it stands: it says nothing of a cause, whatever it contains."""
    EXCEPTION = 2
    IGNORED = 3
    """An exception after which Python goes on, as it says itself."""


_FRAME = b'", line '
_HEADER = b"Traceback (most recent call last)"
_IGNORED = re.compile(
    rb"Exception ignored |--- Logging error ---|Error in atexit\.|Error processing line \d+ of "
)
_BOX, _BOX_LINE, _BOX_END = "─".encode(), "│".encode(), "╰".encode()

_FRAME_HEAD = re.compile(r'(.{0,400}?)( {0,16})File "[^"]{1,1000}", line \d')
_NAME = re.compile(r"[A-Za-z_][\w.]{0,200}(?:\([\w.]{1,200}\))?(?::(?:\s|$)|$)")
_CLASS = re.compile(r"(?:\w{1,100}\.){0,20}[A-Z]\w{0,100}(?:\(\w{1,100}\))?(?::(?:\s|$)|$)")
_GROUP = re.compile(r"(?:\w{1,100}\.){0,20}(?:Base)?ExceptionGroup\b")
_MARK = re.compile(rb'", line |Traceback \(most|' + _IGNORED.pattern)
_NOTHING = (Part.NONE, "")
_SOON = 4
"""Lines within which the traceback begins that Python says it goes on after."""

_MOST_OTHERS = 50
"""Lines of other processes between two of a traceback, at most."""


class Tracebacks:
    """Follows the lines of a log."""

    def __init__(self) -> None:
        self._prefix: str | None = None
        """The prefix of each line of the traceback that is read; None outside of one."""
        self._indent = self._others = self._ignored = 0
        self._after_frame = self._in_box = self._busy = False

    @property
    def is_open(self) -> bool:
        """Return whether the last traceback has no exception yet."""
        return self._prefix is not None

    def take(self, content: bytes) -> tuple[Part, str]:
        """Return what the next line is, and an exception as it is said, without its prefix."""
        if not self._busy and not _MARK.search(content):
            return _NOTHING
        part = self._take(content)
        self._busy = self._in_box or self._prefix is not None or self._ignored > 0
        return part

    def _take(self, content: bytes) -> tuple[Part, str]:
        if _FRAME in content and (head := _FRAME_HEAD.match(clean(content))):
            self._prefix, self._indent = head[1], len(head[2])
            self._others, self._after_frame = 0, True
            return Part.CODE, ""
        if _IGNORED.search(content):
            self._ignored = _SOON
        elif self._prefix is None and self._ignored:
            self._ignored -= 1
        if self._in_box or (_HEADER in content and _BOX in content):
            self._in_box = _BOX_END not in content
            return (Part.CODE, "") if _BOX_LINE in content else _NOTHING
        return _NOTHING if self._prefix is None else self._after(clean(content))

    def _after(self, text: str) -> tuple[Part, str]:
        """Return what a line is that comes after a frame."""
        match = _like(self._prefix or "").match(text)
        if match is None:
            self._others += 1
            if self._others > _MOST_OTHERS:
                self._prefix = None
            return _NOTHING
        indent, said = len(match[1]), text[match.end() :]
        directly, self._after_frame = self._after_frame, False
        if indent > self._indent:
            return Part.CODE, ""
        if indent == self._indent and indent > 1:
            return _NOTHING  # such as "[Previous line repeated 9 more times]"
        # Where the indentation was lost, only its form tells an exception from code.
        lost = indent == self._indent
        if lost and directly and not _CLASS.match(said):
            return Part.CODE, ""
        self._prefix = None
        if not _NAME.match(said) or _GROUP.match(said):
            return _NOTHING
        ignored, self._ignored = self._ignored or "interpreter shutdown" in said, 0
        return (Part.IGNORED if ignored else Part.EXCEPTION), said


@functools.lru_cache(256)
def _like(prefix: str) -> re.Pattern[str]:
    """Return a pattern of a prefix that may differ in its numbers, such as a time."""
    return re.compile(re.sub(r"\d+", r"\\d+", re.escape(prefix)) + "( *)")
