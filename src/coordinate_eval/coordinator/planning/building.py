"""Building the requests of many datasets: in which order, by how many processes, and by these."""

import contextlib
import math
import queue
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from coordinate_eval._format import duration
from coordinate_eval.coordinator.planning.request_cache import Builder, Built
from coordinate_eval.errors import UserError
from coordinate_eval.priors import catalogue
from coordinate_eval.priors.observations import subject
from coordinate_eval.priors.predict import Priors
from coordinate_eval.records import Dataset

TOKENS_PER_SECOND = 100_000.0
"""Prompt tokens that one core builds in a second, where no such build was measured. Five-shot
MMLU takes about this on the cores of docs/benchmarks.md."""

UNKNOWN_SECONDS = 10.0
"""Expected of a dataset of which nothing is known: mostly loading its data."""

WORTH_SECONDS = 30.0
"""Work for which another process is started: it first loads the harness, for about ten seconds."""


def expected_seconds(dataset: Dataset, priors: Priors) -> float:
    """Return the CPU seconds that building a dataset takes: as measured, else by its tokens."""
    work = catalogue.predicted_work(dataset)
    if work is None:
        return UNKNOWN_SECONDS
    measured = priors.build_seconds(subject(dataset), work.items)
    return measured or UNKNOWN_SECONDS + work.prompt_tokens / TOKENS_PER_SECOND


def longest_first(datasets: Iterable[Dataset], priors: Priors) -> list[Dataset]:
    """Return the datasets in the order in which several processes should build them."""
    return sorted(datasets, key=lambda dataset: -expected_seconds(dataset, priors))


def processes_for(datasets: Sequence[Dataset], priors: Priors, most: int) -> int:
    """Return how many processes, at least one, are worth starting to build these datasets."""
    seconds = sum(expected_seconds(dataset, priors) for dataset in datasets)
    return max(1, min(most, len(datasets), math.ceil(seconds / WORTH_SECONDS)))


def build_all(
    make: Callable[[], Builder],
    datasets: Sequence[Dataset],
    priors: Priors,
    *,
    processes: int,
    tell: Callable[[str], None] = lambda text: None,
) -> dict[str, Built]:
    """Return the requests of all datasets, from the cache or built now.

    Args:
        make: makes a builder, which has a process of its own.
        datasets: those wanted; each has a task.
        priors: what earlier builds took.
        processes: most processes at the same time.
        tell: called with what is being built, from several threads.

    Raises:
        UserError: Some datasets cannot be built, whose messages it has; the others are.
    """
    first = make()
    built = {d.name: found for d in datasets if (found := first.find(d)) is not None}
    missing = longest_first((d for d in datasets if d.name not in built), priors)
    waiting: queue.SimpleQueue[tuple[int, Dataset]] = queue.SimpleQueue()
    for number, dataset in enumerate(missing):
        waiting.put((number, dataset))
    count = processes_for(missing, priors, processes) if missing else 0
    errors: dict[str, str] = {}

    def work(builder: Builder) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                number, dataset = waiting.get_nowait()
                seconds = sum(expected_seconds(d, priors) for d in missing[number:]) / count
                which = f"{dataset.name}, {number + 1} of {len(missing)}"
                tell(f"{which}, about {duration(seconds)} left")
                try:
                    built[dataset.name] = builder.get(dataset)
                except UserError as error:
                    errors[dataset.name] = str(error)

    with ThreadPoolExecutor(max(1, count)) as pool:
        for done in [pool.submit(work, first if n == 0 else make()) for n in range(count)]:
            done.result()
    if errors:
        raise UserError("\n".join(errors[d.name] for d in datasets if d.name in errors))
    return built
