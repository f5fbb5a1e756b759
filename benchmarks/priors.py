"""Predicted seconds against measured ones: the shipped roofline, and after runs of real models

    python benchmarks/priors.py

Random Llamas of three sizes answer eight datasets of different shapes with transformers and with
vLLM on a CPU. Each size runs three times on a warm engine, with the datasets in another order each
time. The benchmark attributes time to datasets, fits and predicts with the same code as a real run.

Each prediction is for a run that the fit has not seen: from the roofline alone, from one other run
of the same model, and from the runs of the two other sizes. Seconds are CPU seconds, which other
processes on the machine disturb least. The last column shows how far two equal runs differ. Before
the first run of a model the benchmark assumes that its texts take a third of their token limit.

The second table of an engine predicts each run from all other runs and from the other sizes alone,
with several weights for each difference between an observation and the prediction
(`likeness.UNLIKE`).
"""

import argparse
import importlib
import itertools
import math
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.tiny import MAX_LENGTH, VOCABULARY, tiny_model

from coordinate_eval.coordinator.run import measurements
from coordinate_eval.evaluators.engines import base as engines
from coordinate_eval.priors import conditions as conditions_of
from coordinate_eval.priors import likeness, roofline, this_machine
from coordinate_eval.priors.observations import DatasetSeen, Subject
from coordinate_eval.priors.predict import Prediction, Priors
from coordinate_eval.priors.roofline import Conditions, Model, Work
from coordinate_eval.priors.time_shares import Shares
from coordinate_eval.records import EngineSettings, Request, RequestKind

ENGINES: dict[str, dict[str, Any]] = {
    "transformers": {"batch_size": 4},
    "vllm": {"max_num_seqs": 4},
}
"""Engines and their arguments: four requests at once; transformers sorts 16 times as many."""

WEIGHTS = (0.01, 0.1, 0.3, 1.0)
"""Values of `likeness.UNLIKE` to compare."""


class Size(NamedTuple):
    """The size of a Llama."""

    width: int
    layers: int


SIZES = (Size(128, 4), Size(192, 6), Size(320, 6))


class Shape(NamedTuple):
    """A dataset: its number of requests, and the least and most tokens of a prompt."""

    requests: int
    prompt: tuple[int, int]
    output: int
    """Tokens to generate; 0 scores a continuation of four tokens."""


SHAPES = {
    "scored, short": Shape(200, (8, 24), 0),
    "scored, choices": Shape(120, (30, 60), 0),
    "scored, few-shot": Shape(32, (150, 250), 0),
    "scored, long": Shape(16, (400, 600), 0),
    "generated, a word": Shape(96, (20, 60), 3),
    "generated, few-shot": Shape(32, (200, 300), 12),
    "generated, a line": Shape(48, (40, 80), 24),
    "generated, long": Shape(24, (10, 30), 96),
}


class Run(NamedTuple):
    """The observations of one run of one size."""

    size: Size
    seen: list[DatasetSeen]


