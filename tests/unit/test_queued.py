"""Runs whose trials stand in the scheduler's queue, and start where GPUs become free."""

import json
from dataclasses import replace
from functools import partial
from typing import NoReturn

import pytest
from tests.decisions import DIR, facts, make_run, submits, submitted, tasks
from tests.plan_examples import planned
from tests.plans import CHECKPOINT, changed
from tests.reviewer import NODES, FakeCluster, Reviewer, plan_now
from tests.tiny import tiny_model

from coordinate_eval.clusters.protocol import Busy, Hold, Node, State, Waits
from coordinate_eval.coordinator.cli.launch.dry_run import show_plan
from coordinate_eval.coordinator.cli.launch.run import start_run
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.planning.offer import offer_of_cluster
from coordinate_eval.coordinator.planning.places.nodes import NoFreeGpu
from coordinate_eval.coordinator.planning.plan_run import queued_nodes
from coordinate_eval.coordinator.prompts.request_cache import link_found
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.records import ANY_NODE, Round, RoundNode, read_run
from coordinate_eval.coordinator.run.rounds import read_rounds
from coordinate_eval.coordinator.supervisor.decide import decide
from coordinate_eval.coordinator.supervisor.gather import gather_facts
from coordinate_eval.coordinator.supervisor.placing.search import next_round
from coordinate_eval.coordinator.supervisor.placing.write_plan import (
    NothingFree,
    may_queue,
)
from coordinate_eval.coordinator.supervisor.values import Cancel, Submit
from coordinate_eval.errors import PlaceGone, UserError

FULL = [Busy(name=f"n{n}", why="in use", gpus=4, gpu_type="h200") for n in (1, 2)] + [
    Busy(name="old", why="in use", gpus=4, gpu_type="v100"),
    Busy(name="away", why="of another partition", gpus=64, gpu_type="b200", excluded=True),
]
RUN = make_run(settings=Settings(queue=True))
ANYWHERE = Round(
    number=0,
    created=0,
    nodes=[RoundNode(name=ANY_NODE, gpu_type="h200", trials=2)],
    minutes=30,
)
TRIALS = jobs.trials_name(RUN, 0, ANY_NODE)


def test_a_queued_run_is_planned_for_the_gpus_of_which_there_are_most(reviewer: Reviewer) -> None:
    reviewer.settings = reviewer.settings.model_copy(update={"queue": True, "max_gpus": 3})
    run_dir = reviewer.start()
    run, cluster = read_run(run_dir), reviewer.cluster
    link_found(run, run_dir)
    cluster.free, cluster.busy = [], FULL
    made = plan_now(run_dir, run, cluster)
    (round_,) = read_rounds(run_dir)
    (node,) = round_.nodes
    assert (node.name, node.gpu_type, node.trials) == (ANY_NODE, "h200", 3)
    assert made.gpu_type == "h200"


@pytest.mark.parametrize("queue", [False, True])
def test_a_dry_run_on_a_full_cluster_shows_the_plan_for_when_gpus_are_free(
    reviewer: Reviewer, capsys: pytest.CaptureFixture[str], queue: bool
) -> None:
    reviewer.settings = reviewer.settings.model_copy(update={"queue": queue, "max_gpus": 3})
    reviewer.cluster.free, reviewer.cluster.busy = [], FULL
    inputs = reviewer.inputs(tiny_model())
    show_plan(inputs, as_json=True)
    said = capsys.readouterr()
    assert "this plan is for when GPUs are free" in said.err
    assert ("use --queue to wait" in said.err) is not queue
    (node,) = json.loads(said.out)["nodes"]
    assert (node["name"], node["gpus"]) == (ANY_NODE, 3)
    show_plan(inputs)
    shown = " ".join(capsys.readouterr().out.split())
    assert "on 3 h200 GPUs of nodes that are not known yet" in shown
    assert "no GPU is free now: the plan assumes 3 trials" in shown
    if not queue:
        with pytest.raises(NoFreeGpu):
            start_run(inputs)


