"""The end of an attempt whose job has ended before it was done."""

from collections.abc import Mapping

from coordinate_eval.clusters.protocol import End
from coordinate_eval.coordinator.run.claiming.claims import OF_DATASETS, Ledger, LedgerName
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.coordinator.run.troubles.ends import cause_of
from coordinate_eval.coordinator.run.troubles.memory import lighter_load
from coordinate_eval.coordinator.supervisor.decisions.values import Revoke

_LEFT: Mapping[LedgerName, str] = {
    "outputs": "responses of",
    "answers": "answers to questions of",
    "questions": "questions of",
    "requests": "the prompts of",
    "results": "the scores of",
    "estimates": "the first signal of",
}
"""Work that a dead job leaves undone, by ledger."""


def revoke(run_dir: RunDir, run: Run, action: Revoke) -> str:
    """End an attempt, so that another one can begin. Return for people what happened."""
    span, attempt, claim = action.claim
    cause = cause_of(action.end)
    if action.ledger == "outputs" and action.end is End.OUT_OF_MEMORY:
        cause = "lost" if lighter_load(run_dir, run).can_shrink else "died"
    Ledger(run_dir, action.ledger).revoke(span, attempt, cause, action.end)
    what = f"{_LEFT[action.ledger]} {span.dataset}"
    if action.ledger not in OF_DATASETS:
        what += f" (items {span.stem})"
    known = action.end not in (End.UNKNOWN, End.FAILED, End.COMPLETED)
    ended = f"ended ({action.end})" if known else "ended"
    return f"{claim.owner} {ended} without finishing {what}; another one will"
