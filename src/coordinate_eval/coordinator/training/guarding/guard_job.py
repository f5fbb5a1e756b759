"""The guard as a job: begun by the command, started again by Slurm, followed by the next one."""

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from coordinate_eval import _files, _owner
from coordinate_eval._clock import Clock, SystemClock
from coordinate_eval._format import brief
from coordinate_eval.clusters.protocol import Cluster, Job, State, TaskStatus
from coordinate_eval.coordinator.inputs.checkpoints import remote
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.inputs.suites import suite
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.own import own
from coordinate_eval.coordinator.run.supervision import Epoch, latest_epoch, start_here
from coordinate_eval.coordinator.supervisor.handover import Handover
from coordinate_eval.coordinator.training.guarding.attempts import (
    GuardDir,
    Guarded,
    Over,
    guards_folder,
)
from coordinate_eval.coordinator.training.guarding.first_signals import FirstSignals
from coordinate_eval.coordinator.training.guarding.hands import Hands
from coordinate_eval.coordinator.training.guarding.healthy import Candidates, claim, unclaim
from coordinate_eval.coordinator.training.guarding.loop import Guard
from coordinate_eval.coordinator.training.guarding.policy import Policy
from coordinate_eval.coordinator.training.guarding.tell import Notifier
from coordinate_eval.coordinator.training.guarding.testing_nodes import NodeTest
from coordinate_eval.coordinator.training.guarding.watching import Watching
from coordinate_eval.errors import UserError
from coordinate_eval.slurm.batch import BatchScripts, kept_environment, read_script

GUARD_GIB = 4.0
"""Memory of the job: a look at a checkpoint reads a few tensors at once."""

LEAVE_SECONDS = 120.0
"""Time before the end of its own job at which a guard leaves: it ends nothing but itself."""

ALIVE_SECONDS = 180.0
"""Time since its last sign for which a guard that is no job counts as alive."""


def prefix(guarded: Guarded) -> str:
    """Return what the names of all jobs of a guard begin with."""
    return f"{jobs.PREFIX}guard-{guarded.name}.{guarded.nonce}-"


def guard_job(guarded: Guarded, guard_dir: GuardDir, epoch: int, minutes: int) -> Job:
    """Return the job of a guard of this epoch."""
    name = f"{prefix(guarded)}super{epoch}"
    argv = (*jobs.program(guarded.python), "_guard_training", str(guard_dir.root))
    return Job(
        name=name,
        argv=(*argv, "--minutes", str(minutes)),
        memory_mib=round(GUARD_GIB * 1024),
        minutes=minutes,
        requeue=True,
        submits=True,
        folder=str(guard_dir.logs),
        log=str(guard_dir.logs / "guard"),
    )


def alive(guarded: Guarded, cluster: Cluster) -> list[TaskStatus]:
    """Return the jobs of a guard that run or wait.

    Raises:
        ClusterSilent: the scheduler does not answer.
    """
    found = cluster.poll(prefix(guarded))
    return [task for task in found if task.state is not State.ENDED]


def submit_guard(guarded: Guarded, guard_dir: GuardDir, cluster: Cluster) -> str:
    """Submit the next guard, and return the id of its job.

    Raises:
        SubmitRefused: the scheduler refuses it.
        ClusterSilent: no answer.
    """
    minutes = cluster.limits().allowed(jobs.WAITING_MINUTES, time.time(), gpu_work=False)
    epoch = latest_epoch(guard_dir.run_dir) + 1
    return cluster.submit(guard_job(guarded, guard_dir, epoch, minutes))


def begin_here(guarded: Guarded, guard_dir: GuardDir) -> str:
    """Start a guard as a process that outlives this one, where no job can submit; say which it is.

    Raises:
        UserError: it cannot be started.
    """
    argv = (*jobs.program(guarded.python), "_guard_training", str(guard_dir.root))
    return start_here("guard", argv, guard_dir.logs, guard_dir.logs / "guard.login.log", os.environ)


def handover_of(
    guard_dir: GuardDir,
    guarded: Guarded,
    cluster: Cluster,
    minutes: float,
    tell: Callable[[str], None],
    clock: Clock,
) -> Handover:
    """Return the end of the time of a guard whose job has so many minutes."""

    def submit(epoch: int, alive: list[TaskStatus]) -> str:
        name = f"{prefix(guarded)}super{epoch}"
        begun = next((task.job_id for task in alive if task.name == name), None)
        return begun or submit_guard(guarded, guard_dir, cluster)

    return Handover(
        prefix(guarded),
        submit,
        cluster.cancel,
        guard_dir.logs,
        minutes,
        tell,
        clock,
        LEAVE_SECONDS,
    )


