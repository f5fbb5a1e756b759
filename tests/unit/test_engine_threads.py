"""Trials limit the threads of their engines, and on GPUs vLLM goes down to one by itself."""

import os
from collections.abc import Iterator

import pytest

from coordinate_eval.evaluators import own_code
from coordinate_eval.evaluators.engines import common, transformers, vllm

THREADS = "OMP_NUM_THREADS"


@pytest.fixture(autouse=True)
def _environment() -> Iterator[None]:
    """Without the variable, and without what engines leave behind."""
    before = dict(os.environ)
    os.environ.pop(THREADS, None)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def imported_with(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The value of the variable whenever vLLM would be imported."""
    found: list[str | None] = []
    monkeypatch.setattr(common, "load", lambda *_: found.append(os.environ.get(THREADS)))
    monkeypatch.setattr(own_code, "refuse", lambda: None)
    monkeypatch.setattr(vllm, "_hide_from_inspection", lambda _: None)
    return found


@pytest.mark.parametrize(
    ("cpu", "given", "imported", "later"),
    [
        (True, None, "3", "3"),
        (False, None, "3", None),
        (True, "5", "5", "5"),
        (False, "5", "5", "5"),
    ],
)
def test_vllm_on_gpus_chooses_for_itself_after_its_import(
    imported_with: list[str | None],
    monkeypatch: pytest.MonkeyPatch,
    cpu: bool,
    given: str | None,
    imported: str,
    later: str | None,
) -> None:
    monkeypatch.setattr(vllm, "on_cpu", lambda: cpu)
    if given:
        os.environ[THREADS] = given
    vllm.prepare(1, 3)
    assert imported_with == [imported]
    assert os.environ.get(THREADS) == later


def test_an_engine_alone_is_not_limited(
    imported_with: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm, "on_cpu", lambda: True)
    vllm.prepare(1)
    assert imported_with == [None]


@pytest.mark.parametrize(("given", "threads"), [(None, "3"), ("5", "5")])
def test_transformers_is_limited(given: str | None, threads: str) -> None:
    if given:
        os.environ[THREADS] = given
    transformers.prepare(1, 3)
    assert os.environ[THREADS] == threads
