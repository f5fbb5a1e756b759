"""Reservations: Slurm's words about one, whom it is for, its nodes, and when it ends."""

import grp
import os
import pwd
import time
from pathlib import Path

import pytest
from tests.slurm_nodes import node

from coordinate_eval.clusters.protocol import Job
from coordinate_eval.errors import ClusterSilent, PlaceGone
from coordinate_eval.slurm.answers.nodes import Wanted, read_nodes
from coordinate_eval.slurm.answers.reservations import clock, of_this_user, read_reservation
from coordinate_eval.slurm.cluster import SlurmCluster
from coordinate_eval.slurm.scripts import submission
from coordinate_eval.slurm.settings import SlurmSettings

FAKES = Path(__file__).parents[1] / "fakes"
ME = pwd.getpwuid(os.getuid()).pw_name
MY_GROUP = grp.getgrgid(os.getgid()).gr_name

LINE = (
    "ReservationName=night StartTime=2026-11-23T17:15:11 EndTime=2026-11-23T17:25:11 "
    "Duration=00:10:00 Nodes=node[2-3] NodeCnt=2 CoreCnt=256 Features=(null) "
    "PartitionName=(null) Flags=SPEC_NODES TRES=cpu=256 Users={users} Groups={groups} "
    "Accounts=(null) Licenses=(null) State=ACTIVE BurstBuffer=(null) Watts=n/a "
    "MaxStartDelay=(null)\n"
)
BEGIN = time.mktime((2026, 11, 23, 17, 15, 11, 0, 0, -1))


def text(users: str = "(null)", groups: str = "(null)") -> str:
    return LINE.format(users=users, groups=groups)


def test_a_reservation_has_nodes_and_times() -> None:
    found = read_reservation(text(users="ada,bob"), "night")
    assert found is not None
    assert (found.nodes, found.users, found.groups) == ("node[2-3]", "ada,bob", "")
    assert (found.start, found.end - found.start) == (BEGIN, 600)
    assert clock(found.start) == "2026-11-23T17:15:11"
    said = text(users="ada,bob").replace("\n", " Comment=moved from EndTime=2020-01-01T00:00:00\n")
    assert read_reservation(said, "night") == found
    assert read_reservation(text(), "nigh") is None
    assert read_reservation("", "night") is None
    assert read_reservation("No reservations in the system\n", "night") is None


@pytest.mark.parametrize(
    ("users", "groups"),
    [
        (f"ada,{ME}", "(null)"),
        ("-ada", "(null)"),
        ("(null)", "(null)"),
        ("(null)", f"staff-of-nobody,{MY_GROUP}"),
    ],
)
def test_it_is_for_those_that_it_lists(users: str, groups: str) -> None:
    found = read_reservation(text(users, groups), "night")
    assert of_this_user(found, now=BEGIN) is found