def main() -> None:
    """Run every size on each engine, then predict each run from the others."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--repeat", type=int, default=3, help="runs of each size (default 3)")
    parser.add_argument(
        "--engine", choices=list(ENGINES), action="append", help="once or more (default both)"
    )
    given = parser.parse_args()
    datasets = {name: list(requests(name, random.Random(name))) for name in SHAPES}  # noqa: S311
    for name in given.engine or ENGINES:
        settings = EngineSettings.model_validate({"name": name, "args": ENGINES[name]})
        sized = (of_size(size, settings, datasets, max(2, given.repeat)) for size in SIZES)
        runs = list(itertools.chain(*sized))
        show(name, runs, datasets)
        Console().print(weights_table(name, runs, datasets))


def of_size(
    size: Size, settings: EngineSettings, datasets: dict[str, list[Request]], repeat: int
) -> Iterator[Run]:
    """Yield `repeat` runs of one size on one engine."""
    with tempfile.TemporaryDirectory() as folder:
        model = made(size, Path(folder))
        on = conditions_of.conditions(
            settings,
            this_machine.engine_version(settings.name),
            conditions_of.on_processor("cpu", this_machine.processor()),
            model,
        )
        what = engines.Loading(Path(folder), 1, MAX_LENGTH, settings.args)
        engine = engines.by_name(settings.name).start(what)
        # Warm up with all datasets: an engine on a CPU compiles for each new shape.
        observed(engine, datasets, on, -1)
        for number in range(repeat):
            seen = observed(engine, datasets, on, number)
            total = sum(s.gpu_seconds for s in seen)
            said = f"{settings.name}, {model.parameters / 1e6:.1f}m, run {number}: {total:.1f} s"
            sys.stderr.write(said + "\n")
            yield Run(size, seen)
        engine.close()


def requests(name: str, dice: random.Random) -> Iterator[Request]:
    """Yield the requests of a dataset, the same in every run."""
    shape = SHAPES[name]
    for item in range(shape.requests):
        generates = shape.output > 0
        yield Request(
            dataset=name,
            item=item,
            task=name,
            doc=item,
            prompt_hash="",
            kind=RequestKind.GENERATE if generates else RequestKind.LOGLIKELIHOOD,
            tokens=[dice.randrange(3, VOCABULARY) for _ in range(dice.randint(*shape.prompt))],
            continuation=[] if generates else [dice.randrange(3, VOCABULARY) for _ in range(4)],
            max_tokens=shape.output,
        )


def made(size: Size, folder: Path) -> Model:
    """Write a random Llama of this size with the tests' tokenizer; return its figures."""
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    for file in tiny_model().glob("token*"):
        (folder / file.name).write_bytes(file.read_bytes())
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=size.width,
        intermediate_size=3 * size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=size.width // 64,
        num_key_value_heads=size.width // 64,
        max_position_embeddings=MAX_LENGTH,
        bos_token_id=0,
        eos_token_id=1,
        dtype="float32",
    )
    torch.manual_seed(7)
    model = transformers.LlamaForCausalLM(config).to(torch.float32)
    model.save_pretrained(folder)
    parameters = sum(p.numel() for p in model.parameters())
    return Model(
        parameters=parameters,
        bytes=4 * parameters,
        kv_bytes_per_token=2 * size.layers * size.width * 4,
        tensor_parallel=1,
        dtype="float32",
        family=f"Llama-{size.width}-{size.layers}",
    )


def observed(
    engine: engines.Engine, datasets: dict[str, list[Request]], on: Conditions, number: int
) -> list[DatasetSeen]:
    """Run all datasets in an order of this run's own, and measure them as a trial does."""
    order = list(datasets)
    random.Random(number).shuffle(order)  # noqa: S311
    shares = Shares(on.sequences, time.process_time)
    tallies: defaultdict[str, measurements.Tally] = defaultdict(measurements.Tally)

    def pulled() -> Iterator[Request]:
        for request in itertools.chain(*(datasets[name] for name in order)):
            shares.pulled(request)
            yield request

    for response in engine.run(pulled()):
        seconds = shares.answered(response, engine.computing)
        tallies[response.dataset].add(response, seconds)
    return [
        DatasetSeen(
            run=f"{on.model.parameters}-{number}",
            time=0.0,
            conditions=on,
            dataset=name,
            subject=Subject(task=name, settings=""),
            shards=1,
            items=len(group),
            requests=tallies[name].requests,
            prompt_tokens=prompt_tokens(group),
            output_tokens=tallies[name].output_tokens,
            scored_tokens=tallies[name].scored_tokens,
            longest_output_tokens=tallies[name].longest_output_tokens,
            gpu_seconds=tallies[name].gpu_seconds,
        )
        for name, group in datasets.items()
    ]


def prompt_tokens(group: list[Request]) -> int:
    """Count the tokens of all prompts and scored continuations."""
    return sum(len(r.tokens) + len(r.continuation) for r in group)


def built(group: list[Request]) -> Work:
    """Return the work of a dataset as known before it runs."""
    limits = [r.max_tokens for r in group]
    return Work(
        items=len(group),
        requests=len(group),
        prompt_tokens=prompt_tokens(group),
        output_tokens=sum(limits) * roofline.WRITTEN_SHARE,
        longest_output_tokens=max(limits),
    )


