"""Worlds of nodes as jobs of a scheduler: what ends how, and what the doctor says of each node."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.reviewer import FakeCluster, OnCluster
from tests.worlds import Jobs, impatient, node

from coordinate_eval.clusters.protocol import Busy, End, JobLimits, TaskStatus
from coordinate_eval.coordinator.cli.upkeep import doctor as command
from coordinate_eval.coordinator.doctor import nodes as doctor
from coordinate_eval.coordinator.doctor import worlds as worlds_module
from coordinate_eval.coordinator.doctor.gather import Passed
from coordinate_eval.coordinator.doctor.pairing import Tried, Verdict
from coordinate_eval.coordinator.doctor.worlds import Worlds
from coordinate_eval.coordinator.incidents.bad_nodes import avoided_folder, read_avoided
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.errors import (
    ClusterError,
    ClusterSilent,
    UserError,
)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(worlds_module, "HIDDEN_SECONDS", 0.0)
    return impatient(tmp_path)


@pytest.fixture
def ask(
    settings: Settings, on_cluster: OnCluster, capsys: pytest.CaptureFixture[str]
) -> Callable[..., dict[str, Any]]:
    """Call the command; return its document, with the exit status."""

    def asked(cluster: FakeCluster, names: str | None = None) -> dict[str, Any]:
        on_cluster(cluster)
        status = command.find_bad_nodes(settings, names, as_json=True)
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert status == (0 if found["ok"] else 1)
        assert list(Path(settings.runs_dir).iterdir()) == []
        return found

    return asked


def verdicts(found: dict[str, Any]) -> dict[str, str]:
    return {each["node"]: each["verdict"] for each in found["nodes"]}


def test_good_nodes_pass_in_one_world(
    ask: Callable[..., dict[str, Any]], settings: Settings
) -> None:
    cluster = Jobs(dict.fromkeys(("n1", "n2", "n3"), "passes"))
    found = ask(cluster)
    assert verdicts(found) == {"n1": "good", "n2": "good", "n3": "good"}
    (world,) = found["worlds"]
    assert (world["nodes"], world["processes"], world["backend"]) == (
        ["n1", "n2", "n3"],
        24,
        "nccl",
    )
    assert world["bytes_per_second"] == 4e10
    assert found["drain"] == ""
    assert not read_avoided(settings, 0)
    assert {job.gpus for job in cluster.jobs.values()} == {8}
    assert {job.node for job in cluster.jobs.values()} == {"n1", "n2", "n3"}
    assert cluster.cancelled == []


@pytest.mark.parametrize("how", ["cut off", "dies", "fails"])
def test_a_bad_node_is_named_avoided_and_to_be_drained(
    ask: Callable[..., dict[str, Any]], settings: Settings, how: str
) -> None:
    found = ask(Jobs({"n1": "passes", "n2": "passes", "n3": how, "n4": "passes"}))
    assert verdicts(found) == {"n1": "good", "n2": "good", "n3": "bad", "n4": "good"}
    (n3,) = [each for each in found["nodes"] if each["node"] == "n3"]
    assert "libcudart" in n3["why"] if how == "dies" else "with n1" in n3["why"]
    assert set(read_avoided(settings, 0)) == {"n3"}
    assert found["drain"].startswith("scontrol update nodename=n3 state=drain 'reason=")
    assert max(each["round"] for each in found["worlds"]) == 2


def test_what_fails_everywhere_is_no_nodes_fault(
    ask: Callable[..., dict[str, Any]], settings: Settings
) -> None:
    found = ask(Jobs({"n1": "dies", "n2": "fails"}))
    assert verdicts(found) == {"n1": "suspect", "n2": "suspect"}
    assert found["drain"] == ""
    assert not read_avoided(settings, 0)


@pytest.mark.parametrize("how", ["preempted", "refused", "suspended", "waits"])
def test_where_a_job_does_not_run_its_node_is_untested_and_its_partner_is_tried_again(
    ask: Callable[..., dict[str, Any]], settings: Settings, how: str
) -> None:
    found = ask(Jobs({"n1": "passes", "n2": "passes", "n3": how, "n4": "passes"}))
    assert verdicts(found) == {"n1": "good", "n2": "good", "n3": "untested", "n4": "good"}
    assert found["ok"]
    assert all(each["why"] for each in found["nodes"] if each["node"] == "n3")
    assert not read_avoided(settings, 0)


def test_a_job_that_ends_without_an_answer_has_failed(ask: Callable[..., dict[str, Any]]) -> None:
    found = ask(Jobs({"n1": "passes", "n2": "passes", "n3": "silently", "n4": "passes"}))
    assert verdicts(found)["n3"] == "bad"
    (n3,) = [each for each in found["nodes"] if each["node"] == "n3"]
    assert "without an answer" in n3["why"]


def test_a_node_that_hangs_has_failed(
    ask: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hanging(Jobs):
        def go_on(self, job_id: str, fates: list[str]) -> None:
            if "hangs" not in fates:
                super().go_on(job_id, fates)

    monkeypatch.setattr(worlds_module, "GATHER_SECONDS", 0)
    monkeypatch.setattr(worlds_module, "LATE_SECONDS", 0.0)
    cluster = Hanging({"n1": "passes", "n2": "passes", "n3": "hangs", "n4": "passes"})
    assert verdicts(ask(cluster))["n3"] == "bad"
    assert cluster.alive() == []


def test_the_words_of_a_bad_node_are_waited_for(
    ask: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Late(Jobs):
        """A good node loses its connection before the bad one's end is seen."""

        def go_on(self, job_id: str, fates: list[str]) -> None:
            job = self.jobs[job_id]
            fate = self.fates[job.node or ""]
            path = Path(f"{job.log}.{job_id}.log")
            if "fails" not in fates:
                super().go_on(job_id, fates)
            elif fate != "fails" or path.exists():
                self.end(job_id, End.FAILED)
            path.write_text("no such interface" if fate == "fails" else "connection lost")

    monkeypatch.setattr(worlds_module, "WORDS_SECONDS", 1e6)
    found = ask(Late({"n1": "passes", "n2": "passes", "n3": "fails", "n4": "passes"}))
    (n3,) = [each for each in found["nodes"] if each["node"] == "n3"]
    assert n3["why"] == "it failed with n1: no such interface"


