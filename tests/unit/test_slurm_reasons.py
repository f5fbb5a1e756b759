"""Every reason that Slurm 20.11 to 26.05 prints for a pending job, and what follows from it."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.clocks import SetClock
from tests.decisions import DIR, KEEP, ROUND, RUN, TRIAL, facts, submitted, tasks
from tests.shown_runs import SUPERVISOR, ask, pending
from tests.slurm_nodes import task_of

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import Hold, State, TaskStatus, Waits
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import ANY_NODE, Round, RoundNode
from coordinate_eval.coordinator.supervisor.decide import decide
from coordinate_eval.coordinator.supervisor.polls import Silence
from coordinate_eval.coordinator.supervisor.values import Action, Cancel, Finish
from coordinate_eval.slurm.answers.reasons import REASONS, UNKNOWN, read_reason

PATIENCE = RUN.settings.supervisor.patience_seconds
DOCS = Path(__file__).parents[2] / "docs" / "slurm-words.md"

# Slurm's resources in the names of limits.
RESOURCES = [
    "BB", "Billing", "Cpu", "Energy", "GRES", "License", "Mem", "Memory", "Node", "Unknown",
]  # fmt: skip


def of_each(*names: str) -> list[str]:
    """Return names with each resource in place of X."""
    return [name.replace("X", resource) for name in names for resource in RESOURCES]


TURN = [
    "None", "Priority", "Resources", "Licenses", "Reservation", "Dependency", "JobArrayTaskLimit",
    "MpiPortsBusy", "NvidiaImexChannels", "MaxPoweredUpNodes", "BurstBufferResources",
    "PowerNotAvail", "PowerReserved", "AccountingPolicy", "QOSResourceLimit",
    "AssociationResourceLimit", "ReqNodeNotAvail",
    "ReqNodeNotAvail, May be reserved for other job",
    "ReqNodeNotAvail, UnavailableNodes:",
    "ReqNodeNotAvail,  UnavailableNodes: ",
    "ReqNodeNotAvail, UnavailableNodes:(null)",
    "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
    "Nodes required for job are DOWN, DRAINED, REBOOTING or reserved for jobs in higher priority "
    "partitions",
    "Required nodes lack available resources", "Required nodes do not fit topology",
    "No suitable topology unit found", "No suitable topology unit found for segment",
    "Insufficient resources in topology unit", "No available nodes in topology",
    "Weight-based selection could not satisfy request within topology unit",
    "Exceeded maximum node limit during topology allocation",
    "AssocGrpCpuLimit", "AssocGrpMemLimit", "AssocGrpNodeLimit", "QOSGrpCpuLimit",
    "QOSGrpMemLimit", "QOSGrpNodeLimit", "QOSMaxCpuPerUserLimit", "QOSMaxNodePerUserLimit",
    "AssocGrpSubmitJobsLimit", "AssocMaxSubmitJobLimit", "QOSGrpSubmitJobsLimit",
    "QOSMaxSubmitJobPerUserLimit", "MaxSubmitJobsPerAccount",
    "AssocGrpCPURunMinutesLimit", "QOSGrpCPURunMinutesLimit",
    *of_each("AssocGrpX", "AssocGrpXRunMinutes", "QOSGrpX", "QOSGrpXRunMinutes", "QOSMaxXPerUser",
             "MaxXPerAccount", "MaxXRunMinsPerAccount", "MaxXRunMinsPerUser"),
]  # fmt: skip
JOB_LIMIT = [
    "AssocGrpJobsLimit", "AssocMaxJobsLimit", "AssociationJobLimit", "MaxJobsPerAccount",
    "QOSGrpJobsLimit", "QOSJobLimit", "QOSMaxJobsPerUserLimit", "QOSMaxJobsPerAccountLimit",
]  # fmt: skip
CLUSTER = [
    "BeginTime", "Cleaning", "Prolog", "SchedDefer", "FedJobLock", "Constraints", "FrontEndDown",
    "BurstBufferStageIn", "burst_buffer/lua: Stage-out in progress", "BlockFreeAction",
    "BlockMaxError", "PartitionDown", "PartitionInactive", "QOSUsageThreshold", "QOSTimeLimit",
    "AssociationTimeLimit", "AssocGrpCPUMinutesLimit", "AssocGrpWallLimit",
    "QOSGrpCPUMinutesLimit", "QOSGrpWallLimit",
    *of_each("AssocGrpXMinutes", "QOSGrpXMinutes"),
    "DeadLine", "InactiveLimit", "JobLaunchFailure", "NonZeroExitCode", "OutOfMemory",
    "RaisedSignal", "RaisedSignal:9(Killed)", "SystemFailure", "TimeLimit", "InvalidReason",
]  # fmt: skip
NODE = [
    "PartitionNodeLimit", "NodeDown", "ReqNodeNotAvail, UnavailableNodes:node[1-3]",
    "ReqNodeNotAvail, UnavailableNodes:gpu1", "ReqNodeNotAvail(Unavailable:gpu1)",
    "ReqNodeNotAvail, Reserved for maintenance",
]  # fmt: skip
PERSON = [
    "AssocMaxWallDurationPerJobLimit", "QOSMaxWallDurationPerJobLimit", "PartitionTimeLimit",
    "AssocMaxCpuMinutesPerJobLimit", "QOSMaxCpuMinutesPerJobLimit", "AssocMaxCpuPerJobLimit",
    "AssocMaxNodePerJobLimit", "QOSMaxCpuPerJobLimit", "QOSMaxNodePerJobLimit", "MaxMemPerLimit",
    *of_each("AssocMaxXPerJob", "AssocMaxXPerNode", "AssocMaxXMinutesPerJob", "QOSMaxXPerJob",
             "QOSMaxXPerNode", "QOSMaxXMinutesPerJob", "QOSMinX"),
    "QOSMinCpuNotSatisfied", "PartitionConfig", "BadConstraints",
    "InvalidAccount", "InvalidQOS", "AccountNotAllowed", "QOSNotAllowed",
    "Job's account not permitted to use this partition (low allows a not b)",
    "Job's account not permitted to use this partition (low denies a including a)",
    "Job's account not known, so it can't use this partition (low allows a)",
    "Job's QOS not permitted to use this partition (low allows a not b)",
    "Job's QOS not known, so it can't use this partition (low allows a)",
    "uid 1000 not in group permitted to use this partition (low). groups allowed: staff",
    "ReservationDeleted", "ReservationInvalid", "Reservation r was deleted",
    "Reservation r is invalid", "DependencyNeverSatisfied", "BurstBufferOperation",
    "burst_buffer/lua: slurm_bb_data_in: no such pool", "Burst buffer pre_run error",
]  # fmt: skip
HELD = {
    "JobHeldAdmin": Hold.ADMIN,
    "License request 'a:9' is no longer valid, holding job": Hold.ADMIN,
    "JobHeldUser": Hold.USER,
    "job requeued in held state": Hold.USER,
    "job requeued in special exit state": Hold.USER,
    "launch failed requeued held": Hold.LAUNCH,
    "user env retrieval failed requeued held": Hold.LAUNCH,
    "JobHoldMaxRequeue": Hold.LAUNCH,
}
ALL = {
    Waits.TURN: TURN,
    Waits.JOB_LIMIT: JOB_LIMIT,
    Waits.CLUSTER: CLUSTER,
    Waits.NODE: NODE,
    Waits.PERSON: PERSON,
}


def task_with(reason: str, state: str = "PENDING") -> TaskStatus:
    return task_of("7_2", state, reason, "", "ce-a")


@pytest.mark.parametrize("waits", ALL)
def test_what_a_job_waits_for_in_any_spelling(waits: Waits) -> None:
    for reason in ALL[waits]:
        for spelled in (reason, reason.replace(" ", "_"), reason.lower()):
            task = task_with(spelled)
            assert (spelled, task.waits, task.held) == (spelled, waits, Hold.NONE)
            assert read_reason(spelled) is not UNKNOWN
            assert task.means
            assert task.cure or waits is not Waits.PERSON
    assert task_with(ALL[waits][0], "CANCELLED").waits is Waits.NOTHING


@pytest.mark.parametrize("state", ["CONFIGURING", "POWER_UP_NODE"])
def test_a_job_that_has_its_node_is_not_said_to_wait_for_its_turn(state: str) -> None:
    task = task_with("None", state)
    assert (task.state, task.waits) == (State.PENDING, Waits.CLUSTER)
    assert task.means == "its node is being made ready"


@pytest.mark.parametrize("state", ["REQUEUE_HOLD", "SPECIAL_EXIT"])
def test_a_job_is_held_by_its_state_where_no_reason_says_by_whom(state: str) -> None:
    assert task_with("None", state).held is Hold.USER
    assert task_with("user env retrieval failed requeued held", state).held is Hold.LAUNCH
    assert task_with("None", "PENDING").held is task_with("None", "RUNNING").held is Hold.NONE


@pytest.mark.parametrize("reason", HELD)
def test_who_holds_a_job(reason: str) -> None:
    for spelled in (reason, reason.replace(" ", "_")):
        assert task_with(spelled).held is HELD[reason]
        assert not task_with(spelled).never_starts
    assert task_with(reason, "CANCELLED").held is Hold.NONE


@pytest.mark.parametrize("reason", ["SomeLimitOfTheFuture", "a word of the site", "233"])
def test_an_unknown_reason_keeps_its_place_and_is_shown(reason: str) -> None:
    task = task_with(reason)
    assert (task.waits, task.held) == (Waits.CLUSTER, Hold.NONE)
    assert task.cure == "`scontrol show job 7` shows more"


def test_the_documentation_has_this_table() -> None:
    lines = [
        f"| {each.names} | {each.waits} | {each.means}{f': {each.cure}' * bool(each.cure)} |"
        for each in (*REASONS, UNKNOWN)
    ]
    assert "\n".join(lines) in DOCS.read_text()


ANYWHERE = Round(
    number=0, created=0, nodes=[RoundNode(name=ANY_NODE, gpu_type="", trials=2)], minutes=30
)
QUEUED = jobs.trials_name(RUN, 0, ANY_NODE)


def waiting(name: str, reason: str, count: int = 2) -> list[TaskStatus]:
    like = task_with(reason)
    what = {"waits": like.waits, "held": like.held, "means": like.means, "cure": like.cure}
    return [
        task.model_copy(update={**what, "reason": reason})
        for task in tasks(name, *[State.PENDING] * count)
    ]


def queued(reason: str, **changes: object) -> list[Action]:
    """Return what ends or cancels of trials that have stood in the queue for long."""
    known = facts(
        rounds=[ANYWHERE], now=1e6, submitted=submitted(QUEUED), tasks=waiting(QUEUED, reason)
    )
    known = replace(known, **changes)  # type: ignore[arg-type]
    return [a for a in decide(RUN, DIR, known) if isinstance(a, Cancel | Finish)]


@pytest.mark.parametrize(
    "reason", [TURN[0], *TURN[16:24], JOB_LIMIT[0], *CLUSTER[:14], *NODE, "SomethingNew"]
)
def test_trials_that_are_pinned_to_no_node_keep_their_place(reason: str) -> None:
    assert queued(reason) == []


def test_trials_that_no_schedule_starts_are_asked_for_once_more_and_then_the_run_ends() -> None:
    reason = "QOSMaxGRESPerJob"
    assert queued(reason, stuck=PATIENCE - 1) == []
    (again,) = queued(reason, stuck=PATIENCE, waits=1)
    assert isinstance(again, Cancel)
    assert set(again.job_ids) == {f"{QUEUED}_0", f"{QUEUED}_1"}
    (end,) = queued(reason, stuck=PATIENCE, waits=2)
    assert isinstance(end, Finish)
    assert "never starts: it asks for more than one job may have" in end.why
    assert "QOSMaxGRESPerJob" in end.why
    assert "take another [slurm] qos" in end.why


def test_pinned_trials_that_no_schedule_starts_end_the_run_like_others() -> None:
    names = KEEP[0], TRIAL[0]
    known = facts(
        now=1e6,
        submitted=submitted(*names),
        tasks=[*tasks(KEEP[0], State.RUNNING), *waiting(TRIAL[0], "PartitionTimeLimit")],
        waits=2,
    )
    cancels = [a for a in decide(RUN, DIR, known) if isinstance(a, Cancel)]
    assert not any(TRIAL[0] in job for a in cancels for job in a.job_ids)
    assert [type(a) for a in decide(RUN, DIR, replace(known, stuck=PATIENCE))] == [Finish]


@pytest.mark.parametrize(
    "found",
    [
        [*waiting(QUEUED, "QOSMaxGRESPerJob"), *tasks(TRIAL[0], State.RUNNING)],
        [*waiting(QUEUED, "QOSMaxGRESPerJob", 1), *waiting(TRIAL[0], "Priority", 1)],
        [*waiting(QUEUED, "QOSMaxGRESPerJob", 1), *waiting(TRIAL[0], "JobHeldUser", 1)],
        [*waiting(KEEP[0], "QOSMaxGRESPerJob", 1), *tasks(QUEUED, State.RUNNING)],
    ],
)
def test_a_run_goes_on_as_long_as_one_job_may_start_or_somebody_holds_it(
    found: list[TaskStatus],
) -> None:
    known = facts(
        rounds=[ANYWHERE], submitted=submitted(QUEUED), tasks=found, stuck=PATIENCE, waits=5
    )
    assert not any(isinstance(a, Finish) for a in decide(RUN, DIR, known))


def test_the_time_in_which_nothing_starts_begins_again_when_something_may(tmp_path: Path) -> None:
    clock = SetClock(0)
    silence = Silence(RunDir(tmp_path), clock)

    def stuck(seconds: float, reason: str) -> float:
        clock.sleep(seconds)
        return silence.of(RUN, facts(tasks=waiting(TRIAL[0], reason))).stuck

    assert stuck(0, "InvalidQOS") == 0
    assert stuck(50, "InvalidQOS") == 50
    assert stuck(50, "Priority") == 0
    assert stuck(50, "InvalidQOS") == 0
    assert stuck(20, "InvalidQOS") == 20


def test_status_says_what_a_reason_means_and_what_to_do(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    _files.write_record(run_dir.round(0), ROUND)

    def said(reason: str) -> str:
        like = task_with(reason)
        task = pending(TRIAL[0], reason).model_copy(
            update={"waits": like.waits, "means": like.means, "cure": like.cure}
        )
        return " ".join(ask(run_dir, monkeypatch, [SUPERVISOR, task]).output.split())

    assert "is pending: Priority, other jobs come first" in said("Priority")
    assert "it waits for ever where one job alone asks for more" in said("AssocGrpGRES")
    words = said("PartitionTimeLimit")
    assert "its time limit is longer than one job may have" in words
    assert "(PartitionTimeLimit): lower [trial] max_minutes" in words
