"""Hostile programs that an ordinary user's metric job runs, as they normally do."""

import pytest

from coordinate_eval.evaluators.sandbox.sandbox import Level
from tests.hostile.cases import OLDEST_BUBBLEWRAP, cases, check
from tests.hostile.home import old_bubblewraps
from tests.hostile.place import Places, Setting
from tests.hostile.program import Program
from tests.random_examples import LONG

SETTINGS = [
    Setting("user", Level.BUBBLEWRAP),
    Setting("user", Level.NAMESPACES),
    Setting("user", Level.LIMITS),
    *(Setting("user", Level.BUBBLEWRAP, old) for old in old_bubblewraps(OLDEST_BUBBLEWRAP)),
    *([Setting("fakeroot", Level.BUBBLEWRAP), Setting("fakeroot", Level.NAMESPACES)] * LONG),
]


@pytest.mark.hostile
@pytest.mark.parametrize(("setting", "program"), cases(SETTINGS, frozenset(SETTINGS[:1])))
def test_programs(places: Places, setting: Setting, program: Program) -> None:
    check(places.at(setting), program)
