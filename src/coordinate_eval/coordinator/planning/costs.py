"""The seconds that datasets take on a run's GPUs: the suite's own figures, else the priors'."""

import contextlib
from collections.abc import Mapping
from pathlib import Path

from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.planning.plan import Cost
from coordinate_eval.errors import UserError
from coordinate_eval.priors import catalogue, roofline, this_machine
from coordinate_eval.priors import conditions as conditions_of
from coordinate_eval.priors.observations import subject
from coordinate_eval.priors.predict import Priors
from coordinate_eval.priors.roofline import Conditions
from coordinate_eval.priors.staging import Link
from coordinate_eval.priors.store import Store
from coordinate_eval.records import (
    Checkpoint,
    Dataset,
    DatasetRequests,
    EngineSettings,
    Suite,
)

ENGINE_START_SECONDS = 40.0
"""Seconds expected of an engine's start before any was measured."""

LINK_GIGABITS = 25.0
"""Gbit/s expected of a node's storage link before any copy was measured."""

GUESSED_ITEMS = 1000
"""Items of a dataset about which nothing is known, to choose a tensor-parallel degree."""


def conditions(
    checkpoint: Checkpoint,
    engine: EngineSettings,
    gpu_type: str,
    tensor_parallel: int,
    pipeline_parallel: int = 1,
) -> Conditions:
    """Return the conditions that costs depend on: model, engine and GPUs of one trial."""
    config = next((Path(f) for f in checkpoint.files if Path(f).name == "config.json"), None)
    return conditions_of.conditions(
        engine,
        this_machine.engine_version(engine.name),
        conditions_of.on_processor(gpu_type, this_machine.processor()),
        conditions_of.model_of(checkpoint, engine, tensor_parallel, config, pipeline_parallel),
    )


def suite_costs(
    suite: Suite, on: Conditions, built: Mapping[str, DatasetRequests], priors: Priors
) -> list[Cost]:
    """Return the cost of each dataset, from its built requests where there are some.

    Raises:
        UserError: Nothing is known of a dataset that is not built.
    """
    found: list[Cost] = []
    for dataset in suite.datasets:
        work = catalogue.known_work(dataset, built.get(dataset.name))
        if work is None:
            raise UserError(
                f"dataset {dataset.name} cannot be planned: neither the suite nor the catalogue "
                "says how many items it has, and a dry run on a cluster file or with --estimate "
                "builds no prompts to count them. Give it `items` in the suite, leave it out with "
                "--skip, or plan on a live cluster without --estimate"
            )
        found.append(dataset_cost(dataset, work, on, priors, built=dataset.name in built))
    return found


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
        seconds = given.model_dump() | {"metric_cpu_seconds": given.cpu_seconds}
    else:
        seconds = priors.predict(subject(dataset), work, on, built=built)._asdict()
        seconds["chunk_overhead_seconds"] = roofline.CHUNK_OVERHEAD_SECONDS
        if not dataset.task:  # it is planned and never scored
            seconds["score_seconds"] = 0.0
    if dataset.rubric:  # a judge takes no core
        seconds["metric_cpu_seconds"] = 0.0
    return Cost(name=dataset.name, items=work.items, splittable=dataset.splittable, **seconds)


def expected_works(suite: Suite) -> list[roofline.Work]:
    """Return the work of each dataset as far as it is known before anything is built."""
    return [
        catalogue.known_work(d) or catalogue.guessed_work(d, GUESSED_ITEMS) for d in suite.datasets
    ]


def without_prior(suite: Suite) -> list[Dataset]:
    """Return the datasets for which neither the suite nor the catalogue has figures."""
    return [d for d in suite.datasets if d.prior is None and catalogue.find(d) is None]


def read_priors(settings: Settings, now: float) -> Priors:
    """Return what finished runs measured; the shipped priors where the store cannot be read."""
    with contextlib.suppress(OSError):
        seen = Store(Path(settings.priors_dir).expanduser()).read()
        return Priors(seen, now)
    return Priors()


def engine_start_seconds(priors: Priors, on: Conditions) -> float:
    """Return the seconds of an engine's start: measured, else a guess."""
    measured = priors.start_seconds(on)
    return ENGINE_START_SECONDS if measured is None else round(measured, 1)


def storage_link(priors: Priors, on: Conditions, checkpoint: Checkpoint) -> Link:
    """Return the storage bandwidth: measured, else a guess."""
    return priors.link(
        on,
        this_machine.storage_of(checkpoint.path),
        converted=checkpoint.converted,
        gigabits=LINK_GIGABITS,
    )
