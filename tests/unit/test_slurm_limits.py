"""How long a job may be: partitions, QOS and associations, as Slurm prints and weighs them."""

import math
import os
import pwd
from pathlib import Path

import pytest

from coordinate_eval.errors import ClusterSilent, UserError
from coordinate_eval.slurm.answers.limits import Accounting, Longest, longest, read_accounting
from coordinate_eval.slurm.answers.partitions import Partition
from coordinate_eval.slurm.client import SlurmClient
from coordinate_eval.slurm.cluster import SlurmCluster
from coordinate_eval.slurm.places import KNOWN_SECONDS, Places
from coordinate_eval.slurm.settings import SlurmSettings

ME = pwd.getpwuid(os.getuid()).pw_name

USAGE = "SharesRaw/Norm/Level/Factor=1/0.50/1/0.00 UsageRaw/Norm/Efctv=0.00/1.00/0.00"
LIMITS = (
    "GrpJobs=N(0) GrpJobsAccrue=N(0) GrpSubmitJobs=N(0) GrpWall=N(0.00) GrpTRES=cpu=N(0),mem=N(0)"
)


def association(
    account: str, user: str, wall: str, partition: str = "", default: str = "Yes"
) -> str:
    return (
        f"ClusterName=dev Account={account} UserName={user} Partition={partition} Priority=0 ID=4 "
        f"{USAGE} ParentAccount= Lft=3 DefAssoc={default} {LIMITS} MaxJobs= MaxJobsAccrue= "
        f"MaxSubmitJobs= MaxWallPJ={wall} MaxTRESPJ= MaxTRESPN= MaxTRESMinsPJ= MinPrioThresh=\n"
    )


def qos(name: str, wall: str) -> str:
    return (
        f"QOS={name}(2) UsageRaw=0.000000 {LIMITS} MaxWallPJ={wall} MaxTRESPJ= MinPrioThresh=  "
        f"MinTRESPJ= PreemptMode=OFF Priority=0 Account Limits=No Accounts User Limits={ME}(0) "
        "MaxWallPJ=1\n"
    )


def answer(user: str = ME) -> str:
    """What Slurm 22.05 prints, with the limits of some in each place."""
    return (
        "Current Association Manager state\nAssociation Records\n"
        + association("root", "", "")
        + association("lab", "", "180")
        + association("lab", f"{user}(0)", "180")
        + association("lab", f"{user}(0)", "60", "debug", default="No")
        + association("other", f"{user}(0)", "30", default="No")
        + association("lab", "somebody(7)", "5")
        + "QOS Records\n"
        + qos("normal", "")
        + qos("long", "2880")
        + qos("tiny", "10")
    )


KNOWN = read_accounting(answer(), ME)


def allowed(
    *partitions: Partition, account: str = "", qos: str = "", accounting: Accounting = KNOWN
) -> Longest:
    return longest(partitions, account, qos, accounting)


def partition(minutes: float = math.inf, name: str = "gpu", qos: str = "") -> Partition:
    return Partition(name, default=True, whole=False, minutes=minutes, qos=qos)


def test_without_accounting_the_partition_decides() -> None:
    nothing = read_accounting("Current Association Manager state\n", ME)
    assert allowed(partition(), accounting=nothing) == Longest()
    found = allowed(partition(20), accounting=nothing)
    assert found == Longest(20, "MaxTime of partition gpu")


def test_the_shortest_of_several_partitions_counts() -> None:
    nothing = Accounting()
    found = allowed(partition(60), partition(20, "b"), partition(), accounting=nothing)
    assert found == Longest(20, "MaxTime of partition b")


def test_the_limit_of_the_users_own_account_counts() -> None:
    assert allowed(partition()) == Longest(180, "MaxWall of account lab")
    assert allowed(partition(), account="other") == Longest(30, "MaxWall of account other")
    assert allowed(partition(name="debug")) == Longest(180, "MaxWall of account lab")
    assert allowed(partition(name="debug"), account="lab").minutes == 60
    assert allowed(partition(), account="unknown") == Longest()


