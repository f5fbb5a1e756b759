"""Fixtures for reviewed plans."""

from pathlib import Path

import pytest
from tests.reviewer import Reviewer
from tests.runs import TASKS

from coordinate_eval.coordinator.inputs import clusters


@pytest.fixture(scope="session")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache of requests for all of them."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def reviewer(
    _cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Reviewer:
    """With settings and a scheduler of its own."""
    made = Reviewer(_cache, tmp_path, capsys)
    monkeypatch.setattr(clusters, "_MAKERS", {"slurm": lambda settings: made.cluster})
    monkeypatch.chdir(TASKS)
    return made
