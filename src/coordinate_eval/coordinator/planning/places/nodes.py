"""The choice of nodes and of the number of trials on each."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from coordinate_eval._format import plural
from coordinate_eval._gpus import memory_gib
from coordinate_eval.clusters.protocol import Busy, Node
from coordinate_eval.coordinator.inputs.checkpoints import checkpoint as checkpoints
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.planning.places.asked_nodes import asked, check_names, most_nodes
from coordinate_eval.coordinator.planning.places.degree import tensor_parallel
from coordinate_eval.coordinator.planning.places.degrees import check_gpu, check_tensor
from coordinate_eval.coordinator.planning.plan import ChosenNodes, NodeCapacity
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.records import ANY_NODE
from coordinate_eval.errors import UserError
from coordinate_eval.priors import gpus
from coordinate_eval.priors.conditions import model_of, sequences
from coordinate_eval.priors.roofline import Work, gpu_seconds
from coordinate_eval.records import Checkpoint, CheckpointFormat

LEAST_KEEPER_CPUS, MOST_KEEPER_CPUS = 1, 4
"""Fewest cores of a node's keeper. It gets them even if a trial then has no room."""

QUEUED_NODE = ANY_NODE
"""Name in a plan that stands for nodes that are not known yet."""

QUEUED_TRIALS = 8
"""Trials to plan for, and GPUs assumed of a node, while no node is known."""

LEAST_GPU_MEMORY_GIB = 16.0
"""Memory in GiB that a GPU has whose memory is not known. A model that needs more waits for the
setting that tells it."""

MOST_REASONS, MOST_SHOWN = 20, 8
"""Lines that say why nothing is free, and names of nodes in each."""

_ANY_WORK = Work(
    items=1000,
    requests=1000,
    prompt_tokens=500_000,
    output_tokens=100_000,
    longest_output_tokens=1000,
)
"""Work by which GPU types are compared where nothing is known of the datasets."""


class NoFreeGpu(UserError):
    """Nothing can start now; waiting may help."""


@dataclass(frozen=True)
class Demand:
    """The run that needs nodes."""

    checkpoint: Checkpoint
    settings: Settings
    max_length: int
    """The context of the run, in tokens."""
    works: Sequence[Work]
    """The expected work of its datasets."""


def choose_nodes(demand: Demand, nodes: Sequence[Node], busy: Sequence[Busy]) -> ChosenNodes:
    """Return the nodes of the GPU type that is fastest, and the GPUs of one trial.

    That is the type whose free GPUs are predicted to end the works soonest, all together; of equal
    ones the one with most GPUs.

    Raises:
        NoFreeGpu: No GPU is free now.
        UserError: The checkpoint fits no GPU or no node's memory, a named node does not exist, or
            the settings exclude all nodes.
    """
    settings = demand.settings
    check_names(settings.nodes, nodes, busy)
    _check_possible(settings.nodes, nodes, busy)
    gib = keeper_gib(demand.checkpoint, settings)
    choices: list[ChosenNodes] = []
    problems: list[UserError] = []
    named = asked(nodes, settings.nodes)
    typed = [node for node in named if gpus.asked_for(node.gpu_type, settings.gpu_type)]
    if named and not typed:
        may_come = any(not each.excluded for each in busy)
        raise (NoFreeGpu if may_come else UserError)(_no_type(named, settings.gpu_type))
    for kind in sorted({node.gpu_type for node in typed}):
        alike = [node for node in typed if node.gpu_type == kind]
        try:
            check_gpu(demand.checkpoint, settings.engine, kind)
            degree = gpus_per_trial(demand, alike)
            found = nodes_with_room(alike, busy, settings, degree, gib)
            choices.append(ChosenNodes(found, degree))
        except UserError as error:
            problems.append(error)
    if choices:
        return max(choices, key=lambda choice: _speed(demand, choice))
    if problems:
        # Where one GPU type is only busy now, waiting may help.
        raise next((each for each in problems if isinstance(each, NoFreeGpu)), problems[0])
    raise NoFreeGpu(_nothing_free([], asked(busy, settings.nodes), 1))


