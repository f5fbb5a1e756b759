"""Verdicts that the machine may have decided, and not the program: a pure rule."""

import re
from typing import Final

from coordinate_eval.records import PYTHON, Answer, Question

HAD_ITS_CORE: Final = 0.9
"""A program that had this part of its time limit as CPU time gains little from being alone."""

# EAGAIN of fork, ENOMEM, ENFILE, ENOSPC and EDQUOT, as in errno(3).
_NUMBERS = re.compile(r"\[Errno (11|12|23|28|122)\]")
_NAMES = re.compile(
    r"failed: ("
    r"MemoryError"
    r"|RuntimeError: can't (start new thread|allocate lock)"
    # Time limits of the program's own.
    r"|(TimeoutError|TimeoutExpired)\b"
    # Its processes were killed: by the kernel when memory ran out, or by themselves.
    r"|BrokenProcessPool|its process ended before the program did"
    r")"
)
# What compilers and their programs print of the same: strerror(3), and a part of a compiler or a
# virtual machine that could not start or was killed.
_PRINTED = re.compile(
    r"Resource temporarily unavailable|resource temporarily unavailable|[Cc]annot allocate memory"
    r"|[Nn]o space left on device|OutOfMemoryError|unable to create native thread"
    r"|[Kk]illed signal|signal: killed|failed: (it does not compile: )?signal 9"
)


def may_be_scarcity(question: Question, answer: Answer) -> bool:
    """Return whether a program may have failed for lack of time, memory, processes or space.

    Others use these too, so the verdict may be another one when the program runs alone. It is not
    where the program used up what was its own: the time of a whole core, or the memory that all of
    its processes may use.
    """
    if answer.passed:
        return False
    if answer.result == "timed out":
        return answer.cpu_seconds < HAD_ITS_CORE * question.timeout_seconds
    if question.language != PYTHON:
        return bool(_PRINTED.search(answer.result))
    return bool(_NAMES.match(answer.result) or _NUMBERS.search(answer.result))
