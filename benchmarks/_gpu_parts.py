"""The measurements of `scripts/gpu_session.py`: the rows of one table each, and what they mean."""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks._scoring import SHAPES, WAYS, difference, greedy_flips, scored, scored_items
from coordinate_eval.coordinator.inputs.checkpoints import checkpoint as checkpoints
from coordinate_eval.coordinator.workers.on_node import copying
from coordinate_eval.evaluators.engines import vllm
from coordinate_eval.evaluators.engines.base import Loading
from coordinate_eval.priors import conditions, gpus, roofline, this_machine
from coordinate_eval.records import EngineSettings, Request, RequestKind

MAX_LENGTH = 4096
"""Tokens of context, but no more than the model has."""

Rows = list[list[str]]


class Session(NamedTuple):
    """The files of a part, and how much it does."""

    model: Path
    """The checkpoint, on the storage that is measured."""
    memory: Path
    """A folder on a memory file system."""
    short: bool
    """Whether to do just enough to see that it works."""

    @property
    def max_length(self) -> int:
        """Return the tokens of context."""
        return min(MAX_LENGTH, checkpoints.inspect(self.model).max_length)


class Part(NamedTuple):
    """A section of the page."""

    title: str
    about: str
    heads: tuple[str, ...]
    minutes: float
    measure: Callable[[Session], Rows]


