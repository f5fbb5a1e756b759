"""`coordinate-eval guard`: keep a training alive: begin a guard, show it, end it."""

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal, NamedTuple

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from coordinate_eval import _files
from coordinate_eval._format import bars, brief, plural, whole_duration
from coordinate_eval.clusters.protocol import Cluster
from coordinate_eval.coordinator.cli.options import common
from coordinate_eval.coordinator.cli.options.parsing import (
    Commands,
    option,
    output_option,
    where_option,
)
from coordinate_eval.coordinator.cli.output import new_table, say, table_console, write_json
from coordinate_eval.coordinator.cli.process import callers_environment
from coordinate_eval.coordinator.inputs import clusters
from coordinate_eval.coordinator.inputs.layers import load as load_settings
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.training.guarding import guard_job
from coordinate_eval.coordinator.training.guarding.attempts import GuardDir, Guarded, guards_folder
from coordinate_eval.coordinator.training.guarding.guard_job import open_guard, read_guarded
from coordinate_eval.coordinator.training.guarding.policy import read_policy
from coordinate_eval.coordinator.training.guarding.shown import status
from coordinate_eval.errors import ClusterError, UserError
from coordinate_eval.slurm.answers.reasons import read_reason
from coordinate_eval.slurm.batch import BatchScripts

_WIDTH = 60
"""Characters of a curve."""

_MOST_CURVES = 8
"""Attempts whose losses are drawn, the newest."""

_MOST_BYTES = 32 << 20
"""Read of the losses, the newest: 300,000 steps."""


_guard_option = partial(option, panel="How to guard")


