"""Which program runs where, and what must come of it there."""

from typing import Any

import pytest

from tests.hostile.place import Place, Setting
from tests.hostile.program import Must, Program
from tests.hostile.programs import PROGRAMS
from tests.random_examples import LONG

OLDEST_BUBBLEWRAP = "0.7"
QUICK = {
    "reads-the-home", "opens-memory-of-processes", "connects-to-this-machine", "talks-to-the-host",
    "forgets-its-environment", "lives-as-a-zombie", "splits-process-1", "patches-process-1",
    "nests-by-clone3", "calls-as-32-bits", "destroys-keys", "uses-shared-memory-of-system-v",
    "reports-from-a-child", "shares-between-processes", "computes-with-numpy",
}  # fmt: skip
"""What runs in every setting of a short run: one of each kind that has ever got through."""
OUR_MISTAKES = (
    "NameError",
    "TypeError",
    "SyntaxError",
    "AttributeError",
    "ImportError",
    "KeyError",
)


def cases(settings: list[Setting], short: frozenset[Setting] = frozenset()) -> list[Any]:
    """Return the parameters of a test: settings by programs.

    In a short run, the settings in `short` get all programs that are not slow, the others `QUICK`.
    """
    return [
        pytest.param(setting, program, id=f"{setting}-{program.name}")
        for setting in settings
        for program in PROGRAMS
        if setting.level in program.levels
        if LONG or (not program.slow if setting in short else program.name in QUICK)
    ]


def check(place: Place, program: Program) -> None:
    """Run a program and compare what comes of it with what must come of it."""
    answer, broken = place.run(program)
    assert not broken, f"{program.tries}: {broken}"
    passed, result = answer["passed"], answer["result"]
    assert len(result) <= 500
    assert not result.startswith("failed: Broke"), program.tries
    match program.must:
        case Must.HOLD:
            # Killed for what it tried is held, too. An exception is a mistake in the program.
            assert passed or "ended before" in result or "memory" in result, result
        case Must.FAIL:
            assert not passed
            assert not result.startswith(tuple(f"failed: {name}" for name in OUR_MISTAKES)), result
        case Must.PASS:
            assert (passed, result) == (True, "passed")
        case Must.TIME_OUT:
            assert (passed, result) == (False, "timed out")
        case Must.END:
            pass
