"""Messages about nodes: why a run gets none of them."""

from collections.abc import Sequence

from coordinate_eval._format import plural
from coordinate_eval.clusters.protocol import Busy, Node
from coordinate_eval.coordinator.inputs.settings import Settings

MOST_REASONS, MOST_SHOWN = 20, 8
"""Lines that say why nothing is free, and names of nodes in each."""


def no_type(nodes: Sequence[Node], wanted: str) -> str:
    """Return that these free nodes lack the wanted type of GPU, and which types they have."""
    found = ", ".join(sorted({node.gpu_type or "of no type" for node in nodes}))
    return (
        f"no GPU of type {wanted} is free now; free are GPUs {found}: use --queue to wait, or "
        "another --gpu-type. GPUs without a type get theirs from [slurm] gpu_type"
    )


def nothing_free(nodes: Sequence[Node], busy: Sequence[Busy], gpus_per_trial: int) -> str:
    """Return that no node has the GPUs of a trial free, and what each is busy with."""
    taken = [Busy(name=n.name, why=f"{n.free_gpus} of {n.gpus} GPUs free") for n in nodes]
    lines = reasons([*taken, *busy])
    more = len(lines) - MOST_REASONS
    lines = lines[:MOST_REASONS] + ([f"  and {plural(more, 'more reason')}"] if more > 0 else [])
    first = f"no node has {plural(gpus_per_trial, 'free GPU')} now"
    return "\n".join([first, *lines, "use --queue to wait, or try again later"])


def reasons(busy: Sequence[Busy]) -> list[str]:
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


def no_room(
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
