"""Hidden commands: the program's own jobs are started by them, never typed."""

import argparse
import inspect
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from coordinate_eval.coordinator.cli import process
from coordinate_eval.coordinator.cli.streams import printable_output
from coordinate_eval.coordinator.inputs.checkpoints import store
from coordinate_eval.coordinator.run.own import check_there, enter
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.workers.signals import end_with_parent_if_asked, signs_of_life
from coordinate_eval.errors import CoordinateError


def main() -> None:
    """Run the command of a job. Another word may be a checkpoint, as for people."""
    if sys.argv[1] in COMMANDS:
        store.be_patient()
        process.run(lambda args: sys.exit(call(args)), job=True)
    else:
        from coordinate_eval.coordinator.cli import app

        app.main()


def call(args: list[str]) -> int | None:
    """Call the command that the first word names, with the others; return its exit status."""
    command = COMMANDS[args[0]]
    parser = argparse.ArgumentParser(args[0], description=command.__doc__)
    for name, parameter in inspect.signature(command).parameters.items():
        kind, default = parameter.annotation, parameter.default
        if default is parameter.empty:
            parser.add_argument(name, type=Path if kind is RunDir else kind)
        else:
            option = f"--{name.removesuffix('_number')}"
            parser.add_argument(option, dest=name, type=kind, default=default)
    given = vars(parser.parse_args(args[1:]))
    end_with_parent_if_asked()
    root = given.pop("run_dir", None)
    return command(**given) if root is None else _in_run(command, root, **given)


def _in_run(command: Callable[..., int | None], root: Path, **given: object) -> int | None:
    """Call a command in a run directory, so that a person can print its log on a terminal.

    Where its run is removed meanwhile, the log ends with that, whatever failed first.
    """
    with printable_output():
        try:
            return command(enter(root), **given)
        except (OSError, CoordinateError):
            check_there(RunDir(root))
            raise


def supervise(run_dir: RunDir, minutes: int = 0) -> int:
    """Supervise a run as a job of the cluster; 0 minutes mean no time limit."""
    from coordinate_eval.clusters.protocol import STARTED_VARIABLE, TASK_VARIABLE
    from coordinate_eval.coordinator.cli.launch.spooled import Taker
    from coordinate_eval.coordinator.display.run_page import write_report
    from coordinate_eval.coordinator.inputs import clusters
    from coordinate_eval.coordinator.report.results import is_done
    from coordinate_eval.coordinator.run.records import read_run
    from coordinate_eval.coordinator.run.starting.create import hand_over
    from coordinate_eval.coordinator.run.supervision import why_no_job_is_found
    from coordinate_eval.coordinator.supervisor import ending
    from coordinate_eval.coordinator.supervisor.after_run import AfterRun
    from coordinate_eval.coordinator.supervisor.loop import Supervisor
    from coordinate_eval.errors import NotFromHere

    run = read_run(run_dir)
    log = _Log()
    if why := clusters.why_not_from_here(run.cluster):
        log.note(hand_over(run_dir, why))
        return 0
    # The job's script starts a killed supervisor again, within the same time limit.
    began = float(os.environ.get(STARTED_VARIABLE) or time.time())
    limit = minutes - (time.time() - began) / 60 if minutes else float("inf")
    after_run = AfterRun(run_dir, run)
    task = os.environ.get(TASK_VARIABLE, "").rpartition(".")[0]

    def report(results: dict[str, Any]) -> None:
        log.note(write_report(run_dir, results))
        after_run.begin()

    def ended(results: dict[str, Any]) -> None:
        report(results)
        log.note("waiting for jobs to end and free their nodes")

    taker = Taker(run_dir, run)
    with after_run, taker, clusters.by_name(run.cluster, run.settings) as cluster:
        if why := why_no_job_is_found(run, cluster, task):
            log.note(why)
            report(ending.write_results(run_dir, run, cluster, why, log.note))
            log.note(after_run.wait())
            return 1
        supervisor = Supervisor(
            run_dir,
            cluster,
            minutes=limit,
            show=lambda _: taker.look(),
            tell=log.note,
            ended=ended,
            note=log.note,
        )
        # Slurm warns of preemption as well as of the time limit.
        signal.signal(signal.SIGUSR1, lambda *_: supervisor.leave_soon())
        try:
            results = supervisor.run()
        except NotFromHere as error:
            log.note(hand_over(run_dir, f"sbatch takes nothing from this node ({error})"))
            return 0
        log.note(after_run.wait())
    return 0 if results is None or is_done(results) else 1


