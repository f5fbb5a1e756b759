"""Tell the lines of a traceback: its frames, its code, and its exception.

A frame may have no line of code: of `python -c`, of Cython, of what was compiled. So code is told
by its indentation, which is deeper than its frame's, and the exception by being less indented. What
a launcher puts before each line is read from the frame's own line.
"""

import functools
import re
from enum import IntEnum

from coordinate_eval.diagnosis.lines import clean


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

_HEAD = re.compile(r'(.{0,400}?)( {0,16})File "[^"]{1,1000}", line \d')
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
        if _FRAME in content and (head := _HEAD.match(clean(content))):
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
