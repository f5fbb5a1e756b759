"""The jobs of a run as values: their names, argv, and resources."""

import math
import re
from collections.abc import Iterator
from typing import TypedDict

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import Job, JobLimits
from coordinate_eval.coordinator.inputs.settings import StageSettings
from coordinate_eval.coordinator.run.containers import container_of
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Round, RoundNode, Run, Submitted

PREFIX = "ce-"
"""The names of all jobs of this program begin with it."""

_SUPERVISOR = re.compile(rf"({re.escape(PREFIX)}.+-)super\d+", re.DOTALL)

_MINUTES = "--minutes"

KEEPER_ROOM_GIB = 1.0
"""Memory of a keeper's own process, in GiB."""

TIME_LIMIT_FACTOR = 4.0
"""Time limit of a trial or metric job, as a multiple of its predicted time.

Trials that each take the next free shard need less than twice the least time (see `rounds.py`);
predictions err by as much again.
"""

LEAST_MINUTES = 15
"""Shortest such time limit: a shorter one wins no place in a queue."""

WAITING_MINUTES = 240
"""Time limit of a supervisor and of jobs that wait for work."""

SUPERVISOR_GIB = 2.0
"""Memory of a supervisor's job, in GiB."""

SWEEPER_MINUTES = 5
"""Time limit of a job that only removes files from a node's memory."""

CONVERTING_ROOM = 1.3
"""Memory of a keeper that converts, as a multiple of the weights: it holds some tensors twice."""

COPYING_ROOM = 1.02
"""Memory of a keeper that copies, as a multiple of the weights: small files, part-filled pages."""


def prefix(run: Run) -> str:
    """Return the beginning of the names of a run's jobs.

    The nonce distinguishes the run from an earlier one of the same checkpoint, whose jobs the
    scheduler may still know.
    """
    return f"{PREFIX}{run.id}.{run.nonce}-"


def keeper_name(run: Run, round_number: int, node: str) -> str:
    """Return the name of a node's keeper."""
    return node_names(prefix(run), round_number, node)[0]


def trials_name(run: Run, round_number: int, node: str) -> str:
    """Return the name of the array of a node's trials."""
    return node_names(prefix(run), round_number, node)[1]


def node_names(prefix: str, round_number: int, node: str) -> tuple[str, str]:
    """Return the names of a node's keeper and trials, in the run whose jobs have this prefix."""
    return f"{prefix}keep{round_number}-{node}", f"{prefix}trial{round_number}-{node}"


def is_keeper(run: Run, name: str) -> bool:
    """Return whether a job is a keeper of this run."""
    return name.startswith(f"{prefix(run)}keep")


def is_trials(run: Run, name: str) -> bool:
    """Return whether a job is the trials of a node of this run."""
    return name.startswith(f"{prefix(run)}trial")


def is_supervisor(run: Run, name: str) -> bool:
    """Return whether a job is a supervisor of this run."""
    return name.startswith(f"{prefix(run)}super")


def supervisor_name(run: Run, epoch: int) -> str:
    """Return the name of a supervisor's job."""
    return f"{prefix(run)}super{epoch}"


def supervised_run(name: str) -> str | None:
    """Return the prefix of the run that a job of this name supervises, None for other jobs."""
    match = _SUPERVISOR.fullmatch(name)
    return match[1] if match else None


def keeper_job(
    run: Run, run_dir: RunDir, round_: Round, node: RoundNode, on: str | None = None
) -> Job:
    """Return the CPU-only job that holds the weights in a node's memory.

    That is the node `on`, of several that share a trial; without it, the only or first one.
    """
    on = on or node.name
    name = keeper_name(run, round_.number, on)
    # A keeper begins before the trials. It must not end before them if the limits allow that.
    longer = round_.minutes + math.ceil(run.settings.supervisor.patience_seconds / 60) + 5
    most = round_.most_minutes or most_minutes(run, round_.created)
    minutes = max(round_.minutes, min(longer, most))
    return Job(
        name=name,
        argv=_argv(run, run_dir, "_keep", on, round_.number, minutes),
        node=on,
        cpus=node.keeper_cpus,
        memory_mib=math.ceil(keeper_gib(run) * 1024),
        minutes=minutes,
        gpu_work=True,
        container=container_of(run, run_dir, "trial"),
        **secrets(run),
        folder=str(run_dir.work),
        log=str(run_dir.logs / name),
    )


