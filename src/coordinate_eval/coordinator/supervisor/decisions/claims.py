"""Claims whose owners have ended without giving them back."""

from coordinate_eval.clusters.protocol import End
from coordinate_eval.coordinator.supervisor.decisions.values import Facts, Revoke


def orphaned_claims(facts: Facts) -> list[Revoke]:
    """Revoke the open claims of tasks that have ended."""
    living, ends = facts.living(), facts.ends()
    return [
        Revoke(ledger, held, ends.get(held.claim.task_id, End.UNKNOWN))
        for ledger, held in facts.open_claims
        if held.claim.task_id not in living
    ]
