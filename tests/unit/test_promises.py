"""Room beside one's other runs: promises, limits, and two runs that choose at once."""

import time
from pathlib import Path
from typing import Any

import pytest
from tests.decisions import make_run
from tests.plans import changed
from tests.reviewer import FakeCluster

from coordinate_eval import _files
from coordinate_eval._clock import SystemClock
from coordinate_eval.clusters.protocol import Cluster, Node, State, TaskStatus
from coordinate_eval.coordinator.inputs.settings import LimitSettings, Settings
from coordinate_eval.coordinator.planning.plan import NodeCapacity
from coordinate_eval.coordinator.report.state import _why_waiting
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Round, RoundNode, Run, Submitted
from coordinate_eval.coordinator.supervisor.placing import other_runs, promises
from coordinate_eval.coordinator.supervisor.placing.other_runs import OtherRuns, Overtaken
from coordinate_eval.coordinator.supervisor.placing.promises import (
    NoRoom,
    Others,
    Promise,
    PromisedNode,
)
from coordinate_eval.errors import UserError

NODE = Node(name="n1", gpus=8, free_gpus=8, gpu_type="h200", cpus=64, memory_gib=500)
NO_LIMIT = LimitSettings()


def promised(trials: int = 8, **changes: Any) -> Promise:
    """A run that has chosen a node."""
    run = make_run(id="other", nonce="1", tensor_parallel=changes.pop("gpus", 1))
    node = PromisedNode(name="n1", gpu_type="h200", trials=trials, keeper_cpus=4, round=0)
    made = promises.make_promise(run, "/runs/other", 0, [node], waiting=False)
    return changed(made, **changes)


def tasks(name: str, *states: State) -> list[TaskStatus]:
    return [
        TaskStatus(name=name, job_id="1", index=i, state=state) for i, state in enumerate(states)
    ]


KEEPER, TRIALS = jobs.node_names(promised().prefix, 0, "n1")


def test_nodes_that_are_promised_are_not_free_before_their_jobs_are_in_the_queue() -> None:
    free, busy = promises.beside([NODE], [], Others([promised(3)]))
    assert [(n.free_gpus, n.cpus) for n in free] == [(5, 64 - 3 * 4 - 4)]
    assert free[0].memory_gib == pytest.approx(500 - 3 * 16 - jobs.keeper_gib(make_run()))
    free, busy = promises.beside([NODE], [], Others([promised(8)]))
    assert not free
    assert "promised to your run other" in busy[0].why
    assert (busy[0].gpus, busy[0].gpu_type) == (8, "h200")
    free, busy = promises.beside([NODE], [], Others([promised(3, exclusive=True)]))
    assert not free
    assert busy


def test_what_the_scheduler_counts_is_not_counted_twice() -> None:
    running = tasks(TRIALS, State.RUNNING, State.RUNNING, State.PENDING)
    kept = tasks(KEEPER, State.RUNNING)
    names = {promised().prefix: frozenset({KEEPER, TRIALS})}
    free, _ = promises.beside([NODE], [], Others([promised(3)], running + kept, names))
    assert free[0].free_gpus == 7
    # All of its trials have ended; or its keeper ended before there were any.
    free, _ = promises.beside([NODE], [], Others([promised(3)], kept, names))
    assert free == [NODE]
    early = {promised().prefix: frozenset({KEEPER})}
    assert promises.beside([NODE], [], Others([promised(3)], [], early))[0] == [NODE]
    # Its keeper copies: the trials follow.
    free, _ = promises.beside([NODE], [], Others([promised(3)], kept, early))
    assert free[0].free_gpus == 5


def test_a_job_that_is_one_for_its_node_counts_as_it_was_submitted(tmp_path: Path) -> None:
    run, one = supervised(tmp_path, "one", 1)
    second, two = supervised(tmp_path, "two", 2, gpus=9)
    queue = Queue()
    one._cluster = two._cluster = queue
    one.take(run, 0, WANTED[:0])
    run_dir = RunDir(tmp_path / "one")
    node = RoundNode(name="n1", gpu_type="h200", trials=3, keeper_cpus=4)
    begun = Round(number=0, created=0, minutes=1, nodes=[node])
    one.take(run, 0, begun.nodes)
    job = jobs.node_job(run, run_dir, begun, node)
    _files.write_record(run_dir.job(job.name), Submitted(job=job, job_id="1", time=0))
    for state, free, left in ((State.PENDING, 5, 6), (State.RUNNING, 8, 6)):
        queue.tasks = tasks(job.name, state)
        (found,) = two.available(second)[0]
        assert (found.free_gpus, two.gpus_left()) == (free, left)
        # One task of it asks for all trials and the keeper.
        assert found.cpus == 64 - (job.cpus if state is State.PENDING else 0)


