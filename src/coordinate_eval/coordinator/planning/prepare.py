"""From what a user gives to everything that a run is made of, nothing written but the cache."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from coordinate_eval._format import duration
from coordinate_eval.coordinator.cluster import Busy, Node
from coordinate_eval.coordinator.inputs import checkpoint as checkpoints
from coordinate_eval.coordinator.inputs.checkpoint import staged_bytes
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.planning import node_count, plan, planner
from coordinate_eval.coordinator.planning import nodes as select
from coordinate_eval.coordinator.planning.lower_bound import if_wrong
from coordinate_eval.coordinator.planning.nodes import NoFreeGpu
from coordinate_eval.coordinator.planning.plan import Capacity, Cost, NodeCapacity, Plan
from coordinate_eval.coordinator.planning.requests import Builder, Built
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.errors import UserError
from coordinate_eval.priors import catalogue, roofline, this_machine
from coordinate_eval.priors import conditions as conditions_of
from coordinate_eval.priors.observations import subject
from coordinate_eval.priors.predict import Priors
from coordinate_eval.priors.roofline import Conditions
from coordinate_eval.priors.staging import Link
from coordinate_eval.priors.store import Store
from coordinate_eval.records import Checkpoint, CheckpointFormat, Dataset, EngineSettings, Suite

QUEUED_TRIALS = 8
"""Trials for which work is cut, and GPUs assumed of a node, when nodes are not known yet."""

QUEUED_NODE = "queued"
"""Stands in a plan for nodes that are not known yet."""

QUEUED_GPU_MEMORY_GIB = 80.0
"""Memory assumed of a GPU that is not known yet."""


@dataclass(frozen=True)
class Choice:
    """The nodes of a run, and what they imply."""

    nodes: list[NodeCapacity]
    tensor_parallel: int
    gpu_type: str


@dataclass(frozen=True)
class Prepared:
    """Everything decided before anything is submitted."""

    checkpoint: Checkpoint
    suite: Suite
    settings: Settings
    choice: Choice
    max_length: int
    plan: Plan
    built: dict[str, Built]
    metric_cpus: int
    gigabits_per_node: float
    """Of a node's storage link, as it is set."""
    nodes: Sequence[Node] = ()
    busy: Sequence[Busy] = ()
    reviewed: bool = False
    """The plan was given, and is to be run as it is."""
    left_out: dict[str, str] = field(default_factory=dict)


def max_length(checkpoint: Checkpoint, settings: Settings) -> int:
    """Tokens of context of this run."""
    return min(checkpoint.max_length, settings.trial.max_length or checkpoint.max_length)


def choose_nodes(
    checkpoint: Checkpoint, settings: Settings, nodes: list[Node], busy: list[Busy], length: int
) -> Choice:
    """The GPU type with the most room for this checkpoint, and its nodes.

    Raises:
        NoFreeGpu: nothing is free now.
        UserError: the checkpoint fits no GPU, or no node's memory; a named node is not there.
    """
    select.check_names(settings.nodes, nodes, busy)
    converting = checkpoint.format is CheckpointFormat.TORCH
    gib = jobs.keeper_memory_gib(staged_bytes(checkpoint), converting)
    choices: list[Choice] = []
    problems: list[UserError] = []
    for kind in sorted({node.gpu_type for node in nodes}):
        alike = [node for node in nodes if node.gpu_type == kind]
        try:
            degree = gpus_per_trial(checkpoint, settings, alike, length)
            chosen = select.choose(alike, busy, settings, degree, gib)
            choices.append(Choice(chosen, degree, kind))
        except UserError as error:
            problems.append(error)
    if choices:
        return max(choices, key=lambda c: sum(n.trials for n in c.nodes) * c.tensor_parallel)
    if problems:
        raise problems[0]
    select.choose(nodes, busy, settings, 1, gib)
    raise NoFreeGpu("no node has a free GPU")


def gpus_per_trial(
    checkpoint: Checkpoint, settings: Settings, alike: Sequence[Node], length: int
) -> int:
    """The tensor-parallel degree on these nodes of one GPU type.

    Raises:
        UserError: the checkpoint fits no number of their GPUs.
    """
    return settings.trial.tensor_parallel or checkpoints.tensor_parallel(
        checkpoint,
        max(node.gpu_memory_gib for node in alike),
        max(node.gpus for node in alike),
        length,
    )


