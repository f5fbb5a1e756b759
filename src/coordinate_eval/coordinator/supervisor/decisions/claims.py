"""Claims whose owners have ended without giving them back."""

from coordinate_eval.cluster import End
from coordinate_eval.coordinator.supervisor.decisions.values import Facts, Revoke


def orphaned_claims(facts: Facts) -> list[Revoke]:
    """Revoke the open claims of tasks that have ended."""
    living, ends = facts.living(), facts.ends()
    owners = [
        (ledger, held, held.claim.task.rsplit(".", 1)[0])  # without its restarts
        for ledger, held in facts.open_claims
    ]
    return [
        Revoke(ledger, held, ends.get(owner, End.UNKNOWN))
        for ledger, held, owner in owners
        if owner not in living
    ]