def starts(session: Session) -> Rows:
    """Start vLLM in new processes, from cold and warm files."""
    copy = session.memory / "model"
    copy.mkdir()
    for file in files_of(session.model):
        shutil.copy(file, copy)
    cases = [
        ("disk", "nothing", session.model, True),
        ("disk", "kept", session.model, True),
        ("disk, in the page cache", "kept", session.model, False),
        ("memory", "kept", copy, False),
    ]
    rows = []
    for place, kept, model, cold in cases[-1:] if session.short else cases:
        if cold:
            drop_from_page_cache(model)
        code = "from benchmarks._gpu_parts import one_start; import sys; one_start(sys.argv[1])"
        command = [sys.executable, "-c", code, str(model)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        seconds = json.loads(done.stdout.splitlines()[-1])
        rows.append([place, kept, *(f"{one:.1f}" for one in (*seconds, sum(seconds)))])
    return rows


def one_start(model: str) -> None:
    """Print the seconds in which vLLM is imported, and starts and has answered a test."""
    began = time.perf_counter()
    vllm.prepare(1)
    imported = time.perf_counter()
    length = min(MAX_LENGTH, checkpoints.inspect(Path(model)).max_length)
    vllm.VllmEngine(Loading(Path(model), 1, length, {})).close()
    print(json.dumps([imported - began, time.perf_counter() - imported]))


def scoring(session: Session) -> Rows:
    """Score items of three shapes in each way."""
    items, vocabulary = (4 if session.short else 500), vocabulary_of(session.model)
    shapes = SHAPES[:1] if session.short else SHAPES
    names = [(shape, shots) for shape in shapes for shots in (0, 5)]
    datasets = [list(scored_items(shape, shots, items, vocabulary)) for shape, shots in names]
    found = scored(datasets, session.model, session.max_length, {}, here=session.short)
    return [
        [
            *(shape.name, str(shots), way.name),
            f"{one.asked / items:.2f}",
            f"{one.computed / items:.0f}",
            f"{1000 * one.seconds / items:.2f}",
            f"{ways[0].seconds / one.seconds:.2f}",
            f"{difference(ways[0], one):.1g}",
            str(greedy_flips(ways[0], one)),
        ]
        for (shape, shots), ways in zip(names, zip(*found, strict=True), strict=True)
        for way, one in zip(WAYS, ways, strict=True)
    ]


def rates(session: Session) -> Rows:
    """Compare loads of one kind with what the roofline predicts for them."""
    settings = EngineSettings()
    on = conditions.conditions(
        settings,
        this_machine.engine_version("vllm"),
        device_name(),
        conditions.model_of(checkpoints.inspect(session.model), settings, 1, None),
    )
    length, most = session.max_length, on.sequences
    engine = vllm.VllmEngine(Loading(session.model, 1, length, {}))
    scale = 64 if session.short else 1
    loads = [
        # name, requests, tokens of a prompt, tokens to write
        ("prefill", 1024 // scale, min(2000, length // 2), 1),
        ("decoding, few at once", 16, 64, 512 // scale),
        ("decoding, many at once", 2 * most // scale, 64, 512 // scale),
        ("short requests", 16_384 // scale, 16, 1),
    ]
    rows = []
    for name, count, prompt, write in loads:
        dice = random.Random(name)  # noqa: S311  # a workload, not a secret
        ids = range(3, vocabulary_of(session.model))
        requests = [written(n, dice.choices(ids, k=prompt), write) for n in range(count)]
        list(engine.run(iter(requests[: count // 8])))  # what is compiled late
        began = time.perf_counter()
        answers = list(engine.run(iter(requests[count // 8 :])))
        seconds = time.perf_counter() - began
        output = sum(answer.tokens for answer in answers)
        work = roofline.Work(
            items=len(answers),
            requests=len(answers),
            prompt_tokens=len(answers) * prompt,
            # The first token of a text comes with its prompt.
            output_tokens=output - len(answers),
            longest_output_tokens=write,
        )
        predicted = roofline.gpu_seconds(work, on.model, gpus.lookup(on.gpu), most)
        texts = [f"{len(answers):,}", str(prompt), f"{output / len(answers):.0f}"]
        speed = (len(answers) * prompt + output) / seconds
        times = [f"{seconds:.2f}", f"{predicted:.2f}", f"{predicted / seconds:.2f}"]
        rows.append([name, *texts, f"{speed:,.0f}", *times])
    engine.close()
    return rows


def written(number: int, tokens: list[int], most: int) -> Request:
    """Return a request for a text."""
    key = {"dataset": "rates", "item": number, "task": "rates", "doc": number, "prompt_hash": ""}
    text = {"kind": RequestKind.GENERATE, "tokens": tokens, "max_tokens": most}
    return Request.model_validate(key | text)


def copies(session: Session) -> Rows:
    """Copy the weights from disk into memory with different numbers of threads."""
    weights = [Path(file) for file in checkpoints.inspect(session.model).weights]
    gib = sum(file.stat().st_size for file in weights) / 2**30
    rows = []
    for threads in (1, 2, 4, 8):
        copying.THREADS = threads
        drop_from_page_cache(session.model)
        target = session.memory / "copy"
        target.mkdir()
        began = time.perf_counter()
        copying.copy_files(weights, target, lambda _: None)
        seconds = time.perf_counter() - began
        shutil.rmtree(target)
        rows.append([str(threads), f"{seconds:.2f}", f"{gib / seconds:.2f}"])
    return rows


def device_name() -> str:
    """Return the model name of the GPU, or `cpu`."""
    return next(iter(this_machine.gpus()), "cpu")


def vocabulary_of(model: Path) -> int:
    """Return the number of token ids."""
    config: dict[str, Any] = json.loads((model / "config.json").read_text())
    return int(config.get("text_config", config)["vocab_size"])


def files_of(model: Path) -> list[Path]:
    """Return the files of a checkpoint."""
    found = checkpoints.inspect(model)
    return [Path(file) for file in (*found.weights, *found.files)]


def drop_from_page_cache(model: Path) -> None:
    """Write the files of a checkpoint to disk and drop them from the page cache."""
    for path in files_of(model):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


PARTS = {
    "starts": Part(
        "Start of vLLM",
        "Seconds of a new process: imports, then until vLLM has answered a test. *Kept* is what "
        "the first start compiled. Files on disk are not in the page cache unless it is said.",
        ("weights from", "compiled files", "imports, s", "start, s", "sum, s"),
        14,
        starts,
    ),
    "scoring": Part(
        "Ways to score choices",
        "Requests to vLLM, computed tokens and milliseconds are for one item. The speed is a "
        "multiple of that of *alone*, the way of the harness. The difference is the largest of a "
        "log-likelihood, in nats. [benchmarks.md](benchmarks.md) says what the ways are.",
        (
            *("dataset", "shots", "scored", "requests", "tokens", "ms", "speed", "difference"),
            "greedy flips",
        ),
        10,
        scoring,
    ),
    "rates": Part(
        "Prefill and decoding beside the roofline",
        "Texts of random tokens. The prediction is what a first run is planned with "
        "([planning.md](planning.md)). It is too long where the last column is above 1.",
        (
            *("load", "requests", "prompt tokens", "written tokens", "tokens/s", "seconds"),
            *("predicted", "predicted / seconds"),
        ),
        8,
        rates,
    ),
    "copies": Part(
        "Copies of the weights into memory",
        "As a keeper makes them, from files that are not in the page cache.",
        ("threads", "seconds", "GiB/s"),
        4,
        copies,
    ),
}
