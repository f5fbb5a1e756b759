"""Build the requests of many datasets: their order, the number of processes, and the progress."""

import contextlib
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from coordinate_eval._format import duration
from coordinate_eval.coordinator.prompts.request_cache import Builder, Built
from coordinate_eval.errors import UserError
from coordinate_eval.priors.catalogue import known_work
from coordinate_eval.records import Dataset

TOKENS_PER_SECOND = 100_000.0
"""Prompt tokens that one core builds in a second. Five-shot MMLU takes about this on the cores of
docs/benchmarks.md."""

LOADING_SECONDS = 10.0
"""CPU seconds of loading a dataset, and all that is expected of an unknown one."""

_TRUSTED_SECONDS = 120.0
"""Weight of the prediction against the pace measured so far, in seconds of work."""

WORTH_SECONDS = 30.0
"""Least seconds of work for another process, which first loads the harness for about ten."""


def expected_seconds(dataset: Dataset) -> float:
    """Return the CPU seconds that building a dataset takes, by its tokens."""
    work = known_work(dataset)
    return LOADING_SECONDS + (work.prompt_tokens / TOKENS_PER_SECOND if work else 0.0)


def wall_seconds(datasets: Sequence[Dataset], processes: int) -> float:
    """Return roughly how many seconds this many processes take to build these datasets."""
    seconds = [expected_seconds(dataset) for dataset in datasets]
    return max([sum(seconds) / processes, *seconds])


def longest_first(datasets: Iterable[Dataset]) -> list[Dataset]:
    """Return the datasets in the order in which several processes should build them."""
    return sorted(datasets, key=lambda dataset: -expected_seconds(dataset))


def processes_for(datasets: Sequence[Dataset], most: int) -> int:
    """Return how many processes, at least one, are worth starting to build these datasets."""
    seconds = sum(expected_seconds(dataset) for dataset in datasets)
    return max(1, min(most, len(datasets), math.ceil(seconds / WORTH_SECONDS)))


@dataclass(frozen=True)
class Progress:
    """The progress of building some datasets, when one of them begins or has ended."""

    dataset: str
    ended: bool
    error: str
    """The reason why it cannot be built; empty if it can."""
    done: int
    of: int
    left_seconds: float
    """Seconds expected until all are built, by the pace so far."""

    def __str__(self) -> str:
        left = f"about {duration(self.left_seconds)} left"
        return f"{self.dataset}, {self.done} of {self.of} are ready, {left}"


@dataclass
class Building:
    """The outcome of building some datasets."""

    built: dict[str, Built] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    """Messages of those that cannot be built, by name."""


def build_each(
    make: Callable[[], Builder],
    datasets: Sequence[Dataset],
    *,
    processes: int,
    tell: Callable[[Progress], None] = lambda progress: None,
) -> Building:
    """Return the requests of the datasets, from the cache or built now, and what went wrong."""
    builders = [make()]
    made = Building({d.name: b for d in datasets if (b := builders[0].find(d)) is not None})
    missing = longest_first(d for d in datasets if d.name not in made.built)
    if not missing:
        return made
    builders += [make() for _ in range(processes_for(missing, processes) - 1)]
    waiting: queue.SimpleQueue[Dataset] = queue.SimpleQueue()
    for dataset in missing:
        waiting.put(dataset)
    pace = _Pace([expected_seconds(d) for d in missing], len(builders))
    telling = threading.Lock()

    def work(builder: Builder) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                dataset = waiting.get_nowait()
                with telling:
                    tell(pace.progress(dataset))
                error = ""
                try:
                    made.built[dataset.name] = builder.get(dataset)
                except UserError as wrong:
                    error = made.errors[dataset.name] = str(wrong)
                with telling:
                    pace.end(expected_seconds(dataset))
                    tell(pace.progress(dataset, ended=True, error=error))

    with ThreadPoolExecutor(len(builders)) as pool:
        started = [pool.submit(work, builder) for builder in builders]
        try:
            for each in started:
                each.result()
        except BaseException:  # such as Ctrl-C, which the processes do not hear
            with contextlib.suppress(queue.Empty):
                while True:
                    waiting.get_nowait()
            for builder in builders:
                builder.stop()
            raise
    return made


def build_all(
    make: Callable[[], Builder],
    datasets: Sequence[Dataset],
    *,
    processes: int,
    tell: Callable[[Progress], None] = lambda progress: None,
) -> dict[str, Built]:
    """Return the requests of all datasets; see `build_each`.

    Raises:
        UserError: Some datasets cannot be built, whose messages it has; the others are.
    """
    made = build_each(make, datasets, processes=processes, tell=tell)
    if made.errors:
        raise UserError("\n".join(made.errors[d.name] for d in datasets if d.name in made.errors))
    return made.built


class _Pace:
    """The pace of building datasets, compared with the expected one."""

    def __init__(self, seconds: Sequence[float], processes: int) -> None:
        self._of, self._left, self._processes = len(seconds), sum(seconds), processes
        self._done, self._ended_seconds = 0, 0.0
        self._began = time.monotonic()

    def end(self, seconds: float) -> None:
        """Note that a dataset of so many expected seconds has ended."""
        self._done += 1
        self._left -= seconds
        self._ended_seconds += seconds

    def progress(self, dataset: Dataset, *, ended: bool = False, error: str = "") -> Progress:
        """Return how far the building is."""
        left = max(0.0, self._left) / self._processes
        # The more has ended, the more it tells of this machine's speed.
        took = self._processes * (time.monotonic() - self._began) if self._done else 0.0
        left *= (took + _TRUSTED_SECONDS) / (self._ended_seconds + _TRUSTED_SECONDS)
        return Progress(dataset.name, ended, error, self._done, self._of, left)
