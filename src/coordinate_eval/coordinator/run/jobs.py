"""The jobs of a run as values: names, argv, what they ask for."""

import math
from collections.abc import Iterator

from coordinate_eval import _files
from coordinate_eval.coordinator.cluster import Job
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Round, RoundNode, Run, Submitted
from coordinate_eval.records import CheckpointFormat

PREFIX = "ce-"
"""The names of all jobs of this program begin with it."""

KEEPER_ROOM_GIB = 1.0
"""What a keeper's process needs beside the weights."""

CONVERTING_ROOM = 1.3
"""A converting keeper holds some tensors twice: pages of the file and their copies."""


def prefix(run: Run) -> str:
    """What the names of all jobs of a run begin with; its nonce tells it from an earlier run of
    the same checkpoint, whose jobs the scheduler may still remember.
    """
    return f"{PREFIX}{run.id}.{run.nonce}-"


def keeper_name(run: Run, round_number: int, node: str) -> str:
    """The keeper of a node."""
    return f"{prefix(run)}keep{round_number}-{node}"


def trials_name(run: Run, round_number: int, node: str) -> str:
    """The trials of a node."""
    return f"{prefix(run)}trial{round_number}-{node}"


def metric_name(run: Run, number: int) -> str:
    """The n-th array of metric pullers."""
    return f"{prefix(run)}metric{number}"


def is_keeper(run: Run, name: str) -> bool:
    """Whether a job is a keeper of this run."""
    return name.startswith(f"{prefix(run)}keep")


def is_metric(run: Run, name: str) -> bool:
    """Whether a job is an array of metric pullers of this run."""
    return name.startswith(f"{prefix(run)}metric")


def is_trials(run: Run, name: str) -> bool:
    """Whether a job is the trials of a node of this run."""
    return name.startswith(f"{prefix(run)}trial")


def is_supervisor(run: Run, name: str) -> bool:
    """Whether a job is a supervisor of this run."""
    return name.startswith(f"{prefix(run)}super")


def supervisor_name(run: Run, epoch: int) -> str:
    """A supervisor's job."""
    return f"{prefix(run)}super{epoch}"


def keeper_job(run: Run, run_dir: RunDir, round_: Round, node: RoundNode) -> Job:
    """The CPU-only job that holds the weights in a node's memory."""
    name = keeper_name(run, round_.number, node.name)
    # It begins before the trials and must not end before them, where limits allow.
    longer = round_.minutes + math.ceil(run.settings.supervisor.patience_seconds / 60) + 5
    minutes = max(round_.minutes, min(longer, run.settings.trial.max_minutes))
    return Job(
        name=name,
        argv=_argv(run, run_dir, "_keep", node.name, round_.number, minutes),
        node=node.name,
        cpus=1,
        memory_mib=math.ceil(keeper_gib(run) * 1024),
        minutes=minutes,
        gpu_work=True,
        log=str(run_dir.logs / name),
    )


def trials_job(run: Run, run_dir: RunDir, round_: Round, node: RoundNode) -> Job:
    """The trials of one node, one array."""
    name = trials_name(run, round_.number, node.name)
    trial = run.settings.trial
    return Job(
        name=name,
        argv=_argv(run, run_dir, "_trial", node.name, round_.number, round_.minutes),
        node=node.name,
        count=node.trials,
        gpus=run.tensor_parallel,
        gpu_type=node.gpu_type,
        cpus=trial.cpus,
        memory_mib=math.ceil(trial.memory_gib * 1024),
        minutes=round_.minutes,
        gpu_work=True,
        log=str(run_dir.logs / name),
    )


def node_job(run: Run, run_dir: RunDir, round_: Round, node: RoundNode) -> Job:
    """Keeper and trials of one node as one job, where jobs take whole nodes."""
    name = trials_name(run, round_.number, node.name)
    trial = run.settings.trial
    argv = _argv(run, run_dir, "_node", node.name, round_.number, round_.minutes)
    return Job(
        name=name,
        argv=(*argv, "--trials", str(node.trials)),
        node=node.name,
        gpus=run.tensor_parallel * node.trials,
        gpu_type=node.gpu_type,
        cpus=trial.cpus * node.trials + 1,
        memory_mib=math.ceil((trial.memory_gib * node.trials + keeper_gib(run)) * 1024),
        minutes=round_.minutes,
        gpu_work=True,
        log=str(run_dir.logs / name),
    )


def pullers(run: Run) -> int:
    """How many of them find something to answer at once."""
    portions = sum(run.portion_count(shard) for shard in run.shards_with_questions())
    return max(1, min(run.settings.metrics.cpus, portions))


def metric_job(run: Run, run_dir: RunDir, number: int, count: int) -> Job:
    """An array of pullers, one core each."""
    name = metric_name(run, number)
    trial = run.settings.trial
    seconds = sum(s.metric_cpu_seconds for s in run.shards_with_questions()) / count
    return Job(
        name=name,
        argv=(run.python, "-m", "coordinate_eval", "_metric", str(run_dir.root)),
        count=count,
        cpus=1,
        memory_mib=math.ceil(run.settings.metrics.memory_gib * 1024),
        minutes=time_limit_minutes(
            trial.time_limit_factor, seconds, trial.min_minutes, trial.max_minutes
        ),
        log=str(run_dir.logs / name),
    )


def supervisor_job(run: Run, run_dir: RunDir, epoch: int) -> Job:
    """The small job that watches all others."""
    name = supervisor_name(run, epoch)
    settings = run.settings.supervisor
    argv = (run.python, "-m", "coordinate_eval", "_supervise", str(run_dir.root))
    return Job(
        name=name,
        argv=(*argv, "--minutes", str(settings.minutes)),
        cpus=settings.cpus,
        memory_mib=math.ceil(settings.memory_gib * 1024),
        minutes=settings.minutes,
        requeue=True,
        log=str(run_dir.logs / name),
    )


def keeper_memory_gib(weights_bytes: int, converting: bool) -> float:
    """Host memory that a keeper asks for: tmpfs pages count as its own."""
    return weights_bytes / 2**30 * (CONVERTING_ROOM if converting else 1.02) + KEEPER_ROOM_GIB


def time_limit_minutes(factor: float, seconds: float, least: int, most: int) -> int:
    """A time limit from a prediction."""
    return max(least, min(most, math.ceil(factor * seconds / 60)))


def _argv(
    run: Run, run_dir: RunDir, command: str, node: str, number: int, minutes: int
) -> tuple[str, ...]:
    return (
        run.python,
        "-m",
        "coordinate_eval",
        command,
        str(run_dir.root),
        node,
        "--round",
        str(number),
        "--minutes",
        str(minutes),
    )


def keeper_gib(run: Run) -> float:
    """Memory that the keepers of a run ask for."""
    converting = run.checkpoint.format is CheckpointFormat.TORCH
    return keeper_memory_gib(run.staged_bytes, converting)


def trial_id(node: str, index: int, round_number: int) -> str:
    """Return a trial's name: the plan's in the first round, with the round's number later."""
    return f"{node}-{index}" + (f"-r{round_number}" if round_number else "")


def trials_of(round_: Round) -> Iterator[tuple[str, RoundNode]]:
    """Yield the name of each trial of a round, and its node."""
    for node in round_.nodes:
        for index in range(node.trials):
            yield trial_id(node.name, index, round_.number), node


def read_submitted(run_dir: RunDir) -> Iterator[Submitted]:
    """Every job that was handed to the scheduler."""
    for path in _files.records_in(run_dir.jobs_folder):
        yield _files.read_record(path, Submitted)
