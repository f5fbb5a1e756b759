"""Commands that look after an installation, its runs and its measurements, and their options."""

from typing import Annotated

import typer

from coordinate_eval.coordinator.cli.options import common
from coordinate_eval.coordinator.cli.options.parsing import WHERE, option
from coordinate_eval.coordinator.cli.upkeep import priors
from coordinate_eval.coordinator.inputs.layers import load as load_settings
from coordinate_eval.errors import UserError

InJobs = Annotated[
    bool,
    option(
        WHERE,
        "",
        "Check the same in small jobs, one on each partition of the settings.",
        "--submit",
    ),
]
TestNodes = Annotated[
    bool,
    option(
        WHERE,
        "",
        "Find bad nodes: test all that are free, in pairs, on all GPUs that are free there.",
        "--nodes",
    ),
]
TestedNodes = Annotated[
    str | None,
    option(
        WHERE, "NAMES", "Test these nodes only: gpu[1-4,7]. Implies --nodes.", "--nodelist", "-w"
    ),
]
OlderThan = Annotated[
    float | None,
    option("", "DAYS", "Only runs not changed for this many days.", "--older-than", min=0),
]
KeepNewest = Annotated[
    int | None, option("", "N", "Leave the N newest runs as they are.", "--keep", min=0)
]
Sure = Annotated[bool, option("", "", "Do it. Without it runs are only listed.", "--yes")]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(doctor)
    app.command()(prune)
    app.add_typer(priors.app, name="priors")


def doctor(
    submit: InJobs = False,
    nodes: TestNodes = False,
    nodelist: TestedNodes = None,
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
    from coordinate_eval.coordinator.cli.upkeep.doctor import examine_all, find_bad_nodes

    nodes = nodes or nodelist is not None
    if submit and nodes:
        raise UserError("--submit and --nodes test different things: give one of them")
    flags = {"engine.name": engine, "cluster": cluster, "slurm.partition": partition}
    flags |= {"slurm.account": account, "slurm.qos": qos, "slurm.reservation": reservation}
    settings, _ = load_settings(flags, settings_file)
    if nodes:
        raise typer.Exit(find_bad_nodes(settings, nodelist, as_json=as_json))
    raise typer.Exit(examine_all(settings, submit=submit, as_json=as_json))


def prune(
    older_than: OlderThan = None,
    keep: KeepNewest = None,
    yes: Sure = False,
    settings_file: common.SettingsFile = None,
) -> None:
    """Remove runs of yours in `runs_dir` that are complete, incomplete or cancelled.

    A run that goes on is left alone, and so is one without all results for a day after its last
    change, and one with files that are not of this program. A checkpoint whose run was removed is
    evaluated again if it is asked for again, also by `watch`.

    Exit status: 0 all was done or listed; 1 some run could not be removed; 3 the scheduler did
    not answer.
    """
    from coordinate_eval.coordinator.cli.upkeep.prune import prune as prune_runs

    settings, _ = load_settings({}, settings_file)
    raise typer.Exit(prune_runs(settings, older_than, keep, yes=yes))
