"""CPU seconds of building prompts and of scoring, compared with the harness itself

    python benchmarks/harness_cost.py

The base suite's full shape, built and scored by processes like those of a run, one dataset after
the other. *Harness* is lm-evaluation-harness itself on the same machine, with 2 % of the items of
each task, times the items: it makes prompts and scores in one call, and what is counted has no
tokens, no loading of tasks and no standard errors that are drawn, which ours have. Datasets whose
answers are programs are left out: the harness fetches their metric from a hub. `--scale 0.1` takes
a tenth of the items.

The start of a process is not counted. *On 8 cores* is simulated, with whole datasets, the longest
first. Memory is the largest resident set of a process, within the limits of a run.
"""

import argparse
import heapq
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.full_shape.make import MAX_LENGTH, Made, make, scaled
from coordinate_eval import _files
from coordinate_eval.coordinator.inputs.suites import suite
from coordinate_eval.evaluators.confined.messages import Command, Reply, Setup, Work
from coordinate_eval.evaluators.confined.process import (
    BuildingProcess,
    Conversation,
    ScoringProcess,
)
from coordinate_eval.evaluators.confined.run_files import AnswerFiles, ResponseFiles
from coordinate_eval.evaluators.sandbox.confinement import Level, View
from coordinate_eval.evaluators.sandbox.memory import members
from coordinate_eval.priors import catalogue
from coordinate_eval.records import (
    Dataset,
    DatasetRequests,
    ItemRequests,
    Key,
    Request,
    RequestKind,
    Response,
)

SAMPLE = 0.02
CORES = 8
LONG_TOKENS = 8000
MOST_SECONDS = 3600
MOST_BYTES = 8 << 30


class Cost(NamedTuple):
    """CPU seconds of some items."""

    items: float
    harness: float
    building: float
    scoring: float


class Measured(NamedTuple):
    """The measurements of a suite."""

    costs: Mapping[str, Cost]
    peak_bytes: tuple[int, int]
    """The largest memory of the process that builds, and of the one that scores."""
    stored_bytes: int
    """Requests as they are stored, a line an item."""
    request_line_bytes: int
    """The same as a line a request."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--scale", type=float, default=1, help="share of the items")
    given = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["HF_HOME"] = str(folder / "caches")
        harness = _harness_seconds(make(folder / "sample", scaled(SAMPLE)))
        measured = measure(folder, make(folder / "suite", scaled(given.scale)), harness)
    console = Console()
    console.print(_by_kind(measured.costs))
    console.print(_in_all(measured))


def measure(folder: Path, made: Made, harness: Mapping[str, float]) -> Measured:
    """Build and score each dataset of which the harness's own seconds per item are known."""
    wanted = suite.load(str(made.suite))
    datasets = [dataset for dataset in wanted.datasets if dataset.name in harness]
    setup = Setup(
        tokenizer=str(made.checkpoint),
        include_path=wanted.include_path,
        engine="vllm",
        max_length=MAX_LENGTH,
        memory_bytes=MOST_BYTES,
    )
    indexes: dict[str, DatasetRequests] = {}
    # A process does the first dataset twice: what that takes at first is its start, too.
    building, scoring = [], []
    with BuildingProcess(setup) as process:
        for dataset in [datasets[0], *datasets]:
            before = _cpu_seconds()
            requests = folder / f"{dataset.name}.jsonl"
            requests.unlink(missing_ok=True)
            built = _ask(process, Work.BUILD, dataset, requests=str(requests)).built
            assert built is not None
            building.append(_cpu_seconds() - before)
            indexes[dataset.name] = built
            _files.write_record(requests.with_suffix(".json"), built)
        peaks = [_peak_bytes()]
    line_bytes = sum(_respond(folder, dataset.name) for dataset in datasets)
    with ScoringProcess(setup, Level.LIMITS, View(), os.environ, MOST_SECONDS) as process:
        for dataset in [datasets[0], *datasets]:
            before = _cpu_seconds()
            responses = ResponseFiles((folder / f"{dataset.name}.responses",))
            with (
                responses.copied() as texts,
                AnswerFiles().copied() as answers,
                process.child(texts, answers) as child,
            ):
                _ask(child, Work.LOAD, dataset, index=indexes[dataset.name])
                _ask(child, Work.FINISH, dataset)
                peaks.append(_peak_bytes())
            scoring.append(_cpu_seconds() - before)
    building_peak, *scoring_peaks = peaks
    costs = {
        name: Cost(index.items, index.items * harness[name], *ours)
        for (name, index), *ours in zip(indexes.items(), building[1:], scoring[1:], strict=True)
    }
    stored = sum((folder / f"{name}.jsonl").stat().st_size for name in indexes)
    return Measured(costs, (building_peak, max(scoring_peaks)), stored, line_bytes)


