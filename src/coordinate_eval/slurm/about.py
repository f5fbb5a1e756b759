"""A Slurm cluster as it describes itself, in words for a person. Nothing here runs a command."""

import math
import re
from collections.abc import Iterable

from coordinate_eval.slurm.answers.partitions import Partition
from coordinate_eval.slurm.answers.reservations import Reservation, clock


def describe(
    version: str,
    ping: str,
    reader: str,
    partitions: Iterable[Partition],
    reservation: Reservation | None = None,
) -> dict[str, str]:
    """Return what the controller, each of these partitions and the reservation are.

    Args:
        version: the output of `sinfo -V`.
        ping: the output of `scontrol ping`.
        reader: how nodes and jobs are read.
        partitions: in which jobs would run.
        reservation: in which they would run, if the settings name one.
    """
    controller = ", ".join(line.strip() for line in ping.splitlines() if line.strip())
    # Packages put their name where Slurm has its own: `slurm-wlm 24.11.5`.
    number = re.search(r"\d+\.\d+\S*", version)
    of = f"Slurm {number[0]}" if number else version.strip()
    said = {"controller": f"{of}: {controller}", "reader": reader}
    for each in partitions:
        words = [f"state {each.state}"]
        if math.isfinite(each.minutes):
            words.append(f"jobs of at most {each.minutes:g} minutes")
        else:
            words.append("jobs of any length")
        if each.whole:
            words.append("whole nodes only")
        default = " (default)" if each.default else ""
        said[f"partition {each.name}{default}"] = ", ".join(words)
    if reservation is not None:
        times = " to ".join(map(clock, (reservation.start, reservation.end)))
        said[f"reservation {reservation.name}"] = f"nodes {reservation.nodes}, {times}"
    return said
