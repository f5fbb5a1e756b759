"""The state of a guarded training: what runs, its incidents, what was done, and its goodput."""

from collections.abc import Sequence
from typing import Any

from coordinate_eval import _files
from coordinate_eval._format import quoted
from coordinate_eval.coordinator.training.guarding.attempts import (
    Attempt,
    Begun,
    Ended,
    Evaluated,
    GuardDir,
    Guarded,
    JobOf,
    NodesTested,
    Over,
    What,
)
from coordinate_eval.coordinator.training.guarding.vitals import Vitals

SCHEMA = "coordinate-eval/guard@1"


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
    read = guard_dir.read
    attempt = read(number, Attempt) or Attempt(number=number, decided=now)
    job, begun, ended = read(number, JobOf), read(number, Begun), read(number, Ended)
    before, following = read(number - 1, Ended), read(number + 1, Attempt)
    vitals, tested = read(number, Vitals) or Vitals(), read(number, NodesTested)
    last = ended.last_step if ended is not None else vitals.last_step
    lost = max(0, last - following.step) if last is not None and following is not None else 0
    cause = ended.cause if ended is not None else None
    restarted = None
    if vitals.stepped is not None and before is not None:
        restarted = vitals.stepped - before.time
    return {
        "number": number,
        "job": job.job_id if job is not None else None,
        "decided": attempt.decided,
        "began": begun.time if begun is not None else None,
        "ended": ended.time if ended is not None else None,
        "nodes": begun.nodes if begun is not None else "",
        "logs": list(guard_dir.logs_of(number).own),
        "excluded": list(job.exclude) if job is not None else [],
        "checkpoint": attempt.checkpoint,
        "skip": attempt.skipped,
        "what": ended.what.value if ended is not None else "",
        "why": ended.why if ended is not None else "",
        "cause": cause.model_dump(mode="json") if cause is not None else None,
        "incident": ended is not None and ended.what is not What.FINISHED,
        "tested": tested.model_dump(mode="json") if tested is not None else None,
        "evaluated": (read(number, Evaluated) or Evaluated()).words,
        "done": following.why if following is not None else "",
        "first_step": vitals.first_step,
        "step": last,
        "loss": vitals.loss,
        "step_seconds": vitals.step_seconds or None,
        "wait_seconds": max(0.0, begun.time - attempt.decided) if begun is not None else 0.0,
        "restart_seconds": restarted,
        "productive_seconds": _productive(vitals, last, lost),
        "lost_steps": lost,
    }


def _productive(vitals: Vitals, last: int | None, lost: int) -> float:
    """Return the seconds from the first step to the last, less those of steps that are lost.

    Args:
        vitals: what was seen of the attempt.
        last: the last step that it has reached.
        lost: steps that the next attempt has to repeat.
    """
    if vitals.stepped is None or vitals.seen is None:
        return 0.0
    steps = last - vitals.first_step if last is not None and vitals.first_step is not None else 0
    share = max(0.0, 1.0 - lost / steps) if steps > 0 else float(not lost)
    return (vitals.seen - vitals.stepped) * share
