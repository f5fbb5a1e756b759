"""Jobs that wait for a node which takes no jobs are cancelled soon: others may be free."""

from pathlib import Path

import pytest
from tests.decisions import facts, make_run, submitted, tasks

from coordinate_eval.cluster import State
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.supervisor.decide import decide
from coordinate_eval.coordinator.supervisor.decisions.values import Cancel
from coordinate_eval.slurm.answers import queue

RUN, DIR = make_run(), RunDir(Path("/nowhere"))
KEEPER, TRIALS = (name(RUN, 0, "n1") for name in (jobs.keeper_name, jobs.trials_name))


@pytest.mark.parametrize(
    ("reason", "unavailable"),
    [
        ("ReqNodeNotAvail, UnavailableNodes:node[1-3]", True),
        ("ReqNodeNotAvail, Reserved for maintenance", True),
        ("NodeDown", True),
        ("ReqNodeNotAvail", False),
        ("ReqNodeNotAvail, May be reserved for other job", False),
        ("Priority", False),
        ("Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority "
         "partitions", False),
        ("None", False),
    ],
)  # fmt: skip
def test_which_reasons_say_that_a_node_takes_no_jobs(reason: str, unavailable: bool) -> None:
    [task] = queue.read_tasks(queue.as_printed([["7", "PENDING", reason, "", "ce-a"]]), "ce-")
    assert task.node_unavailable is unavailable


def cancelled(seconds: float, *, unavailable: bool) -> set[str]:
    """Return what is cancelled when keeper and trials have waited for so long."""
    waiting = [
        task.model_copy(update={"node_unavailable": unavailable, "reason": "a reason"})
        for task in [*tasks(KEEPER, State.PENDING), *tasks(TRIALS, *[State.PENDING] * 2)]
    ]
    known = submitted(KEEPER, count=1) | submitted(TRIALS)
    found = decide(RUN, DIR, facts(now=90 + seconds, submitted=known, tasks=waiting))
    return {job for action in found if isinstance(action, Cancel) for job in action.job_ids}


def test_jobs_whose_node_takes_none_are_cancelled_after_a_minute() -> None:
    assert cancelled(59, unavailable=True) == set()
    assert cancelled(61, unavailable=True) == {KEEPER, f"{TRIALS}_0", f"{TRIALS}_1"}


def test_jobs_that_wait_for_others_may_wait_longer() -> None:
    patience = RUN.settings.supervisor.patience_seconds
    assert cancelled(patience - 1, unavailable=False) == set()
    assert cancelled(patience + 1, unavailable=False) == {KEEPER, f"{TRIALS}_0", f"{TRIALS}_1"}