def show(engine: str, runs: list[Run], datasets: dict[str, list[Request]]) -> None:
    """Print the errors of each dataset, and how often they are within the predicted spread."""
    works = {name: built(group) for name, group in datasets.items()}
    shipped: defaultdict[str, list[float]] = defaultdict(list)
    same: defaultdict[str, list[float]] = defaultdict(list)
    other: defaultdict[str, list[float]] = defaultdict(list)
    apart: defaultdict[str, list[float]] = defaultdict(list)
    within: defaultdict[str, list[bool]] = defaultdict(list)

    def predicted(known: list[Run], one: DatasetSeen) -> Prediction:
        priors = Priors([s for run in known for s in run.seen])
        return priors.predict(one.subject, works[one.dataset], one.conditions)

    def note(way: str, errors: defaultdict[str, list[float]], known: list[Run], run: Run) -> None:
        for one in run.seen:
            found = predicted(known, one)
            errors[one.dataset].append(abs(found.gpu_seconds / one.gpu_seconds - 1))
            off = abs(math.log(found.gpu_seconds / one.gpu_seconds))
            within[way].append(off <= 2 * found.spread)

    for run in runs:
        for one in run.seen:
            ratio = predicted([], one).gpu_seconds / one.gpu_seconds
            shipped[one.dataset].append(max(ratio, 1 / ratio))
        note("sizes", other, [r for r in runs if r.size != run.size], run)
    for known, run in itertools.permutations(runs, 2):
        if known.size == run.size:
            note("same", same, [known], run)
            for before, after in zip(known.seen, run.seen, strict=True):
                apart[after.dataset].append(abs(before.gpu_seconds / after.gpu_seconds - 1))
    title = f"{engine}: {len(runs)} runs of {len(SIZES)} sizes; medians of absolute errors"
    table = Table(title=title)
    table.add_column("dataset")
    for heading in ("requests", "roofline", "after one run", "other sizes", "runs differ by"):
        table.add_column(heading, justify="right")
    for name, group in datasets.items():
        table.add_row(
            name,
            str(len(group)),
            f"{statistics.median(shipped[name]):.1f}×",
            f"{statistics.median(same[name]):.1%}",
            f"{statistics.median(other[name]):.1%}",
            f"{statistics.median(apart[name]):.1%}",
            end_section=name == list(datasets)[-1],
        )
    off, *middle = (
        statistics.median(itertools.chain(*each.values())) for each in (shipped, same, other, apart)
    )
    table.add_row("all", "", f"{off:.1f}×", *(f"{error:.1%}" for error in middle))
    held = [f"{statistics.mean(within[way]):.0%}" for way in ("same", "sizes")]
    table.add_row("within 2 of the predicted deviations", "", "", *held)
    Console().print(table)


def weights_table(engine: str, runs: list[Run], datasets: dict[str, list[Request]]) -> Table:
    """Return the table of errors by weight of a difference."""
    works = {name: built(group) for name, group in datasets.items()}

    def errors(*, own: bool) -> list[float]:
        likeness.of_model.cache_clear()
        found = []
        for run in runs:
            others = [r for r in runs if r is not run and (own or r.size != run.size)]
            priors = Priors([s for other in others for s in other.seen])
            for one in run.seen:
                guess = priors.predict(one.subject, works[one.dataset], one.conditions)
                found.append(abs(guess.gpu_seconds / one.gpu_seconds - 1))
        return found

    rows = {}
    for weight in WEIGHTS:
        with mock.patch.object(likeness, "UNLIKE", weight):
            rows[f"weight {weight:g}"] = errors(own=True), errors(own=False)
    likeness.of_model.cache_clear()
    table = Table(title=f"{engine}: median error, 95th percentile")
    table.add_column("")
    for heading in ("from all other runs", "from other sizes"):
        table.add_column(heading, justify="right")
    for name, found in rows.items():
        cells = (
            f"{statistics.median(e):.1%}  {statistics.quantiles(e, n=20)[-1]:.1%}" for e in found
        )
        table.add_row(name, *cells)
    return table


if __name__ == "__main__":
    main()