def test_the_limit_counts_all_runs() -> None:
    alive = [
        *tasks(TRIALS, State.RUNNING, State.PENDING),
        *tasks(KEEPER, State.RUNNING),
        *tasks("ce-third.2-score0", State.RUNNING),
    ]
    names = {promised().prefix: frozenset({KEEPER, TRIALS})}
    assert promises.gpus_left(16, Others([promised(2, gpus=4)], alive, names)) == 8
    assert promises.gpus_left(16, Others([promised(2, gpus=4)])) == 8
    assert promises.gpus_left(None, Others([promised()], alive, names)) is None


def test_a_run_takes_what_the_limit_leaves() -> None:
    chosen = [NodeCapacity(name=n, gpus=8, gpu_type="h200", trials=4) for n in ("n1", "n2")]

    def kept(left: int | None, gpus: int = 2) -> list[int]:
        return [node.trials for node in promises.within(chosen, gpus, left, 16)]

    assert kept(None) == [4, 4]
    assert kept(13) == [4, 2]
    assert kept(8) == [4]
    with pytest.raises(NoRoom, match=r"limits\.gpus = 16"):
        kept(1)
    with pytest.raises(UserError, match="needs 32 GPUs"):
        kept(16, 32)


class Queue(FakeCluster):
    """A scheduler of one node."""

    def __init__(self) -> None:
        super().__init__()
        self.free = [NODE]
        self.tasks: list[TaskStatus] = []

    def poll(self, prefix: str) -> list[TaskStatus]:
        return self.tasks


def supervised(
    folder: Path, name: str, created: float, cluster: Cluster | None = None, **limits: Any
) -> tuple[Run, OtherRuns]:
    settings = Settings(
        runs_dir=str(folder),
        cache_dir=str(folder / "cache"),
        limits=LimitSettings.model_validate(limits, extra="forbid"),
    )
    run = make_run(id=name, nonce=name, created=created, settings=settings)
    run_dir = RunDir(folder / name)
    run_dir.root.mkdir()
    return run, OtherRuns(run_dir, run, cluster or Queue(), SystemClock())


WANTED = [RoundNode(name="n1", gpu_type="h200", trials=8)]


def test_of_two_runs_that_choose_at_once_one_gets_the_node(tmp_path: Path) -> None:
    first, one = supervised(tmp_path, "one", 1)
    second, two = supervised(tmp_path, "two", 2)
    assert one.available(first)[0] == two.available(second)[0] == [NODE]
    one.take(first, 0, WANTED)
    with pytest.raises(Overtaken, match="run one chose"):
        two.take(second, 0, WANTED)
    two.wait("it waits")
    assert _why_waiting(RunDir(tmp_path / "two")) == "it waits"
    assert two.available(second) == ([], two.available(second)[1])
    # The node is free when the first run has ended.
    one.leave()
    assert two.available(second)[0] == [NODE]
    two.take(second, 0, WANTED)
    assert _why_waiting(RunDir(tmp_path / "two")) == ""


def test_of_two_that_see_each_other_the_older_goes_on(tmp_path: Path) -> None:
    first, one = supervised(tmp_path, "one", 1)
    second, two = supervised(tmp_path, "two", 2)
    one.available(first)
    two.available(second)
    two.take(second, 0, WANTED)
    with pytest.raises(Overtaken):
        one.take(first, 0, WANTED)
    one.wait("another one was faster")
    # Each counts what the other one has chosen.
    assert not two.available(second)[0]
    assert not one.available(first)[0]


def test_the_older_of_two_that_see_each_other_keeps_to_its_choice(tmp_path: Path) -> None:
    cluster = Queue()
    cluster.free = [NODE.model_copy(update={"name": f"n{number}"}) for number in range(3)]
    first, one = supervised(tmp_path, "one", 1, cluster=cluster)
    second, two = supervised(tmp_path, "two", 2, cluster=cluster)
    one.available(first)
    two.available(second)
    two.take(second, 0, WANTED)
    with pytest.raises(Overtaken):
        one.take(first, 0, WANTED)
    one.wait("another one was faster")
    two.withdraw()
    # A third run that looks now leaves it alone, and so it is there when the older one looks again.
    third, three = supervised(tmp_path, "three", 3, cluster=cluster)
    assert [node.name for node in three.available(third)[0]] == ["n0", "n2"]
    assert one.available(first)[0][0].name == "n1"
    one.take(first, 0, WANTED)