def test_it_waits_for_gpus_that_come_back_by_themselves(reviewer: Reviewer) -> None:
    down = [each.model_copy(update={"away": each.gpu_type == "h200"}) for each in FULL]
    run = read_run(reviewer.start())
    kinds = [queued_nodes(run, offer_of_cluster("slurm", ([], busy), run.settings, 0)).nodes[0]
             for busy in (FULL, down, down[:2])]  # fmt: skip
    assert [kind.gpu_type for kind in kinds] == ["h200", "v100", "h200"]


def test_it_waits_for_gpus_that_hold_its_model_of_which_there_may_be_fewer(
    reviewer: Reviewer,
) -> None:
    run = read_run(reviewer.start())
    fp8 = run.checkpoint.model_copy(update={"quantization": "fp8"})
    vllm = run.settings.engine.model_copy(update={"name": "vllm"})
    settings = run.settings.model_copy(update={"engine": vllm})
    run = run.model_copy(update={"checkpoint": fp8, "settings": settings})
    many = Busy(name="many", why="in use", gpus=64, gpu_type="v100")
    offer = offer_of_cluster("slurm", ([], [many, *FULL]), settings, 0)
    assert queued_nodes(run, offer).nodes[0].gpu_type == "h200"
    offer = offer_of_cluster("slurm", ([], [many]), settings, 0)
    with pytest.raises(UserError, match="v100"):
        queued_nodes(run, offer)


def free_gpus(count: int) -> Node:
    return Node(
        name="n1", gpus=8, free_gpus=count, gpu_type="h200", gpu_memory_gib=141, cpus=128,
        memory_gib=900,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "free", "most"),
    [
        ({"max_gpus": 4}, 1, 4),
        ({"max_gpus": 4}, 4, 0),  # it has what it would queue for
        ({"max_gpus": 1}, 1, 0),
        ({"max_gpus": 4, "queue": False}, 1, 0),  # it asked for what is free
        ({"max_gpus": 4, "nodes": "n1"}, 1, 0),
    ],
)
def test_a_run_that_begins_on_a_few_free_gpus_may_grow_to_what_it_would_queue_for(
    reviewer: Reviewer, changes: dict[str, object], free: int, most: int
) -> None:
    settings = {"queue": True, "restraint": 0.0, **changes}
    reviewer.settings = reviewer.settings.model_copy(update=settings)
    run_dir = reviewer.start()
    run, cluster = read_run(run_dir), reviewer.cluster
    link_found(run, run_dir)
    cluster.free, cluster.busy = [free_gpus(free)], FULL
    made = plan_now(run_dir, run, cluster)
    (round_,) = read_rounds(run_dir)
    trials = sum(node.trials for node in round_.nodes)
    assert trials == free
    assert round_.most_trials == most
    assert gather_facts(run_dir, made, [], 0.0, {}).most_trials == max(trials, most)


def test_a_queued_model_waits_while_the_gpus_of_the_nodes_in_use_are_not_known(
    reviewer: Reviewer,
) -> None:
    reviewer.settings = reviewer.settings.model_copy(update={"queue": True})
    run_dir = reviewer.start()
    run, cluster = read_run(run_dir), reviewer.cluster
    link_found(run, run_dir)
    large = changed(CHECKPOINT, bytes=14 * 10**10, parameters=7 * 10**10)
    run = run.model_copy(update={"checkpoint": large})
    cluster.free, cluster.busy = [], [Busy(name="n1", why="in use")]
    with pytest.raises(NothingFree):
        plan_now(run_dir, run, cluster)
    cluster.busy = [node.busy("promised to your run other") for node in NODES]
    assert plan_now(run_dir, run, cluster).tensor_parallel == 2


@pytest.mark.parametrize("changes", [{"nodes": "n1"}, {"queue": False}])
def test_who_names_nodes_or_does_not_wait_stands_in_no_queue(
    reviewer: Reviewer, changes: dict[str, object]
) -> None:
    reviewer.settings = changed(reviewer.settings, **({"queue": True} | changes))
    run_dir = reviewer.start()
    run, cluster = read_run(run_dir), reviewer.cluster
    link_found(run, run_dir)
    cluster.free, cluster.busy = [], FULL
    assert not may_queue(run, cluster)
    with pytest.raises(NothingFree):
        plan_now(run_dir, run, cluster)


