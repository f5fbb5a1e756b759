"""Jobs that wait for a node which takes no jobs are cancelled soon: others may be free."""

from pathlib import Path

from tests.decisions import facts, make_run, submitted, tasks

from coordinate_eval.clusters.protocol import State, Waits
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.supervisor.decide import decide
from coordinate_eval.coordinator.supervisor.values import Cancel

RUN, DIR = make_run(), RunDir(Path("/nowhere"))
KEEPER, TRIALS = (name(RUN, 0, "n1") for name in (jobs.keeper_name, jobs.trials_name))


def cancelled(seconds: float, *, waits: Waits) -> set[str]:
    """Return what is cancelled when keeper and trials have waited for so long."""
    waiting = [
        task.model_copy(update={"waits": waits, "reason": "a reason"})
        for task in [*tasks(KEEPER, State.PENDING), *tasks(TRIALS, *[State.PENDING] * 2)]
    ]
    known = submitted(KEEPER, count=1) | submitted(TRIALS)
    found = decide(RUN, DIR, facts(now=90 + seconds, submitted=known, tasks=waiting))
    return {job for action in found if isinstance(action, Cancel) for job in action.job_ids}


def test_jobs_whose_node_takes_none_are_cancelled_after_a_minute() -> None:
    assert cancelled(59, waits=Waits.NODE) == set()
    assert cancelled(61, waits=Waits.NODE) == {KEEPER, f"{TRIALS}_0", f"{TRIALS}_1"}


def test_jobs_that_wait_for_others_may_wait_longer() -> None:
    patience = RUN.settings.supervisor.patience_seconds
    assert cancelled(patience - 1, waits=Waits.TURN) == set()
    assert cancelled(patience + 1, waits=Waits.TURN) == {KEEPER, f"{TRIALS}_0", f"{TRIALS}_1"}
