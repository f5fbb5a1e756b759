"""A line in a job's log: why the job ends is said below it.

Above it others speak: what a site's profile and setup print in every job, and, where the line comes
once more, what a checkpoint's files made an engine say that has started all the same.
"""

import sys

LINE = "coordinate-eval: if this job fails, the cause is below this line"


def draw_line() -> None:
    """Write the line to standard error, which is a job's log, if that can be written."""
    try:
        # What others have written may not have ended its last line.
        sys.stderr.write(f"\n{LINE}\n")
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):  # it is closed, or its disk is full
        return


def below(text: str) -> str:
    """Return what a log, or the end of one, has below the last such line; all of it without one."""
    return text.rpartition(f"\n{LINE}\n")[2]
