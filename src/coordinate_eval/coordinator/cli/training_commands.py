"""Commands that keep a training alive: begin a guard, show it, end it."""

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from coordinate_eval.coordinator.cli.options import common, parsing
from coordinate_eval.coordinator.cli.options.parsing import OUTPUT, WHERE, option
from coordinate_eval.errors import CoordinateError, UserError

if TYPE_CHECKING:
    from coordinate_eval.clusters.protocol import Cluster
    from coordinate_eval.coordinator.inputs.settings import Settings
    from coordinate_eval.coordinator.training.guarding.attempts import GuardDir, Guarded

_GUARD = "How to guard"


class _Guards(parsing.Commands):
    """The commands of `guard`. `start` is the default one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - typer's own type
        if args and args[0] not in (*self.commands, "--help"):
            args = ["start", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_Guards,
    no_args_is_help=True,
    help="Keep a training alive: `coordinate-eval guard TRAIN.sbatch --checkpoints DIR` submits "
    "its batch script, and starts it again from its newest healthy checkpoint whenever it fails.",
)

_Script = Annotated[
    Path, typer.Argument(metavar="TRAIN.sbatch", help="The batch script of the training.")
]
_Checkpoints = Annotated[
    Path, option(_GUARD, "DIR", "The folder into which the training saves.", "--checkpoints")
]
_Policy = Annotated[
    Path | None,
    option(_GUARD, "FILE", "Read the policy from this TOML file.", shown="its defaults"),
]
_Obey = Annotated[
    Literal["rollback"] | None,
    option(
        _GUARD,
        "rollback",
        "After a spike or a divergence, go back to the checkpoint that is advised, and skip the "
        "data. Without it you are told.",
        shown="tell only",
    ),
]
_Wait = Annotated[
    bool,
    option(
        OUTPUT, "", "Guard in this terminal until the training is over, not in a job.", "--wait"
    ),
]
_Name = Annotated[
    str | None,
    typer.Argument(metavar="NAME", help="A guard's name or folder.", show_default="the latest"),
]


def register(main: typer.Typer) -> None:
    """Add the commands to the command line."""
    main.add_typer(app, name="guard")
    main.command()(advise)


def advise(
    experiment: Annotated[
        Path,
        typer.Argument(metavar="EXPERIMENT", help="The folder into which the training saves."),
    ],
    log: Annotated[
        list[Path] | None,
        option(
            "",
            "PATH",
            "What the training writes: a log, JSON lines, a TensorBoard folder or a "
            "trainer_state.json. Repeat it for each attempt, in their order.",
        ),
    ] = None,
    patterns: Annotated[
        Path | None, option("", "FILE", "YAML file that says how the training reports its steps.")
    ] = None,
    most_back: Annotated[
        int, option("", "STEPS", "Never go back further than so many steps.", min=1)
    ] = 10_000,
    as_json: common.Json = False,
    settings_file: common.SettingsFile = None,
) -> None:
    """Say whether a training goes on, or back to which checkpoint, by its loss and its scores.

    A spike of the loss that passes by itself is no reason to go back. No GPU is used.

    Exit status: 0 go on; 1 go back, or a person has to decide; 2 it is not known.
    """
    from coordinate_eval.coordinator.cli.inquire.advise import show_advice
    from coordinate_eval.coordinator.inputs.layers import load as load_settings

    try:
        settings, _ = load_settings({}, settings_file)
        status = show_advice(settings, experiment, log or [], patterns, most_back, as_json=as_json)
    except CoordinateError as error:  # 1 is a verdict
        raise UserError(str(error)) from error
    raise typer.Exit(status)


@app.command()
def start(
    script: _Script,
    checkpoints: _Checkpoints,
    policy: _Policy = None,
    obey: _Obey = None,
    wait: _Wait = False,
    cpu_partition: Annotated[
        str | None, option(WHERE, "NAME", "Slurm partition of the guard's own job.")
    ] = None,
    as_json: common.Json = False,
    settings_file: common.SettingsFile = None,
) -> None:
    """Submit a training, and keep it alive until it is complete. `start` may be left out.

    The script learns from COORDINATE_EVAL_RESUME_FROM where to begin, and from COORDINATE_EVAL_SKIP
    which steps' data to leave out. After a guard has stopped, the same command goes on.

    Exit status: 0 the guard has begun, or with `--wait` the training is complete; 1 with `--wait`:
    it is not; 2 bad input, or the training is guarded already; 3 the scheduler did not answer.
    """
    from coordinate_eval.coordinator.cli.output import say, write_json
    from coordinate_eval.coordinator.cli.process import callers_environment
    from coordinate_eval.coordinator.inputs.layers import load as load_settings
    from coordinate_eval.coordinator.training.guarding import guard_job
    from coordinate_eval.coordinator.training.guarding.policy import read_policy

    settings, _ = load_settings({"slurm.cpu_partition": cpu_partition}, settings_file)
    read = read_policy(policy)
    with _cluster(settings) as cluster:
        guarded = guard_job.prepare(
            script,
            checkpoints,
            read,
            settings,
            rollback=obey == "rollback",
            python=sys.executable,
            policy_file=policy,
        )
        guard_dir = guard_job.begin(guarded, cluster, callers_environment())
        guarded = guard_job.read_guarded(guard_dir)
        if wait:
            raise typer.Exit(_run_here(guard_dir, cluster))
        if settings.slurm.supervisor == "login":
            job_id, who = None, guard_job.begin_here(guarded, guard_dir)
        else:
            job_id = guard_job.submit_guard(guarded, guard_dir, cluster)
            who = f"job {job_id}"
    if as_json:
        found = {"name": guarded.name, "folder": str(guard_dir.root), "job": job_id}
        write_json({"schema": "coordinate-eval/guard-started@1", **found})
        return
    say(f"guard {guarded.name} is {who}, in {guard_dir.root}")
    say(f"`coordinate-eval guard status {guarded.name}` shows the training")
    if guarded.policy.last_step is None and not guarded.policy.done_file:
        say(
            "exit 0 counts as complete unless the log counts to more steps, as in `step 5/100`: "
            "`last_step` or `done_file` in --policy says when it is"
        )


@app.command()
def status(
    name: _Name = None, as_json: common.Json = False, settings_file: common.SettingsFile = None
) -> None:
    """Show what runs, each incident with its cause and what was done, and the goodput.

    Exit status: 0 the training runs, waits or is complete; 1 the guard has stopped, or no guard is
    alive; 2 there is no such guard.
    """
    from coordinate_eval.coordinator.cli.inquire.guards import show_guard
    from coordinate_eval.coordinator.inputs.layers import load as load_settings

    settings, _ = load_settings({}, settings_file)
    guard_dir, guarded = _find(name, settings)
    raise typer.Exit(show_guard(guard_dir, guarded, time.time(), as_json=as_json))


@app.command()
def stop(name: _Name = None, settings_file: common.SettingsFile = None) -> None:
    """Cancel a training and end its guard. The same `guard TRAIN.sbatch` goes on later.

    Exit status: 0 the training is ended; 2 there is no such guard; 3 the scheduler did not answer.
    """
    from coordinate_eval import _files
    from coordinate_eval.coordinator.cli.output import say
    from coordinate_eval.coordinator.inputs.layers import load as load_settings
    from coordinate_eval.coordinator.training.guarding import guard_job

    settings, _ = load_settings({}, settings_file)
    guard_dir, guarded = _find(name, settings)
    if guard_dir.over.exists():
        say(f"guard {guarded.name} is over already")
        return
    with _cluster(guarded.settings) as cluster:
        _files.write(guard_dir.stop, "")
        tasks = guard_job.alive(guarded, cluster)
        # This process ends the training, and a guard that is alive leaves: the later one counts.
        guard_job.run_guard(guard_dir, cluster, say)
        cluster.cancel([task.job_id for task in tasks])


def _run_here(guard_dir: "GuardDir", cluster: "Cluster") -> int:
    from coordinate_eval.coordinator.cli.output import say
    from coordinate_eval.coordinator.training.guarding import guard_job

    def tell(words: str) -> None:
        say(f"{time.strftime('%H:%M:%S')} {words}")

    over = guard_job.run_guard(guard_dir, cluster, tell)
    return 0 if over is not None and over.complete else 1


def _cluster(settings: "Settings") -> "Cluster":
    """Return the cluster, which has to be Slurm."""
    from coordinate_eval.coordinator.inputs import clusters

    found = clusters.chosen(settings)
    if found is None or found.name != "slurm":
        what = "this machine" if found is not None and found.local else settings.cluster
        raise UserError(
            f"a guard submits a Slurm batch script, and {what} has no Slurm: run this on a login "
            "node of the cluster, or set SLURM_CONF"
        )
    return found


def _find(name: str | None, settings: "Settings") -> "tuple[GuardDir, Guarded]":
    """Return a guard by its name or folder, or the latest one."""
    from coordinate_eval import _files
    from coordinate_eval.coordinator.training.guarding.attempts import GuardDir, guards_folder
    from coordinate_eval.coordinator.training.guarding.guard_job import open_guard, read_guarded

    home = guards_folder(settings)
    if name is not None and os.sep in name:
        roots = [Path(name)]
    else:
        roots = [home / each for each in sorted(_files.names(home)) if each.startswith(name or "")]
        roots = [root for root in roots if root.name == name] or roots
    there = [root for root in roots if GuardDir(root).guarded.exists()]
    if not there or (name and len(there) > 1):
        names = ", ".join(root.name for root in there) or "there is none"
        raise UserError(f"no guard {name or ''} in {home}: {names}".replace("  ", " "))
    root = max(there, key=lambda each: _files.modified(GuardDir(each).guarded))
    guard_dir = open_guard(root)
    return guard_dir, read_guarded(guard_dir)