def leaves(handover: Handover, guard_dir: GuardDir, guarded: Guarded, cluster: Cluster) -> bool:
    """Return whether a guard leaves now. Submit the next one before.

    Raises:
        ClusterError: the scheduler does not answer, or never takes the next one from here.
    """
    if not handover.due:
        return False
    epoch = latest_epoch(guard_dir.run_dir) + 1  # before the poll: the next one may take it over
    return handover.submit(cluster.poll(prefix(guarded)), epoch) and handover.has_to_leave


def name_of(checkpoints: Path) -> str:
    """Return the name of the guard of the training that fills a folder."""
    digest = hashlib.sha256(str(checkpoints).encode()).hexdigest()[:8]
    parts = [part for part in checkpoints.parts[-2:] if part != "/"]
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", "-".join(parts)).strip("-.")[-40:].lstrip("-.")
    return f"{name or 'training'}-{digest}"


def prepare(
    script: Path,
    checkpoints: Path,
    policy: Policy,
    settings: Settings,
    *,
    rollback: bool,
    python: str,
    policy_file: Path | None = None,
) -> Guarded:
    """Return how a training is to be guarded, checked as far as it can be before it starts.

    Raises:
        UserError: script, folder or policy cannot work.
    """
    script, folder = script.absolute(), Path.cwd()
    read_script(script)
    checkpoints = remote.located(checkpoints).absolute()
    if isinstance(checkpoints, remote.RemotePath):
        raise UserError(
            f"--checkpoints {checkpoints} is in a store, and a guard needs the folder from which "
            "training begins again. Have it save into one, and upload from there"
        )
    if checkpoints.exists() and not checkpoints.is_dir():
        raise UserError(f"--checkpoints {checkpoints} is a file: give the folder that is filled")
    checkpoints = checkpoints.resolve()
    if policy.suite:
        suite.load(policy.suite)
        if (folder / policy.suite).exists():  # a file, from the folder of the script
            policy = policy.model_copy(update={"suite": str(folder / policy.suite)})
    if policy.done_file and (folder / policy.done_file).exists():
        raise UserError(
            f"policy: done_file {folder / policy.done_file} is there, so that this training is "
            "complete: remove the file to train again"
        )
    guarded = Guarded(
        name=name_of(checkpoints),
        nonce=_files.token()[:8],
        created=time.time(),
        script=str(script),
        folder=str(folder),
        checkpoints=str(checkpoints),
        policy=policy,
        policy_file=str(policy_file.absolute()) if policy_file is not None else "",
        rollback=rollback,
        settings=settings,
        python=python,
    )
    newest = candidates(guarded, Path("/nonexistent")).newest_step()
    before = GuardDir(guards_folder(settings) / guarded.name)
    goes_on = before.guarded.exists() and not before.over.exists()  # and sees that it is complete
    complete = newest is not None and policy.last_step is not None and newest >= policy.last_step
    if complete and not goes_on:
        raise UserError(
            f"policy: last_step {policy.last_step} is not after step {newest} of the newest "
            f"checkpoint in {checkpoints}: raise it, or name another folder"
        )
    return guarded


def begin(guarded: Guarded, cluster: Cluster, environ: Mapping[str, str]) -> GuardDir:
    """Make the folder of a guard, or go on in that of one that is no more.

    Args:
        guarded: the training.
        cluster: the scheduler.
        environ: with which its script is submitted, but for the caller's own job.

    Raises:
        UserError: the training is guarded already, or the folder cannot be made.
        ClusterSilent: nobody knows whether it is guarded.
    """
    root = guards_folder(guarded.settings) / guarded.name
    before = None
    if root.exists():
        before = read_guarded(open_guard(root))
        check_unguarded(before, GuardDir(root), cluster)
    guard_dir = GuardDir(root)
    root.parent.mkdir(parents=True, exist_ok=True)
    Path(guarded.checkpoints).mkdir(parents=True, exist_ok=True)
    if other := claim(Path(guarded.checkpoints), root):
        raise UserError(
            f"the training in {guarded.checkpoints} is guarded already, from {other}: end that "
            "guard first, by `coordinate-eval guard stop` of whoever began it"
        )
    _files.make_closed(root)
    for folder in (guard_dir.logs, guard_dir.attempts, guard_dir.checks, guard_dir.told):
        folder.mkdir(exist_ok=True)
    if before is not None:
        # The numbers of attempts go on. What was told to stop, or gave up, begins afresh.
        first = guard_dir.latest() + 1 if guard_dir.over.exists() else before.first
        kept = {"nonce": before.nonce, "created": before.created, "first": first}
        guarded = guarded.model_copy(update=kept)
    environment = json.dumps(kept_environment(environ), indent=1)
    _files.write_private(guard_dir.environment, f"{environment}\n")
    _files.write_record(guard_dir.guarded, guarded)
    for path in (guard_dir.over, guard_dir.stop, guard_dir.told / "over.json"):
        path.unlink(missing_ok=True)
    return guard_dir


