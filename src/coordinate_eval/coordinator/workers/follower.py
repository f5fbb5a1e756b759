"""The other nodes of a trial on several nodes: each runs its part of the engine, and no more.

The first node's process claims and answers. Another node only has the weights of its layers in
memory, and computes. See `ranks`.
"""

import contextlib
import os
import signal

from coordinate_eval.clusters.protocol import NODE_VARIABLE, RANK_VARIABLE
from coordinate_eval.coordinator.incidents.causes import TrialErrors
from coordinate_eval.coordinator.run.claiming.claims import own_task
from coordinate_eval.coordinator.run.logs import own_log
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import ANY_NODE, read_run
from coordinate_eval.coordinator.run.rounds import nodes_of
from coordinate_eval.coordinator.workers.on_node.engine_cache import compiled_files
from coordinate_eval.coordinator.workers.on_node.keeper import Arrival
from coordinate_eval.coordinator.workers.on_node.staging import StagedWeights
from coordinate_eval.coordinator.workers.ranks import Finished, RankLost, Ranks
from coordinate_eval.coordinator.workers.signals import StopRequested, stop_on_signals
from coordinate_eval.evaluators.engines import base as engines


def nodes_and_rank(run_dir: RunDir, node: str, round_number: int) -> tuple[list[str], int]:
    """Return the nodes of this process's trial, which is named by `node`, and its place on them.

    Where the scheduler has chosen the nodes, those of other processes have no names here.
    """
    variables = os.environ.get(RANK_VARIABLE)
    if variables is None:
        here = os.environ.get(NODE_VARIABLE) or os.uname().nodename
        return [here if node == ANY_NODE else node], 0
    here, place = (os.environ[name] for name in variables.split())
    if node != ANY_NODE:
        names = nodes_of(run_dir, round_number, node).names
        return names, names.index(here)
    rank = int(place)
    names = [f"node {number} of the trial" for number in range(read_run(run_dir).nodes_per_trial)]
    names[rank] = here
    return names, rank


def run_follower(
    run_dir: RunDir, trial: str, nodes: list[str], rank: int, round_number: int, *, alone: bool
) -> int:
    """Run this node's part of a trial's engine until the first node has no more use for it.

    Return the exit status. Where it is `alone`, no keeper comes.
    """
    run, node = read_run(run_dir), nodes[rank]
    settings, part = run.settings, (rank, run.nodes_per_trial)
    stop_on_signals()
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # the first node's process ends in time
    weights = StagedWeights(settings.stage.folder, run.id, node, part)
    arrival = Arrival(run_dir, run, node, round_number, anywhere=alone)
    errors = TrialErrors(own_log(), settings)
    config = run_dir.model / "config.json"
    with weights.hold(), Ranks(run_dir, trial, own_task(), nodes) as ranks:
        try:
            ranks.join(rank, node)
            with compiled_files(run, config, lambda: False, part):
                with contextlib.suppress(Finished):
                    engine = engines.by_name(settings.engine.name)
                    engine.prepare(run.gpus_per_trial, settings.trial.cpus)
                    arrival.wait(weights)
                    across, more = ranks.wait_to_begin(rank)
                    what = engines.Loading(
                        weights.link(),
                        run.tensor_parallel,
                        run.engine_context,
                        **more,
                        across=across,
                    )
                    engine.follow(what)
                ranks.over()  # compiled files are kept after it
        except Finished:
            return 0
        except StopRequested:
            ranks.stop()
            return 0
        except RankLost as lost:
            print(lost, flush=True)
            return 1
        except Exception as error:
            ranks.fail(str(error), errors.why(error, engine_started=True))
            raise
    return 0