def tell_alarms(run_dir: RunDir) -> int:
    """Tell people of the alarms of a run's training that they do not know."""
    from coordinate_eval.coordinator.cli.inquire.alarms import tell_alarms as tell
    from coordinate_eval.coordinator.history.telling import TURN_SECONDS
    from coordinate_eval.coordinator.inputs.checkpoints.saved import training_of
    from coordinate_eval.coordinator.run.records import read_run

    run = read_run(run_dir)
    wrong = tell(run.settings, training_of(run.checkpoint.path), patience=TURN_SECONDS)
    for line in wrong:
        print(line, flush=True)
    return int(bool(wrong))


def submit(run_dir: RunDir) -> None:
    """Submit what waits in the spool beside a run, for its supervisor."""
    from coordinate_eval.coordinator.cli.launch.spooled import submit_waiting
    from coordinate_eval.coordinator.run.records import read_run

    submit_waiting(read_run(run_dir).settings)


def keep(run_dir: RunDir, node: str, round_number: int = 0, minutes: int = 60) -> int:
    """Hold the weights in a node's memory."""
    from coordinate_eval.coordinator.workers.on_node.keeper import run_keeper

    return run_keeper(run_dir, node, round_number, minutes)


def sweep(run_dir: RunDir) -> None:
    """Remove what killed processes left in this node's memory."""
    from coordinate_eval.coordinator.run.records import read_run
    from coordinate_eval.coordinator.workers.on_node import node_memory

    root = read_run(run_dir).settings.stage.folder
    for folder in node_memory.remove_abandoned(node_memory.user_folder(root)):
        print(f"removed {folder}")


def trial(
    run_dir: RunDir, node: str, round_number: int = 0, minutes: int = 60, keeps: int = 0
) -> int:
    """Run one engine on its GPUs. With `keeps`, no keeper copies the weights for it."""
    from coordinate_eval.coordinator.workers.trial import run_trial

    return run_trial(run_dir, node, round_number, minutes, keeps=bool(keeps))


def node(
    run_dir: RunDir, node: str, round_number: int = 0, minutes: int = 60, trials: int = 1
) -> int:
    """Run keeper and trials of a node that is given out whole."""
    from coordinate_eval.coordinator.workers.on_node.whole_node import run_node

    return run_node(run_dir, node, round_number, minutes, trials)


def build(run_dir: RunDir) -> int:
    """Build requests that a run misses."""
    with signs_of_life(run_dir):
        from coordinate_eval.coordinator.workers.builder import run_builder

        return run_builder(run_dir)


def metric(run_dir: RunDir) -> int:
    """Answer questions of metrics."""
    from coordinate_eval.evaluators.sandbox.inside import show

    # Where nothing confines programs, they share this process's user.
    show(False)
    with signs_of_life(run_dir):
        from coordinate_eval.coordinator.workers.metric import run_metric

        return run_metric(run_dir)


def judge(run_dir: RunDir) -> int:
    """Ask the judge what metrics want to know."""
    with signs_of_life(run_dir):
        from coordinate_eval.coordinator.workers.judging.judge import run_judge

        return run_judge(run_dir)


def serve(run_dir: RunDir, model: Path, socket: Path) -> None:
    """Serve the checkpoint that judges, for the job that asks it."""
    from coordinate_eval.coordinator.workers.judging.own_server import serve

    serve(run_dir, model, socket)


def score(run_dir: RunDir) -> int:
    """Score datasets as their responses and answers come."""
    with signs_of_life(run_dir):
        from coordinate_eval.coordinator.workers.scorer import run_scorer

        return run_scorer(run_dir)


def examine(folder: Path, name: str, role: str) -> None:
    """Examine this node for `coordinate-eval doctor`."""
    from coordinate_eval.coordinator.doctor.findings import Role
    from coordinate_eval.coordinator.doctor.in_jobs import answer

    answer(folder, name, Role(role))


def gather(folder: Path, world: str, node: str) -> None:
    """Take part in a world of `coordinate-eval doctor --nodes`."""
    from coordinate_eval.coordinator.doctor import gather as nodes_part

    nodes_part.gather(folder, world, node)


