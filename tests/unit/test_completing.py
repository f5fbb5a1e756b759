"""Tasks that stay in Slurm's COMPLETING, as after a hang, hold up no run."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tests.decisions import DIR, KEEP, RUN, SPANS, TRIAL, facts, submitted, waiting_for
from tests.random_examples import examples

from coordinate_eval.clusters.protocol import State, TaskStatus
from coordinate_eval.coordinator.run.claiming.claims import Claim, OpenClaim
from coordinate_eval.coordinator.supervisor.decide import decide
from coordinate_eval.coordinator.supervisor.decisions.values import NewRound, Revoke
from coordinate_eval.coordinator.supervisor.facts.completing import GONE_SECONDS, Completing
from coordinate_eval.slurm.answers.queue import SQUEUE_FORMAT, read_tasks

STUCK = TaskStatus(name=TRIAL[0], job_id="7", index=0, state=State.RUNNING, completing=True)


def test_a_task_that_does_not_end_is_gone_after_a_while() -> None:
    now = [50.0]
    completing = Completing(lambda: now[0])
    running = STUCK.model_copy(update={"index": 1, "completing": False})
    assert completing.without_gone([STUCK, running]) == [STUCK, running]
    now[0] += GONE_SECONDS - 1
    assert completing.without_gone([STUCK, running]) == [STUCK, running]
    now[0] += 1
    gone, other = completing.without_gone([STUCK, running])
    assert (gone.state, other) == (State.ENDED, running)


@given(st.lists(st.tuples(st.floats(0, GONE_SECONDS), st.booleans()), max_size=30))
@examples(50)
def test_only_who_completes_all_that_time_is_gone(seen: list[tuple[float, bool]]) -> None:
    now, since = 0.0, None
    completing = Completing(lambda: now)
    for pause, is_completing in seen:
        now += pause
        since = (now if since is None else since) if is_completing else None
        (found,) = completing.without_gone([STUCK.model_copy(update={"completing": is_completing})])
        late = since is not None and now - since >= GONE_SECONDS
        assert found.state is (State.ENDED if late else State.RUNNING)


def test_what_it_held_goes_to_others_in_a_new_round() -> None:
    claim = Claim(owner="n1-0", task="7_0.0", host="h", pid=1, time=0, token="t")
    held = facts(
        submitted=submitted(*KEEP, *TRIAL),
        tasks=[STUCK],
        open_claims=[("outputs", OpenClaim(SPANS[0], 1, claim))],
        claimable=waiting_for(outputs=SPANS[1:]),
    )
    assert not [a for a in decide(RUN, DIR, held) if isinstance(a, Revoke | NewRound)]
    gone = replace(held, tasks=[STUCK.model_copy(update={"state": State.ENDED})])
    revoke, new = (a for a in decide(RUN, DIR, gone) if isinstance(a, Revoke | NewRound))
    assert isinstance(revoke, Revoke)
    assert revoke.claim.claim == claim
    assert new == NewRound(3)


def test_squeue_says_which_task_is_completing() -> None:
    record = SQUEUE_FORMAT[0]
    (task,) = read_tasks(f"{record}7_0|COMPLETING|None|n1|ce-x\n", "ce-")
    assert (task.state, task.completing) == (State.RUNNING, True)
    (task,) = read_tasks(f"{record}7_0|RUNNING|None|n1|ce-x\n", "ce-")
    assert not task.completing