def sweeper_job(run: Run, run_dir: RunDir, node: str) -> Job:
    """Return the small job that removes what killed processes left in a node's memory."""
    name = f"{prefix(run)}sweep-{node}"
    return Job(
        name=name,
        argv=(*program(run.python), "_sweep", str(run_dir.root)),
        node=node,
        memory_mib=math.ceil(KEEPER_ROOM_GIB * 1024),
        minutes=SWEEPER_MINUTES,
        gpu_work=True,
        **secrets(run),
        folder=str(run_dir.work),
        log=str(run_dir.logs / name),
    )


def trials_job(
    run: Run, run_dir: RunDir, round_: Round, node: RoundNode, *, keeps: bool = False
) -> Job:
    """Return the job of a node's trials: one array.

    Where there is no keeper, or the job `keeps` the weights itself, it has memory for them.
    """
    name = trials_name(run, round_.number, node.name)
    trial = run.settings.trial
    keeps = keeps or node.anywhere
    parts = max(1, run.tensor_parallel)
    copies = keeps and not run.settings.engine.elsewhere
    gib = trial.memory_gib * parts + (keeper_gib(run) if copies else 0.0)
    return Job(
        name=name,
        argv=(
            *_argv(run, run_dir, "_trial", node.name, round_.number, round_.minutes),
            *(("--keeps", "1") if keeps and not node.anywhere else ()),
        ),
        node=None if node.anywhere else ",".join(node.names),
        nodes=run.nodes_per_trial,
        count=node.trials,
        gpus=run.tensor_parallel,
        gpu_type=node.gpu_type,
        cpus=trial.cpus * parts,
        memory_mib=math.ceil(gib * 1024),
        minutes=round_.minutes,
        container=container_of(run, run_dir, "trial"),
        gpu_work=run.tensor_parallel > 0,
        **secrets(run, engine=True),
        folder=str(run_dir.work),
        log=str(run_dir.logs / name),
    )


def node_job(run: Run, run_dir: RunDir, round_: Round, node: RoundNode) -> Job:
    """Return one job for a node's keeper and trials, for partitions of whole nodes.

    On several nodes each process of the trial copies what it needs.
    """
    if run.nodes_per_trial > 1:
        return trials_job(run, run_dir, round_, node, keeps=True)
    name = trials_name(run, round_.number, node.name)
    trial = run.settings.trial
    gpus = run.tensor_parallel * node.trials
    argv = _argv(run, run_dir, "_node", node.name, round_.number, round_.minutes)
    return Job(
        name=name,
        argv=(*argv, "--trials", str(node.trials)),
        node=node.name,
        gpus=gpus,
        gpu_type=node.gpu_type,
        cpus=trial.cpus * gpus + node.keeper_cpus,
        memory_mib=math.ceil((trial.memory_gib * gpus + keeper_gib(run)) * 1024),
        minutes=round_.minutes,
        gpu_work=True,
        container=container_of(run, run_dir, "trial"),
        **secrets(run, engine=True),
        folder=str(run_dir.work),
        log=str(run_dir.logs / name),
    )


def is_one_job(job: Job) -> bool:
    """Return whether a job runs the keeper and all trials of a node in one task."""
    return job.argv[len(program("")) :][:1] == ("_node",)


def supervisor_job(run: Run, run_dir: RunDir, epoch: int, now: float) -> Job:
    """Return the job of a supervisor, as it may be from `now` on."""
    name = supervisor_name(run, epoch)
    minutes = allowed_minutes(run, WAITING_MINUTES, now)
    argv = (*program(run.python), "_supervise", str(run_dir.root))
    return Job(
        name=name,
        argv=(*argv, _MINUTES, str(minutes)),
        memory_mib=math.ceil(SUPERVISOR_GIB * 1024),
        minutes=minutes,
        requeue=True,
        submits=True,
        **secrets(run, judge=True, engine=True, alarms=True),
        folder=str(run_dir.work),
        log=str(run_dir.logs / name),
    )


class Secrets(TypedDict):
    """The environment variables with a key that a job gets, and those that it does not get."""

    needs: tuple[str, ...]
    without: tuple[str, ...]


def secrets(
    run: Run, *, judge: bool = False, engine: bool = False, alarms: bool = False
) -> Secrets:
    """Return which environment variables with a key a job gets, and which it does not get.

    A supervisor gets all of them. Otherwise only those get a key that ask the server of that key.
    """
    of_each = (
        (run.settings.judge.api_key_env, judge),
        (run.settings.engine.args.get("api_key_env"), engine),
        (run.settings.alarm_webhook_env, alarms),
    )
    got = {name for name, gets in of_each if name and gets}
    all_ = {name for name, _ in of_each if name}
    return {"needs": tuple(sorted(got)), "without": tuple(sorted(all_ - got))}


