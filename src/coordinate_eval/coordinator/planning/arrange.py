"""From a command line and what a cluster offers to everything that a run is made of.

Nothing is written but the cache of requests.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from coordinate_eval.coordinator.cluster import Busy, Node
from coordinate_eval.coordinator.inputs import checkpoint as checkpoints
from coordinate_eval.coordinator.inputs import suite
from coordinate_eval.coordinator.inputs.cluster_file import ClusterFile
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.planning import prepare, reviewed_plan
from coordinate_eval.coordinator.planning.nodes import NoFreeGpu
from coordinate_eval.coordinator.planning.plan import Capacity
from coordinate_eval.coordinator.planning.prepare import Choice, Prepared
from coordinate_eval.coordinator.planning.requests import Builder
from coordinate_eval.coordinator.planning.reviewed_plan import PlanFile
from coordinate_eval.errors import UserError
from coordinate_eval.evaluators.engines import base as engines
from coordinate_eval.priors.predict import Priors
from coordinate_eval.priors.staging import Link
from coordinate_eval.records import Checkpoint, Dataset, Suite


@dataclass(frozen=True)
class Order:
    """What the command line asks for, beside the settings."""

    checkpoint: Path | None = None
    config: Path | None = None
    tokenizer: Path | None = None
    run_dir: Path | None = None
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    limit: int | None = None
    wait: bool = False
    dry_run: bool = False
    as_json: bool = False
    html: Path | None = None
    scripts: Path | None = None
    plan: Path | None = None
    what_if: bool = False


@dataclass(frozen=True)
class Asked:
    """What is to be scored on what, and the plan of it if one was given."""

    checkpoint: Checkpoint
    suite: Suite
    plan: PlanFile | None
    left_out: dict[str, str] = field(default_factory=dict)
    """Datasets of the suite that cannot be run, and why."""
    what_if: bool = False
    """With what other numbers of GPUs would come to."""


@dataclass(frozen=True)
class Offer:
    """What a cluster has now, and which datasets' requests are to be built on it."""

    nodes: list[Node]
    busy: list[Busy]
    engine_start_seconds: float | None
    """What is assumed of it; None for what was learned, or is set."""
    storage_gigabits_per_node: float | None
    """The same of the link to its storage."""
    metric_cpus: int
    priors: Priors
    build: Callable[[Dataset], bool]
    queue: bool
    """Plan for nodes that are not known yet where none is free."""


def asked(order: Order, settings: Settings) -> Asked:
    """The checkpoint, suite and plan of an order, found to belong together.

    Raises:
        UserError: one of them is not there or malformed, or they don't.
    """
    if (order.html or order.scripts or order.what_if) and not order.dry_run:
        raise UserError(
            "--html, --scripts and --what-if show what would be submitted: add --dry-run"
        )
    plan = reviewed_plan.read(order.plan) if order.plan else None
    path = order.checkpoint or (Path(plan.checkpoint.path) if plan else None)
    if path is None:
        raise UserError("give a checkpoint CKPT, or --plan FILE of a plan that names one")
    wanted = suite.narrow(
        suite.load(settings.suite),
        only=order.only,
        skip=order.skip,
        groups=order.groups,
        limit=order.limit,
    )
    checkpoint = checkpoints.inspect(path, config=order.config, tokenizer=order.tokenizer)
    if plan is not None:
        reviewed_plan.check_same(plan, checkpoint, wanted, settings)
    engines.check_args(settings.engine.name, settings.engine.args)
    return Asked(checkpoint, wanted, plan, what_if=order.what_if)


def offer_of_file(described: ClusterFile) -> Offer:
    """Of a cluster file; no request is built that a plan can do without."""
    nodes, busy = described.free()
    return Offer(
        nodes,
        busy,
        engine_start_seconds=described.engine_start_seconds,
        storage_gigabits_per_node=described.storage_gigabits_per_node,
        metric_cpus=described.cores_for_metrics,
        # What others have run here says nothing of a cluster that is only described.
        priors=Priors(),
        build=lambda dataset: False,
        queue=False,
    )


def offer_of_cluster(found: tuple[list[Node], list[Busy]], settings: Settings) -> Offer:
    """Of a live cluster. All requests are built, so that a plan shows what will be run."""
    nodes, busy = found
    return Offer(
        nodes,
        busy,
        engine_start_seconds=None,
        storage_gigabits_per_node=None,
        metric_cpus=settings.metrics.cpus,
        priors=prepare.learned(settings),
        build=lambda dataset: dataset.task is not None,
        queue=settings.queue,
    )


def prepared(
    asked: Asked, settings: Settings, offer: Offer, tell: Callable[[str], None] = lambda name: None
) -> Prepared:
    """The plan of what was asked on what is offered, or the given plan if that can start.

    Raises:
        UserError: it cannot, or something cannot be built or placed.
    """
    checkpoint, wanted = asked.checkpoint, asked.suite
    length = prepare.max_length(checkpoint, settings)
    choice = _choice(asked, settings, offer, length)
    cache = Path(settings.cache_dir).expanduser()
    builder = Builder(cache, checkpoint, wanted, settings.engine.name, length)
    on = prepare.conditions(checkpoint, choice, settings.engine)
    settings = prepare.with_learned_start(settings, offer.priors, on)
    costs, built = prepare.costs(wanted, on, builder, offer.priors, build=offer.build, tell=tell)
    plan = asked.plan
    if plan is not None:
        reviewed_plan.check_items(plan, costs)
    else:
        link = (
            prepare.link(settings, offer.priors, on, checkpoint)
            if offer.storage_gigabits_per_node is None
            else Link(offer.storage_gigabits_per_node)
        )
        capacity = Capacity(
            nodes=choice.nodes,
            gpus_per_trial=choice.tensor_parallel,
            engine_start_seconds=settings.trial.engine_start_seconds
            if offer.engine_start_seconds is None
            else offer.engine_start_seconds,
            storage_gigabits_per_node=link.gigabits_per_node,
            storage_shared=link.shared,
            metric_cpus=offer.metric_cpus,
        )
        made = prepare.make_plan(
            checkpoint, wanted, settings, costs, capacity, what_if=asked.what_if
        )
        plan = PlanFile.of(made, metric_cpus=offer.metric_cpus, max_length=length)
    return Prepared(
        checkpoint,
        wanted,
        settings,
        choice,
        length,
        plan,
        built,
        metric_cpus=offer.metric_cpus,
        gigabits_per_node=offer.storage_gigabits_per_node or settings.stage.gigabits_per_node,
        nodes=offer.nodes,
        busy=offer.busy,
        reviewed=asked.plan is not None,
        left_out=asked.left_out,
    )


def _choice(asked: Asked, settings: Settings, offer: Offer, length: int) -> Choice:
    nodes, busy = offer.nodes, offer.busy
    if asked.plan is not None:
        return reviewed_plan.choice(asked.plan, asked.checkpoint, settings, nodes, busy)
    try:
        return prepare.choose_nodes(asked.checkpoint, settings, nodes, busy, length)
    except NoFreeGpu:
        if not offer.queue:
            raise
        return prepare.queued_choice(asked.checkpoint, settings)