class _Guards(Commands):
    """The commands of `guard`. `start` is the default one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - typer's own type
        if args and args[0] not in (*self.commands, "--help"):
            args = ["start", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_Guards,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    help="Keep a training alive: `coordinate-eval guard TRAIN.sbatch --checkpoints DIR` submits "
    "its batch script, and starts it again from its newest healthy checkpoint whenever it fails.",
)

_Script = Annotated[
    Path, typer.Argument(metavar="TRAIN.sbatch", help="The batch script of the training.")
]
_Checkpoints = Annotated[
    Path, _guard_option("--checkpoints DIR", "The folder into which the training saves.")
]
_Policy = Annotated[
    Path | None,
    _guard_option("--policy FILE", "Read the policy from this TOML file.", shown="its defaults"),
]
_Obey = Annotated[
    Literal["rollback"] | None,
    _guard_option(
        "--obey rollback",
        "After a spike or a divergence, go back to the checkpoint that is advised, and skip "
        "the data. Without it you are told.",
        shown="tell only",
    ),
]
_Wait = Annotated[
    bool,
    output_option("--wait", "Guard in this terminal until the training is over, not in a job."),
]
_Name = Annotated[
    str | None,
    typer.Argument(metavar="NAME", help="A guard's name or folder.", show_default="the latest"),
]


@app.command()
def start(
    script: _Script,
    checkpoints: _Checkpoints,
    policy: _Policy = None,
    obey: _Obey = None,
    wait: _Wait = False,
    cpu_partition: Annotated[
        str | None, where_option("--cpu-partition NAME", "Slurm partition of the guard's own job.")
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
        guarded = read_guarded(guard_dir)
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


@app.command("status")
def status_(
    name: _Name = None, as_json: common.Json = False, settings_file: common.SettingsFile = None
) -> None:
    """Show what runs, each incident with its cause and what was done, and the goodput.

    Exit status: 0 the training runs, waits or is complete; 1 the guard has stopped, or no guard is
    alive; 2 there is no such guard.
    """

    settings, _ = load_settings({}, settings_file)
    guard_dir, guarded = _find(name, settings)
    raise typer.Exit(_show(guard_dir, guarded, time.time(), as_json=as_json))


@app.command()
def stop(name: _Name = None, settings_file: common.SettingsFile = None) -> None:
    """Cancel a training and end its guard. The same `guard TRAIN.sbatch` goes on later.

    Exit status: 0 the training is ended; 2 there is no such guard; 3 the scheduler did not answer.
    """

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


def _run_here(guard_dir: GuardDir, cluster: Cluster) -> int:

    def tell(words: str) -> None:
        say(f"{time.strftime('%H:%M:%S')} {words}")

    over = guard_job.run_guard(guard_dir, cluster, tell)
    return 0 if over is not None and over.complete else 1


def _cluster(settings: Settings) -> Cluster:
    """Return the cluster, which has to be Slurm."""

    found = clusters.chosen(settings)
    if found is None or found.name != "slurm":
        what = "this machine" if found is not None and found.local else settings.cluster
        raise UserError(
            f"a guard submits a Slurm batch script, and {what} has no Slurm: run this on a login "
            "node of the cluster, or set SLURM_CONF"
        )
    return found


def _find(name: str | None, settings: Settings) -> tuple[GuardDir, Guarded]:
    """Return a guard by its name or folder, or the latest one."""

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


def _show(guard_dir: GuardDir, guarded: Guarded, now: float, *, as_json: bool) -> int:
    """Print what is known of a guarded training, and return the exit status."""
    found = status(guard_dir, guarded, now)
    over = found["state"] in ("complete", "stopped")
    guard = "" if over else _guard(guard_dir, guarded)
    found["guard"] = guard
    found["waits"] = _why_it_waits(found) if found["state"] == "waiting" else ""
    if as_json:
        write_json(found)
    else:
        where = table_console()
        _print(found, where)
        for line in curves(guard_dir.points):
            where.print(line, highlight=False, markup=False, no_wrap=True)
    return 0 if found["state"] == "complete" or (not over and guard != "none") else 1


def _guard(guard_dir: GuardDir, guarded: Guarded) -> str:
    """Return who guards a training now, in words."""
    if process := guard_job.process_of(guard_dir):
        return process
    with contextlib.suppress(ClusterError), clusters.by_name("slurm", guarded.settings) as cluster:
        return next((f"job {task.job_id}" for task in guard_job.alive(guarded, cluster)), "none")
    return "unknown: the scheduler does not answer"


def _why_it_waits(found: dict[str, Any]) -> str:
    """Return why the job of the latest attempt does not start, in Slurm's words and in ours."""
    job_id = found["attempts"][-1]["job"]
    with contextlib.suppress(ClusterError, UserError):
        described = BatchScripts(os.geteuid()).describe(job_id) if job_id else None
        if described is not None and described.reason:
            return f"{described.reason}: {read_reason(described.reason).means}"
    return ""


def _print(found: dict[str, Any], where: Console) -> None:
    attempts = found["attempts"]
    last = attempts[-1] if attempts else None
    lines = [f"[bold]{escape(found['name'])}[/bold]: {found['state']}"]
    if found["why"]:
        lines.append(f"  {escape(brief(found['why'], 400))}")
    if found["guard"] == "none":
        lines.append(f"  [red]no guard is alive[/red]: `{escape(found['command'])}` goes on")
    elif found["guard"]:
        lines.append(f"  guarded by {escape(found['guard'])}, in {escape(found['folder'])}")
    if last is not None and last["job"] and not last["what"]:
        loss = f", loss {last['loss']:.4g}" if last["loss"] is not None else ""
        if last["step"] is not None:
            at = f", step {last['step']:,}{loss}"
        elif last["began"] is not None:
            at = f", no step yet in {', '.join(last['logs'])}"
        else:
            at = f" waits{found['waits'] and ': '}{found['waits']}"
        on = f" on {last['nodes']}" if last["nodes"] else ""
        lines.append(f"  attempt {last['number']}: job {last['job']}{escape(on)}{escape(at)}")
    if found["unread"]:
        lines.append(
            f"  [red]no step is read[/red] in {escape(', '.join(found['unread']))}: losses and "
            "pace are not watched until `patterns` of the policy describes its lines, or `logs` "
            "names another log"
        )
    if found["goodput"] is not None:
        again = found["restart_seconds"]
        more = f", {whole_duration(again)} to a first step after an incident" if again else ""
        lines.append(
            f"  goodput {found['goodput']:.1%}, {found['lost_steps']:,} steps repeated{more}"
        )
    for each in found["unsent"]:
        failed = ", ".join(f"`{channel}`: {problem}" for channel, problem in each["left"].items())
        said = f"(sent {plural(each['tries'], 'time')}, {failed}): {brief(each['words'])}"
        lines.append(f"  [red]a notice has not arrived[/red] {escape(said)}")
    for line in lines:
        where.print(line, highlight=False, soft_wrap=True)
    if any(each["incident"] for each in attempts):
        where.print(_incidents(attempts))