def _ask(
    process: BuildingProcess | Conversation, work: Work, dataset: Dataset, **more: object
) -> Reply:
    reply = process.ask(Command.model_validate({"work": work, "dataset": dataset, **more}))
    assert not reply.error, reply.error
    return reply


def _respond(folder: Path, dataset: str) -> int:
    """Write made-up responses to a dataset's requests; return the bytes of a line a request."""
    dice = random.Random(0)  # noqa: S311  # responses, not secrets
    in_bytes = 0
    with (folder / f"{dataset}.responses").open("w") as file:
        for line in _files.lines(folder / f"{dataset}.jsonl"):
            for request in ItemRequests.model_validate_json(line).of_dataset(dataset):
                in_bytes += len(request.line())
                file.write(_response(request, dice).line())
    return in_bytes


def _response(request: Request, dice: random.Random) -> Response:
    key = {name: getattr(request, name) for name in Key.model_fields}
    if request.kind is RequestKind.GENERATE:
        text = f"It is so. The answer is {dice.randrange(10)}."
        return Response(**key, text=text, tokens=9, finish="stop")
    nats, greedy = -9 * dice.random(), dice.random() < 0.5
    return Response(**key, logprob=nats, greedy=greedy, tokens=1, finish="scored")


def _harness_seconds(made: Made) -> dict[str, float]:
    """Return the CPU seconds per item of the harness itself, by dataset that it can score."""
    command = [sys.executable, "-m", "benchmarks._harness_seconds", str(made.suite.parent)]
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _cpu_seconds() -> float:
    """Return the CPU seconds of the processes below this one, and of those they waited for."""
    ticks = 0
    for process in _below():
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))  # and of children that have ended: proc(5)
    return ticks / os.sysconf("SC_CLK_TCK")


def _peak_bytes() -> int:
    """Return the largest resident set that one of the processes below this one has had."""
    status = (Path(f"/proc/{process}/status").read_text() for process in _below())
    return 1024 * max(int(text.partition("VmHWM:")[2].split()[0]) for text in status)


def _below() -> Iterable[int]:
    return [process for process in members(os.getpid()) if process != os.getpid()]


def _kind(dataset: str) -> str:
    entry = catalogue.entries()[dataset]
    if entry.prompt_tokens > LONG_TOKENS:
        return f"prompts of more than {LONG_TOKENS:,} tokens"
    what = "choices" if entry.kind == "loglikelihood" else "texts"
    return f"{what}, {'some' if entry.num_fewshot else 'no'} examples"


def _sum(costs: Iterable[Cost]) -> Cost:
    return Cost(*(sum(each) for each in zip(*costs, strict=True)))


def _on_cores(seconds: Iterable[float]) -> float:
    """Return when the last of these jobs ends on `CORES`, the longest first."""
    ends = [0.0] * CORES
    for each in sorted(seconds, reverse=True):
        heapq.heappush(ends, heapq.heappop(ends) + each)
    return max(ends)


def _by_kind(costs: Mapping[str, Cost]) -> Table:
    """Return CPU milliseconds per item by kind of dataset."""
    table = Table("CPU ms an item", title="By kind of dataset", title_justify="left")
    for heading in ("items", "harness", "building", "scoring", "harness / scoring"):
        table.add_column(heading, justify="right")
    by_kind: dict[str, list[str]] = defaultdict(list)
    for name in costs:
        by_kind[_kind(name)].append(name)
    for kind, names in sorted(by_kind.items()):
        cost = _sum(costs[name] for name in names)
        each = (f"{1000 * seconds / cost.items:.2f}" for seconds in cost[1:])
        table.add_row(kind, f"{cost.items:,.0f}", *each, f"{cost.harness / cost.scoring:.1f}")
    return table


def _in_all(measured: Measured) -> Table:
    """Return seconds, memory and bytes of all datasets."""
    table = Table("", title="In all", title_justify="left")
    for heading in ("harness", "building", "scoring"):
        table.add_column(heading, justify="right")
    costs = measured.costs.values()
    every = _sum(costs)
    table.add_row(
        f"CPU seconds, {every.items:,.0f} items", *(f"{seconds:,.0f}" for seconds in every[1:])
    )
    building, scoring = (_on_cores(cost[place] for cost in costs) for place in (2, 3))
    table.add_row(f"seconds on {CORES} cores", "", f"{building:,.0f}", f"{scoring:,.0f}")
    table.add_row(
        "memory of a process, GiB", "", *(f"{b / 2**30:.2f}" for b in measured.peak_bytes)
    )
    table.add_row("requests, MB: a line an item", "", f"{measured.stored_bytes / 1e6:,.1f}", "")
    table.add_row("a line a request", "", f"{measured.request_line_bytes / 1e6:,.1f}", "")
    return table


if __name__ == "__main__":
    main()
