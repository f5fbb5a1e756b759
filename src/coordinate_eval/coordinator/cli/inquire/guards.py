"""`coordinate-eval guard status`: a guarded training for people and programs."""

import contextlib
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from coordinate_eval._format import brief, plural, whole_duration
from coordinate_eval.coordinator.cli.output import table_console, write_json
from coordinate_eval.coordinator.inputs import clusters
from coordinate_eval.coordinator.training.guarding.attempts import GuardDir, Guarded
from coordinate_eval.coordinator.training.guarding.guard_job import alive, process_of
from coordinate_eval.coordinator.training.guarding.shown import status
from coordinate_eval.errors import ClusterError


def show_guard(guard_dir: GuardDir, guarded: Guarded, now: float, *, as_json: bool) -> int:
    """Print what is known of a guarded training, and return the exit status."""
    found = status(guard_dir, guarded, now)
    over = found["state"] in ("complete", "stopped")
    guard = "" if over else _guard(guard_dir, guarded)
    found["guard"] = guard
    if as_json:
        write_json(found)
    else:
        _print(found, table_console())
    return 0 if found["state"] == "complete" or (not over and guard != "none") else 1


def _guard(guard_dir: GuardDir, guarded: Guarded) -> str:
    """Return who guards a training now, in words."""
    if process := process_of(guard_dir):
        return process
    with contextlib.suppress(ClusterError), clusters.by_name("slurm", guarded.settings) as cluster:
        return next((f"job {task.job_id}" for task in alive(guarded, cluster)), "none")
    return "unknown: the scheduler does not answer"


def _print(found: dict[str, Any], where: Console) -> None:
    attempts = found["attempts"]
    last = attempts[-1] if attempts else None
    lines = [f"[bold]{escape(found['name'])}[/bold]: {found['state']}"]
    if found["why"]:
        lines.append(f"  {escape(brief(found['why'], 400))}")
    if found["guard"] == "none":
        lines.append(
            f"  [red]no guard is alive[/red]: `coordinate-eval guard {escape(found['script'])} "
            f"--checkpoints {escape(found['checkpoints'])}` goes on"
        )
    elif found["guard"]:
        lines.append(f"  guarded by {escape(found['guard'])}, in {escape(found['folder'])}")
    if last is not None and last["job"] and not last["what"]:
        loss = f", loss {last['loss']:.4g}" if last["loss"] is not None else ""
        at = f"step {last['step']:,}{loss}" if last["step"] is not None else "no step yet"
        on = f" on {last['nodes']}" if last["nodes"] else ""
        lines.append(f"  attempt {last['number']}: job {last['job']}{escape(on)}, {at}")
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
    if incidents := [each for each in attempts if each["incident"]]:
        where.print(_incidents(incidents))


def _incidents(incidents: list[dict[str, Any]]) -> Table:
    shown = Table(title="incidents", title_justify="left")
    for column in ("attempt", "what", "cause", "nodes", "then"):
        shown.add_column(column)
    shown.add_column("steps lost", justify="right")
    for each in incidents:
        cause, tested = each["cause"], each["tested"]
        why = f"{cause['reason']}: {cause['line']}" if cause else each["why"]
        said = tested["words"] if tested else each["nodes"]
        then = f"attempt {each['number'] + 1}" if each["done"] else ""
        cells = (str(each["number"]), each["what"], brief(why), brief(said), then)
        shown.add_row(*map(escape, cells), f"{each['lost_steps']:,}")
    return shown
