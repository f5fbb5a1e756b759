"""`coordinate-eval guard status`: a guarded training for people and programs."""

import contextlib
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from coordinate_eval import _files
from coordinate_eval._format import bars, brief, plural, whole_duration
from coordinate_eval.coordinator.cli.output import table_console, write_json
from coordinate_eval.coordinator.inputs import clusters
from coordinate_eval.coordinator.training.guarding.attempts import GuardDir, Guarded
from coordinate_eval.coordinator.training.guarding.guard_job import alive, process_of
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


def show_guard(guard_dir: GuardDir, guarded: Guarded, now: float, *, as_json: bool) -> int:
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
    if process := process_of(guard_dir):
        return process
    with contextlib.suppress(ClusterError), clusters.by_name("slurm", guarded.settings) as cluster:
        return next((f"job {task.job_id}" for task in alive(guarded, cluster)), "none")
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
    shown = Table(title="incidents", title_justify="left")
    for column in ("attempt", "what", "cause", "nodes", "then"):
        shown.add_column(column)
    shown.add_column("steps lost", justify="right")
    for each, following in zip(attempts, [*attempts[1:], None], strict=True):
        if not each["incident"]:
            continue
        cause, tested = each["cause"], each["tested"]
        evidence = each["why"].partition("; ")[0]  # the strongest
        why = f"{cause['reason']}: {cause['line']}" if cause else evidence
        said = tested["words"] if tested else each["nodes"]
        then = _then(each, following) if following is not None else ""
        cells = (str(each["number"]), each["what"], brief(why), brief(said), then)
        shown.add_row(*map(escape, cells), f"{each['lost_steps']:,}")
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
