"""Run directories as a supervisor or a job finds them: without a plan, or with all its requests."""

import itertools
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coordinate_eval import _files
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, write_planned, write_run
from coordinate_eval.records import (
    DatasetRequests,
    EngineSettings,
    ItemRequests,
    Request,
    RequestKind,
    Response,
    Shard,
)
from tests.decisions import make_run

ITEMS = 40
"""Of each of two datasets."""

SHARDS = [
    Shard(dataset=d, start=s, stop=s + 20, gpu_seconds=1, metric_cpu_seconds=0)
    for d in "ab"
    for s in (0, 20)
]


def unplanned(tmp_path: Path, **changes: object) -> tuple[RunDir, Run]:
    """A run of two datasets of which nothing is built."""
    folders = {name: str(tmp_path / name) for name in ("cache_dir", "priors_dir")}
    settings = {"supervisor": {"poll_seconds": 0.001}, **folders, **changes}
    run = make_run(folder=str(tmp_path), settings=settings, shards=[], created=time.time())
    run_dir = RunDir(tmp_path / "run")
    run_dir.requests_folder.mkdir(parents=True)
    write_run(run_dir, run)
    return run_dir, run


def write_index(made: RunDir, dataset: str, items: int, **fields: Any) -> None:
    """Note that a dataset is built: a request an item, and no questions, by default."""
    numbers = ("prompt_tokens", "generate_requests", "max_output_tokens", "longest_output_tokens")
    known: dict[str, Any] = {"dataset": dataset, "key": "k", "items": items, "requests": items}
    known |= dict.fromkeys(numbers, 0) | {"asks": False, "offsets": []}
    index = DatasetRequests.model_validate(known | fields, extra="forbid")
    _files.write_record(made.requests_index(dataset), index)


def write_requests(made: RunDir, dataset: str, items: Sequence[str], **fields: Any) -> None:
    """Write the requests of a dataset, a line an item, and their index."""
    _files.write(made.requests(dataset), "".join(items))
    offsets = [0, *itertools.accumulate(len(line) for line in items)]
    write_index(made, dataset, len(items), offsets=offsets, **fields)


def write_built(made: RunDir, args: dict[str, object]) -> None:
    """Write a planned run whose requests are built; its simulated engine gets these arguments."""
    settings = Settings(
        engine=EngineSettings(name="simulated", args=args),
        stage={"root": str(made.root.parent / "memory")},  # type: ignore[arg-type]  # a table
    )
    run = make_run(settings=settings, shards=SHARDS)
    write_run(made, run)
    write_planned(made, run)
    for dataset in "ab":
        lines = [ItemRequests.of([request(dataset, item)]).line() for item in range(ITEMS)]
        write_requests(made, dataset, lines)


def request(dataset: str, item: int) -> Request:
    return Request(
        dataset=dataset, item=item, task=dataset, doc=item, prompt_hash="h",
        kind=RequestKind.GENERATE, tokens=[1, item], max_tokens=8,
    )  # fmt: skip


def answered(made: RunDir) -> Counter[tuple[str, int]]:
    """How often each item is answered, in published shards and in others."""
    lines = [
        line
        for path in (made.root / "outputs").glob("*/*.jsonl")
        for line in _files.whole_lines(path)
    ]
    found = Counter((r.dataset, r.item) for r in map(Response.model_validate_json, lines))
    parts = {
        (r.dataset, r.item)
        for path in (made.root / "outputs").glob("*/*.part")
        for r in map(Response.model_validate_json, _files.whole_lines(path))
    }
    return found + Counter(dict.fromkeys(parts, 1))
