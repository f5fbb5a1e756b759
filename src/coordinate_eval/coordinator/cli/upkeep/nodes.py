"""`coordinate-eval doctor --nodes`: find the bad nodes."""

import signal
import sys
import time
from collections import Counter

from rich.markup import escape

from coordinate_eval._format import plural
from coordinate_eval.coordinator.cli.output import table_console, write_json
from coordinate_eval.coordinator.cli.upkeep.findings import show_place, shown
from coordinate_eval.coordinator.doctor import nodes as doctor
from coordinate_eval.coordinator.doctor.pairing import Verdict
from coordinate_eval.coordinator.doctor.worlds import Worlds
from coordinate_eval.coordinator.inputs import clusters
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.errors import UserError

SCHEMA = "coordinate-eval/doctor-nodes@1"

_WELL = {Verdict.GOOD, Verdict.ALONE}


def find_bad_nodes(settings: Settings, names: str | None, *, as_json: bool) -> int:
    """Test nodes in rounds, have runs avoid the bad ones, and return the exit status.

    Args:
        settings: with the partition of the nodes.
        names: of the nodes, such as gpu[1-4,7]; None for all that are free.
        as_json: print one document in place of lines.

    Raises:
        UserError: these settings name no cluster of several nodes, or a node that does not exist,
            or torch is not installed.
        ClusterSilent: the scheduler does not say which nodes there are.
    """
    for each in (signal.SIGTERM, signal.SIGHUP):  # as when a connection ends: leave no job behind
        if signal.getsignal(each) is signal.SIG_DFL:
            signal.signal(each, lambda *_: sys.exit(1))
    cluster = clusters.chosen(settings)
    if cluster is None or cluster.local:
        what = "this one machine" if cluster else f"what {settings.cluster} describes"
        raise UserError(f"--nodes tests the nodes of a cluster with a scheduler, not {what}")
    doctor.check_torch()
    console = table_console()
    console.quiet = as_json
    with cluster:
        free, busy = clusters.patiently(lambda: doctor.wanted_nodes(cluster, names))
        with Worlds(settings, cluster, free) as running:
            rounds = doctor.Rounds(running)
            while worlds := rounds.following():
                count = plural(sum(map(len, worlds)), "node")
                more = f"{count} in {plural(len(worlds), 'world')}"
                show_place(f"round {rounds.number + 1}", more, console)
                for _ in shown(map(doctor.of_result, rounds.run(worlds)), console):
                    pass
    tested = rounds.nodes()
    show_place("nodes", plural(len(free) + len(busy), "node"), console)
    for _ in shown(doctor.of_nodes(settings, tested, running.token, time.time()), console):
        pass
    for _ in shown(doctor.of_busy(busy, named=names is not None), console):
        pass
    drain = doctor.drain_command(tested)
    verdicts = {each.verdict for each in tested} - {Verdict.UNTESTED}
    well = bool(verdicts) and verdicts <= _WELL
    if as_json:
        listed = [*tested, *map(doctor.untested, busy)]
        write_json({
            "schema": SCHEMA,
            "ok": well,
            "nodes": [each.model_dump(mode="json") for each in listed],
            "worlds": [doctor.as_json(number, result) for number, result in rounds.results],
            "drain": drain,
        })  # fmt: skip
    if drain:
        console.print("To drain what is bad, as an administrator:", highlight=False)
        console.print(f"  {escape(drain)}", highlight=False, soft_wrap=True)
    counts = Counter(each.verdict for each in tested)
    said = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    console.print(said if verdicts else "no node was tested", highlight=False)
    return 0 if well else 1
