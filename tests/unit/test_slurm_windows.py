"""Reservations of all nodes, such as for a maintenance: which they are, and for which jobs."""

import os
import time
from pathlib import Path

import pytest

from coordinate_eval.clusters.protocol import Window
from coordinate_eval.errors import ClusterSilent
from coordinate_eval.slurm.answers.reservations import (
    Reservation,
    clock,
    next_window,
    read_reservations,
)
from coordinate_eval.slurm.cluster import SlurmCluster
from coordinate_eval.slurm.settings import SlurmSettings

PRINTED = """\
ReservationName=maint StartTime=2026-11-24T12:00:36 EndTime=2026-11-24T22:00:36 \
Duration=10:00:00 Nodes=node[1-2] NodeCnt=2 CoreCnt=256 Features=(null) PartitionName=(null) \
Flags=MAINT,IGNORE_JOBS,SPEC_NODES,ALL_NODES TRES=cpu=256 Users=root Groups=(null) \
Accounts=(null) Licenses=(null) State=INACTIVE BurstBuffer=(null) Watts=n/a MaxStartDelay=(null)
ReservationName=some StartTime=2026-11-26T12:20:36 EndTime=2026-11-26T13:20:36 \
Duration=01:00:00 Nodes=node1 NodeCnt=1 CoreCnt=2 Features=(null) PartitionName=low Flags= \
TRES=cpu=2 Users=root Groups=(null) Accounts=(null) Licenses=(null) State=INACTIVE
ReservationName=cores StartTime=2026-11-26T12:20:56 EndTime=2026-11-26T13:20:56 \
Duration=01:00:00 Nodes=node1 NodeCnt=1 CoreCnt=2 Features=(null) PartitionName=low \
Flags=SPEC_NODES TRES=cpu=2 Users=root Groups=(null) Accounts=(null) State=INACTIVE
ReservationName=whole StartTime=2026-11-26T12:20:56 EndTime=2026-11-26T13:20:56 \
Duration=01:00:00 Nodes=node2 NodeCnt=1 CoreCnt=128 Features=(null) PartitionName=(null) \
Flags=SPEC_NODES TRES=cpu=128 Users=root Groups=(null) Accounts=(null) State=INACTIVE
ReservationName=part StartTime=2026-11-27T21:40:56 EndTime=2026-11-27T22:40:56 \
Duration=01:00:00 Nodes=node[1-2] NodeCnt=2 CoreCnt=256 Features=(null) PartitionName=low \
Flags=SPEC_NODES,PART_NODES TRES=cpu=256 Users=root Groups=(null) Accounts=(null) State=INACTIVE
"""
"""What Slurm 22.05 prints for reservations of each kind."""

HOUR = 3600.0


def test_reservations_of_whole_nodes_are_told_from_those_of_some_cores() -> None:
    found = {each.name: each.whole for each in read_reservations(PRINTED)}
    assert found == {"maint": True, "some": False, "cores": False, "whole": True, "part": True}
    maint = next(read_reservations(PRINTED))
    assert (maint.nodes, maint.end - maint.start) == ("node[1-2]", 10 * HOUR)
    assert not list(read_reservations("No reservations in the system\n"))


def reserved(name: str, start: float, end: float) -> Reservation:
    return Reservation(name, nodes="", start=start, end=end, whole=True)


