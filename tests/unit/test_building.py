"""Many datasets are built by several processes, whatever happens to one of them."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.runs import PATIENCE_SECONDS

from coordinate_eval.coordinator.prompts import building
from coordinate_eval.coordinator.prompts.building import Progress, build_all, build_each
from coordinate_eval.errors import UserError
from coordinate_eval.records import Dataset

DATASETS = [Dataset(name=f"d{i}", task=f"d{i}") for i in range(6)]


class Cache:
    """What builders have in common."""

    def __init__(self, *kept: str, wrong: str = "") -> None:
        self.kept, self.wrong = set(kept), wrong
        self.builders: list[Builder] = []
        self.stopped = 0

    def builder(self) -> Any:
        self.builders.append(Builder(self))
        return self.builders[-1]


class Builder:
    """A builder that builds nothing."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.built: list[str] = []

    def find(self, dataset: Dataset) -> Any:
        return Path(dataset.name) if dataset.name in self.cache.kept else None

    def get(self, dataset: Dataset) -> Any:
        if dataset.name == self.cache.wrong:
            raise UserError(f"{dataset.name} has no items")
        self.built.append(dataset.name)
        return Path(dataset.name)

    def stop(self) -> None:
        self.cache.stopped += 1


def test_what_is_there_is_not_built() -> None:
    cache = Cache("d0", "d3")
    told: list[Progress] = []
    made = build_each(cache.builder, DATASETS, processes=1, tell=told.append)
    assert set(made.built) == {d.name for d in DATASETS}
    assert made.errors == {}
    (builder,) = cache.builders
    assert builder.built == ["d1", "d2", "d4", "d5"]
    assert [(p.dataset, p.ended, p.done, p.of) for p in told][:4] == [
        ("d1", False, 0, 4), ("d1", True, 1, 4), ("d2", False, 1, 4), ("d2", True, 2, 4),
    ]  # fmt: skip
    assert told[0].left_seconds == pytest.approx(4 * building.LOADING_SECONDS)
    assert told[-1].left_seconds == 0


def test_nothing_is_started_where_all_is_there() -> None:
    cache = Cache(*(d.name for d in DATASETS))
    assert len(build_each(cache.builder, DATASETS, processes=8).built) == 6
    assert len(cache.builders) == 1


def test_one_that_fails_stops_no_other() -> None:
    cache = Cache(wrong="d2")
    told: list[Progress] = []
    made = build_each(cache.builder, DATASETS, processes=2, tell=told.append)
    assert made.errors == {"d2": "d2 has no items"}
    assert set(made.built) == {"d0", "d1", "d3", "d4", "d5"}
    assert [p.dataset for p in told if p.error] == ["d2"]
    with pytest.raises(UserError, match=r"^d2 has no items$"):
        build_all(cache.builder, DATASETS, processes=2)


def test_an_interruption_ends_the_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache()
    building_now, over = threading.Event(), threading.Event()

    def get(self: Builder, dataset: Dataset) -> Any:
        self.built.append(dataset.name)
        building_now.set()
        assert over.wait(PATIENCE_SECONDS)
        raise UserError("its process ended")

    def stop(self: Builder) -> None:
        self.cache.stopped += 1
        over.set()

    class Interrupted(ThreadPoolExecutor):
        def submit(self, *args: Any, **options: Any) -> Any:
            super().submit(*args, **options)
            assert building_now.wait(PATIENCE_SECONDS)

            class Future:
                def result(self) -> None:
                    raise KeyboardInterrupt

            return Future()

    monkeypatch.setattr(Builder, "get", get)
    monkeypatch.setattr(Builder, "stop", stop)
    monkeypatch.setattr(building, "ThreadPoolExecutor", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        build_each(cache.builder, DATASETS, processes=1)
    assert cache.stopped == 1
    assert [b.built for b in cache.builders] == [["d0"]]


def test_what_building_will_take() -> None:
    long = Dataset(name="mmlu", task="mmlu")  # of the catalogue
    alone = building.wall_seconds([long], 8)
    assert alone == building.expected_seconds(long) > 60
    # The longest one decides, unless there is more work than processes.
    assert building.wall_seconds([long, *DATASETS], 8) == alone
    assert building.wall_seconds([long, *DATASETS], 1) == pytest.approx(
        alone + len(DATASETS) * building.LOADING_SECONDS
    )
    assert building.wall_seconds([], 8) == 0