def test_where_slurm_takes_few_jobs_worlds_wait_for_each_other(
    ask: Callable[..., dict[str, Any]],
) -> None:
    cluster = Jobs({f"n{number}": "passes" for number in range(1, 7)})
    cluster.most = 3
    assert set(verdicts(ask(cluster)).values()) == {"good"}
    cluster = Jobs(dict.fromkeys(("n1", "n2"), "passes"))
    cluster.most = 0
    found = ask(cluster)
    assert verdicts(found) == {"n1": "untested", "n2": "untested"}
    assert not found["ok"]


def test_a_silent_scheduler_ends_no_world(ask: Callable[..., dict[str, Any]]) -> None:
    class Silent(Jobs):
        polls = 0

        def poll(self, prefix: str) -> list[TaskStatus]:
            tasks = super().poll(prefix)
            self.polls += 1
            if self.polls % 3:
                raise ClusterSilent("no answer")
            return tasks

    cluster = Silent({"n1": "passes", "n2": "passes", "n3": "fails", "n4": "passes"})
    assert verdicts(ask(cluster))["n3"] == "bad"


def test_leaving_early_ends_all_jobs(settings: Settings) -> None:
    class Endless(Jobs):
        def go_on(self, job_id: str, fates: list[str]) -> None:
            """It goes on for ever."""

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    cluster = Endless(dict.fromkeys(("n1", "n2", "n3", "n4"), "passes"))
    with (
        pytest.raises(KeyboardInterrupt),
        Worlds(settings, cluster, cluster.free, interrupt) as worlds,
    ):
        list(worlds.run([("n1", "n2"), ("n3", "n4")]))
    assert sorted(cluster.cancelled) == ["1", "2", "3", "4"]
    assert list(Path(settings.runs_dir).iterdir()) == []