def queued_nodes(demand: Demand, nodes: Sequence[Node], busy: Sequence[Busy]) -> ChosenNodes:
    """Return a stand-in for the nodes that a queued run will get, and the GPUs of one trial.

    They have the GPU type that is asked for, and of several the one of which the cluster has most.
    Nodes that are down or drained count only where there are no others.
    """
    settings = demand.settings
    there = Counter[tuple[str, float]]()
    for node in nodes:
        there[node.gpu_type, node.gpu_memory_gib] += node.gpus
    for taken in busy:
        count = taken.gpus * (not taken.excluded)
        there[taken.gpu_type, taken.gpu_memory_gib] += 0 if taken.away else count
    wanted = [kind for kind in there if gpus.asked_for(kind[0], settings.gpu_type)]
    kind = max(wanted, key=lambda kind: there[kind], default=(settings.gpu_type, 0.0))
    check_gpu(demand.checkpoint, settings.engine, kind[0])
    degree = _degree(demand, kind, QUEUED_TRIALS)
    trials = max(1, (settings.max_gpus or QUEUED_TRIALS * degree) // degree)
    stand_in = NodeCapacity(name=QUEUED_NODE, gpus=trials * degree, gpu_type=kind[0], trials=trials)
    return ChosenNodes([stand_in], degree)


def gpus_per_trial(demand: Demand, alike: Sequence[Node]) -> int:
    """Return the tensor-parallel degree on nodes with GPUs of one type.

    Raises:
        UserError: The checkpoint fits no number of their GPUs.
    """
    kind = alike[0].gpu_type, max(node.gpu_memory_gib for node in alike)
    most = max(node.gpus for node in alike)
    return _degree(demand, kind, most)


def _degree(demand: Demand, kind: tuple[str, float], gpus_per_node: int) -> int:
    """Return the degree that is set, else the best one on GPUs of this kind.

    A kind is a type and its memory in GiB, 0 if the cluster tells none.
    """
    gpu_type, gib = kind
    given = demand.settings.trial.tensor_parallel
    if given is not None:
        if given > 1 and gpus.is_slice(gpu_type):
            raise UserError(
                f"[trial] tensor_parallel is {given}, but slices of a GPU ({gpu_type}) cannot "
                "share a model: choose whole GPUs with --gpu-type"
            )
        check_tensor(demand.checkpoint, demand.settings.engine, given)
        return given
    gib = gib or memory_gib(gpu_type)
    known = gib > 0 or gpus.name(gpu_type) == "cpu"  # whose memory is its host's
    if gpus.is_slice(gpu_type) or not known:
        gpus_per_node = 1
    try:
        return tensor_parallel(
            demand.checkpoint,
            demand.settings.engine,
            gpus.lookup(gpu_type)._replace(memory=(gib if known else LEAST_GPU_MEMORY_GIB) * 2**30),
            gpus_per_node,
            demand.max_length,
            demand.works,
            sequences(demand.settings.engine, gpu_type),
        )
    except UserError as error:
        if known:
            raise
        named = f"Their type, {gpu_type}, does not tell it" if gpu_type else "They have no type"
        raise UserError(
            f"the memory of the GPUs is not known, and this model needs more than "
            f"{LEAST_GPU_MEMORY_GIB:g} GiB. {named}: set gpu_memory_gib, in "
            "config.toml or, for each node, in a cluster file"
        ) from error


def _speed(demand: Demand, choice: ChosenNodes) -> tuple[float, int]:
    """Return how often per second these nodes could do the works, and the number of their GPUs."""
    nodes, degree = choice
    engine, kind = demand.settings.engine, nodes[0].gpu_type
    model, gpu = model_of(demand.checkpoint, engine, degree, None), gpus.lookup(kind)
    most = sequences(engine, kind)
    seconds = sum(gpu_seconds(work, model, gpu, most) for work in demand.works or (_ANY_WORK,))
    trials = sum(node.trials for node in nodes)
    return trials / seconds, trials * degree


def keeper_gib(checkpoint: Checkpoint, settings: Settings) -> float:
    """Return the host memory that a keeper of this checkpoint asks for, in GiB."""
    converting = checkpoint.format is CheckpointFormat.TORCH
    staged = checkpoints.staged_bytes(checkpoint)
    return jobs.keeper_memory_gib(staged, converting, settings.stage)


def nodes_with_room(
    nodes: Sequence[Node],
    busy: Sequence[Busy],
    settings: Settings,
    gpus_per_trial: int,
    keeper_gib: float,
) -> list[NodeCapacity]:
    """Return which to ask for of nodes with GPUs of one type, those with most room first.

    Raises:
        NoFreeGpu: No GPU is free; says what is busy.
        UserError: Nodes have free GPUs, but not the memory or cores for a trial.
    """
    named = asked(nodes, settings.nodes)
    if not any(n.free_gpus >= gpus_per_trial for n in named):
        raise NoFreeGpu(_nothing_free(named, asked(busy, settings.nodes), gpus_per_trial))
    fitting = [
        NodeCapacity(
            name=node.name,
            gpus=node.gpus,
            gpu_type=node.gpu_type,
            trials=trials,
            keeper_cpus=keeper_cpus(node, settings, trials, gpus_per_trial),
        )
        for node in named
        if (trials := trials_on(node, settings, gpus_per_trial, keeper_gib))
    ]
    if not fitting:
        why = _no_room(named, settings, gpus_per_trial, keeper_gib, LEAST_KEEPER_CPUS)
        raise UserError(why)
    return _limit(fitting, most_nodes(settings), settings.max_gpus, gpus_per_trial)


def trials_on(node: Node, settings: Settings, gpus_per_trial: int, keeper_gib: float) -> int:
    """Return how many trials a node has GPUs, cores and memory for, besides its keeper."""
    by_gpus = node.free_gpus // gpus_per_trial
    each_gib = settings.trial.memory_gib * gpus_per_trial
    each_cpus = node.cpus_of(settings.trial.cpus * gpus_per_trial, each_gib)
    by_cpus = (node.cpus - node.cpus_of(LEAST_KEEPER_CPUS, keeper_gib)) // each_cpus
    by_memory = int((node.memory_gib - keeper_gib) // each_gib)
    return max(0, min(by_gpus, by_cpus, by_memory))


def keeper_cpus(node: Node, settings: Settings, trials: int, gpus_per_trial: int) -> int:
    """Return the cores of a node's keeper: as many as this number of trials leaves, up to four."""
    trial = settings.trial
    asked_for = trial.cpus * gpus_per_trial, trial.memory_gib * gpus_per_trial
    left = node.cpus - trials * node.cpus_of(*asked_for)
    return max(LEAST_KEEPER_CPUS, min(MOST_KEEPER_CPUS, left))


def _check_possible(wanted: str | None, nodes: Sequence[Node], busy: Sequence[Busy]) -> None:
    """Check that the settings leave a node with GPUs, free or not.

    Raises:
        UserError: They leave none; waiting for one would not help.
    """
    excluded = asked(busy, wanted)
    if asked(nodes, wanted) or not all(each.excluded for each in excluded):
        return
    if not excluded:
        raise UserError("the cluster has no node with GPUs")
    lines = "\n".join(_reasons(excluded))
    raise UserError(
        "no node can take a trial, now or later: change the partition, the constraint or --nodes\n"
        f"{lines}"
    )


def _limit(
    nodes: list[NodeCapacity], count: int | None, max_gpus: int | None, gpus_per_trial: int
) -> list[NodeCapacity]:
    """Keep the nodes with most room, so that few are staged, up to `count` nodes and the GPUs."""
    ordered = sorted(nodes, key=lambda n: -n.trials)[:count]
    if max_gpus is None:
        return ordered
    left = max_gpus // gpus_per_trial
    if not left:
        raise UserError(f"--max-gpus {max_gpus}: one trial of this model needs {gpus_per_trial}")
    kept = []
    for node in ordered:
        if left:
            kept.append(node.model_copy(update={"trials": min(left, node.trials)}))
            left -= kept[-1].trials
    return kept


def _no_type(nodes: Sequence[Node], wanted: str) -> str:
    """Return that these free nodes lack the wanted type of GPU, and which types they have."""
    found = ", ".join(sorted({node.gpu_type or "of no type" for node in nodes}))
    return (
        f"no GPU of type {wanted} is free now; free are GPUs {found}: use --queue to wait, or "
        "another --gpu-type. GPUs without a type get theirs from [slurm] gpu_type"
    )


def _nothing_free(nodes: Sequence[Node], busy: Sequence[Busy], gpus_per_trial: int) -> str:
    """Return that no node has the GPUs of a trial free, and what each is busy with."""
    taken = [Busy(name=n.name, why=f"{n.free_gpus} of {n.gpus} GPUs free") for n in nodes]
    lines = _reasons([*taken, *busy])
    more = len(lines) - MOST_REASONS
    lines = lines[:MOST_REASONS] + ([f"  and {plural(more, 'more reason')}"] if more > 0 else [])
    first = f"no node has {plural(gpus_per_trial, 'free GPU')} now"
    return "\n".join([first, *lines, "use --queue to wait, or try again later"])


def _reasons(busy: Sequence[Busy]) -> list[str]:
    """Return a line for each reason, with the nodes that it is true of; excluded nodes last."""
    alike: dict[tuple[bool, str], list[str]] = {}
    for each in busy:
        alike.setdefault((each.excluded, each.why), []).append(each.name)
    lines = []
    for (_, why), names in sorted(alike.items(), key=lambda item: item[0][0]):
        more = len(names) - MOST_SHOWN
        who = ", ".join(names[:MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")
        lines.append(f"  {who}: {why}")
    return lines


def _no_room(
    nodes: Sequence[Node],
    settings: Settings,
    gpus_per_trial: int,
    keeper_gib: float,
    keeper_cpus: int,
) -> str:
    """Return that these nodes lack cores or memory for a trial, and what each has."""
    gib = settings.trial.memory_gib * gpus_per_trial
    asked = settings.trial.cpus * gpus_per_trial
    cpus = min(node.cpus_of(asked, gib) for node in nodes)
    more = f" ({asked} asked for; Slurm adds some for its memory or to fill cores)" * (cpus > asked)
    keeper = min(node.cpus_of(keeper_cpus, keeper_gib) for node in nodes)
    lines = [
        f"no node has room for a trial: it takes {cpus} cores{more} and {gib:g} GiB, "
        f"and the weights {keeper_gib:.1f} GiB and {plural(keeper, 'core')} on each node"
    ]
    lines += [
        f"  {n.name}: {n.free_gpus} GPUs, {n.cpus} cores, {n.memory_gib:.1f} GiB free"
        for n in nodes[:20]
    ]
    return "\n".join([*lines, "lower [trial] cpus or memory_gib, or wait until memory is free"])
