"""A log as lines of bounded length, whatever it holds: bars, escapes, bytes that are no text."""

import re
from collections.abc import Iterator
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
    """Of the line in the file, from 1. The states of a progress bar share one."""
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
        text: the line.
        said: an exception that ends it. Its own words are none of the program's that met it.
    """
    head = text[: min(_HEAD, len(text) - len(said))]
    mild = _LEVEL.search(head) or _GOES_ON.search(head)
    return bool(mild) and not _SEVERE.search(head)


def _spaces(text: str, at: int) -> int:
    return len(text) - at - len(text[at:].lstrip(" "))
