"""The choice of nodes and of the number of trials on each."""

from collections import Counter
from collections.abc import Sequence

from coordinate_eval._format import plural
from coordinate_eval.clusters.protocol import Busy, Node
from coordinate_eval.coordinator.inputs.checkpoints import checkpoint as checkpoints
from coordinate_eval.coordinator.inputs.checkpoints import pipeline
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.planning.places.asked_nodes import asked, check_names, most_nodes
from coordinate_eval.coordinator.planning.places.degree import Demand, TooLarge, degrees_of
from coordinate_eval.coordinator.planning.places.degrees import Degrees, check_gpu
from coordinate_eval.coordinator.planning.plan import ChosenNodes, NodeCapacity
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.records import ANY_NODE
from coordinate_eval.errors import UserError
from coordinate_eval.priors import gpus
from coordinate_eval.priors.conditions import model_of, sequences
from coordinate_eval.priors.roofline import Work, gpu_seconds
from coordinate_eval.records import Checkpoint

LEAST_KEEPER_CPUS, MOST_KEEPER_CPUS = 1, 4
"""Fewest cores of a node's keeper. It gets them even if a trial then has no room."""

QUEUED_NODE = ANY_NODE
"""Name in a plan that stands for nodes that are not known yet."""

ASKING_NODE = ChosenNodes([NodeCapacity(name=ANY_NODE, gpus=0, gpu_type="", trials=1)], 0)
"""Stands for any node with a core, where one trial without GPUs asks a server of others. A second
trial would only share what that server can do."""