def test_a_window_begins_when_the_last_node_is_taken() -> None:
    now = 1000.0
    first, second = reserved("first", 2000, 3000), reserved("second", 2500, 3000)
    after, active = reserved("after", 5000, 6000), reserved("active", 0, 9000)
    over = reserved("over", 0, 900)
    both, one, other = frozenset("ab"), frozenset("a"), frozenset("b")

    assert next_window({first: both, after: both}, both, now) == first
    assert next_window({first: one, second: other}, both, now) == second
    assert next_window({first: one, active: other}, both, now) == first
    # A node stays free, all are taken already, or nothing is to come.
    assert next_window({first: one}, both, now) is None
    assert next_window({first: one, over: other}, both, now) is None
    assert next_window({active: both, after: both}, both, now) is None
    assert next_window({first: both}, frozenset(), now) is None
    assert next_window({}, both, now) is None


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A command that prints what `reservations` beside it has, for two partitions of two nodes."""
    script = tmp_path / "scontrol"
    script.write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        f'*"show reservation"*) cat {tmp_path}/reservations ;;\n'
        '*"show hostnames ["*) exit 1 ;;\n'
        '*"show hostnames"*) echo "$3" | tr , "\\n" ;;\n'
        '*"show partition"*)\n'
        '  echo "PartitionName=gpu Default=YES Nodes=g1,g2 State=UP"\n'
        '  echo "PartitionName=cpu Default=NO Nodes=c1,c2 State=UP" ;;\n'
        "*) exit 1 ;;\n"
        "esac\n"
    )
    script.chmod(0o755)
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return tmp_path


def line(name: str, nodes: str, hours: float, flags: str = "MAINT,SPEC_NODES") -> str:
    """A reservation of six hours that begins in so many."""
    begin = time.time() + hours * HOUR
    return (
        f"ReservationName={name} StartTime={clock(begin)} EndTime={clock(begin + 6 * HOUR)} "
        f"Nodes={nodes} PartitionName=(null) Flags={flags} Users=(null)\n"
    )


def windows(folder: Path, printed: str, **settings: object) -> tuple[Window | None, Window | None]:
    (folder / "reservations").write_text(printed)
    values = {"partition": "gpu", "cpu_partition": "cpu", **settings}
    found = SlurmCluster(SlurmSettings.model_validate(values, extra="forbid")).limits()
    return found.gpu_window, found.cpu_window


def test_each_partition_has_its_own_window(scontrol: Path) -> None:
    gpu, cpu = windows(scontrol, line("all", "g1,g2,c1,c2", 9) + line("gpus", "g1,g2", 2))
    assert gpu is not None
    assert cpu is not None
    assert [window.why.split(" (")[0] for window in (gpu, cpu)] == [
        "reservation gpus",
        "reservation all",
    ]
    assert 1.9 * HOUR < gpu.start - time.time() <= 2 * HOUR
    assert clock(gpu.start) in gpu.why
    assert clock(gpu.start + 6 * HOUR) in gpu.why
    gpu, cpu = windows(scontrol, line("gpus", "g1,g2", 2), cpu_partition="")
    assert gpu is not None
    assert cpu == gpu


def test_what_leaves_a_node_to_jobs_is_no_window(scontrol: Path) -> None:
    assert windows(scontrol, "No reservations in the system\n") == (None, None)
    assert windows(scontrol, line("one", "g1", 2)) == (None, None)
    assert windows(scontrol, line("over", "g1,g2,c1,c2", -7)) == (None, None)
    assert windows(scontrol, line("some", "g1,g2", 2, flags="")) == (None, None)


def test_a_reservation_whose_nodes_cannot_be_told_hides_no_other(scontrol: Path) -> None:
    odd = line("odd", "[torn", 1)
    gpu, cpu = windows(scontrol, odd + line("gpus", "g1,g2", 2))
    assert gpu is not None
    assert gpu.why.startswith("reservation gpus ")
    assert cpu is None


def test_only_nodes_that_jobs_may_use_count(scontrol: Path) -> None:
    one = line("one", "g1", 2)
    gpu, _ = windows(scontrol, one, extra_args=("--exclude=g2",))
    assert gpu is not None
    own = line("own", "g1", -1, flags="SPEC_NODES")
    gpu, cpu = windows(scontrol, own + one, reservation="own")
    assert gpu is not None
    assert gpu.why.startswith("reservation one ")
    assert cpu is None


def test_the_reservation_of_the_settings_is_no_window(scontrol: Path) -> None:
    own = line("own", "g1,g2", -1, flags="SPEC_NODES")
    assert windows(scontrol, own, reservation="own") == (None, None)


def test_where_slurm_tells_nothing_of_reservations_there_is_no_window(scontrol: Path) -> None:
    script = scontrol / "scontrol"
    told = f"cat {scontrol}/reservations"
    script.write_text(script.read_text().replace(told, "echo 'Access denied' >&2; exit 1"))
    assert windows(scontrol, "") == (None, None)
    silent = "Unable to contact slurm controller (connect failure)"
    script.write_text(script.read_text().replace("Access denied", silent))
    with pytest.raises(ClusterSilent):
        windows(scontrol, "")
