"""The state of a guarded training: what runs, its incidents, what was done, and its goodput."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from coordinate_eval import _files
from coordinate_eval._format import quoted
from coordinate_eval.coordinator.training.guarding.attempts import (
    Ended,
    Evaluated,
    GuardDir,
    Guarded,
    Over,
    What,
)
from coordinate_eval.coordinator.training.guarding.vitals import Vitals

SCHEMA = "coordinate-eval/guard@1"


class Times(NamedTuple):
    """The seconds of an attempt, and what of them was of use."""

    waited: float
    """From its decision to the start of its job."""
    restarted: float | None
    """From the end of the attempt before to its first step."""
    productive: float
    """From its first step to its last, for steps that the next attempt did not have to repeat."""
    lost_steps: int


def status(guard_dir: GuardDir, guarded: Guarded, now: float) -> dict[str, Any]:
    """Return all that is known of a guarded training, for programs."""
    numbers = range(1, guard_dir.latest() + 1)
    attempts = [_attempt(guard_dir, number, now) for number in numbers]
    over = _files.read_record_if_there(guard_dir.over, Over)
    began = min((each["decided"] for each in attempts), default=guarded.created)
    all_seconds = (over.time if over is not None else now) - began
    blind = attempts and all(each["first_step"] is None for each in attempts)
    unread = attempts[-1]["logs"] if blind and any(each["step"] for each in attempts) else []
    productive = sum(each["productive_seconds"] for each in attempts)
    restarts = [each["restart_seconds"] for each in attempts if each["restart_seconds"] is not None]
    return {
        "schema": SCHEMA,
        "name": guarded.name,
        "folder": str(guard_dir.root),
        "script": guarded.script,
        "checkpoints": guarded.checkpoints,
        "command": _command(guarded),
        "state": _state(over, attempts),
        "why": over.why if over is not None else "",
        "unread": unread,
        "goodput": productive / all_seconds
        if all_seconds > 0 and attempts and not unread
        else None,
        "restart_seconds": sum(restarts) / len(restarts) if restarts else None,
        "lost_steps": sum(each["lost_steps"] for each in attempts),
        "unsent": [
            {"words": each.words, "left": each.left, "tries": each.tries}
            for each in guard_dir.notices().values()
            if each.left and each.tries
        ],
        "attempts": attempts,
    }


def _command(guarded: Guarded) -> str:
    """Return the command that goes on with a training."""
    words = ["coordinate-eval", "guard", guarded.script, "--checkpoints", guarded.checkpoints]
    words += ["--policy", guarded.policy_file] if guarded.policy_file else []
    return " ".join(map(quoted, [*words, *(["--obey", "rollback"] if guarded.rollback else [])]))


def _state(over: Over | None, attempts: Sequence[dict[str, Any]]) -> str:
    if over is not None:
        return "complete" if over.complete else "stopped"
    if not attempts or attempts[-1]["what"]:
        return "between attempts"
    return "running" if attempts[-1]["began"] is not None else "waiting"


def _attempt(guard_dir: GuardDir, number: int, now: float) -> dict[str, Any]:
    attempt, job = guard_dir.attempt(number), guard_dir.job_of(number)
    ended, begun = guard_dir.ended(number), guard_dir.begun(number)
    tested = guard_dir.tested(number)
    vitals = _files.read_record_if_there(guard_dir.of_attempt(number, "vitals"), Vitals) or Vitals()
    following = guard_dir.attempt(number + 1)
    kept = following.step if following is not None else None
    times = times_of(
        decided=attempt.decided if attempt is not None else now,
        began=begun.time if begun is not None else None,
        vitals=vitals,
        last=ended.last_step if ended is not None else vitals.last_step,
        kept=kept,
        before=guard_dir.ended(number - 1),
    )
    cause = ended.cause if ended is not None else None
    return {
        "number": number,
        "job": job.job_id if job is not None else None,
        "decided": attempt.decided if attempt is not None else None,
        "began": begun.time if begun is not None else None,
        "ended": ended.time if ended is not None else None,
        "nodes": begun.nodes if begun is not None else "",
        "logs": list(guard_dir.logs_of(number).own),
        "excluded": list(job.exclude) if job is not None else [],
        "checkpoint": attempt.checkpoint if attempt is not None else "",
        "skip": attempt.skipped if attempt is not None else "",
        "what": ended.what.value if ended is not None else "",
        "why": ended.why if ended is not None else "",
        "cause": cause.model_dump(mode="json") if cause is not None else None,
        "incident": ended is not None and ended.what is not What.FINISHED,
        "tested": tested.model_dump(mode="json") if tested is not None else None,
        "evaluated": (guard_dir.evaluated(number) or Evaluated()).words,
        "done": following.why if following is not None else "",
        "first_step": vitals.first_step,
        "step": ended.last_step if ended is not None else vitals.last_step,
        "loss": vitals.loss,
        "step_seconds": vitals.step_seconds or None,
        "wait_seconds": times.waited,
        "restart_seconds": times.restarted,
        "productive_seconds": times.productive,
        "lost_steps": times.lost_steps,
    }


def times_of(
    *,
    decided: float,
    began: float | None,
    vitals: Vitals,
    last: int | None,
    kept: int | None,
    before: Ended | None,
) -> Times:
    """Return the times of an attempt.

    Args:
        decided: when it was decided.
        began: when its job began to run.
        vitals: what was seen of it.
        last: the last step that it has reached.
        kept: the step from which the next attempt goes on; None if there is none.
        before: the attempt before it.
    """
    stepped, seen, first = vitals.stepped, vitals.seen, vitals.first_step
    trained = seen - stepped if stepped is not None and seen is not None else 0.0
    lost = max(0, last - kept) if last is not None and kept is not None else 0
    share = 1.0
    if last is not None and first is not None and last > first:
        share = max(0.0, 1.0 - lost / (last - first))
    elif lost:
        share = 0.0
    return Times(
        waited=max(0.0, began - decided) if began is not None else 0.0,
        restarted=stepped - before.time if stepped is not None and before is not None else None,
        productive=trained * share,
        lost_steps=lost,
    )
