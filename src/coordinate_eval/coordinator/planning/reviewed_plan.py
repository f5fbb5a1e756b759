"""Reviewed plans: `--plan FILE` submits exactly what a dry run printed, or nothing.

A plan carries the digest of its own content, so that a changed file is refused. The other checks
find what has changed around the plan. Estimates such as the bandwidth of a link or the start of an
engine are not compared, because they do not change what runs.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from coordinate_eval import _files, _format, _user_files
from coordinate_eval.clusters.protocol import Busy, Node
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.planning.places import nodes as select
from coordinate_eval.coordinator.planning.places.asked_nodes import asked, most_nodes
from coordinate_eval.coordinator.planning.places.degree import Demand
from coordinate_eval.coordinator.planning.plan import ChosenNodes, NodeCapacity, Plan
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.errors import UserError
from coordinate_eval.records import Checkpoint, Suite

_HOW_TO_MAKE = "`coordinate-eval run … --dry-run --json` prints one"


def sealed(plan: Plan) -> Plan:
    """Return a plan with the digest of its content."""
    return plan.model_copy(update={"digest": _digest(plan)})


def _digest(plan: Plan) -> str:
    content = plan.model_dump_json(by_alias=True, exclude={"digest"})
    return hashlib.sha256(content.encode()).hexdigest()


def read(path: Path) -> Plan:
    """Return the plan in a file."""
    text = _user_files.read_text(path, "plan")
    try:
        plan = Plan.model_validate_json(text)
    except ValidationError as error:
        where = "".join(f"{part}: " for part in error.errors()[0]["loc"])
        raise UserError(
            f"plan {path} is not a coordinate-eval/plan@1: {where}{_format.problem(error)}. "
            f"{_HOW_TO_MAKE}"
        ) from error
    if plan.digest != _digest(plan):
        raise UserError(
            f"plan {path} is not as a dry run of this version printed it: its digest does not "
            f"match its content. {_HOW_TO_MAKE}"
        )
    if plan.estimated:
        raise UserError(f"plan {path} is an estimate: make it again without --estimate")
    return plan


def check_same(
    plan: Plan, checkpoint: Checkpoint, suite: Suite, settings: Settings, max_length: int
) -> None:
    """Check that a plan is of this checkpoint, suite and settings.

    Raises:
        UserError: Something differs; names both values.
    """
    if plan.checkpoint.path != checkpoint.path:
        raise UserError(
            f"the plan is of checkpoint {plan.checkpoint.path}, not of {checkpoint.path}: "
            "leave out CKPT, or plan again"
        )
    if plan.checkpoint.identity != checkpoint.identity:
        raise UserError(
            f"checkpoint {checkpoint.path} has changed since the plan was made (names, sizes, "
            "times, or the bytes of small files; also --config, --tokenizer and --mapping): "
            "plan again"
        )
    if plan.suite.digest != suite.digest:
        raise UserError(
            f"the plan is of suite {plan.suite.name} {plan.suite.digest[:8]}, not of {suite.name} "
            f"{suite.digest[:8]}: give --suite and what narrows it as in the dry run, or plan "
            "again if it has changed"
        )
    for what, planned, now in (
        ("engine", plan.engine.name, settings.engine.name),
        ("engine.args", plan.engine.args, settings.engine.args),
        ("tokens of context (trial.max_length)", plan.max_length, max_length),
        ("metrics.cpus", plan.metric_cpus, settings.metrics.cpus),
        ("trial.tensor_parallel", plan.tensor_parallel, settings.trial.tensor_parallel),
    ):
        if planned != now and now is not None:
            raise UserError(
                f"the plan was made with {what} {json.dumps(planned)}, now it is "
                f"{json.dumps(now)}: give the options of the dry run, or plan again"
            )
    if others := {n.name for n in plan.nodes} - {n.name for n in asked(plan.nodes, settings.nodes)}:
        listed = ", ".join(sorted(others))
        raise UserError(f"--nodes {settings.nodes!r} does not allow the plan's nodes {listed}")
    seconds, deadline = plan.estimate.makespan_seconds, settings.deadline_seconds
    for limit, most, takes, what in (
        (f"--nodes {settings.nodes!r}", most_nodes(settings), len(plan.nodes), "nodes"),
        (f"--max-gpus {settings.max_gpus}", settings.max_gpus, plan.gpus, "GPUs"),
        (f"--deadline {deadline}", deadline, seconds, "seconds"),
    ):
        if most is not None and takes > most:
            raise UserError(f"{limit} allows {most:g} {what}, and the plan takes {takes:.0f}")


def check_datasets(plan: Plan, items: Mapping[str, int | None]) -> None:
    """Check that a plan's datasets are those that can be run, with these numbers of items.

    `items` has None where nothing is built yet.

    Raises:
        UserError: A dataset cannot be run, is not in the plan, or has other items.
    """
    planned = {cost.name: cost.items for cost in plan.datasets}
    for name in sorted(planned.keys() | items.keys()):
        if name not in items:
            why = "the suite cannot run it"
        elif name not in planned:
            why = "the plan does not have it"
        elif items[name] not in (None, planned[name]):
            why = f"the plan has {planned[name]:,} items, but {items[name]:,} were built"
        else:
            continue
        raise UserError(
            f"dataset {name}: {why}; plan again with --dry-run and without a cluster file"
        )


def check_run(plan: Plan, run_dir: RunDir) -> None:
    """Check that a run that exists already follows this plan.

    Raises:
        UserError: It follows another plan.
    """
    followed = run_dir.reviewed if run_dir.reviewed.exists() else run_dir.plan
    if _files.read_record_if_there(followed, Plan) != plan:
        raise UserError(
            f"run directory {run_dir.root} already has a run of another plan: continue it with "
            "`coordinate-eval resume`, or choose another --run-dir"
        )


def check_nodes(
    plan: Plan, demand: Demand, nodes: Sequence[Node], busy: Sequence[Busy]
) -> ChosenNodes:
    """Return the plan's nodes and the GPUs of one trial, if all of its trials can start now.

    Raises:
        UserError: A node is gone or lacks GPUs, cores or memory; says what each has now.
    """
    settings = demand.settings
    gib = select.keeper_gib(demand.checkpoint, settings, plan.nodes_per_trial)
    why = {node.name: node.why for node in busy}
    chosen, problems = list[NodeCapacity](), list[str]()
    for node in plan.nodes:
        trials = sum(node.name in (trial.node, *trial.nodes) for trial in plan.trials)
        kinds = {n.gpu_type: n for n in nodes if n.name == node.name}  # a node may have several
        now = kinds.get(node.gpu_type)
        if now is None:
            there = f"its GPUs are {', '.join(kinds)}, not {node.gpu_type}" if kinds else ""
            if node.name == select.QUEUED_NODE:
                there = "it was made with --queue, before its nodes were known"
            problems.append(f"{node.name}: {there or why.get(node.name, 'there is no such node')}")
            continue
        room = select.trials_on(now, settings, plan.tensor_parallel, gib)
        if room < trials:
            problems.append(
                f"{node.name}: {now.free_gpus} GPUs, {now.cpus} cores and {now.memory_gib:.1f} GiB "
                f"are free: room for {room} of its {trials} trials"
            )
        cpus = select.keeper_cpus(now, settings, trials, plan.tensor_parallel)
        chosen.append(NodeCapacity(**node.model_dump(), trials=trials, keeper_cpus=cpus))
    if problems:
        shown = "".join(f"\n  {problem}" for problem in problems[:20])
        more = f"\n  and {len(problems[20:])} more" if problems[20:] else ""
        raise UserError(f"the plan cannot start as it is:{shown}{more}\nplan again, or wait")
    if plan.nodes_per_trial > 1:
        on = {node.name: node for node in chosen}
        chosen = [select.joined([on[name] for name in trial.nodes]) for trial in plan.trials]
    return ChosenNodes(chosen, plan.gpus_per_trial, plan.nodes_per_trial)
