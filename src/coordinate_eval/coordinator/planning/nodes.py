"""Which nodes take part, and with how many trials each. Pure."""

import re
from collections.abc import Sequence

from coordinate_eval.coordinator.cluster import Busy, Node
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.planning.plan import NodeCapacity
from coordinate_eval.errors import UserError

KEEPER_CPUS = 1
"""Cores that the keeper takes on each node."""

MOST_NAMES, MOST_DIGITS = 100_000, 9
"""Of a list of nodes, and of a number in it: more than any cluster has."""

_PARTS = re.compile(r"(?:\[[^\[\]]*\]|[^,])+")
_BRACKETS = re.compile(r"\[([0-9,\-]+)\]")


class NoFreeGpu(UserError):
    """Nothing can start now; waiting may help."""


def choose(
    nodes: Sequence[Node],
    busy: Sequence[Busy],
    settings: Settings,
    gpus_per_trial: int,
    keeper_gib: float,
) -> list[NodeCapacity]:
    """The nodes to ask, of one GPU type, those with most room first.

    Raises:
        NoFreeGpu: no GPU is free; says what is busy.
        UserError: nodes have free GPUs, but not the memory or cores for a trial.
    """
    count, wanted = _wanted(settings.nodes)
    named = [n for n in nodes if wanted is None or n.name in wanted]
    if not any(n.free_gpus >= gpus_per_trial for n in named):
        raise NoFreeGpu(_nothing_free(named, busy, gpus_per_trial))
    fitting: dict[str, list[NodeCapacity]] = {}
    for node in named:
        trials = trials_on(node, settings, gpus_per_trial, keeper_gib)
        if trials:
            fitting.setdefault(node.gpu_type, []).append(
                NodeCapacity(name=node.name, gpus=node.gpus, gpu_type=node.gpu_type, trials=trials)
            )
    if not fitting:
        raise UserError(_no_room(named, settings, keeper_gib))
    of_type = max(fitting.values(), key=lambda group: sum(n.trials for n in group))
    most = min((n for n in (count, settings.max_nodes) if n is not None), default=None)
    return _limit(of_type, most, settings.max_gpus, gpus_per_trial)


