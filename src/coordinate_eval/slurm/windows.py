"""Windows: from when on others have all nodes of some jobs, such as for a maintenance.

Slurm starts no job there whose time limit reaches into such a reservation.
"""

import time
from collections.abc import Callable, Iterator, Set

from coordinate_eval.cluster import Window
from coordinate_eval.errors import ClusterError, ClusterSilent
from coordinate_eval.slurm.answers.reservations import clock, next_window, read_reservations
from coordinate_eval.slurm.client import SlurmClient


def find_windows(
    client: SlurmClient,
    own: str,
    names: Callable[[str], Set[str]],
    *places: Callable[[], Set[str]],
) -> Iterator[Window | None]:
    """Yield the next window of each place, None where there is none or Slurm tells nothing.

    Args:
        client: runs the one command that asks for reservations.
        own: name of the reservation in which the jobs run, '' for none.
        names: returns the names of a host list.
        places: each returns the nodes on which some of the jobs can run. Called only if needed.

    Raises:
        ClusterSilent: no answer.
    """
    now, found = time.time(), {}
    try:
        text = client.run("scontrol", "--oneliner", "show", "reservation")
        for each in read_reservations(text):
            if each.whole and each.end > now and each.name != own:
                found[each] = names(each.nodes)
    except ClusterSilent:
        raise
    except ClusterError:
        found = {}
    for place in places:
        first = next_window(found, place(), now) if found else None
        if first is None:
            yield None
            continue
        times = " to ".join(map(clock, (first.start, first.end)))
        yield Window(start=first.start, why=f"reservation {first.name} ({times})")
