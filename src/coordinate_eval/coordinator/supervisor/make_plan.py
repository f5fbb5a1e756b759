"""The plan of a run: made by its supervisor once all requests are built, and written once.

`plan.json` comes first, and the first one stays; all else follows from it and the requests. So a
supervisor that is killed here, or two at the same time, leave one plan. `planned.json` comes last.
"""

from collections.abc import Mapping, Sequence

from coordinate_eval import _files
from coordinate_eval.cluster import Cluster
from coordinate_eval.coordinator.planning.plan import NodeCapacity
from coordinate_eval.coordinator.planning.prepare import (
    Prepared,
    choose_nodes,
    first_round,
    offer_of_cluster,
    prepare,
    with_plan,
)
from coordinate_eval.coordinator.planning.reviewed_plan import PlanFile
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, read_run, write_planned
from coordinate_eval.errors import UserError
from coordinate_eval.records import DatasetRequests


class NothingFree(Exception):
    """The run cannot be placed now; waiting may help. The text says why."""


def make_plan(run_dir: RunDir, run: Run, cluster: Cluster) -> Run:
    """Plan a run on the nodes that are free now, and write what follows from the plan.

    Raises:
        NothingFree: No node can be used now.
        UserError: The plan that the user gave cannot start, or nothing ends by the deadline.
    """
    built = {
        dataset.name: _files.read_record(run_dir.requests_index(dataset.name), DatasetRequests)
        for dataset in run.suite.datasets
    }
    nodes: Sequence[NodeCapacity] = ()
    if not run_dir.plan.exists():
        made = _new_plan(run_dir, run, cluster, built)
        nodes = made.capacity.nodes
        _files.create(run_dir.plan, made.plan.model_dump_json(by_alias=True, indent=1) + "\n")
    plan = _files.read_record(run_dir.plan, PlanFile)
    planned = with_plan(run, plan, built)
    round_ = first_round(planned, plan, nodes)
    _files.create(run_dir.round(0), round_.model_dump_json(by_alias=True, indent=1) + "\n")
    write_planned(run_dir, planned)
    return read_run(run_dir)


def _new_plan(
    run_dir: RunDir, run: Run, cluster: Cluster, built: Mapping[str, DatasetRequests]
) -> Prepared:
    reviewed = _files.read_record_if_there(run_dir.reviewed, PlanFile)
    offer = offer_of_cluster(cluster.name, cluster.nodes(), run.settings, exclusive=run.exclusive)
    try:
        chosen = choose_nodes(run, offer, reviewed)
    except UserError as error:
        if reviewed is not None:
            raise
        raise NothingFree(str(error).splitlines()[0]) from error
    return prepare(run, offer, chosen, built, reviewed)
