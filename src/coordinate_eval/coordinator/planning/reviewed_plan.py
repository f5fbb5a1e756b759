"""Reviewed plans: `run --plan FILE` submits exactly what a dry run printed, or nothing.

The checks here find every change since the plan was printed. Each gives one message. Estimates
such as the bandwidth of a link or the start of an engine are not compared, because they do not
change what runs.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field, ValidationError

from coordinate_eval import _files, _format, _user_files
from coordinate_eval.clusters.protocol import Busy, Node
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.planning.contradictions import contradictions
from coordinate_eval.coordinator.planning.places import nodes as select
from coordinate_eval.coordinator.planning.places.asked_nodes import check_limits
from coordinate_eval.coordinator.planning.places.nodes import Demand
from coordinate_eval.coordinator.planning.plan import ChosenNodes, Cost, NodeCapacity, Plan
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.errors import UserError
from coordinate_eval.records import Checkpoint, Suite

SCHEMA = "coordinate-eval/plan@1"

_HOW_TO_MAKE = "`coordinate-eval run … --dry-run --json` prints one"


class PlanFile(Plan):
    """plan@1 with two settings that its run depends on; plans of other programs lack them."""

    metric_cpus: int | None = Field(default=None, ge=1, description="of all metric jobs together")
    max_length: int | None = Field(default=None, ge=1, description="tokens of context")

    @classmethod
    def of(cls, plan: Plan, *, metric_cpus: int, max_length: int) -> "PlanFile":
        """Return a plan in the form that is printed and kept."""
        more = {"metric_cpus": metric_cpus, "max_length": max_length}
        return cls.model_validate(plan.model_dump(by_alias=True) | more)


def read(path: Path) -> PlanFile:
    """Return the plan in a file.

    Raises:
        UserError: The file is missing, is not a plan@1, or contradicts itself.
    """
    text = _user_files.read_text(path, "plan")
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"plan {path} is not JSON: {error}. {_HOW_TO_MAKE}") from error
    schema = tree.get("schema") if isinstance(tree, dict) else None
    if schema != SCHEMA:
        what = f"its schema is {schema!r}" if schema else "it has no schema"
        raise UserError(f"plan {path} is not a {SCHEMA}: {what}. {_HOW_TO_MAKE}")
    try:
        plan = PlanFile.model_validate(tree)
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise UserError(
            f"plan {path}: {where}: {_format.problem(error)}. {_HOW_TO_MAKE}"
        ) from error
    if plan.estimated:
        raise UserError(f"plan {path} is an estimate: make it again without --estimate")
    for problem in contradictions(plan):
        raise UserError(f"plan {path}: {problem}. {_HOW_TO_MAKE}")
    return plan


def check_same(
    plan: PlanFile, checkpoint: Checkpoint, suite: Suite, settings: Settings, max_length: int
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
            "times, or the bytes of small files; also --config and --tokenizer): plan again"
        )
    if plan.suite.digest != suite.digest:
        raise UserError(
            f"the plan is of suite {plan.suite.name} {plan.suite.digest[:8]}, not of {suite.name} "
            f"{suite.digest[:8]}: give --suite and what narrows it as in the dry run, or plan "
            "again if it has changed"
        )
    cores = max((job.cpus for job in plan.metric_jobs), default=1)
    for what, planned, now in (
        ("engine", plan.engine.name, settings.engine.name),
        ("engine.args", plan.engine.args, settings.engine.args),
        ("tokens of context (trial.max_length)", plan.max_length, max_length),
        ("metrics.cpus", plan.metric_cpus, settings.metrics.cpus),
        ("trial.tensor_parallel", plan.gpus_per_trial, settings.trial.tensor_parallel),
    ):
        if planned != now and planned is not None and now is not None:
            raise UserError(
                f"the plan was made with {what} {json.dumps(planned)}, now it is "
                f"{json.dumps(now)}: give the options of the dry run, or plan again"
            )
    if cores > settings.metrics.cpus:
        raise UserError(
            f"the plan has metric jobs of {cores} cores, metrics.cpus is {settings.metrics.cpus}: "
            "give the options of the dry run, or plan again"
        )
    seconds, deadline = plan.estimate.makespan_seconds, settings.deadline_seconds
    if deadline is not None and seconds > deadline:
        raise UserError(f"the plan takes {seconds:.0f} s, --deadline allows {deadline:g} s")
    check_limits(settings, {node.name for node in plan.nodes}, plan.gpus)


def check_datasets(plan: Plan, suite: Suite) -> None:
    """Check that its datasets are those of a suite of which all can be run.

    Raises:
        UserError: A dataset is not in the suite, or not in the plan.
    """
    planned = {cost.name for cost in plan.datasets}
    for name in sorted(planned ^ {dataset.name for dataset in suite.datasets}):
        why = "the suite cannot run it" if name in planned else "the plan does not have it"
        raise UserError(
            f"dataset {name}: {why}; plan again with --dry-run and without a cluster file"
        )


def check_items(plan: Plan, costs: Sequence[Cost]) -> None:
    """Check that its datasets have as many items as the built requests, which gave the costs.

    Raises:
        UserError: A dataset has other items.
    """
    planned = {cost.name: cost.items for cost in plan.datasets}
    built = {cost.name: cost.items for cost in costs}
    for name, items in planned.items():
        if items != built[name]:
            raise UserError(
                f"the plan has {items:,} items of dataset {name}, but {built[name]:,} were built: "
                "plan again with --dry-run and without a cluster file, so that items are counted"
            )


def check_run(plan: PlanFile, run_dir: RunDir) -> None:
    """Check that a run that exists already follows this plan.

    Raises:
        UserError: It follows another plan.
    """
    followed = run_dir.reviewed if run_dir.reviewed.exists() else run_dir.plan
    if _files.read_record_if_there(followed, PlanFile) != plan:
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
    gib = select.keeper_gib(demand.checkpoint, settings)
    live = {node.name: node for node in nodes}
    live |= {n.name: n for n in nodes if n.gpu_type in {p.gpu_type for p in plan.nodes}}
    why = {node.name: node.why for node in busy}
    problems = []
    chosen = []
    for node in plan.nodes:
        trials = sum(1 for trial in plan.trials if trial.node == node.name)
        now = live.get(node.name)
        cpus = select.keeper_cpus(now, settings, trials, plan.gpus_per_trial) if now else 1
        chosen.append(NodeCapacity(**node.model_dump(), trials=trials, keeper_cpus=cpus))
        if node.name == select.QUEUED_NODE and now is None:
            problems.append("it was made with --queue, before its nodes were known")
        elif now is None:
            problems.append(f"{node.name}: {why.get(node.name, 'there is no such node now')}")
        elif now.gpu_type != node.gpu_type:
            problems.append(f"{node.name}: its GPUs are {now.gpu_type}, not {node.gpu_type}")
        elif select.trials_on(now, settings, plan.gpus_per_trial, gib) < trials:
            problems.append(_lacks(now, trials, plan.gpus_per_trial, settings, gib))
    if problems:
        shown = "".join(f"\n  {problem}" for problem in problems[:20])
        more = f"\n  and {len(problems[20:])} more" if problems[20:] else ""
        raise UserError(f"the plan cannot start as it is:{shown}{more}\nplan again, or wait")
    kinds = {node.gpu_type for node in plan.nodes}
    if len(kinds) > 1:
        raise UserError(f"the plan has GPUs of {len(kinds)} types: {', '.join(sorted(kinds))}")
    alike = [live[node.name] for node in plan.nodes]
    needed = select.gpus_per_trial(demand, alike)
    if needed != plan.gpus_per_trial:
        raise UserError(
            f"the plan has {plan.gpus_per_trial} GPUs a trial, but on its nodes the checkpoint "
            f"takes {needed}: plan again, or set [trial] tensor_parallel for both"
        )
    return ChosenNodes(chosen, plan.gpus_per_trial)


def _lacks(node: Node, trials: int, gpus: int, settings: Settings, gib: float) -> str:
    trial, all_gpus = settings.trial, trials * gpus
    cpus = trials * node.cpus_of(trial.cpus * gpus, trial.memory_gib * gpus)
    return (
        f"{node.name}: {node.free_gpus} GPUs, {node.cpus} cores and {node.memory_gib:.1f} GiB are "
        f"free; {trials} trials and the weights take {all_gpus} GPUs, "
        f"{cpus + node.cpus_of(select.LEAST_KEEPER_CPUS, gib)} cores and "
        f"{all_gpus * trial.memory_gib + gib:.1f} GiB"
    )