@pytest.mark.parametrize(
    ("users", "groups", "words"),
    [
        ("ada,bob", "(null)", "has users ada,bob"),
        (f"-{ME}", "(null)", "is not for"),
        ("(null)", "staff-of-nobody", "has groups staff-of-nobody"),
    ],
)
def test_it_is_not_for_others(users: str, groups: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        of_this_user(read_reservation(text(users, groups), "night"), now=BEGIN)


def test_one_that_has_ended_takes_no_jobs() -> None:
    with pytest.raises(ValueError, match="ended at 2026-11-23T17:25:11"):
        of_this_user(read_reservation(text(), "night"), now=BEGIN + 600)
    with pytest.raises(ValueError, match="does not exist"):
        of_this_user(None, now=BEGIN)


@pytest.mark.parametrize(
    "state", ["MAINT", "IDLE+RESERVED", "MIXED+MAINTENANCE", "IDLE+MAINTENANCE+RESERVED"]
)
def test_its_nodes_are_free_and_all_others_are_not(state: str) -> None:
    answer = [node(State=state), node("n2")]
    low = frozenset({"low"})
    nodes, busy = read_nodes(answer, Wanted(partitions=low, reserved=frozenset({"n1"})))
    assert [n.name for n in nodes] == ["n1"]
    assert [(n.why, n.excluded) for n in busy] == [("not in [slurm] reservation", True)]
    nodes, busy = read_nodes(answer, Wanted(partitions=low))
    assert ([n.name for n in nodes], [n.name for n in busy]) == (["n2"], ["n1"])


def test_a_drained_node_of_it_is_not_free() -> None:
    drained = node(State="IDLE+DRAIN+RESERVED", Reason="hw check")
    wanted = Wanted(partitions=frozenset({"low"}), reserved=frozenset({"n1"}))
    _, (busy,) = read_nodes([drained], wanted)
    assert busy.why == "drained: hw check"


def test_all_jobs_are_in_it_but_those_of_another_partition() -> None:
    def option(settings: SlurmSettings, *, gpu_work: bool) -> bool:
        job = Job(name="job", argv=("x",), minutes=5, gpu_work=gpu_work, log="/x")
        return "--reservation=night" in submission(job, settings).args

    alone = SlurmSettings(partition="gpu", reservation="night")
    assert option(alone, gpu_work=True)
    assert option(alone, gpu_work=False)
    apart = SlurmSettings(partition="gpu", cpu_partition="cpu", reservation="night")
    assert option(apart, gpu_work=True)
    assert not option(apart, gpu_work=False)
    assert not option(SlurmSettings(partition="gpu"), gpu_work=True)


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A command that prints what `answer` beside it has, with Slurm 24.11's other answers."""
    real = FAKES / "slurm-24.11"
    script = tmp_path / "scontrol"
    script.write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        f'*"show reservation"*) cat {tmp_path}/answer; exit $(cat {tmp_path}/status) ;;\n'
        '*"show hostnames"*) echo a1 ;;\n'
        f'*) exec {real}/scontrol "$@" ;;\n'
        "esac\n"
    )
    script.chmod(0o755)
    (tmp_path / "sinfo").symlink_to(real / "sinfo")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return tmp_path


def answers(folder: Path, answer: str, status: int = 0) -> SlurmCluster:
    (folder / "answer").write_text(answer)
    (folder / "status").write_text(str(status))
    return SlurmCluster(SlurmSettings(reservation="night"))


def times(begin: float, end: float) -> str:
    return (
        f"ReservationName=night StartTime={clock(begin)} EndTime={clock(end)} Nodes=a[1] "
        f"Users={ME} State=ACTIVE\n"
    )


def test_nodes_and_limits_of_a_reservation(scontrol: Path) -> None:
    begin, end = time.time() - 60, float(int(time.time()) + 86_400)
    cluster = answers(scontrol, times(begin, end))
    nodes, busy = cluster.nodes()
    assert [node.name for node in nodes] == ["a1"]
    assert {node.name: node.why for node in busy} == {"a2": "not in [slurm] reservation"}
    limits = cluster.limits()
    assert (limits.until, limits.until_why) == (end, "reservation night ends")


def test_before_a_reservation_begins_no_node_is_free(scontrol: Path) -> None:
    begin = time.time() + 86_400
    nodes, busy = answers(scontrol, times(begin, begin + 60)).nodes()
    assert not nodes
    whys = {node.name: node.why for node in busy}
    assert whys["a1"] == f"reservation night begins at {clock(begin)}"
    assert {node.name: node.gpus for node in busy}["a1"] > 0  # what it will have is known
    assert not busy[0].excluded


def test_a_reservation_that_is_not_there_is_named(scontrol: Path) -> None:
    gone = answers(scontrol, "Reservation night not found\n", status=1)
    for ask in (gone.nodes, gone.limits):
        with pytest.raises(PlaceGone, match=r"reservation night does not exist.* --reservation"):
            ask()
    over = answers(scontrol, times(time.time() - 7200, time.time() - 3600))
    with pytest.raises(PlaceGone, match="reservation night ended at"):
        over.nodes()


def test_a_silent_controller_says_nothing_about_a_reservation(scontrol: Path) -> None:
    words = "slurm_load_reservations error: Unable to contact slurm controller (connect failure)"
    with pytest.raises(ClusterSilent):
        answers(scontrol, words, status=1).nodes()