def trials_on(node: Node, settings: Settings, gpus_per_trial: int, keeper_gib: float) -> int:
    """Trials that can start on a node beside its keeper: the least of GPUs, cores and memory."""
    by_gpus = node.free_gpus // gpus_per_trial
    by_cpus = (node.cpus - KEEPER_CPUS) // settings.trial.cpus
    by_memory = int((node.memory_gib - keeper_gib) // settings.trial.memory_gib)
    return max(0, min(by_gpus, by_cpus, by_memory))


def check_names(wanted: str | None, nodes: Sequence[Node], busy: Sequence[Busy]) -> None:
    """Whether all nodes that `--nodes` names are there, free or not.

    Raises:
        UserError: one is not, or none is named; waiting for it would be in vain.
    """
    _, names = _wanted(wanted)
    if names is None:
        return
    if not names:
        raise UserError(f"--nodes {wanted!r} names no node")
    unknown = names - {n.name for n in nodes} - {b.name for b in busy}
    if unknown:
        shown = ", ".join(sorted(unknown)[:20])
        more = f" or {len(unknown) - 20} others" if len(unknown) > 20 else ""
        raise UserError(f"--nodes {_short(str(wanted))}: no node with GPUs is named {shown}{more}")


def names_nodes(settings: Settings) -> bool:
    """Whether `--nodes` names nodes instead of counting them."""
    return _wanted(settings.nodes)[1] is not None


def check_limits(settings: Settings, names: set[str], gpus: int) -> None:
    """Whether nodes of these names and so many GPUs are within the settings.

    Raises:
        UserError: they are more than `--nodes`, `--max-nodes` or `--max-gpus` allows.
    """
    count, wanted = _wanted(settings.nodes)
    others = names - wanted if wanted is not None else set()
    if others or (count is not None and len(names) > count):
        raise UserError(
            f"--nodes {settings.nodes!r} leaves no room for {', '.join(sorted(others or names))}"
        )
    if settings.max_nodes is not None and len(names) > settings.max_nodes:
        raise UserError(f"--max-nodes {settings.max_nodes} is less than {len(names)} nodes")
    if settings.max_gpus is not None and gpus > settings.max_gpus:
        raise UserError(f"--max-gpus {settings.max_gpus} is less than {gpus} GPUs")


def expand(names: str) -> list[str]:
    """Node names from Slurm's list syntax, such as `gpu[1-3,07],login`.

    Raises:
        UserError: it is malformed, or means more than `MOST_NAMES`.
    """
    found: list[str] = []
    for part in _PARTS.findall(names):
        # Texts at even places, and between them what stood in brackets.
        made = [""]
        for place, piece in enumerate(_BRACKETS.split(part.strip())):
            pieces = _numbers(piece, names) if place % 2 else [piece]
            if len(made) * len(pieces) + len(found) > MOST_NAMES:
                raise UserError(f"--nodes {_short(names)}: more than {MOST_NAMES:,} nodes")
            made = [before + text for before in made for text in pieces]
        found += made
    return [name for name in found if name]


def _numbers(pieces: str, names: str) -> list[str]:
    """What stands in brackets, such as `1-3,07`; `names` is the whole list."""
    found: list[str] = []
    for piece in pieces.split(","):
        first, _, last = piece.partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            raise UserError(f"--nodes {_short(names)}: cannot read {_short(piece)}")
        if max(len(first), len(last)) > MOST_DIGITS:
            raise UserError(f"--nodes {_short(names)}: {_short(piece)} has too many digits")
        numbers = range(int(first), int(last or first) + 1)
        if not numbers:
            raise UserError(f"--nodes {_short(names)}: {piece} counts backwards")
        if len(found) + len(numbers) > MOST_NAMES:
            raise UserError(f"--nodes {_short(names)}: more than {MOST_NAMES:,} nodes")
        found += [f"{number:0{len(first)}d}" for number in numbers]
    return found


def _wanted(nodes: str | None) -> tuple[int | None, set[str] | None]:
    if nodes is None:
        return None, None
    if nodes.isdecimal():
        if len(nodes) > MOST_DIGITS:
            raise UserError(f"--nodes {_short(nodes)} is more than any cluster has")
        if int(nodes) < 1:
            raise UserError("--nodes must be at least 1")
        return int(nodes), None
    return None, set(expand(nodes))


def _short(text: str) -> str:
    """A text in quotes, its end left away if it is long."""
    return repr(text if len(text) <= 100 else text[:99] + "…")


def _limit(
    nodes: list[NodeCapacity], count: int | None, max_gpus: int | None, gpus_per_trial: int
) -> list[NodeCapacity]:
    """Most room first, so that few nodes are staged; cut at the number of nodes and GPUs."""
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


def _nothing_free(nodes: Sequence[Node], busy: Sequence[Busy], gpus_per_trial: int) -> str:
    lines = [f"no node has {gpus_per_trial} free GPU(s) now"]
    lines += [f"  {n.name}: {n.free_gpus} of {n.gpus} GPUs free" for n in nodes[:20]]
    lines += [f"  {b.name}: {b.why}" for b in busy[:20]]
    more = len(nodes[20:]) + len(busy[20:])
    lines += [f"  and {more} more"] if more else []
    return "\n".join([*lines, "use --queue to wait for some, or try again later"])


def _no_room(nodes: Sequence[Node], settings: Settings, keeper_gib: float) -> str:
    trial = settings.trial
    lines = [
        f"no node has room for a trial: it takes {trial.cpus} cores and {trial.memory_gib:g} GiB, "
        f"and the weights {keeper_gib:.1f} GiB and {KEEPER_CPUS} core on each node"
    ]
    lines += [
        f"  {n.name}: {n.free_gpus} GPUs, {n.cpus} cores, {n.memory_gib:.1f} GiB free"
        for n in nodes[:20]
    ]
    return "\n".join([*lines, "lower [trial] cpus or memory_gib, or wait until memory is free"])