def program(python: str) -> tuple[str, ...]:
    """Return the argv of this program, which looks for no module in the working directory."""
    return (python, "-P", "-m", "coordinate_eval")


def keeper_memory_gib(weights_bytes: int, converting: bool, stage: StageSettings) -> float:
    """Return the host memory of a keeper's job, in GiB: tmpfs pages count as its own."""
    if not (stage.in_memory or converting):
        return KEEPER_ROOM_GIB
    return (
        weights_bytes / 2**30 * (CONVERTING_ROOM if converting else COPYING_ROOM) + KEEPER_ROOM_GIB
    )


def most_minutes(run: Run, now: float) -> int:
    """Return the longest time limit of a trial that starts at `now`, in seconds since the epoch."""
    return longest_trial(run, now)[0]


def longest_trial(run: Run, now: float) -> tuple[int, str]:
    """Return the longest time limit of a trial, in minutes, and what sets it.

    That is the settings, the scheduler, a window, or the end of all jobs: a minute at least.
    """
    limits = run.limits
    bounds = [(run.settings.trial.max_minutes, "[trial] max_minutes")]
    bounds.extend(limits.bounds(now, gpu_work=True))
    if limits.until is not None:
        bounds.append((max(1, int((limits.until - now) / 60)), limits.until_why))
    return min(bounds, key=lambda bound: bound[0])


def allowed_minutes(run: Run, minutes: int, now: float) -> int:
    """Return a time limit that settings and scheduler allow a job without GPUs from `now` on."""
    most = min(minutes, run.settings.trial.max_minutes)
    return run.limits.allowed(most, now, gpu_work=False)


def within(job: Job, limits: JobLimits, now: float) -> Job:
    """Return a job that was made before, as long as limits allow it that starts `now`.

    A process that is told its job's time limit is told the shorter one.
    """
    minutes = limits.allowed(job.minutes, now, gpu_work=job.in_gpu_partition)
    if job.in_gpu_partition and limits.until is not None:
        minutes = min(minutes, max(1, int((limits.until - now) / 60)))
    if minutes == job.minutes:
        return job
    argv = list(job.argv)
    if _MINUTES in argv:
        argv[argv.index(_MINUTES) + 1] = str(minutes)
    return job.model_copy(update={"minutes": minutes, "argv": tuple(argv)})


def before_windows(run: Run, now: float) -> list[str]:
    """Return what windows mean for the jobs of a run, in words, where they cut or hold up any."""
    settings, said = run.settings, {}
    for gpu_work, minutes in (
        (True, settings.trial.max_minutes),
        (False, WAITING_MINUTES),
    ):
        window = run.limits.window(gpu_work=gpu_work)
        if window is None or not now < window.start < now + 60 * minutes:
            continue
        before = window.minutes_before(now)
        does = (
            "jobs that do not end before it wait until it is over"
            if before is None
            else f"jobs ask for at most {before} minutes, to end before it, and the rest follows it"
        )
        said[window.why] = f"{window.why} takes all nodes: {does}"
    return list(said.values())


def time_limit_minutes(seconds: float, most: int) -> int:
    """Return the time limit in minutes of a trial or metric job of these predicted seconds."""
    return min(most, max(LEAST_MINUTES, math.ceil(TIME_LIMIT_FACTOR * seconds / 60)))


def _argv(
    run: Run, run_dir: RunDir, command: str, node: str, number: int, minutes: int
) -> tuple[str, ...]:
    return (
        *program(run.python),
        command,
        str(run_dir.root),
        node,
        "--round",
        str(number),
        _MINUTES,
        str(minutes),
    )


def keeper_gib(run: Run) -> float:
    """Return the host memory of each of a run's keepers, in GiB."""
    converting = run.settings.engine.loads(run.checkpoint).converted
    left_out = run.checkpoint.bytes - run.node_bytes if run.node_bytes else 0
    return keeper_memory_gib(run.staged_bytes - left_out, converting, run.settings.stage)


def trial_id(node: str, index: int, round_number: int) -> str:
    """Return a trial's name: the plan's in the first round, with the round's number later."""
    return f"{node}-{index}" + (f"-r{round_number}" if round_number else "")


def trials_of(round_: Round) -> Iterator[tuple[str, RoundNode]]:
    """Yield the name of each trial of a round, and its node."""
    for node in round_.nodes:
        for index in range(node.trials):
            yield trial_id(node.name, index, round_.number), node


def read_submitted(run_dir: RunDir) -> Iterator[Submitted]:
    """Yield every job that was submitted, accepted or refused."""
    for path in _files.records_in(run_dir.jobs_folder):
        yield _files.read_record(path, Submitted)