def test_of_many_that_choose_at_once_all_go_on_at_the_second_look(tmp_path: Path) -> None:
    cluster = Queue()
    cluster.free = [NODE.model_copy(update={"name": f"n{number}"}) for number in range(12)]
    runs = [supervised(tmp_path, f"run{age}", age, cluster=cluster) for age in range(6)]

    def look(run: Run, others: OtherRuns) -> list[RoundNode]:
        first = others.available(run)[0][:2]
        return [RoundNode(name=node.name, gpu_type="h200", trials=8) for node in first]

    chosen = [look(*each) for each in runs]
    assert all(nodes == chosen[0] for nodes in chosen)
    runs[0][1].take(runs[0][0], 0, chosen[0])
    for (run, others), nodes in list(zip(runs, chosen, strict=True))[1:]:
        with pytest.raises(Overtaken):
            others.take(run, 0, nodes)
        others.wait("another one was faster")
    again = [look(*each) for each in runs[1:]]
    for (run, others), nodes in zip(runs[1:], again, strict=True):
        others.take(run, 0, nodes)
    taken = [node.name for nodes in [chosen[0], *again] for node in nodes]
    assert sorted(taken) == sorted(node.name for node in cluster.free)


def long_ago(run: Run) -> Path:
    """Have a run look for nodes last long ago. Return the file of its promise."""
    path = other_runs.promise_file(run)
    promise = _files.read_record(path, Promise)
    looked = promise.looked - 2 * other_runs.FORGOTTEN_SECONDS
    _files.write_record(path, promise.model_copy(update={"looked": looked}))
    return path


def test_only_promises_are_removed_from_a_folder_of_ones_own(tmp_path: Path) -> None:
    first, one = supervised(tmp_path, "one", 1)
    second, two = supervised(tmp_path, "two", 2)
    one.take(first, 0, WANTED)
    promise = long_ago(first)
    notes = promise.with_name("notes.json")
    notes.write_text("{}")
    promise.parent.chmod(0o777)
    two.available(second)
    two.wait("it tells nobody")
    assert promise.parent.stat().st_mode & 0o777 == 0o777
    assert _files.names(promise.parent) == {promise.name, notes.name}
    promise.parent.chmod(0o700)
    two.available(second)
    assert _files.names(promise.parent) == {notes.name}


def test_a_run_with_jobs_counts_however_long_ago_it_looked(tmp_path: Path) -> None:
    cluster = Queue()
    first, one = supervised(tmp_path, "one", 1)
    second, two = supervised(tmp_path, "two", 2, cluster=cluster, gpus=16)
    one.take(
        first.model_copy(update={"tensor_parallel": 8}),
        0,
        [RoundNode(name="n1", gpu_type="h200", trials=1)],
    )
    long_ago(first)
    cluster.tasks = tasks(jobs.node_names(jobs.prefix(first), 0, "n1")[1], State.RUNNING)
    for _ in range(2):
        two.available(second)
        assert two.gpus_left() == 8


@pytest.mark.parametrize("living", [True, False])
def test_a_run_whose_folder_cannot_be_read_holds_nobody_up(tmp_path: Path, living: bool) -> None:
    first, one = supervised(tmp_path, "one", 1)
    second, two = supervised(tmp_path, "two", 2)
    one.take(first, 0, WANTED)
    (tmp_path / "one").rmdir()
    (tmp_path / "one").symlink_to("one")  # ELOOP, as ESTALE or EIO of a server that is away
    if not living:
        long_ago(first)
    # What it was promised counts as long as it lives.
    assert two.available(second)[0] == ([] if living else [NODE])


def test_a_judge_waits_for_the_limit_of_gpus(tmp_path: Path) -> None:
    run, one = supervised(tmp_path, "one", 1, gpus=3)
    _, two = supervised(tmp_path, "two", 2, gpus=3)
    one.available(run)
    one.take(run, 0, [RoundNode(name="n1", gpu_type="h200", trials=2)])
    job = jobs.supervisor_job(run, RunDir(tmp_path), 1, time.time()).model_copy(update={"gpus": 1})
    assert two.has_room(job)
    assert not two.has_room(job.model_copy(update={"gpus": 2}))
    assert "limits.gpus = 3" in _why_waiting(RunDir(tmp_path / "two"))
    assert two.has_room(job)
    assert not RunDir(tmp_path / "two").waiting.exists()


def test_a_torn_promise_is_passed_over(tmp_path: Path) -> None:
    run, one = supervised(tmp_path, "one", 1)
    _files.write(other_runs.promise_file(run).with_name("torn.json"), "{")
    one.available(run)
    one.take(run, 0, WANTED)
    assert one.available(run)[0] == [NODE]