def test_jobs_are_cancelled_also_if_the_scheduler_refuses_to_list_them(settings: Settings) -> None:
    class Refusing(Jobs):
        def poll(self, prefix: str) -> list[TaskStatus]:
            if self.cancelled:
                return super().poll(prefix)
            raise ClusterError("invalid user")

    cluster = Refusing(dict.fromkeys(("n1", "n2"), "passes"))
    with pytest.raises(ClusterError), Worlds(settings, cluster, cluster.free) as worlds:
        list(worlds.run([("n1", "n2")]))
    assert set(cluster.cancelled) == {"1", "2"}
    assert list(Path(settings.runs_dir).iterdir()) == []


def test_no_job_asks_for_more_time_than_the_partition_allows(
    ask: Callable[..., dict[str, Any]],
) -> None:
    cluster = Jobs(dict.fromkeys(("n1", "n2"), "passes"))
    cluster.limited = JobLimits(gpu_minutes=7)
    assert ask(cluster)["ok"]
    assert max(job.minutes for job in cluster.jobs.values()) <= 7


def test_named_nodes_alone_are_tested(
    ask: Callable[..., dict[str, Any]], settings: Settings
) -> None:
    cluster = Jobs(dict.fromkeys(("n1", "n2", "n3"), "passes"))
    cluster.busy = [Busy(name="n4", why="drained: fan"), Busy(name="x", why="", excluded=True)]
    found = ask(cluster, "n[2-4]")
    assert verdicts(found) == {"n2": "good", "n3": "good", "n4": "untested"}
    assert {job.node for job in cluster.jobs.values()} == {"n2", "n3"}
    assert set(verdicts(ask(cluster))) == {"n1", "n2", "n3", "n4"}
    with pytest.raises(UserError, match="named n9"):
        ask(cluster, "n[1,9]")
    with pytest.raises(UserError, match="--nodelist 'n"):
        ask(cluster, "n[3-1]")


def test_a_node_with_gpus_of_several_types_is_tested_once() -> None:
    cluster = FakeCluster()
    cluster.free = [node("n1", free_gpus=2, gpu_type="a100"), node("n1", free_gpus=6)]
    assert [each.free_gpus for each in doctor.wanted_nodes(cluster, None)[0]] == [6]


def test_a_good_node_that_is_avoided_is_said_to_be(settings: Settings) -> None:
    bad = doctor.TriedNode(node="n1", verdict=Verdict.BAD, why="it failed")
    (found,) = doctor.of_nodes(settings, [bad], "1", 100.0)
    assert "runs avoid it until" in found.do
    well = doctor.TriedNode(node="n1", verdict=Verdict.GOOD)
    _, found = doctor.of_nodes(settings, [well], "2", 200.0)
    assert str(avoided_folder(settings) / "n1.json") in found.do


def test_names_of_nodes_are_quoted_in_the_line_that_drains() -> None:
    bad = [doctor.TriedNode(node=name, verdict=Verdict.BAD) for name in ("a", "$(b)")]
    assert "'nodename=a,$(b)'" in doctor.drain_command(doctor.bad_of(bad))


def test_one_machine_is_no_cluster_of_nodes(settings: Settings, on_cluster: OnCluster) -> None:
    local = FakeCluster()
    local.local = True
    for cluster in (None, local):
        on_cluster(cluster)
        with pytest.raises(UserError, match="scheduler"):
            command.find_bad_nodes(settings, None, as_json=True)


def test_without_torch_nothing_is_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_spec", lambda _: None)
    with pytest.raises(UserError, match="pip install"):
        doctor.check_torch()


def test_a_result_is_a_line_of_the_report() -> None:
    passed = Passed(backend="gloo", processes=1, bytes_per_second=0)
    alone = worlds_module.Result(Tried(("n1",), passed=True), passed=passed)
    assert doctor.of_result(alone).found == "passed alone (gloo)"
    two = Passed(backend="nccl", processes=16, bytes_per_second=4.2e10)
    pair = worlds_module.Result(Tried(("n1", "n2"), passed=True), passed=two)
    assert "42.00 GB/s" in doctor.of_result(pair).found
    gone = worlds_module.Result(Tried(("n1",), False, frozenset({"n1"})), {"n1": "preempted"})
    assert doctor.of_result(gone).state.value == "warning"
