"""The seconds that datasets take on a run's GPUs: the suite's own figures, else the priors'."""

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from coordinate_eval._format import duration
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.planning.plan import Cost
from coordinate_eval.coordinator.planning.request_cache import Builder, Built
from coordinate_eval.errors import UserError
from coordinate_eval.priors import catalogue, roofline, this_machine
from coordinate_eval.priors import conditions as conditions_of
from coordinate_eval.priors.observations import subject
from coordinate_eval.priors.predict import Priors
from coordinate_eval.priors.roofline import Conditions
from coordinate_eval.priors.staging import Link
from coordinate_eval.priors.store import Store
from coordinate_eval.records import Checkpoint, CheckpointFormat, Dataset, EngineSettings, Suite


def conditions(
    checkpoint: Checkpoint, engine: EngineSettings, gpu_type: str, gpus_per_trial: int
) -> Conditions:
    """Return the conditions that costs depend on: model, engine and GPUs of one trial."""
    config = next((Path(f) for f in checkpoint.files if Path(f).name == "config.json"), None)
    return conditions_of.conditions(
        engine,
        this_machine.engine_version(engine.name),
        conditions_of.on_processor(gpu_type, this_machine.processor()),
        conditions_of.model_of(checkpoint, gpus_per_trial, config),
    )


def suite_costs(
    suite: Suite,
    on: Conditions,
    builder: Builder,
    priors: Priors,
    *,
    build: Callable[[Dataset], bool],
    tell: Callable[[str], None] = lambda text: None,
) -> tuple[list[Cost], dict[str, Built]]:
    """Return the cost of each dataset, and the requests that were built by dataset name.

    Builds the requests of datasets for which `build` is true. `tell` is called with the name of
    each dataset before it is built, and with the time left where earlier builds show it.

    Raises:
        UserError: A dataset cannot be built, or nothing is known of one that is not.
    """
    found: list[Cost] = []
    built: dict[str, Built] = {}
    missing = [d for d in suite.datasets if build(d) and builder.find(d) is None]
    for dataset in suite.datasets:
        if dataset in missing:
            number = missing.index(dataset)
            left = _seconds_to_build(missing[number:], priors)
            words = f", about {duration(left)} left" if left else ""
            tell(f"{dataset.name}, {number + 1} of {len(missing)}{words}")
        if build(dataset):
            built[dataset.name] = builder.get(dataset)
        work = known_work(dataset, built.get(dataset.name))
        if work is None:
            raise UserError(
                f"dataset {dataset.name} has no figures to plan with, and its task is code, which "
                "a dry run on a cluster file does not run: give it `items` in the suite, leave it "
                "out with --skip, or plan on a live cluster"
            )
        found.append(dataset_cost(dataset, work, on, priors, built=dataset.name in built))
    return found, built


def dataset_cost(
    dataset: Dataset,
    work: roofline.Work,
    on: Conditions,
    priors: Priors,
    *,
    built: bool = True,
) -> Cost:
    """Return a dataset's cost as its suite gives it, else as the priors predict it.

    `built` tells that the prompts of `work` were counted, not estimated.
    """
    given = dataset.prior
    if given is not None:
        return Cost(
            name=dataset.name,
            items=work.items,
            gpu_seconds=given.gpu_seconds,
            metric_cpu_seconds=given.cpu_seconds,
            chunk_overhead_seconds=given.chunk_overhead_seconds,
            floor_seconds=given.floor_seconds,
            score_seconds=given.score_seconds,
            splittable=dataset.splittable,
        )
    expected = priors.predict(subject(dataset), work, on, built=built)
    return Cost(
        name=dataset.name,
        items=work.items,
        gpu_seconds=expected.gpu_seconds,
        metric_cpu_seconds=expected.metric_cpu_seconds,
        chunk_overhead_seconds=roofline.CHUNK_OVERHEAD_SECONDS,
        floor_seconds=expected.floor_seconds,
        # Without a task, it is planned and never scored.
        score_seconds=expected.score_seconds if dataset.task else 0.0,
        splittable=dataset.splittable,
        spread=expected.spread,
    )


def known_work(dataset: Dataset, built: Built | None = None) -> roofline.Work | None:
    """Return the items and tokens of a dataset, None where nothing is known of it.

    Taken from the built requests, else from the catalogue, else from the suite's number of items.
    """
    if built is not None:
        return catalogue.built_work(dataset, built.index)
    predicted = catalogue.predicted_work(dataset)
    if predicted is None and dataset.items is not None:
        return catalogue.guessed_work(dataset, dataset.items)
    return predicted


def without_prior(suite: Suite) -> list[str]:
    """Return the names of datasets for which neither the suite nor the catalogue has figures."""
    return [d.name for d in suite.datasets if d.prior is None and catalogue.find(d) is None]


def read_priors(settings: Settings) -> Priors:
    """Return what finished runs measured; the shipped priors where the store cannot be read."""
    with contextlib.suppress(OSError):
        seen = Store(Path(settings.priors_dir).expanduser()).read()
        return Priors(seen, time.time())
    return Priors()


def engine_start_seconds(settings: Settings, priors: Priors, on: Conditions) -> float:
    """Return the seconds of an engine's start: set by the user, else measured, else the default."""
    measured = priors.start_seconds(on)
    if measured is None or "engine_start_seconds" in settings.trial.model_fields_set:
        return settings.trial.engine_start_seconds
    return round(measured, 1)


def storage_link(
    settings: Settings, priors: Priors, on: Conditions, checkpoint: Checkpoint
) -> Link:
    """Return the storage bandwidth: set by the user, else measured, else the default."""
    gigabits = settings.stage.gigabits_per_node
    if "gigabits_per_node" in settings.stage.model_fields_set:
        return Link(gigabits)
    return priors.link(
        on,
        this_machine.storage_of(checkpoint.path),
        converted=checkpoint.format is CheckpointFormat.TORCH,
        gigabits=gigabits,
    )


def _seconds_to_build(datasets: Sequence[Dataset], priors: Priors) -> float:
    """Return the CPU seconds to build these datasets; those never built before count nothing."""
    found = [(dataset, known_work(dataset)) for dataset in datasets]
    return sum(
        priors.build_seconds(subject(dataset), work.items) or 0.0
        for dataset, work in found
        if work is not None
    )