def guard(run_dir: RunDir) -> None:
    """Say on stdout, as a line of JSON, why the tensors of a run's checkpoint are refused."""
    import json

    from coordinate_eval.coordinator.inputs.checkpoints import guard as guards
    from coordinate_eval.coordinator.inputs.checkpoints import reading
    from coordinate_eval.coordinator.run import lease
    from coordinate_eval.coordinator.run.records import read_run

    run = read_run(run_dir)
    checkpoint = lease.leased(run)
    cache = Path(run.settings.cache_dir).expanduser()
    found = guards.judge(checkpoint, reading.source(checkpoint), cache)
    sys.stdout.write(f"{json.dumps(found.why)}\n")


def guard_training(folder: Path, minutes: int = 0) -> int:
    """Guard a training as a job of the cluster; 0 minutes mean no time limit."""
    from coordinate_eval.clusters.protocol import STARTED_VARIABLE
    from coordinate_eval.coordinator.inputs import clusters
    from coordinate_eval.coordinator.training.guarding.guard_job import (
        open_guard,
        read_guarded,
        run_guard,
    )

    guard_dir = open_guard(folder)
    began = float(os.environ.get(STARTED_VARIABLE) or time.time())
    limit = minutes - (time.time() - began) / 60 if minutes else float("inf")
    settings = read_guarded(guard_dir).settings

    def leave_when_warned(leave: Callable[[], None]) -> None:
        signal.signal(signal.SIGUSR1, lambda *_: leave())

    with printable_output(), clusters.by_name("slurm", settings) as cluster:
        over = run_guard(guard_dir, cluster, _Log().note, minutes=limit, asked=leave_when_warned)
    return 0 if over is None or over.complete else 1


def examine_checkpoint(path: Path) -> None:
    """Say on stdout, as a line of JSON, whether a training can begin from a checkpoint."""
    from coordinate_eval.coordinator.training.guarding.healthy import examine as examine_path

    sys.stdout.write(examine_path(path).line())


def test_nodes(folder: Path, nodes: str, partition: str = "") -> int:
    """Test nodes in pairs, for a guard whose job has failed on them."""
    from coordinate_eval.coordinator.cli.upkeep.doctor import find_bad_nodes
    from coordinate_eval.coordinator.training.guarding.guard_job import open_guard, read_guarded

    settings = read_guarded(open_guard(folder)).settings
    if partition:
        slurm = settings.slurm.model_copy(update={"partition": partition})
        settings = settings.model_copy(update={"slurm": slurm})
    return find_bad_nodes(settings, nodes, as_json=True)


def evaluate(folder: Path, checkpoint: Path, run: Path) -> int:
    """Submit the run of a checkpoint to which a guard may go back, on GPUs that are free now."""
    from coordinate_eval.coordinator.cli.launch.run import start_run
    from coordinate_eval.coordinator.inputs.suites import suite
    from coordinate_eval.coordinator.planning.new_run import read_inputs
    from coordinate_eval.coordinator.training.guarding.guard_job import open_guard, read_guarded

    guarded = read_guarded(open_guard(folder))
    asked = {"suite": guarded.policy.suite, "first_signal": True, "queue": False}
    settings = guarded.settings.model_copy(update={**asked, "cluster": "slurm"})
    inputs = read_inputs(settings, suite.load(settings.suite), checkpoint, strict=False)
    return start_run(inputs, run)


COMMANDS: Mapping[str, Callable[..., int | None]] = {
    "_supervise": supervise,
    "_submit": submit,
    "_tell_alarms": tell_alarms,
    "_guard": guard,
    "_keep": keep,
    "_sweep": sweep,
    "_trial": trial,
    "_node": node,
    "_build": build,
    "_metric": metric,
    "_judge": judge,
    "_serve": serve,
    "_score": score,
    "_examine": examine,
    "_gather": gather,
    "_guard_training": guard_training,
    "_examine_checkpoint": examine_checkpoint,
    "_test_nodes": test_nodes,
    "_evaluate": evaluate,
}
"""The commands of jobs. What they return is their exit status; None is success."""


class _Log:
    """The log of a supervisor: events with their times, equal ones in a row only once."""

    def __init__(self) -> None:
        self._last = ""

    def note(self, step: str) -> None:
        """Write a step, or what has happened, unless it is empty."""
        if step and step != self._last:
            print(time.strftime("%Y-%m-%d %H:%M:%S"), step, flush=True)
            self._last = step
