"""The plan of a run: made by its supervisor once all requests are built, and written once.

The first `plan.json` stays, and `planned.json` comes last. A plan's round 0 lies beside it before,
under the plan's digest; all else follows from the plan and the requests. So supervisors that are
killed here, and two at the same time, leave one plan with its own round.
"""

import contextlib
from collections.abc import Mapping, Sequence

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import Cluster
from coordinate_eval.coordinator.planning.context import with_context
from coordinate_eval.coordinator.planning.judge_plan import JudgeUnusable, judge_of, plan_judge
from coordinate_eval.coordinator.planning.judging import Judging
from coordinate_eval.coordinator.planning.offer import Offer, offer_of_cluster
from coordinate_eval.coordinator.planning.places.asked_nodes import names_nodes
from coordinate_eval.coordinator.planning.places.nodes import NoFreeGpu
from coordinate_eval.coordinator.planning.plan import ChosenNodes, Plan
from coordinate_eval.coordinator.planning.plan_run import (
    PlannedRun,
    first_round,
    nodes_for,
    plan_run,
    queued_nodes,
    with_plan,
)
from coordinate_eval.coordinator.run.claiming.decided import sample
from coordinate_eval.coordinator.run.claiming.work import unbuildable
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Round, Run, read_run, write_planned
from coordinate_eval.coordinator.supervisor.placing.other_runs import OtherRuns
from coordinate_eval.coordinator.supervisor.placing.promises import NoRoom
from coordinate_eval.errors import PlaceGone, UserError
from coordinate_eval.records import Dataset, DatasetRequests


class NothingFree(Exception):
    """The run cannot be placed now; waiting may help. The text says why."""


def write_plan(run_dir: RunDir, run: Run, cluster: Cluster, now: float, others: OtherRuns) -> Run:
    """Plan a run on the nodes that are free now, and write what follows from the plan.

    Datasets that the plan is made without get an error in place of results: their requests cannot
    be built, or their judge cannot be used. `others` are the user's other runs, which leave room
    for it.

    Raises:
        NothingFree: No node can be used now.
        NoRoom: The user's other runs or the limits leave no room now.
        UserError: The plan that the user gave cannot start, nothing ends by the deadline, or the
            judge's checkpoint cannot be used.
    """
    lost = unbuildable(run_dir)
    left = [dataset for dataset in run.suite.datasets if dataset.name not in lost]
    built = {
        dataset.name: _files.read_record(run_dir.requests_index(dataset.name), DatasetRequests)
        for dataset in left
    }
    for name in lost:
        _files.write(
            run_dir.dataset_error(name), _files.read(run_dir.requests_error(name)).decode()
        )
    run = run.model_copy(update={"suite": run.suite.model_copy(update={"datasets": left})})
    run = run.model_copy(update={"limits": cluster.limits()})  # they may have changed
    run = with_context(run, built)
    said = ""
    if not run_dir.plan.exists():
        offer = _offer(run, cluster, now, others)
        reviewed = _files.read_record_if_there(run_dir.reviewed, Plan)
        run, judging, said = _with_judging(run, offer, built)
        part = {dataset.name: built[dataset.name] for dataset in run.suite.datasets}
        kept = _free_or_queued(run, offer, cluster, others, reviewed)
        made = plan_run(run, offer, kept, part, reviewed, judging=judging)
        round_ = made.round
        if reviewed is None and may_queue(run, cluster):
            most = _most_trials(run, offer, made, part)
            round_ = round_.model_copy(update={"most_trials": most})
        others.take(made.run, 0, round_.nodes)
        _files.write_record(run_dir.first_round(made.plan.digest), round_)
        _files.create_record(run_dir.plan, made.plan)
    plan = _files.read_record(run_dir.plan, Plan)
    _say_left_out(run_dir, run, left, plan, said)
    planned = with_plan(run, plan, built)
    path = run_dir.first_round(plan.digest)
    round_ = _files.read_record_if_there(path, Round) or first_round(planned, plan, now)
    _files.create_record(run_dir.round(0), round_)
    if (sampled := sample(planned, built)) is not None:
        _files.create_record(run_dir.sample, sampled)
    write_planned(run_dir, planned)
    path.unlink(missing_ok=True)
    return read_run(run_dir)


