"""Where engines find the weights, and what that asks of a keeper."""

import pytest

from coordinate_eval.coordinator.inputs.layers import Layer, resolve
from coordinate_eval.coordinator.inputs.settings import StageSettings
from coordinate_eval.coordinator.run.jobs import KEEPER_ROOM_GIB, keeper_memory_gib
from coordinate_eval.errors import UserError


@pytest.mark.parametrize(
    ("where", "folder"),
    [("shm", "/dev/shm"), ("none", "/dev/shm"), ("local /scratch/a b", "/scratch/a b")],
)
def test_each_place_has_its_folder(where: str, folder: str) -> None:
    assert StageSettings(where=where).folder == folder


def test_a_root_of_ones_own() -> None:
    assert StageSettings(root="/ram").folder == "/ram"
    assert StageSettings(root="/ram", where="local /disk").folder == "/disk"


@pytest.mark.parametrize("where", ["", "disk", "local", "local ", "local scratch", "none /x"])
def test_what_is_none_of_these_is_refused(where: str) -> None:
    layer = Layer(source="command line", values={"stage.where": where})
    with pytest.raises(UserError, match=r"stage\.where.*must be shm, none, or local DIR"):
        resolve([layer])


@pytest.mark.parametrize(
    ("where", "converting", "counts"),
    [
        ("shm", False, True),
        ("shm", True, True),
        ("local /disk", False, False),
        ("local /disk", True, True),  # the converter holds tensors
        ("none", False, False),
    ],
)
def test_weights_count_as_the_keepers_memory_only_in_memory(
    where: str, converting: bool, counts: bool
) -> None:
    gib = keeper_memory_gib(100 << 30, converting, StageSettings(where=where))
    assert (gib > 100) if counts else (gib == KEEPER_ROOM_GIB)
