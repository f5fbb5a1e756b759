"""Decisions of the supervisor, from facts to actions."""

from dataclasses import replace

from tests.decisions import (
    DIR,
    KEEP,
    NODES,
    NOTHING,
    RUN,
    SPANS,
    TRIAL,
    all_submits,
    asks_again,
    claimed,
    facts,
    make_run,
    stage,
    submits,
    submitted,
    tasks,
    those,
)
from tests.incidents import incident
from tests.plans import changed

from coordinate_eval.clusters.containers import ContainerSettings
from coordinate_eval.clusters.protocol import End, State, TaskStatus, Waits
from coordinate_eval.coordinator.run.claiming.claims import OpenClaim
from coordinate_eval.coordinator.supervisor import values as d
from coordinate_eval.coordinator.supervisor.decide import MOST_LOGS, decide


def test_first_the_keepers() -> None:
    actions = decide(RUN, DIR, facts())
    assert submits(actions) == KEEP
    for action in actions:
        assert isinstance(action, d.Submit)
        assert action.job.gpus == 0
        assert action.job.cpus == 1


def test_trials_follow_when_the_rest_of_the_copy_is_shorter_than_an_engine_start() -> None:
    running = [*tasks(KEEP[0], State.RUNNING), *tasks(KEEP[1], State.RUNNING)]
    stages = {(0, "n1"): stage(10, 1000, 10), (0, "n2"): stage(900, 1000, 10)}
    actions = decide(RUN, DIR, facts(submitted=submitted(*KEEP), tasks=running, stages=stages))
    assert submits(actions) == [TRIAL[1]]
    (job,) = (job for job in all_submits(actions) if job.gpus)
    assert (job.node, job.count, job.gpus) == ("n2", 2, 1)


def test_trials_in_containers_wait_until_the_keeper_s_has_started() -> None:
    container = ContainerSettings(runtime="podman", image="x")
    settings = RUN.settings.model_copy(update={"container": container})
    run = make_run(copy_seconds=1, engine_start_seconds=40, settings=settings)
    assert submits(decide(run, DIR, facts())) == KEEP
    running = [*tasks(KEEP[0], State.RUNNING), *tasks(KEEP[1], State.RUNNING)]
    begun = facts(submitted=submitted(*KEEP), tasks=running, stages={(0, "n2"): stage(0, 9, 0)})
    assert submits(decide(run, DIR, begun)) == [TRIAL[1]]
    gone = replace(begun, tasks=tasks(KEEP[1], State.RUNNING))
    assert d.Release(0, "n1") in decide(run, DIR, gone)  # it never did


def test_a_node_is_released_when_its_trials_have_ended() -> None:
    names = [*KEEP, *TRIAL]
    running = [*tasks(KEEP[0], State.RUNNING), *tasks(TRIAL[1], State.RUNNING, State.ENDED)]
    actions = decide(RUN, DIR, facts(submitted=submitted(*names), tasks=running))
    assert d.Release(0, "n1") in actions
    assert d.Release(0, "n2") not in actions
    again = facts(submitted=submitted(*names), tasks=running, released=frozenset({(0, "n1")}))
    assert d.Release(0, "n1") not in decide(RUN, DIR, again)


def test_no_node_is_released_before_it_is_written_how_its_trials_ended() -> None:
    names = [*KEEP, *TRIAL]
    ended = [*tasks(KEEP[0], State.RUNNING), *tasks(TRIAL[0], State.ENDED, State.ENDED)]
    known = facts(submitted=submitted(*names), tasks=ended, observed=[incident("n1-0")])
    actions = decide(RUN, DIR, known)
    (judged,) = (n for n, action in enumerate(actions) if isinstance(action, d.FindCauses))
    assert judged < actions.index(d.Release(0, "n1"))
    many = [incident(f"n1-{number}") for number in range(MOST_LOGS + 1)]
    waits = decide(RUN, DIR, replace(known, observed=many))
    assert [len(a.incidents) for a in waits if isinstance(a, d.FindCauses)] == [MOST_LOGS]
    assert not those(d.Release, waits)


def test_claims_of_ended_tasks_are_revoked_and_only_those() -> None:
    def held(task: str) -> OpenClaim:
        return claimed(SPANS[0], task)

    alive = [TaskStatus(name=TRIAL[0], job_id="7", index=1, state=State.RUNNING)]
    alive += [TaskStatus(name=TRIAL[1], job_id="8", index=0, state=State.PENDING)]
    lost = TaskStatus(name=TRIAL[0], job_id="7", index=3, state=State.ENDED, end=End.PREEMPTED)
    living, single, dead = held("7_1.0"), held("8.0"), held("7_2.0")
    actions = decide(
        RUN,
        DIR,
        facts(
            submitted=submitted(*KEEP, *TRIAL),
            tasks=[*alive, lost],
            open_claims=[("outputs", h) for h in (living, single, dead, held("7_3.0"))],
        ),
    )
    assert those(d.Revoke, actions) == [
        d.Revoke("outputs", dead),
        d.Revoke("outputs", held("7_3.0"), End.PREEMPTED),
    ]