def test_a_qos_goes_before_an_account_and_that_of_the_partition_first() -> None:
    assert allowed(partition(), qos="long") == Longest(2880, "MaxWall of QOS long")
    assert allowed(partition(), qos="tiny") == Longest(10, "MaxWall of QOS tiny")
    assert allowed(partition(), qos="long,tiny") == Longest(10, "MaxWall of QOS tiny")
    assert allowed(partition(qos="tiny"), qos="long") == Longest(10, "MaxWall of QOS tiny")
    assert allowed(partition(qos="normal"), qos="normal").why == "MaxWall of account lab"
    assert allowed(partition(qos="unknown")).why == "MaxWall of account lab"


def test_the_limit_of_the_partition_holds_besides() -> None:
    assert allowed(partition(60), qos="long") == Longest(60, "MaxTime of partition gpu")
    assert allowed(partition(60), qos="tiny") == Longest(10, "MaxWall of QOS tiny")


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scontrol with partitions, and an `accounting` that it prints."""
    script = tmp_path / "scontrol"
    script.write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        '*"show partition"*)\n'
        '  echo "PartitionName=gpu Default=YES MaxTime=02:00:00 QoS=N/A State=UP"\n'
        '  echo "PartitionName=blink Default=NO MaxTime=00:02:00 QoS=N/A State=UP"\n'
        '  echo "PartitionName=cpu Default=NO MaxTime=UNLIMITED QoS=N/A State=UP" ;;\n'
        f'*"show assoc_mgr"*) cat {tmp_path}/accounting ;;\n'
        "*) exit 1 ;;\n"
        "esac\n"
    )
    script.chmod(0o755)
    (tmp_path / "accounting").write_text(answer())
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return tmp_path


@pytest.mark.usefixtures("slurm")
def test_jobs_on_cpus_have_limits_of_their_own() -> None:
    settings = SlurmSettings(partition="gpu", cpu_partition="cpu", cpu_qos="tiny", account="lab")
    cluster = SlurmCluster(settings)
    found = cluster.limits()
    assert (found.gpu_minutes, found.gpu_why) == (120, "MaxTime of partition gpu")
    assert (found.cpu_minutes, found.cpu_why) == (10, "MaxWall of QOS tiny")
    assert cluster.limits() == found
    assert cluster.client.calls["scontrol"] == 2 + 2  # reservations each time, all else once


def test_limits_that_are_lowered_are_known_after_some_minutes(slurm: Path) -> None:
    settings, now = SlurmSettings(partition="cpu"), [0.0]
    client = SlurmClient()
    places = Places(client, settings, lambda: now[0])
    assert places.limits().cpu_minutes == 180
    script = slurm / "scontrol"
    script.write_text(script.read_text().replace("UNLIMITED", "01:00:00"))
    (slurm / "accounting").unlink()
    now[0] += KNOWN_SECONDS - 1
    assert places.limits().cpu_minutes == 180
    now[0] += 1
    assert places.limits().cpu_minutes == 60
    assert client.calls["scontrol"] == 2 + 3 + 2  # reservations each time


def test_accounting_may_be_silent_or_absent(slurm: Path) -> None:
    (slurm / "accounting").unlink()
    found = SlurmCluster(SlurmSettings(partition="cpu")).limits()
    assert (found.gpu_minutes, found.gpu_why, found.cpu_minutes) == (None, "", None)
    (slurm / "scontrol").write_text(
        "#!/bin/sh\necho 'Unable to contact slurm controller (connect failure)' >&2; exit 1\n"
    )
    with pytest.raises(ClusterSilent):
        SlurmCluster(SlurmSettings(partition="cpu")).limits()


@pytest.mark.usefixtures("slurm")
def test_a_limit_in_which_nothing_can_be_done_is_named() -> None:
    with pytest.raises(UserError, match="MaxTime of partition blink allows jobs of 2 minutes"):
        SlurmCluster(SlurmSettings(partition="blink")).limits()
