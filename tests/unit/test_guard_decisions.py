"""What follows when an attempt of a guarded training has ended, and how much of it is allowed."""

import itertools
from typing import Any

import pytest

from coordinate_eval.coordinator.training.guarding.attempts import Ended, What
from coordinate_eval.coordinator.training.guarding.decide import (
    FOLLOWS,
    Follows,
    decide,
    of_cause,
)
from coordinate_eval.coordinator.training.guarding.policy import Policy
from coordinate_eval.diagnosis.cause import Cause, unknown
from coordinate_eval.diagnosis.rules import shipped


def ended(what: What, number: int = 1, **more: Any) -> Ended:
    return Ended(number=number, what=what, time=1000.0 * number, **more)


def cause(reason: str, **more: Any) -> Cause:
    known = shipped().reasons[reason]
    values = {"category": known.category, "cure": known.cure, "then": known.then, **more}
    return Cause(reason=reason, **values)


@pytest.mark.parametrize(
    ("reason", "follows"),
    [
        ("ECC Error", Follows.OTHER_NODES),
        ("NCCL Timeout Error", Follows.OTHER_NODES),
        ("Network Error", Follows.OTHER_NODES),
        ("Connection Error", Follows.LATER),
        ("OS Error", Follows.LATER),
        ("Out of Memory Error", Follows.AGAIN),
        ("Runtime Error", Follows.AGAIN),
        ("Dataloader Killed", Follows.AGAIN),
        ("Called Process Error", Follows.AGAIN),
        ("File Not Found Error", Follows.STOP),
        ("Argument Error", Follows.STOP),
        ("Key Error", Follows.STOP),
        ("Syntax Error", Follows.STOP),
        ("Model Loading Error", Follows.STOP),
        ("Refused", Follows.STOP),
        ("Cancelled", Follows.AGAIN),  # a log says so, and Slurm does not
    ],
)
def test_the_cause_of_a_failure_decides_what_follows(reason: str, follows: Follows) -> None:
    assert of_cause(cause(reason)) is follows
    assert (
        decide([ended(What.FAILED, cause=cause(reason), gained=True)], Policy()).follows is follows
    )


def test_every_reason_and_every_end_has_a_consequence() -> None:
    for reason in shipped().reasons:
        assert of_cause(cause(reason)) in Follows
    for what, gained in itertools.product(What, (True, False)):
        found = decide([ended(what, gained=gained)], Policy())
        assert found.follows is FOLLOWS.get(what, found.follows)
        assert found.why.startswith(what.value)


def test_a_hang_without_a_word_and_a_cause_that_stays_unknown_have_the_nodes_tested() -> None:
    assert decide([ended(What.HUNG)], Policy()).follows is Follows.OTHER_NODES
    first = ended(What.FAILED, cause=unknown("what?"))
    assert decide([first], Policy()).follows is Follows.AGAIN
    again = ended(What.FAILED, 2, cause=unknown("what?"))
    assert decide([first, again], Policy()).follows is Follows.OTHER_NODES


def test_nodes_that_cannot_connect_twice_are_tested() -> None:
    why = cause("Connection Error")
    history = [ended(What.FAILED, 1, cause=why), ended(What.FAILED, 2, cause=why)]
    assert decide(history[:1], Policy()).follows is Follows.LATER
    assert decide(history, Policy()).follows is Follows.OTHER_NODES


def test_a_checkpoint_that_cannot_be_loaded_ends_no_training_that_may_have_another() -> None:
    why = cause("Model Loading Error")
    assert decide([ended(What.FAILED, cause=why)], Policy()).follows is Follows.STOP
    begun = ended(What.FAILED, cause=why, checkpoint="/c/step-10")
    assert decide([begun], Policy()).follows is Follows.AGAIN
    saving = ended(What.FAILED, cause=why, first_step=1)
    assert decide([saving], Policy()).follows is Follows.AGAIN


def test_a_stop_says_the_cause_the_line_and_the_cure() -> None:
    found = decide(
        [
            ended(
                What.FAILED,
                cause=cause("Import Error", line="No module named x", number=7, log="l"),
            )
        ],
        Policy(),
    )
    assert found.follows is Follows.STOP
    assert "l:7: No module named x" in found.why
    assert "install the missing package" in found.why


def test_attempts_in_vain_come_after_pauses_that_double_and_end_at_the_limit() -> None:
    policy = Policy(retries=3, pause_seconds=60)
    history: list[Ended] = [ended(What.FAILED, 1, gained=True, last_step=90)]
    pauses = []
    for number in range(2, 5):
        history.append(ended(What.FAILED, number, last_step=80))
        pauses.append(decide(history, policy).pause)
    assert pauses == [60, 120, 240]
    history.append(ended(What.FAILED, 5))
    found = decide(history, policy)
    assert found.follows is Follows.STOP
    assert "4 attempts in a row came no further than step 90" in found.why


def test_preemptions_are_nobodys_fault_however_many_there_are() -> None:
    policy = Policy(retries=1, restarts_per_day=2)
    history = [ended(What.PREEMPTED, number, gained=True) for number in range(1, 50)]
    assert decide(history, policy) == (Follows.RESUBMIT, "preempted", 0.0)


def test_preemptions_before_a_save_come_after_pauses_that_double() -> None:
    history: list[Ended] = [ended(What.FAILED, 1, gained=True)]
    pauses = []
    for number in range(2, 50):
        history.append(ended(What.PREEMPTED, number))
        found = decide(history, Policy(retries=1, pause_seconds=60))
        assert found.follows is Follows.RESUBMIT
        pauses.append(found.pause)
    assert pauses[:5] == [0, 60, 120, 240, 480]
    assert pauses[-1] == 600


def test_time_limits_without_a_save_end() -> None:
    history = [ended(What.TIME_LIMIT, number) for number in range(1, 8)]
    assert decide(history, Policy(retries=5)).follows is Follows.STOP


def test_restarts_of_a_day_are_counted_and_older_ones_forgotten() -> None:
    policy = Policy(restarts_per_day=3)
    history = [ended(What.NODE_FAILED, number, gained=True) for number in range(1, 5)]
    assert decide(history[:3], policy).follows is Follows.OTHER_NODES
    assert "restarts_per_day" in decide(history, policy).why
    later = history[-1].model_copy(update={"time": history[-1].time + 90_000})
    assert decide([*history[:3], later], policy).follows is Follows.OTHER_NODES


def test_a_checkpoint_that_was_deleted_is_no_error_of_the_script() -> None:
    gone = "/c/step-3 was deleted before the training had read it"
    found = decide([ended(What.FAILED, why=gone, checkpoint="/c/step-3")], Policy())
    assert found.follows is Follows.AGAIN
    assert found.why == f"failed: {gone}"