def test_what_does_not_start_in_time_is_cancelled() -> None:
    names = [*KEEP, *TRIAL]
    waiting = tasks(TRIAL[0], State.RUNNING, State.PENDING)
    early = facts(submitted=submitted(*names), tasks=waiting)
    assert not those(d.Cancel, decide(RUN, DIR, early))
    late = replace(early, now=100 + RUN.settings.supervisor.patience_seconds)
    (cancel,) = those(d.Cancel, decide(RUN, DIR, late))
    assert cancel.job_ids == (f"{TRIAL[0]}_1",)


def test_jobs_whose_node_takes_none_are_cancelled_after_a_minute() -> None:
    waiting = [t for name in (KEEP[0], TRIAL[0]) for t in tasks(name, State.PENDING)]
    known = facts(
        submitted=submitted(KEEP[0], TRIAL[0]),
        tasks=[changed(task, waits=Waits.NODE, reason="a reason") for task in waiting],
    )
    for seconds, jobs in ((59, set()), (61, {f"{KEEP[0]}_0", f"{TRIAL[0]}_0"})):
        found = decide(RUN, DIR, replace(known, now=90 + seconds))
        assert {job for a in found if isinstance(a, d.Cancel) for job in a.job_ids} == jobs


def test_what_frees_nodes_comes_before_what_submits() -> None:
    """An error in a submission ends a pass: keepers would hold nodes for as long as it lasts."""
    known = facts(
        submitted=submitted(*KEEP, TRIAL[0]),
        tasks=[*tasks(KEEP[0], State.PENDING), *tasks(KEEP[1], State.RUNNING)],
        stages={(0, "n2"): stage(1000, 1000, 10, "ready")},
        open_claims=[("outputs", claimed(SPANS[0]))],
        claimable={**NOTHING, "results": [SPANS[2]]},
    )
    actions = decide(RUN, DIR, known)
    kinds = [type(action) for action in actions]
    frees = {d.Revoke, d.Cancel, d.Release}
    assert set(kinds) == {*frees, d.Submit}
    assert set(kinds[: kinds.index(d.Submit)]) == frees
    assert {d.Submit} == set(kinds[kinds.index(d.Submit) :])


def test_of_two_jobs_of_one_name_the_recorded_one_stays() -> None:
    known = submitted(*KEEP, *TRIAL)
    double = TaskStatus(name=TRIAL[0], job_id="other", index=1, state=State.PENDING)
    ended = TaskStatus(name=KEEP[0], job_id="before", state=State.ENDED)
    alive = [task for name in (*KEEP, *TRIAL) for task in tasks(name, State.RUNNING)]
    actions = decide(RUN, DIR, facts(submitted=known, tasks=[*alive, double, ended]))
    assert [a.job_ids for a in those(d.Cancel, actions)] == [("other",)]


def test_waiting_trials_are_cancelled_when_nothing_is_left_to_do() -> None:
    names = [*KEEP, *TRIAL]
    waiting = tasks(TRIAL[0], State.RUNNING, State.PENDING)
    actions = decide(
        RUN,
        DIR,
        facts(submitted=submitted(*names), tasks=waiting, unpublished=[], claimable=NOTHING),
    )
    assert [a.job_ids for a in those(d.Cancel, actions)] == [(f"{TRIAL[0]}_1",)]


def test_a_new_round_when_all_trials_are_gone_and_work_is_left() -> None:
    gone = facts(submitted=submitted(*KEEP, *TRIAL))
    assert d.NewRound(len(SPANS)) in decide(RUN, DIR, gone)
    still = replace(gone, tasks=tasks(TRIAL[0], State.RUNNING))
    assert not asks_again(still)
    copied = {(0, n): stage(0, 1000, 0, "failed") for n in NODES}
    failed = facts(submitted=submitted(*KEEP), stages=copied)
    assert [d.Release(0, n) for n in NODES] == decide(RUN, DIR, failed)
    let_go = replace(failed, released=frozenset((0, n) for n in NODES))
    assert d.NewRound(len(SPANS)) in decide(RUN, DIR, let_go)
    again = replace(let_go, idle_rounds=2, now=5)
    assert not asks_again(again)


def test_trials_wait_in_the_queue_with_their_keeper_if_a_short_copy_is_predicted() -> None:
    run = make_run(copy_seconds=30, engine_start_seconds=40)
    actions = decide(run, DIR, facts())
    assert submits(actions) == [KEEP[0], TRIAL[0], KEEP[1], TRIAL[1]]
    assert [a.beside for a in actions if isinstance(a, d.Submit)] == ["", KEEP[0], "", KEEP[1]]
    long = make_run(copy_seconds=41, engine_start_seconds=40)
    assert submits(decide(long, DIR, facts())) == KEEP
    # What a copy shows of its speed counts more than what was predicted.
    known = facts(
        submitted=submitted(*KEEP),
        tasks=[*tasks(KEEP[0], State.RUNNING), *tasks(KEEP[1], State.PENDING)],
        stages={(0, "n1"): stage(10, 1000, 10)},
    )
    assert submits(decide(run, DIR, known)) == [TRIAL[1]]
    assert submits(decide(long, DIR, known)) == []
    failed = replace(known, stages={(0, n): stage(0, 1000, 0, "failed") for n in NODES})
    assert submits(decide(run, DIR, failed)) == []