QUEUED_TRIALS = 8
"""Trials to plan for, and GPUs assumed of a node, while no node is known."""

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
    if settings.engine.elsewhere:
        return ASKING_NODE
    check_names(settings.nodes, nodes, busy)
    _check_possible(settings.nodes, nodes, busy)
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
            degrees = _degrees_on(demand, alike, busy)
            each, stages = degrees.tensor, degrees.pipeline
            gib = keeper_gib(demand.checkpoint, settings, stages)
            found = nodes_with_room(alike, busy, settings, each, gib, stages)
            choices.append(ChosenNodes(found, each * stages, stages))
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

    They have the GPU type that is asked for. Of several that hold the model, it is the one of which
    the cluster has most; nodes that are down or drained count only where there are no others.

    Raises:
        UserError: No type holds the model; says why for the most frequent type.
    """
    settings = demand.settings
    if settings.engine.elsewhere:
        return ASKING_NODE
    there = Counter[tuple[str, float]]()
    for node in nodes:
        there[node.gpu_type, node.gpu_memory_gib] += node.gpus
    for taken in busy:
        count = taken.gpus * (not taken.excluded)
        there[taken.gpu_type, taken.gpu_memory_gib] += 0 if taken.away else count
    wanted = [kind for kind in there if gpus.asked_for(kind[0], settings.gpu_type)]
    wanted.sort(key=lambda kind: -there[kind])
    problems: list[UserError] = []
    for kind in wanted or [(settings.gpu_type, 0.0)]:
        try:
            return _queued_on(demand, kind, [*_gpus_of(nodes, kind[0]), *_gpus_of(busy, kind[0])])
        except UserError as error:
            problems.append(error)
    raise problems[0]


def _queued_on(demand: Demand, kind: tuple[str, float], every: Sequence[int]) -> ChosenNodes:
    """Return the stand-in with GPUs of a type and memory, of which nodes have so many each."""
    check_gpu(demand.checkpoint, demand.settings.engine, kind[0])
    try:
        degrees = degrees_of(demand, kind, [QUEUED_TRIALS])
    except TooLarge:
        degrees = degrees_of(demand, kind, every or [QUEUED_TRIALS])
    gpus_each = degrees.tensor * degrees.pipeline
    trials = max(1, (demand.settings.max_gpus or QUEUED_TRIALS * gpus_each) // gpus_each)
    if degrees.pipeline > 1:
        trials = min(trials, len(every) // degrees.pipeline)
    stand_in = NodeCapacity(
        name=QUEUED_NODE, gpus=trials * gpus_each, gpu_type=kind[0], trials=trials
    )
    return ChosenNodes([stand_in], gpus_each, degrees.pipeline)


def _gpus_of(nodes: Sequence[Node | Busy], gpu_type: str) -> list[int]:
    """Return the GPUs of each node of this type that has some or will."""
    return [
        node.gpus
        for node in nodes
        if node.gpu_type == gpu_type
        and node.gpus
        and not (isinstance(node, Busy) and (node.excluded or node.away))
    ]


def _degrees_on(demand: Demand, alike: Sequence[Node], busy: Sequence[Busy]) -> Degrees:
    """Return the degrees on nodes with GPUs of one type: on free nodes, else on all nodes."""
    kind = alike[0].gpu_type, max(node.gpu_memory_gib for node in alike)
    gpus_of_nodes = [node.gpus for node in alike]
    try:
        return degrees_of(demand, kind, gpus_of_nodes)
    except TooLarge:
        later = asked(busy, demand.settings.nodes)
        return degrees_of(demand, kind, [*gpus_of_nodes, *_gpus_of(later, kind[0])])


def _speed(demand: Demand, choice: ChosenNodes) -> tuple[float, int]:
    """Return how often per second these nodes could do the works, and the number of their GPUs."""
    nodes, degree, stages = choice
    engine, kind = demand.settings.engine, nodes[0].gpu_type
    model = model_of(demand.checkpoint, engine, degree // stages, None, stages)
    gpu = gpus.lookup(kind)
    most = sequences(engine, kind)
    seconds = sum(gpu_seconds(work, model, gpu, most) for work in demand.works or (_ANY_WORK,))
    trials = sum(node.trials for node in nodes)
    return trials / seconds, trials * degree


def keeper_gib(checkpoint: Checkpoint, settings: Settings, nodes_per_trial: int = 1) -> float:
    """Return the host memory that a keeper of this checkpoint asks for, in GiB."""
    converting = settings.engine.loads(checkpoint).converted
    staged = checkpoints.staged_bytes(checkpoint) - checkpoint.bytes
    staged += max(pipeline.bytes_of_nodes(checkpoint, nodes_per_trial))
    return jobs.keeper_memory_gib(staged, converting, settings.stage)


def nodes_with_room(
    nodes: Sequence[Node],
    busy: Sequence[Busy],
    settings: Settings,
    gpus_each: int,
    keeper_gib: float,
    nodes_per_trial: int = 1,
) -> list[NodeCapacity]:
    """Return which to ask for of nodes with GPUs of one type, those with most room first.

    A trial has `gpus_each` on each of its nodes. A trial on several nodes has them alone.

    Raises:
        NoFreeGpu: No GPU is free; says what is busy.
        UserError: Nodes have free GPUs, but not the memory or cores for a trial.
    """
    named = asked(nodes, settings.nodes)
    most = most_nodes(settings)
    if most is not None and most < nodes_per_trial:
        raise NoFreeGpu(f"one engine takes {nodes_per_trial} nodes, and {most} may be added")
    if sum(n.free_gpus >= gpus_each for n in named) < nodes_per_trial:
        taken = asked(busy, settings.nodes)
        raise NoFreeGpu(_nothing_free(named, taken, gpus_each, nodes_per_trial))
    fitting = [
        NodeCapacity(
            name=node.name,
            gpus=node.gpus,
            gpu_type=node.gpu_type,
            trials=trials,
            keeper_cpus=keeper_cpus(node, settings, trials, gpus_each),
        )
        for node in named
        if (trials := trials_on(node, settings, gpus_each, keeper_gib))
    ]
    if len(fitting) < nodes_per_trial:
        why = _no_room(named, settings, gpus_each, keeper_gib, LEAST_KEEPER_CPUS)
        raise UserError(why)
    if nodes_per_trial > 1:
        fitting = [
            joined(fitting[start : start + nodes_per_trial])
            for start in range(0, len(fitting) - nodes_per_trial + 1, nodes_per_trial)
        ]
    groups = None if most is None else most // nodes_per_trial
    return _limit(fitting, groups, settings.max_gpus, gpus_each * nodes_per_trial)


def joined(nodes: Sequence[NodeCapacity]) -> NodeCapacity:
    """Return several nodes as the place of one trial."""
    return nodes[0].model_copy(
        update={
            "gpus": min(node.gpus for node in nodes),
            "trials": 1,
            "keeper_cpus": min(node.keeper_cpus for node in nodes),
            "others": [node.name for node in nodes[1:]],
        }
    )


def trials_on(node: Node, settings: Settings, gpus_each: int, keeper_gib: float) -> int:
    """Return how many trials a node has GPUs, cores and memory for, besides its keeper."""
    by_gpus = node.free_gpus // gpus_each
    each_gib = settings.trial.memory_gib * gpus_each
    each_cpus = node.cpus_of(settings.trial.cpus * gpus_each, each_gib)
    by_cpus = (node.cpus - node.cpus_of(LEAST_KEEPER_CPUS, keeper_gib)) // each_cpus
    by_memory = int((node.memory_gib - keeper_gib) // each_gib)
    return max(0, min(by_gpus, by_cpus, by_memory))


def keeper_cpus(node: Node, settings: Settings, trials: int, gpus_each: int) -> int:
    """Return the cores of a node's keeper: as many as this number of trials leaves, up to four."""
    trial = settings.trial
    asked_for = trial.cpus * gpus_each, trial.memory_gib * gpus_each
    left = node.cpus - trials * node.cpus_of(*asked_for)
    return max(LEAST_KEEPER_CPUS, min(MOST_KEEPER_CPUS, left))


def _check_possible(wanted: str | None, nodes: Sequence[Node], busy: Sequence[Busy]) -> None:
    """Check that the settings leave a node with GPUs, free or not."""
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


def _nothing_free(
    nodes: Sequence[Node], busy: Sequence[Busy], gpus_each: int, nodes_per_trial: int = 1
) -> str:
    """Return that no node has the GPUs of a trial free, and what each is busy with."""
    taken = [Busy(name=n.name, why=f"{n.free_gpus} of {n.gpus} GPUs free") for n in nodes]
    lines = _reasons([*taken, *busy])
    more = len(lines) - MOST_REASONS
    lines = lines[:MOST_REASONS] + ([f"  and {plural(more, 'more reason')}"] if more > 0 else [])
    first = f"no node has {plural(gpus_each, 'free GPU')} now"
    if nodes_per_trial > 1:
        there = sum(n.free_gpus >= gpus_each for n in nodes)
        first = (
            f"one engine of this model takes {nodes_per_trial} nodes, with "
            f"{plural(gpus_each, 'free GPU')} on each, and {there} of them are free now"
        )
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
    gpus_each: int,
    keeper_gib: float,
    keeper_cpus: int,
) -> str:
    """Return that these nodes lack cores or memory for a trial, and what each has."""
    gib = settings.trial.memory_gib * gpus_each
    asked = settings.trial.cpus * gpus_each
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
