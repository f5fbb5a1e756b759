"""`coordinate-eval doctor`: do this machine and jobs have what runs need, and which nodes are bad?

Findings are shown as they come.
"""

import contextlib
import itertools
import os
import shlex
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from coordinate_eval import _files
from coordinate_eval._format import plural
from coordinate_eval.coordinator.cli.inquire.runs import find_all
from coordinate_eval.coordinator.cli.options import common
from coordinate_eval.coordinator.cli.options.parsing import where_option
from coordinate_eval.coordinator.cli.output import table_console, write_json
from coordinate_eval.coordinator.doctor import nodes as doctor
from coordinate_eval.coordinator.doctor.examine import examine_here
from coordinate_eval.coordinator.doctor.findings import Answer, Finding, State, fails, ok, warning
from coordinate_eval.coordinator.doctor.in_jobs import ask
from coordinate_eval.coordinator.doctor.pairing import Verdict
from coordinate_eval.coordinator.doctor.worlds import Worlds
from coordinate_eval.coordinator.inputs import clusters
from coordinate_eval.coordinator.inputs.layers import load as load_settings
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run.records import HookEnd
from coordinate_eval.errors import RecordError, UserError

_COLORS = {State.OK: "green", State.WARNING: "yellow", State.FAILURE: "red"}
_INDENT = " " * 11


_InJobs = Annotated[
    bool,
    where_option(
        "--submit", "Check the same in small jobs, one on each partition of the settings."
    ),
]
_TestNodes = Annotated[
    bool,
    where_option(
        "--nodes",
        "Find bad nodes: test all that are free, in pairs, on all GPUs that are free there.",
    ),
]
_TestedNodes = Annotated[
    str | None,
    where_option("--nodelist -w NAMES", "Test these nodes only: gpu[1-4,7]. Implies --nodes."),
]


def doctor_command(
    submit: _InJobs = False,
    nodes: _TestNodes = False,
    nodelist: _TestedNodes = None,
    engine: common.Engine = None,
    cluster: common.Cluster = None,
    partition: common.Partition = None,
    account: common.Account = None,
    qos: common.Qos = None,
    reservation: common.Reservation = None,
    as_json: common.Json = False,
    settings_file: common.SettingsFile = None,
) -> None:
    """Check the scheduler, folders, programs and servers that runs need, and say what to do.

    With `--nodes`, find nodes that are bad: nodes in pairs gather what their GPUs hold, and those
    of a pair that fails do so with others. Runs avoid for a while what is found to be bad.

    Exit status: 0 all is well, or there are only warnings; 1 something fails, and runs would too;
    with `--nodes`, a node is bad or suspect, or none could be tested.
    """
    nodes = nodes or nodelist is not None
    if submit and nodes:
        raise UserError("--submit and --nodes test different things: give one of them")
    flags = {"engine.name": engine, "cluster": cluster, "slurm.partition": partition}
    flags |= {"slurm.account": account, "slurm.qos": qos, "slurm.reservation": reservation}
    settings, _ = load_settings(flags, settings_file)
    if nodes:
        raise typer.Exit(find_bad_nodes(settings, nodelist, as_json=as_json))
    raise typer.Exit(examine_all(settings, submit=submit, as_json=as_json))


def show_place(place: str, more: str, console: Console) -> None:
    """Print where the findings come from that follow."""
    console.print(f"[bold]{escape(place)}[/bold] ({escape(more)})", highlight=False, soft_wrap=True)


def shown(findings: Iterable[Finding], console: Console) -> tuple[Finding, ...]:
    """Print findings as they come, and return them."""
    told = []
    for each in findings:
        told.append(each)
        color = _COLORS[each.state]
        line = f"  [{color}]{each.state:<7}[/{color}]  {escape(each.check)}: {escape(each.found)}"
        console.print(line, highlight=False, soft_wrap=True)
        for part in each.do.splitlines():
            console.print(f"{_INDENT}{escape(part)}", highlight=False, soft_wrap=True)
    return tuple(told)


NODES_SCHEMA = "coordinate-eval/doctor-nodes@1"

_WELL = {Verdict.GOOD, Verdict.ALONE}


def find_bad_nodes(settings: Settings, names: str | None, *, as_json: bool) -> int:
    """Test nodes in rounds, have runs avoid the bad ones, and return the exit status.

    Args:
        names: of the nodes, such as gpu[1-4,7]; None for all that are free.
    """
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
                shown(map(doctor.of_result, rounds.run(worlds)), console)
    tested = rounds.nodes()
    show_place("nodes", plural(len(free) + len(busy), "node"), console)
    shown(doctor.of_nodes(settings, tested, running.token, time.time()), console)
    shown(doctor.of_busy(busy, named=names is not None), console)
    drain = doctor.drain_command(doctor.bad_of(tested))
    verdicts = {each.verdict for each in tested} - {Verdict.UNTESTED}
    well = bool(verdicts) and verdicts <= _WELL
    if as_json:
        listed = [*tested, *map(doctor.untested, busy)]
        write_json({
            "schema": NODES_SCHEMA,
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


SCHEMA = "coordinate-eval/doctor@1"

MOST_RUNS = 20
"""Latest runs whose `after_run` is looked at."""


def examine_all(settings: Settings, *, submit: bool, as_json: bool) -> int:
    """Check this machine, and with `submit` what jobs find; return the exit status."""
    cluster = clusters.chosen(settings)
    if submit and cluster is None:
        raise UserError(f"cluster file {settings.cluster} takes no jobs: leave out --submit")
    console = table_console()
    console.quiet = as_json
    host = os.uname().nodename
    show_place("here", host, console)
    found = itertools.chain(examine_here(settings, cluster), hooks(settings))
    here = shown(found, console)
    answers = [Answer(where="here", host=host, findings=here)]
    if submit and cluster is not None:
        for each in ask(settings, cluster.name):
            show_place(each.where, each.host or "no answer", console)
            answers.append(each.model_copy(update={"findings": shown(each.findings, console)}))
    if as_json:
        listed = [each.model_dump(mode="json") for each in answers]
        write_json({"schema": SCHEMA, "ok": not fails(answers), "answers": listed})
    counts = {state: _count(answers, state) for state in (State.FAILURE, State.WARNING)}
    said = ", ".join(plural(count, state) for state, count in counts.items() if count)
    console.print(said or "all is well", highlight=False)
    return 1 if fails(answers) else 0


def hooks(settings: Settings) -> Iterator[Finding]:
    """Yield how the command of `after_run` ended in the latest runs, if it was called in any."""
    ends = []
    # A folder that cannot be read is named by another check, and a run by `coordinate-eval runs`.
    with contextlib.suppress(UserError):
        for run_dir, run in find_all(settings)[0][:MOST_RUNS]:
            with contextlib.suppress(RecordError, UserError, OSError):
                end = _files.read_record_if_there(run_dir.hook("after_run"), HookEnd)
                if end is not None:
                    ends.append((run_dir, run, end))
    failed = [each for each in ends if each[2].problem]
    if not failed:
        if ends:
            yield ok("after_run", f"it succeeded in the last {plural(len(ends), 'run')}")
        return
    run_dir, run, last = failed[0]
    again = shlex.join([*run.settings.after_run, str(run_dir.root)])
    yield warning(
        "after_run",
        f"it failed in {len(failed)} of {plural(len(ends), 'run')}, last in {run.id}: {last.words}",
        f"correct it, and call it for each of these runs (`coordinate-eval runs`): {again}",
    )


def _count(answers: Iterable[Answer], state: State) -> int:
    return sum(each.state is state for one in answers for each in one.findings)
