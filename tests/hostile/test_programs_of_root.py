"""Hostile programs that a metric job of root runs."""

import pytest

from coordinate_eval.evaluators.sandbox.sandbox import Level
from tests.hostile.cases import OLDEST_BUBBLEWRAP, cases, check
from tests.hostile.home import old_bubblewraps
from tests.hostile.place import Places, Setting
from tests.hostile.program import Program

SETTINGS = [
    Setting("root", Level.BUBBLEWRAP),
    Setting("root", Level.NAMESPACES),
    *(Setting("root", Level.BUBBLEWRAP, old) for old in old_bubblewraps(OLDEST_BUBBLEWRAP)),
]


@pytest.mark.hostile
@pytest.mark.parametrize(("setting", "program"), cases(SETTINGS))
def test_programs(places: Places, setting: Setting, program: Program) -> None:
    check(places.at(setting), program)
