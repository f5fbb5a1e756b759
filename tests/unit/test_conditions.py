"""The conditions of an evaluation tell apart what differs in speed."""

import os
from pathlib import Path

import pytest
from tests.plans import CHECKPOINT

from coordinate_eval.coordinator.planning import costs
from coordinate_eval.errors import ForeignError
from coordinate_eval.priors import conditions as conditions_of
from coordinate_eval.priors import this_machine
from coordinate_eval.records import EngineSettings


def test_processors_are_told_apart() -> None:
    on = costs.conditions(CHECKPOINT, EngineSettings(), "cpu", 1)
    assert on.gpu == f"cpu/{this_machine.processor()}"
    assert this_machine.processor().endswith(" cores")


@pytest.mark.parametrize(
    "spoilt",
    [
        '{"n": 1, "text_config": "abc"}',
        '{"n": 1, "text_config": [["a", 1]]}',
        '{"n": 1, "architectures": {"a": 1}}',
        '{"n": 1, "architectures": []}',
        '{"n": 1, "architectures": "Llama"}',
    ],
)
def test_a_config_of_other_shapes_is_still_told_apart_by_its_sizes(
    spoilt: str, tmp_path: Path
) -> None:
    file = tmp_path / "config.json"
    families = []
    for text in (spoilt, '{"n": 1}', '{"n": 2}'):
        file.write_text(text)
        families.append(conditions_of.model_of(CHECKPOINT, EngineSettings(), 1, file).family)
    assert families[0] == families[1] != families[2]


@pytest.mark.parametrize(
    "nested", ['{{"thinker_config": {{"text_config": {}}}}}', '{{"llm_config": {}}}']
)
def test_sizes_within_other_configs_are_told_apart(nested: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    families = []
    for text in ('{"hidden_size": 1}', '{"hidden_size": 2}'):
        file.write_text(nested.format(text))
        families.append(conditions_of.model_of(CHECKPOINT, EngineSettings(), 1, file).family)
    assert families[0] != families[1]


def test_a_pipe_in_the_place_of_a_config_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ForeignError, match="no regular file"):
        conditions_of.model_of(CHECKPOINT, EngineSettings(), 1, tmp_path / "config.json")