def check_unguarded(guarded: Guarded, guard_dir: GuardDir, cluster: Cluster) -> None:
    """Check that nobody guards a training now.

    Raises:
        UserError: a job or a process does.
        ClusterSilent: nobody knows whether a job does.
    """
    who = next((f"job {task.job_id}" for task in alive(guarded, cluster)), "")
    if who := who or process_of(guard_dir):
        raise UserError(
            f"the training in {guarded.checkpoints} is guarded already, by {who}: "
            f"`coordinate-eval guard status {guarded.name}` shows it, and "
            f"`coordinate-eval guard stop {guarded.name}` ends it"
        )


def process_of(guard_dir: GuardDir) -> str:
    """Return the process that guards a training without being a job; empty if there is none."""
    path = guard_dir.run_dir.supervisor(latest_epoch(guard_dir.run_dir))
    epoch = _files.read_record_if_there(path, Epoch)
    if epoch is None or epoch.task or guard_dir.over.exists():
        return ""
    here = epoch.host == os.uname().nodename
    if here and not Path(f"/proc/{epoch.pid}").exists():
        return ""
    _files.write(guard_dir.root / ".now", "")  # the file server's time
    age = _files.modified(guard_dir.root / ".now") - _files.modified(guard_dir.alive)
    return f"process {epoch.pid} on {epoch.host}" if age < ALIVE_SECONDS else ""


def read_guarded(guard_dir: GuardDir) -> Guarded:
    """Return the training of a guard.

    Raises:
        RecordError: the record is missing or torn.
    """
    return _files.read_record(guard_dir.guarded, Guarded)


def open_guard(root: Path) -> GuardDir:
    """Return a guard's folder.

    Raises:
        ForeignError: it is not the user's own.
        RecordError: it is missing, or cannot be read.
    """
    found = GuardDir(own(root).root)
    _owner.check_folder(found.root)
    return found


def candidates(guarded: Guarded, kept: Path) -> Candidates:
    """Return the checkpoints of a training."""
    folder = Path(guarded.checkpoints)
    return Candidates(folder, guarded.policy.pattern, kept, guarded.python)


def run_guard(
    guard_dir: GuardDir,
    cluster: Cluster,
    tell: Callable[[str], None],
    *,
    minutes: float = float("inf"),
    asked: Callable[[Callable[[], None]], None] = lambda ask: None,
) -> Over | None:
    """Guard a training until it is over, or a successor goes on. Return how it is over.

    Args:
        guard_dir: its folder.
        cluster: the scheduler.
        tell: called with what happens, in words for the log.
        minutes: time limit of this process.
        asked: called with a function that has this guard leave soon.

    Raises:
        CoordinateError, OSError: it cannot go on.
    """
    guarded = read_guarded(guard_dir)
    environment = _files.read_json(guard_dir.environment)
    _files.never_make(guard_dir.root)
    with contextlib.suppress(UserError):  # a node may not know a name
        _owner.trust(guarded.settings.trusted_users)
    clock = SystemClock()
    found = candidates(guarded, guard_dir.checks)
    tests = NodeTest(guard_dir.root, guarded.python)
    signals = FirstSignals(guard_dir, guarded)
    notifier = Notifier(guard_dir, guarded.policy, environment, tell)
    handover = handover_of(guard_dir, guarded, cluster, minutes, tell, clock)
    asked(handover.ask)
    hands = Hands(
        guard_dir,
        guarded,
        BatchScripts(os.geteuid()),
        found,
        Watching(guard_dir, guarded, tell),
        tests,
        signals,
        environment,
        notifier.tell,
        tell,
        clock,
    )
    guard = Guard(hands)
    notifier.go_on()
    tell(f"guard {hands.epoch} of {guarded.script}, in {guard_dir.root}")
    try:
        over = guard.run(lambda: leaves(handover, guard_dir, guarded, cluster))
        if over is not None:
            unclaim(Path(guarded.checkpoints), guard_dir.root)
        return over
    except Exception as error:
        words = f"the guard cannot go on, and nobody watches the training: {brief(error)}"
        hands.notify(f"guard-{hands.epoch}", words)
        raise
    finally:
        found.close()
        tests.close()
        signals.close()
        notifier.wait()
