"""Tests of the GPUs that Ray gets. `nvidia-smi` is a fake."""

import os
from pathlib import Path

import pytest

from coordinate_eval.errors import UserError
from coordinate_eval.ray_cluster import RaySettings, _gpus

FOUR = "NVIDIA H100 80GB HBM3, 81559\n" * 4


@pytest.fixture(autouse=True)
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the output of the fake."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat '{tmp_path}/found'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "found").write_text(FOUR)
    return tmp_path / "found"


def test_all_are_handed_out() -> None:
    count, kind, gib = _gpus(RaySettings())
    assert (count, kind) == (4, "NVIDIA_H100_80GB_HBM3")
    assert gib == pytest.approx(79.6, abs=0.1)


@pytest.mark.parametrize(("visible", "count"), [("2,3", 2), ("GPU-5ebe9f43", 1), ("0, 1,2", 3)])
def test_those_that_are_hidden_are_not(
    monkeypatch: pytest.MonkeyPatch, visible: str, count: int
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert _gpus(RaySettings())[0] == count
    assert _gpus(RaySettings(gpus=1))[0] == 1


@pytest.mark.parametrize(("visible", "asked"), [("", None), ("-1", None), ("2,3", 3)])
def test_fewer_than_asked_for_are_refused(
    monkeypatch: pytest.MonkeyPatch, visible: str, asked: int | None
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(UserError, match=f"of this machine's 4 can be used .*{visible}"):
        _gpus(RaySettings(gpus=asked))


def test_more_than_there_are_is_refused() -> None:
    with pytest.raises(UserError, match="8 GPUs are needed, but only 4 of this machine's 4"):
        _gpus(RaySettings(gpus=8))


def test_memory_that_is_not_told_is_unknown(found: Path) -> None:
    found.write_text("NVIDIA GB10, [N/A]\n")
    assert _gpus(RaySettings()) == (1, "NVIDIA_GB10", 0.0)
    assert _gpus(RaySettings(gpu_memory_gib=100)) == (1, "NVIDIA_GB10", 100.0)


def test_without_any_one_stands_for_the_processor(
    found: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found.unlink()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert _gpus(RaySettings()) == (1, "cpu", 0.0)
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
