"""The plan of a run, and the records that follow from it.

`nodes_for` → nodes of an `Offer`; `plan_run` → `PlannedRun`. Nothing here writes a file or reads a
clock. A dry run takes these steps at once. In a run, the supervisor takes them. The steps before
are in `new_run`.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coordinate_eval._engines import kind_of
from coordinate_eval._format import duration
from coordinate_eval.coordinator.inputs.checkpoints import pipeline
from coordinate_eval.coordinator.inputs.settings import MOST_RESTRAINT, Settings
from coordinate_eval.coordinator.planning import planner, reviewed_plan, sizes
from coordinate_eval.coordinator.planning.context import Need, needs
from coordinate_eval.coordinator.planning.costs import (
    LINK_GIGABITS,
    conditions,
    engine_start_seconds,
    expected_works,
    storage_link,
    suite_costs,
)
from coordinate_eval.coordinator.planning.dealing import packing
from coordinate_eval.coordinator.planning.judging import Judging
from coordinate_eval.coordinator.planning.offer import Offer
from coordinate_eval.coordinator.planning.places import nodes as select
from coordinate_eval.coordinator.planning.places.asked_nodes import names_nodes
from coordinate_eval.coordinator.planning.places.degree import Demand
from coordinate_eval.coordinator.planning.places.degrees import tensor_degrees, whole_experts
from coordinate_eval.coordinator.planning.plan import (
    Capacity,
    ChosenNodes,
    Cost,
    NodeCapacity,
    Plan,
    PlanEngine,
    PlanSuite,
)
from coordinate_eval.coordinator.prompts.building import wall_seconds
from coordinate_eval.coordinator.report.warnings import own_answers
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.lease import leased
from coordinate_eval.coordinator.run.records import (
    JudgePlace,
    Round,
    RoundNode,
    Run,
    portion_seconds,
)
from coordinate_eval.coordinator.run.rounds import make_round
from coordinate_eval.errors import UserError
from coordinate_eval.priors import catalogue
from coordinate_eval.priors.roofline import Conditions
from coordinate_eval.priors.staging import Link
from coordinate_eval.records import Checkpoint, DatasetRequests, Shard, stages


@dataclass(frozen=True)
class PlannedRun:
    """A plan and the records that follow from it."""

    plan: Plan
    capacity: Capacity
    """The nodes that the plan could have used."""
    run: Run
    """With its plan."""
    round: Round
    """Round 0, on the nodes of the plan."""
    needs: Sequence[Need] = ()
    """Tokens of context that each dataset needs, most first."""
    unbuilt: Sequence[str] = ()
    """Datasets whose prompts are to be built before the plan begins."""
    own_answers: Sequence[str] = ()
    """Lines about datasets whose few-shot examples are evaluated items."""

    @property
    def queued(self) -> bool:
        """Return whether the plan is for nodes that are not known yet."""
        waits = any(node.name == select.QUEUED_NODE for node in self.capacity.nodes)
        return waits and not self.run.settings.engine.elsewhere


def nodes_for(run: Run, offer: Offer, reviewed: Plan | None = None) -> ChosenNodes:
    """Return the nodes that a run can use now, with GPUs of one type, and the GPUs of one trial.

    Raises:
        NoFreeGpu: No GPU is free now.
        UserError: Nothing can be placed, or the reviewed plan cannot start.
    """
    if reviewed is not None:
        reviewed_plan.check_datasets(reviewed, {d.name: None for d in run.suite.datasets})
        if not run.settings.engine.elsewhere:
            demand = _demand(run, offer)
            return reviewed_plan.check_nodes(reviewed, demand, offer.nodes, offer.busy)
    return select.choose_nodes(_demand(run, offer), offer.nodes, offer.busy)


def queued_nodes(run: Run, offer: Offer) -> ChosenNodes:
    """Return a stand-in for the nodes that a run will get which waits for a GPU."""
    return select.queued_nodes(_demand(run, offer), offer.nodes, offer.busy)


def _demand(run: Run, offer: Offer) -> Demand:
    return Demand(
        leased(run),
        run.settings,
        run.engine_context,
        expected_works(run.suite),
        # Other schedulers start no processes of one job on several nodes.
        over_nodes=offer.cluster == "slurm" and kind_of(run.settings.engine.name).over_nodes,
    )


def plan_run(
    run: Run,
    offer: Offer,
    chosen: ChosenNodes,
    built: Mapping[str, DatasetRequests],
    reviewed: Plan | None = None,
    *,
    judging: Judging | None = None,
    what_if: bool = False,
) -> PlannedRun:
    """Plan a run on the chosen nodes, or check that the reviewed plan is of its datasets.

    With `what_if` the plan tells what other numbers of nodes would come to.

    Raises:
        UserError: The reviewed plan is of other items, or nothing ends by the deadline or before
            all jobs have to end.
    """
    costs, capacity = _costs(run, offer, chosen, built, judging), _capacity(run, offer, chosen)
    unbuilt = [d for d in run.suite.datasets if d.task and d.name not in built]
    if offer.described is not None:
        unbuilt = []  # nobody knows what is in a cache there
    building = wall_seconds(unbuilt, run.settings.harness.jobs)
    if reviewed is not None:
        reviewed_plan.check_datasets(reviewed, {cost.name: cost.items for cost in costs})
        _check_ends(offer, building + reviewed.estimate.makespan_seconds)
        if any(cost.stages for cost in costs) != any(cost.stages for cost in reviewed.datasets):
            raise UserError(
                "--until-decided decides in which order a plan asks: give it as in the dry run, "
                "or plan again"
            )
        plan = reviewed
    else:
        new = _best_plan(run, offer, costs, capacity, judging, building, what_if=what_if)
        most = max(node.gpus for node in chosen.nodes)
        more: dict[str, Any] = {
            "build_seconds": building,
            "estimated": bool(unbuilt),
            "max_length": run.max_length,
            "context": run.context,
            "tensor_degrees": tensor_degrees(run.checkpoint, most),
            "expert_parallel": whole_experts(run.checkpoint, new.tensor_parallel),
        }
        plan = reviewed_plan.sealed(new.model_copy(update=more))
    run = with_plan(run, plan, built)
    return PlannedRun(
        plan,
        capacity,
        run,
        first_round(run, plan, offer.now, capacity.nodes),
        needs=needs(run, built),
        unbuilt=[dataset.name for dataset in unbuilt],
        own_answers=[
            line for name, index in built.items() for line in own_answers(name, index.own_answers)
        ],
    )


def _costs(
    run: Run,
    offer: Offer,
    chosen: ChosenNodes,
    built: Mapping[str, DatasetRequests],
    judging: Judging | None = None,
) -> list[Cost]:
    on, _, _ = rates(leased(run), run.settings, offer, chosen)
    costs = suite_costs(run.suite, on, built, offer.priors)
    seconds = judging.seconds if judging is not None else {}
    staged = _stages(run, costs, built) if run.against else {}
    return [
        c.model_copy(
            update={
                "judge_seconds": seconds.get(c.name, 0.0),
                "stages": staged.get(c.name, []),
            }
        )
        for c in costs
    ]


def _stages(
    run: Run, costs: Sequence[Cost], built: Mapping[str, DatasetRequests]
) -> dict[str, list[int]]:
    """Return the stages of the datasets that are asked in several: no judge rates them."""
    found = {}
    for dataset, cost in zip(run.suite.datasets, costs, strict=True):
        if cost.splittable and dataset.rubric is None:
            index = built.get(dataset.name)
            tasks = len(index.versions) if index is not None else catalogue.count_tasks(dataset)
            found[dataset.name] = stages(cost.items, tasks)
    return {name: ends for name, ends in found.items() if len(ends) > 1}


def rates(
    checkpoint: Checkpoint, settings: Settings, offer: Offer, chosen: ChosenNodes
) -> tuple[Conditions, float, Link]:
    """Return the conditions of an engine, the seconds of its start, and the storage bandwidth.

    The cluster file has the latter two where one stands in for a cluster, else the priors.
    """
    gpu_type, stages = chosen.nodes[0].gpu_type, chosen.nodes_per_trial
    each = max(1, chosen.gpus_per_trial // stages)
    on = conditions(checkpoint, settings.engine, gpu_type, each, stages)
    if settings.engine.elsewhere:
        return on, 0.0, Link(LINK_GIGABITS)
    if offer.described is not None:
        link = Link(offer.described.storage_gigabits_per_node)
        return on, offer.described.engine_start_seconds, link
    link = storage_link(offer.priors, on, checkpoint)
    return on, engine_start_seconds(offer.priors, on), link


def _capacity(run: Run, offer: Offer, chosen: ChosenNodes) -> Capacity:
    """Return the chosen nodes with their rates."""
    _, start, link = rates(leased(run), run.settings, offer, chosen)
    # Half of a trial's time limit is for what precedes a shard, and for predictions that are low.
    most = 60.0 * jobs.most_minutes(run, offer.now)
    return Capacity(
        nodes=chosen.nodes,
        gpus_per_trial=chosen.gpus_per_trial,
        nodes_per_trial=chosen.nodes_per_trial,
        node_bytes=max(pipeline.bytes_of_nodes(leased(run), chosen.nodes_per_trial)),
        engine_start_seconds=start,
        storage_gigabits_per_node=link.gigabits_per_node,
        storage_shared=link.shared,
        metric_cpus=offer.metric_cpus,
        exclusive=run.exclusive,
        longest_shard_seconds=max(most / 2 - start, most / 10),
    )


def with_plan(run: Run, plan: Plan, built: Mapping[str, DatasetRequests]) -> Run:
    """Return a run with its plan: the same for the same plan and requests."""
    costs = {cost.name: cost for cost in plan.datasets}
    shards = sorted(
        (shard for trial in plan.trials for shard in trial.shards),
        key=lambda s: (not s.signal, packing.stage_of(costs[s.dataset], s.start), -s.gpu_seconds),
    )
    # Built requests tell whether a metric asks questions; unbuilt ones do if it costs anything.
    costly = {job.dataset for job in plan.metric_jobs}
    rubrics = {dataset.name for dataset in run.suite.datasets if dataset.rubric is not None}
    asks = [
        cost.name
        for cost in plan.datasets
        if (built[cost.name].asks if cost.name in built else cost.name in costly | rubrics)
    ]
    judged = [n for n in asks if (built[n].judged if n in built else n in rubrics)]
    metric_seconds = sum(s.metric_cpu_seconds for s in shards if s.dataset in asks)
    staged = {c.name: c.stages for c in plan.datasets if c.stages and run.against}
    sampled = {name: costs[name].items for name in _sampled(run, plan, built)}
    for name in sampled:
        staged[name] = [*(staged.get(name) or [sampled[name]]), built[name].items]
        shards += _after_sample(costs[name], shards, built[name].items)
    return run.model_copy(
        update={
            "tensor_parallel": plan.tensor_parallel,
            "nodes_per_trial": plan.nodes_per_trial,
            "node_bytes": plan.stages[0].bytes if plan.nodes_per_trial > 1 else 0,
            "context": max(plan.context, run.context),
            "gpu_type": plan.nodes[0].gpu_type,
            "engine_start_seconds": plan.trials[0].setup_seconds,
            "copy_seconds": max((stage.seconds for stage in plan.stages), default=None),
            "stages": staged,
            "sampled": sampled,
            "asks": asks,
            "judged": judged,
            "shards": shards,
            "portion_seconds": portion_seconds(metric_seconds),
            "judge_seconds": plan.judge.end_seconds - plan.judge.begin_seconds if plan.judge else 0,
            "judge_place": _place_of_judge(plan),
            "score_seconds": {cost.name: cost.score_seconds for cost in plan.datasets},
        }
    )


def _sampled(run: Run, plan: Plan, built: Mapping[str, DatasetRequests]) -> list[str]:
    """Return the datasets of which a plan has a sample."""
    names = {dataset.name for dataset in run.suite.datasets if dataset.sample is not None}
    planned = (cost for cost in plan.datasets if cost.name in names & built.keys())
    return [cost.name for cost in planned if cost.items < built[cost.name].items]


def _after_sample(cost: Cost, shards: Sequence[Shard], items: int) -> list[Shard]:
    """Return shards of the items after a dataset's sample, as long as those of its sample.

    Args:
        cost: of the sample.
        shards: of the plan.
        items: of the whole dataset.
    """
    longest = max(shard.stop - shard.start for shard in shards if shard.dataset == cost.name)
    count = math.ceil((items - cost.items) / longest) if cost.splittable else 1
    rest = packing.Piece(0, cost.items, items)
    return [packing.shard_of(cost, piece) for piece in packing.in_parts(rest, count)]


def _place_of_judge(plan: Plan) -> JudgePlace:
    return JudgePlace.model_validate(plan.judge.model_dump()) if plan.judge else JudgePlace()


def first_round(run: Run, plan: Plan, now: float, nodes: Sequence[NodeCapacity] = ()) -> Round:
    """Return the round that starts the trials of a run's plan.

    `nodes` has the cores of keepers, as far as it is known which nodes the plan was made for.
    """
    trials = Counter(t.node for t in plan.trials)
    others = {t.node: t.nodes[1:] for t in plan.trials}
    cpus = {node.name: node.keeper_cpus for node in nodes}
    return make_round(
        run,
        0,
        now,
        [
            RoundNode(
                name=n.name,
                gpu_type=n.gpu_type,
                trials=trials[n.name],
                keeper_cpus=cpus.get(n.name, 1),
                others=others[n.name],
            )
            for n in plan.nodes
            if n.name in others
        ],
        [shard for trial in plan.trials for shard in trial.shards],
        ready_seconds=plan.ready_seconds,
        floor_seconds=plan.floor_seconds,
        planned_seconds=plan.estimate.makespan_seconds,
    )


def check_time(run: Run, offer: Offer, chosen: ChosenNodes, reviewed: Plan | None = None) -> None:
    """Check that a run can end in time, as far as that is known before its prompts are built.

    Raises:
        UserError: All jobs have to end before.
    """
    if reviewed is not None:
        _check_ends(offer, reviewed.estimate.makespan_seconds)
    elif all(catalogue.known_work(dataset) is not None for dataset in run.suite.datasets):
        costs, capacity = _costs(run, offer, chosen, {}), _capacity(run, offer, chosen)
        _check_ends(offer, planner.least_seconds(run.checkpoint, costs, capacity))


def _check_ends(offer: Offer, seconds: float) -> None:
    """Check that a plan of so many seconds ends before all jobs have to."""
    left = (offer.limits.until or math.inf) - offer.now
    if seconds > left:
        raise UserError(
            f"{offer.limits.until_why} in {duration(max(0.0, left))}, and the plan takes "
            f"{duration(seconds)}: no plan ends within that time"
        )


def _best_plan(
    run: Run,
    offer: Offer,
    costs: list[Cost],
    capacity: Capacity,
    judging: Judging | None,
    building: float,
    *,
    what_if: bool,
) -> Plan:
    """Plan these costs on as much of the capacity as is worth it.

    Raises:
        UserError: Nothing ends by the deadline, or before all jobs have to end.
    """
    checkpoint, suite, settings = run.checkpoint, run.suite, run.settings
    left = math.inf if offer.limits.until is None else offer.limits.until - offer.now
    latest = min(settings.deadline_seconds or math.inf, max(0.0, left - building))
    judge = judging.work if judging is not None else None
    beside = judging.beside(capacity.nodes[0].gpu_type) if judging is not None else 0

    def plan_on(part: Capacity) -> Plan:
        return planner.plan_on_capacity(
            checkpoint,
            PlanSuite(name=suite.name, digest=suite.digest),
            PlanEngine(name=settings.engine.name, args=settings.engine.args),
            costs,
            part,
            first_signal=settings.first_signal,
            judge=judge,
            spare_gpus=beside + (capacity.trials - part.trials) * capacity.gpus_per_trial,
            latest=latest,
        )

    try:
        if names_nodes(settings) and settings.restraint < MOST_RESTRAINT:
            chosen = plan_on(capacity)  # all nodes that the user names
            sizes.check_deadline(chosen, latest)
        else:
            chosen = sizes.plan_best_size(
                plan_on,
                lambda part: planner.least_seconds(checkpoint, costs, part),
                capacity,
                restraint=settings.restraint,
                latest=latest,
            )
    except UserError as error:
        if latest == settings.deadline_seconds:
            raise
        why = f"{offer.limits.until_why} in {duration(max(0.0, left))}"
        raise UserError(f"{why}: {error}") from error
    if what_if:
        return chosen.model_copy(update={"what_if": sizes.curve(plan_on, capacity, chosen)})
    return chosen