def queued_choice(checkpoint: Checkpoint, settings: Settings) -> Choice:
    """What to cut the work for while it is not known which nodes will be free."""
    degree = settings.trial.tensor_parallel or checkpoints.tensor_parallel(
        checkpoint, QUEUED_GPU_MEMORY_GIB, QUEUED_TRIALS, max_length(checkpoint, settings)
    )
    trials = max(1, (settings.max_gpus or QUEUED_TRIALS * degree) // degree)
    node = NodeCapacity(name=QUEUED_NODE, gpus=trials * degree, gpu_type="", trials=trials)
    return Choice([node], degree, "")


def costs(
    suite: Suite,
    on: Conditions,
    builder: Builder,
    priors: Priors,
    *,
    build: Callable[[Dataset], bool],
    tell: Callable[[str], None] = lambda name: None,
) -> tuple[list[Cost], dict[str, Built]]:
    """What each dataset costs under these conditions, and the requests that were built to know it.

    Apart from those that `build` asks for, a dataset is built only where neither the suite nor
    the catalogue says how many items it has. `tell` hears which is built, and how long it and
    those after it will take as far as that is known.
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
        asked = work(dataset, built.get(dataset.name))
        if asked is None:
            built[dataset.name] = builder.get(dataset)
            asked = catalogue.built_work(dataset, built[dataset.name].index)
        found.append(cost(dataset, asked, on, priors, built=dataset.name in built))
    return found, built


def _seconds_to_build(datasets: Sequence[Dataset], priors: Priors) -> float:
    """CPU seconds to build the requests of these datasets, without those never built before."""
    found = [(dataset, work(dataset, None)) for dataset in datasets]
    return sum(
        priors.build_seconds(subject(dataset), asked.items) or 0.0
        for dataset, asked in found
        if asked is not None
    )


def learned(settings: Settings) -> Priors:
    """What finished runs have shown; nothing where the store cannot be read."""
    with contextlib.suppress(OSError):
        seen = Store(Path(settings.priors_dir).expanduser()).read()
        return Priors(seen, time.time())
    return Priors()


def with_learned_start(settings: Settings, priors: Priors, on: Conditions) -> Settings:
    """The settings with the engine's start as it was seen, unless the user has set it."""
    seconds = priors.start_seconds(on)
    if seconds is None or "engine_start_seconds" in settings.trial.model_fields_set:
        return settings
    trial = settings.trial.model_copy(update={"engine_start_seconds": round(seconds, 1)})
    return settings.model_copy(update={"trial": trial})


def link(settings: Settings, priors: Priors, on: Conditions, checkpoint: Checkpoint) -> Link:
    """What the weights reach nodes at: as the user has set it, else as it was seen, else as the
    settings have it.
    """
    gigabits = settings.stage.gigabits_per_node
    if "gigabits_per_node" in settings.stage.model_fields_set:
        return Link(gigabits)
    return priors.link(
        on,
        this_machine.storage_of(checkpoint.path),
        converted=checkpoint.format is CheckpointFormat.TORCH,
        gigabits=gigabits,
    )


def conditions(checkpoint: Checkpoint, choice: Choice, engine: EngineSettings) -> Conditions:
    """Under what a run on these nodes would evaluate the checkpoint."""
    config = next((Path(f) for f in checkpoint.files if Path(f).name == "config.json"), None)
    return conditions_of.conditions(
        engine,
        this_machine.engine_version(engine.name),
        conditions_of.on_processor(choice.gpu_type, this_machine.processor()),
        conditions_of.model_of(checkpoint, choice.tensor_parallel, config),
    )


def cost(
    dataset: Dataset,
    work: roofline.Work,
    on: Conditions,
    priors: Priors,
    *,
    built: bool = True,
) -> Cost:
    """A dataset's cost: what the suite gives, else what the priors say; `built` says that the
    work's prompts were counted.
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
        splittable=dataset.splittable,
        spread=expected.spread,
    )


def guessed(suite: Suite) -> list[str]:
    """Datasets for which neither the suite nor the catalogue has figures."""
    return [d.name for d in suite.datasets if d.prior is None and catalogue.find(d) is None]


def make_plan(
    checkpoint: Checkpoint,
    suite: Suite,
    settings: Settings,
    found: list[Cost],
    capacity: Capacity,
    *,
    what_if: bool = False,
) -> Plan:
    """The plan of these costs on as much of this capacity as the objective wants.

    `what_if`: with what other numbers of GPUs would come to.

    Raises:
        UserError: nothing ends by the deadline.
    """

    def draft(part: Capacity) -> Plan:
        return planner.make(
            checkpoint,
            plan.PlanSuite(name=suite.name, digest=suite.digest),
            plan.PlanEngine(name=settings.engine.name, args=settings.engine.args),
            found,
            part,
            first_signal=settings.first_signal,
        )

    thinkable = [found, *if_wrong(found)]

    def bounds(part: Capacity) -> Iterator[float]:
        return (planner.least_seconds(checkpoint, each, part) for each in thinkable)

    chosen = node_count.choose(
        draft,
        bounds,
        capacity,
        settings.objective,
        settings.deadline_seconds,
        named=select.names_nodes(settings),
    )
    if what_if:
        return chosen.model_copy(update={"what_if": node_count.curve(draft, capacity)})
    return chosen


def work(dataset: Dataset, built: Built | None) -> roofline.Work | None:
    """What a dataset asks of a model; None where nothing is known of it.

    From built requests, from the catalogue, or from the suite's own count of items.
    """
    if built is not None:
        return catalogue.built_work(dataset, built.index)
    predicted = catalogue.predicted_work(dataset)
    if predicted is None and dataset.items is not None:
        return catalogue.guessed_work(dataset, dataset.items)
    return predicted