def _incidents(attempts: list[dict[str, Any]]) -> Table:
    heads = ("attempt", "what", "cause", "nodes", "then", ">steps lost")
    shown = new_table(*heads, title="incidents")
    for each, following in zip(attempts, [*attempts[1:], None], strict=True):
        if not each["incident"]:
            continue
        cause, tested = each["cause"], each["tested"]
        evidence = each["why"].partition("; ")[0]  # the strongest
        why = f"{cause['reason']}: {cause['line']}" if cause else evidence
        said = tested["words"] if tested else each["nodes"]
        then = _then(each, following) if following is not None else ""
        cells = (str(each["number"]), each["what"], brief(why), brief(said), then)
        shown.add_row(*cells, f"{each['lost_steps']:,}")
    return shown


def _then(ended: dict[str, Any], following: dict[str, Any]) -> str:
    """Return how a training went on after an attempt."""
    begun = Path(following["checkpoint"]).name or "the beginning"
    words = [f"attempt {following['number']} from {begun}"]
    if following["skip"] != ended["skip"]:
        skipped = following["skip"].removeprefix(ended["skip"]).lstrip(",")
        words.append(f"without the data of steps {skipped}")
    if following["excluded"]:
        words.append(f"without {', '.join(following['excluded'])}")
    return ", ".join(words)


class _Loss(NamedTuple):
    attempt: int
    step: int
    loss: float


def curves(points: Path) -> list[str]:
    """Return the losses of each attempt over the same steps, a line each, as far as known."""
    losses = list(_losses(points))
    attempts = sorted({each.attempt for each in losses})[-_MOST_CURVES:]
    drawn: dict[tuple[int, int], list[float]] = {}
    shown = [each for each in losses if each.attempt in attempts]
    if len(shown) < 2:
        return []
    first, last = min(each.step for each in shown), max(each.step for each in shown)
    for each in shown:
        column = (each.step - first) * _WIDTH // (last - first + 1)
        drawn.setdefault((each.attempt, column), []).append(each.loss)
    # The middle of each column: a loss that went wrong for good is seen, and no single outlier.
    places = [(attempt, column) for attempt in attempts for column in range(_WIDTH)]
    middles = [median(drawn[place]) if place in drawn else None for place in places]
    flat = [math.log10(max(each, 1e-12)) if each is not None else None for each in middles]
    text, _ = bars(flat, len(flat))
    lines = [text[at : at + _WIDTH].rstrip() for at in range(0, len(text), _WIDTH)]
    title = f"loss of steps {first:,} to {last:,}, logarithmic"
    named = zip(attempts, lines, strict=True)
    return [title, *(f"attempt {attempt:<3} {line}" for attempt, line in named)]


def _losses(points: Path) -> Iterator[_Loss]:
    """Yield the losses that the guard has noted and that are numbers, the newest at least."""
    with contextlib.suppress(OSError), points.open("rb") as file:
        file.seek(max(0, _files.size(points) - _MOST_BYTES))
        for line in file.read(_MOST_BYTES).splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):  # the first may be cut
                told = json.loads(line)
                found = _Loss(int(told["attempt"]), int(told["step"]), float(told["loss"]))
                if math.isfinite(found.loss):
                    yield found