def test_a_refused_keeper_goes_into_the_job_of_its_trials() -> None:
    """A partition may take no job without GPUs."""
    refused = facts(submitted=submitted(*KEEP, refusal="no"))
    for run in (RUN, make_run(copy_seconds=1)):
        both = all_submits(decide(run, DIR, refused))
        assert [job.name for job in both] == TRIAL
        assert [(job.node, job.count, job.gpus) for job in both] == [(n, 1, 2) for n in NODES]
        assert all("_node" in job.argv for job in both)
    names = [*KEEP, *TRIAL]
    nowhere = facts(submitted=submitted(*names, refusal="no"))
    assert decide(RUN, DIR, nowhere)[:2] == [d.Release(0, n) for n in NODES]


def test_a_keeper_that_does_not_start_is_cancelled_though_its_trials_run() -> None:
    alive = [*tasks(KEEP[0], State.PENDING), *tasks(TRIAL[0], State.RUNNING)]
    waiting = facts(submitted=submitted(*KEEP, *TRIAL), tasks=alive)
    assert not those(d.Cancel, decide(RUN, DIR, waiting))
    late = replace(waiting, now=100 + RUN.settings.supervisor.patience_seconds)
    (cancel,) = those(d.Cancel, decide(RUN, DIR, late))
    assert KEEP[0] in cancel.job_ids[0]
    over = replace(waiting, tasks=tasks(KEEP[0], State.PENDING))
    assert d.Cancel((f"{KEEP[0]}_0",), "its trials have ended") in decide(RUN, DIR, over)
    assert d.Release(0, "n1") in decide(RUN, DIR, over)


def test_a_keeper_whose_trials_are_not_taken_holds_no_memory() -> None:
    patience = RUN.settings.supervisor.patience_seconds
    ready = stage(1000, 1000, 10, "ready").model_copy(update={"ready": 10.0})
    known = facts(
        submitted=submitted(*KEEP),
        tasks=[task for name in KEEP for task in tasks(name, State.RUNNING)],
        stages={(0, "n1"): ready, (0, "n2"): ready},
    )
    assert submits(decide(RUN, DIR, replace(known, now=10 + patience))) == TRIAL
    late = replace(known, now=11 + patience)
    actions = decide(RUN, DIR, late)
    assert not submits(actions)
    released = {(a.round, a.node) for a in actions if isinstance(a, d.Release)}
    assert released == {(0, "n1"), (0, "n2")}
    assert asks_again(replace(late, released=frozenset(released)))
    # A keeper takes a moment to leave.
    assert not submits(decide(RUN, DIR, replace(known, released=frozenset(released))))


def test_a_killed_keepers_node_still_gets_its_trials() -> None:
    stages = {(0, "n1"): stage(10, 1000, 10), (0, "n2"): stage(0, 1000, 10, "failed")}
    actions = decide(RUN, DIR, facts(submitted=submitted(*KEEP), stages=stages))
    assert submits(actions) == [TRIAL[0]]
    assert d.Release(0, "n2") in actions


def test_without_a_round_one_is_asked_for() -> None:
    assert decide(RUN, DIR, facts(rounds=[], asked=0.0)) == [d.NewRound(3)]


def test_shards_that_kill_every_trial_end_the_run() -> None:
    gone = facts(submitted=submitted(*KEEP, *TRIAL), claimable=NOTHING)
    (finish,) = those(d.Finish, decide(RUN, DIR, gone))
    assert "died" in finish.why


def test_one_refused_node_does_not_stop_the_others() -> None:
    accepted, refused = submitted(KEEP[0]), submitted(KEEP[1], refusal="job submit limit")
    stages = {(0, "n1"): stage(1000, 1000, 10, "ready")}
    actions = decide(
        RUN,
        DIR,
        facts(submitted=accepted | refused, tasks=tasks(KEEP[0], State.RUNNING), stages=stages),
    )
    assert submits(actions) == TRIAL
    assert not any(isinstance(a, d.NewRound | d.Finish) for a in actions)


def test_a_cancelled_run_starts_nothing() -> None:
    assert decide(RUN, DIR, facts(cancelled=True)) == [d.Finish("cancelled")]


def test_whole_nodes_get_one_job_each() -> None:
    run = make_run(exclusive=True)
    actions = decide(run, DIR, facts())
    assert submits(actions) == TRIAL
    (job, _) = (a.job for a in actions if isinstance(a, d.Submit))
    assert (job.count, job.gpus) == (1, 2)