def _offer(run: Run, cluster: Cluster, now: float, others: OtherRuns) -> Offer:
    """Return what the cluster has now, less what other runs were promised.

    Raises:
        NothingFree: It takes no jobs now.
    """
    try:
        available = others.available(run)
    except PlaceGone:
        raise
    except UserError as error:  # such as a partition that takes no jobs now
        raise NothingFree(str(error).splitlines()[0]) from error
    return offer_of_cluster(
        cluster.name, available, run.settings, now, exclusive=run.exclusive, limits=run.limits
    )


def _free_or_queued(
    run: Run, offer: Offer, cluster: Cluster, others: OtherRuns, reviewed: Plan | None
) -> ChosenNodes:
    """Return the nodes to plan on: free ones, else a stand-in for a run that may queue.

    Raises:
        NothingFree: No node can be used now.
        NoRoom: The user's other runs or the limits leave no room now.
        UserError: The reviewed plan cannot start.
    """
    try:
        try:
            chosen = nodes_for(run, offer, reviewed)
        except NoFreeGpu:
            if reviewed is not None or not may_queue(run, cluster):
                raise
            chosen = queued_nodes(run, offer)
    except UserError as error:  # what is busy or away now says nothing of later
        if reviewed is not None:
            raise
        raise NothingFree(str(error).splitlines()[0]) from error
    kept = chosen._replace(nodes=others.within(chosen.nodes, chosen.gpus_per_trial))
    if reviewed is not None and kept != chosen:
        raise NoRoom("your other runs leave too little of your limits for the reviewed plan")
    return kept


def _most_trials(
    run: Run, offer: Offer, made: PlannedRun, built: Mapping[str, DatasetRequests]
) -> int:
    """Return the trials of a run that may wait for more GPUs than are free; 0 if it needs no more.

    A run that takes whatever is free, and less than one that finds nothing and stands in the
    queue, may have as many trials as that one later.
    """
    free = made.capacity.trials
    if len(made.plan.trials) < free:
        return 0
    with contextlib.suppress(UserError):  # what there is most of suits this model less
        queued = queued_nodes(run, offer)
        [stand_in] = queued.nodes
        kind = stand_in.gpu_type, queued.gpus_per_trial
        if kind == (made.run.gpu_type, made.run.gpus_per_trial) and stand_in.trials > free:
            return len(plan_run(run, offer, queued, built).plan.trials)
    return 0


def _with_judging(
    run: Run, offer: Offer, built: Mapping[str, DatasetRequests]
) -> tuple[Run, Judging | None, str]:
    """Return the run, what its judge will take, and why it is without the datasets that it rates.

    If the judge's checkpoint cannot be used, a run that is not strict is planned without these
    datasets, if others are there.

    Raises:
        NothingFree: The cluster has no GPUs for the judge now.
    """
    try:
        return run, plan_judge(run, offer, built), ""
    except JudgeUnusable as error:
        others = [dataset for dataset in run.suite.datasets if dataset.rubric is None]
        said = f"the judge cannot be used: {error}"
        if run.strict or not others:
            raise UserError(said) from error
        suite = run.suite.model_copy(update={"datasets": others})
        return run.model_copy(update={"suite": suite}), None, said
    except UserError as error:
        raise NothingFree(f"no place for the judge: {str(error).splitlines()[0]}") from error


def _say_left_out(
    run_dir: RunDir, run: Run, datasets: Sequence[Dataset], plan: Plan, said: str
) -> None:
    """Write an error for each of these datasets that the plan is made without.

    `said` is why the judge could not be used. Where another supervisor made the plan, it is not
    known, and the judge's checkpoint is looked at again.
    """
    planned = {cost.name for cost in plan.datasets}
    out = [dataset for dataset in datasets if dataset.name not in planned]
    if not said and any(dataset.rubric is not None for dataset in out):
        try:
            judge_of(run)
        except UserError as error:
            said = f"the judge cannot be used: {error}"
    for dataset in out:
        why = said if dataset.rubric is not None else ""
        why = why or "the run was planned without this dataset, which could not be used then"
        _files.write(run_dir.dataset_error(dataset.name), f"{why}\n")


def may_queue(run: Run, cluster: Cluster) -> bool:
    """Return whether a run's trials may stand in the queue, and start on any node."""
    alike = not run.exclusive and not names_nodes(run.settings)
    return run.settings.queue and alike and not cluster.local