@pytest.mark.parametrize(
    ("error", "expected"),
    [(UserError("Slurm takes no jobs now"), NothingFree), (PlaceGone("it ended"), PlaceGone)],
)
def test_a_partition_that_takes_no_jobs_is_waited_for_and_a_lost_reservation_is_not(
    reviewer: Reviewer, error: UserError, expected: type[Exception]
) -> None:
    run_dir = reviewer.start()
    run, cluster = read_run(run_dir), reviewer.cluster
    link_found(run, run_dir)

    def nodes() -> NoReturn:
        raise error

    cluster.nodes = nodes  # type: ignore[method-assign]
    with pytest.raises(expected, match=str(error)):
        plan_now(run_dir, run, cluster)


def test_whole_nodes_and_a_cluster_of_this_process_have_no_queue_to_stand_in() -> None:
    cluster = FakeCluster()
    assert may_queue(RUN, cluster)
    assert not may_queue(make_run(settings=Settings(queue=True), exclusive=True), cluster)
    cluster.local = True
    assert not may_queue(RUN, cluster)


def test_a_later_round_takes_what_is_free_before_it_queues() -> None:
    plan = planned()
    call = partial(next_round, RUN, plan, [ANYWHERE], RUN.shards, trials=len(plan.trials))
    free = Node(name="n3", gpus=4, free_gpus=4, gpu_type="h200", cpus=64, memory_gib=900)
    found = call(([free], FULL), 0, queue=True)
    assert [node.name for node in found.nodes] == ["n3"]
    found = call(([], FULL), 0, queue=True)
    (node,) = found.nodes
    assert node.anywhere
    assert node.gpu_type == RUN.gpu_type
    assert node.trials == min(len(RUN.shards), len(plan.trials))
    with pytest.raises(NoFreeGpu):
        call(([], FULL), 0)


def test_its_trials_are_pinned_nowhere_and_have_room_for_the_weights() -> None:
    known = facts(rounds=[ANYWHERE])
    (trials,) = (
        a.job for a in decide(RUN, DIR, known) if isinstance(a, Submit) and "_trial" in a.job.argv
    )
    pinned = jobs.trials_job(RUN, DIR, ANYWHERE, RoundNode(name="n1", gpu_type="h200", trials=2))
    assert submits(decide(RUN, DIR, known)) == [TRIALS]
    assert (trials.node, trials.count, trials.gpu_type) == (None, 2, "h200")
    assert trials.memory_mib >= pinned.memory_mib + jobs.keeper_gib(RUN) * 1024 - 1


def test_on_this_machine_pinned_trials_wait_for_their_turn_too() -> None:
    pinned = jobs.trials_name(RUN, 0, "n1")
    waits = [t.model_copy(update={"waits": Waits.TURN}) for t in tasks(pinned, State.PENDING)]
    elsewhere = facts(submitted=submitted(pinned, when=-1e6), tasks=waits)
    assert [a for a in decide(RUN, DIR, elsewhere) if isinstance(a, Cancel)]
    here = replace(elsewhere, cores=2)
    assert not [a for a in decide(RUN, DIR, here) if isinstance(a, Cancel)]


def test_it_stands_in_the_queue_for_as_long_as_it_waits_for_its_turn() -> None:
    waits = [
        t.model_copy(update={"waits": Waits.TURN}) for t in tasks(TRIALS, *[State.PENDING] * 2)
    ]
    late = facts(rounds=[ANYWHERE], submitted=submitted(TRIALS, when=-1e6), tasks=waits)
    assert not [a for a in decide(RUN, DIR, late) if isinstance(a, Cancel)]
    held = [
        *waits[:1],
        waits[1].model_copy(update={"held": Hold.LAUNCH, "reason": "requeued held"}),
    ]
    (cancel,) = (
        a
        for a in decide(RUN, DIR, facts(rounds=[ANYWHERE], submitted=late.submitted, tasks=held))
        if isinstance(a, Cancel)
    )
    assert cancel.job_ids == (f"{TRIALS}_1",)
    done = facts(
        rounds=[ANYWHERE], submitted=late.submitted, tasks=waits, unpublished=[], unscored=1
    )
    (cancel,) = (a for a in decide(RUN, DIR, done) if isinstance(a, Cancel))
    assert set(cancel.job_ids) == {f"{TRIALS}_0", f"{TRIALS}_1"}
