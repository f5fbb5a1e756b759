"""The meaning of Slurm's reasons for a pending job: the one table that all else follows from.

It has every reason of Slurm 20.11 to 26.05, and the texts that Slurm prints in place of one. Its
table in docs/slurm-words.md is checked by a test. The reasons: `enum job_state_reason` in Slurm's
slurm.h; the texts: `state_desc` in slurmctld.
"""

import re
from dataclasses import dataclass

from coordinate_eval.clusters.protocol import Hold, Waits


@dataclass(frozen=True)
class Reason:
    """A kind of reason: what a job waits for, what that means, and what a person does about it.

    `names` are as the documentation shows them, and `pattern` matches them with single blanks in
    place of underscores, whatever the case. Without `cure` nobody has to do anything. Of a job with
    several partitions or QOS Slurm gives the reason of the one that it looked at last: with
    `of_partition` the job may start in another.
    """

    names: str
    pattern: str
    waits: Waits
    means: str
    cure: str = ""
    held: Hold = Hold.NONE
    of_partition: bool = False


_ASK = "ask the administrators"

# The first that matches counts.
REASONS = (
    Reason("`None`", "|None", Waits.TURN, "not looked at yet"),
    Reason("`Priority`, `Resources`", "Priority|Resources",
           Waits.TURN, "other jobs come first, or have what it needs"),
    Reason("`Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority "
           "partitions`", "Nodes required for job are DOWN, DRAINED.*",
           Waits.TURN, "other jobs come first, as always in a partition of low priority"),
    Reason("`ReqNodeNotAvail, UnavailableNodes:n1`, `ReqNodeNotAvail, Reserved for maintenance`, "
           "`NodeDown`",
           r"ReqNodeNotAvail\W+Unavailable(Nodes)?: *(?!\(null\))\w.*"
           r"|ReqNodeNotAvail, *Reserved for maintenance|NodeDown",
           Waits.NODE, "a node that it may start on takes no jobs now"),
    Reason("`ReqNodeNotAvail`, `…, May be reserved for other job`, `…, UnavailableNodes:` and no "
           "node", "ReqNodeNotAvail.*",
           Waits.TURN, "the nodes that it may start on are kept for other jobs"),
    Reason("`AssocMaxJobsLimit`, `AssocGrpJobsLimit`, `QOSMaxJobsPerUserLimit`, "
           "`MaxJobsPerAccount`, …",
           r"(QOS|Assoc|Association)(Grp|Max)?Jobs?(Per(User|Account))?Limit|MaxJobsPerAccount",
           Waits.JOB_LIMIT, "a limit on how many jobs run at once"),
    Reason("`QOSGrpCPURunMinutesLimit`, `AssocGrpGRESRunMinutes`, `MaxGRESRunMinsPerUser`, …",
           r"(QOS|Assoc)Grp\w+RunMinutes(Limit)?|Max\w+RunMinsPer(User|Account)",
           Waits.TURN, "a limit on the time that running jobs may still take together"),
    Reason("`AssocGrpCPUMinutesLimit`, `QOSGrpBillingMinutes`, `AssocGrpWallLimit`, "
           "`QOSUsageThreshold`, …",
           r"(QOS|Assoc)Grp\w*(Minutes|Wall)(Limit)?|(QOS|Association)TimeLimit|QOSUsageThreshold",
           Waits.CLUSTER, "the account or QOS has used up its time",
           "`sshare` shows what is used; it starts when usage has decayed or is reset, or when "
           "whoever manages the account grants more; or take another [slurm] account or qos"),
    Reason("`QOSMaxWallDurationPerJobLimit`, `AssocMaxGRESMinutesPerJob`, `PartitionTimeLimit`, …",
           r"(QOS|Assoc)Max\w*(Wall|Minutes)\w*PerJob(Limit)?|PartitionTimeLimit",
           Waits.PERSON, "its time limit is longer than one job may have",
           "lower [trial] max_minutes (`sacctmgr show qos`, `scontrol show partition`)",
           of_partition=True),
    Reason("`QOSMaxGRESPerJob`, `AssocMaxMemPerNode`, `MaxMemPerLimit`, …",
           r"(QOS|Assoc)Max\w+Per(Job|Node)(Limit)?|MaxMemPerLimit",
           Waits.PERSON, "it asks for more than one job may have",
           "lower [trial] cpus, memory_gib or tensor_parallel, or take another [slurm] qos or "
           "partition", of_partition=True),
    Reason("`QOSMinGRES`, `QOSMinCpuNotSatisfied`, …", r"QOSMin\w+",
           Waits.PERSON, "the QOS takes only jobs that ask for more",
           "take another [slurm] qos", of_partition=True),
    Reason("`QOSMaxGRESPerUser`, `AssocGrpGRES`, `MaxGRESPerAccount`, `QOSResourceLimit`, "
           "`AssocMaxSubmitJobLimit`, …",
           r"(QOS|Assoc)(Grp|Max)\w+|Max\w+PerAccount|(QOS|Association)ResourceLimit"
           "|AccountingPolicy",
           Waits.TURN, "a limit on what all jobs of a user, account or QOS have together",
           "it waits for ever where one job alone asks for more: `sacctmgr show assoc` and "
           "`sacctmgr show qos` show the limits; then lower [trial] cpus, memory_gib or "
           "tensor_parallel, or take another [slurm] account or qos"),
    Reason("`Licenses`, `Reservation`, `Dependency`, `JobArrayTaskLimit`, `MpiPortsBusy`, "
           "`NvidiaImexChannels`, `MaxPoweredUpNodes`, `BurstBufferResources`",
           "Licenses|Reservation|Dependency|JobArrayTaskLimit|MpiPortsBusy|NvidiaImexChannels"
           "|MaxPoweredUpNodes|BurstBufferResources|PowerNotAvail|PowerReserved",
           Waits.TURN, "other jobs have what it needs, or it begins later"),
    Reason("`No suitable topology unit found`, `Required nodes do not fit topology`, …",
           r".*\btopology\b.*|Required nodes lack available resources",
           Waits.TURN, "no part of the network has room for it"),
    Reason("`Prolog`, and `None` of a job in state `CONFIGURING`", "Prolog",
           Waits.CLUSTER, "its node is being made ready"),
    Reason("`BeginTime`, `Cleaning`, `SchedDefer`, `FedJobLock`, `Constraints`, "
           "`BurstBufferStageIn`, `FrontEndDown`",
           "BeginTime|Cleaning|SchedDefer|FedJobLock|Constraints|BurstBufferStageIn"
           "|burst buffer/.*Stage-out in progress|FrontEndDown|BlockFreeAction|BlockMaxError",
           Waits.CLUSTER, "a state of the cluster that ends by itself"),
    Reason("`PartitionDown`, `PartitionInactive`", "PartitionDown|PartitionInactive",
           Waits.CLUSTER, "the partition starts no jobs now",
           "`sinfo` shows the partition; it starts jobs again when the administrators let it"),
    Reason("`TimeLimit`, `NonZeroExitCode`, `RaisedSignal:9(Killed)`, `JobLaunchFailure`, "
           "`SystemFailure`, …",
           "TimeLimit|InactiveLimit|NonZeroExitCode|RaisedSignal.*|OutOfMemory|DeadLine"
           "|JobLaunchFailure|SystemFailure|InvalidReason",
           Waits.CLUSTER, "how its last start ended: it is to start again"),
    Reason("`PartitionNodeLimit`", "PartitionNodeLimit",
           Waits.NODE, "nodes are down, or the partition takes no jobs of so many",
           "`scontrol show partition` shows its MinNodes, and `sinfo` its nodes"),
    Reason("`PartitionConfig`", "PartitionConfig",
           Waits.PERSON, "the partition does not take such jobs",
           "`scontrol show partition` shows its limits; take another [slurm] partition",
           of_partition=True),
    Reason("`BadConstraints`", "BadConstraints",
           Waits.PERSON, "no node has what it asks for",
           "change [slurm] constraint or partition, or [trial] cpus or memory_gib"),
    Reason("`InvalidAccount`, `InvalidQOS`, `AccountNotAllowed`, `QOSNotAllowed`, `Job's account "
           "not permitted to use this partition (…)`, …",
           r"InvalidAccount|InvalidQOS|AccountNotAllowed|QOSNotAllowed"
           r"|Job's (account|QOS) not .*|uid \d+ not in group permitted .*",
           Waits.PERSON, "its account, QOS or group is not valid, or may not use the partition",
           f"take another [slurm] account, qos or partition, or {_ASK}", of_partition=True),
    Reason("`ReservationDeleted`, `ReservationInvalid`, `Reservation … was deleted`",
           "Reservation(Deleted|Invalid)|Reservation .* (was deleted|is invalid)",
           Waits.PERSON, "its reservation is gone", "take another [slurm] reservation, or none"),
    Reason("`DependencyNeverSatisfied`", "DependencyNeverSatisfied",
           Waits.PERSON, "a job on which it depends has failed",
           "this program asks for no dependency: look for one in [slurm] extra_args"),
    Reason("`BurstBufferOperation`, `burst_buffer/…: …`",
           "BurstBufferOperation|burst buffer/.*|Burst buffer .* error",
           Waits.PERSON, "the burst buffer has failed", _ASK),
    Reason("`JobHeldAdmin`, `License request '…' is no longer valid, holding job`",
           "JobHeldAdmin|License request .* holding job",
           Waits.PERSON, "an administrator holds it", _ASK, Hold.ADMIN),
    Reason("`JobHeldUser`, `job requeued in held state`",
           "JobHeldUser|job requeued in (held|special exit) state",
           Waits.PERSON, "it is held by hand", "`scontrol release JOB`", Hold.USER),
    Reason("`launch failed requeued held`, `JobHoldMaxRequeue`",
           r".*\brequeued held|JobHoldMaxRequeue",
           Waits.NODE, "Slurm holds it, since it could not be launched", held=Hold.LAUNCH),
)  # fmt: skip

UNKNOWN = Reason("any other", ".*", Waits.CLUSTER,
                 "not known here, so it keeps its place",
                 "`scontrol show job JOB` shows more")  # fmt: skip
"""The default. New reasons have nearly always been limits on what runs at the same time."""

_COMPILED = [(re.compile(each.pattern, re.IGNORECASE), each) for each in REASONS]


def read_reason(text: str) -> Reason:
    """Return what a reason means, in the spelling of any version."""
    said = " ".join(text.replace("_", " ").split())
    return next((each for pattern, each in _COMPILED if pattern.fullmatch(said)), UNKNOWN)
