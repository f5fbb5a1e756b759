"""What is said of each engine fits the engine."""

from pathlib import Path
from typing import get_args

import pytest

from coordinate_eval._engines import ENGINES
from coordinate_eval.evaluators.engines.base import by_name
from coordinate_eval.records import EngineSettings


def test_every_engine_that_settings_name_is_described() -> None:
    assert set(ENGINES) == set(get_args(EngineSettings.model_fields["name"].annotation))


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_keeps_what_it_compiles_where_trials_say(name: str, tmp_path: Path) -> None:
    assert {ENGINES[name].cache_root} <= {"", *by_name(name).cache_variables(tmp_path)}


@pytest.mark.parametrize("name", [n for n, kind in ENGINES.items() if kind.sequences_argument])
def test_an_engine_takes_the_argument_for_fewer_sequences(name: str) -> None:
    needed = {"base_url": "http://host/v1"} if name == "server" else {}
    by_name(name).check_args({ENGINES[name].sequences_argument: 1, **needed})
