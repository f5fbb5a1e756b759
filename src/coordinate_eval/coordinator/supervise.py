"""The supervisor's loop: poll, gather facts, decide, act. The only one to ask the scheduler.

Killed at any instruction, it is started again and goes on where the files say. Of two that run
at once the one with the higher epoch goes on and the other leaves.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from coordinate_eval.coordinator import files, jobs, report
from coordinate_eval.coordinator.cluster import Cluster, State, TaskStatus
from coordinate_eval.coordinator.decide import (
    Action,
    Cancel,
    Facts,
    Finish,
    NewRound,
    Release,
    Revoke,
    Submit,
    decide,
)
from coordinate_eval.coordinator.facts import gather, read_rounds, read_submitted
from coordinate_eval.coordinator.ledger import Ledger
from coordinate_eval.coordinator.process import ENDS_WITH_PARENT
from coordinate_eval.coordinator.run import NodeShare, Round, Run, Submitted
from coordinate_eval.coordinator.rundir import RunDir
from coordinate_eval.coordinator.score import unscored
from coordinate_eval.coordinator.select import choose
from coordinate_eval.coordinator.stage import staged_bytes
from coordinate_eval.errors import ClusterError, ClusterSilent, SubmitRefused, UserError
from coordinate_eval.records import CheckpointFormat, Record

MAX_BACKOFF_SECONDS = 60.0
"""Longest wait between polls of a scheduler that does not answer."""

DRAIN_SECONDS = 60.0
"""How long keepers get to take the weights away before they are cancelled."""

HANDOVER_SECONDS = 150.0
"""What a supervisor keeps of its time limit to submit the one that follows it."""

LOCAL_POLL_SECONDS = 0.5
"""Longest time between polls of this machine's own cluster, which cost nobody anything."""

MAX_SCORERS = 3
"""Scorers that may crash before scoring is given up."""


class Epoch(Record):
    """`supervisor/<epoch>.json`: who supervises since when."""

    epoch: int
    host: str
    pid: int
    time: float
    token: str


class Superseded(Exception):
    """A later supervisor has taken over."""


class Supervisor:
    """Watches one run to its end.

    `minutes` is the time limit of its own job. With `strict`, a first job that the scheduler
    refuses ends the supervision with `SubmitRefused`: nothing has begun yet.
    """

    def __init__(
        self,
        run_dir: RunDir,
        cluster: Cluster,
        *,
        minutes: float = float("inf"),
        strict: bool = False,
        tell: Callable[[Facts | None, str], None] = lambda facts, event: None,
    ) -> None:
        self._dir = run_dir
        self._run = files.read_record(run_dir.run, Run)
        self._cluster = cluster
        self._strict = strict
        self._tell = tell
        self._handover = time.time() + minutes * 60 - HANDOVER_SECONDS
        self._scorer: subprocess.Popen[bytes] | None = None
        self._scorers = 0
        self._idle_arrays = 0
        self._answered = -1
        self._epoch = take_over(run_dir)

    def run(self) -> dict[str, Any] | None:
        """Supervise until the run is over; its results, None when another one goes on."""
        for dataset in self._run.suite.datasets:
            # What failed to score may score now: a full disk, a missing package.
            self._dir.dataset_error(dataset.name).unlink(missing_ok=True)
        try:
            return self._loop()
        except Superseded:
            return None
        finally:
            self._end_scorer()

    def _loop(self) -> dict[str, Any] | None:
        poll_seconds = self._run.settings.supervisor.poll_seconds
        if self._run.cluster == "ray":
            poll_seconds = min(poll_seconds, LOCAL_POLL_SECONDS)
        pause = poll_seconds
        while True:
            self._check_epoch()
            try:
                tasks = self._cluster.poll(jobs.prefix(self._run))
                facts = gather(self._dir, self._run, tasks, time.time(), self._idle_arrays)
                self._tell(facts, "")
                for action in decide(self._run, self._dir, facts):
                    if isinstance(action, Finish):
                        return self._finish(action, facts)
                    self._act(action, tasks)
                pause = poll_seconds
            except SubmitRefused:
                raise
            except ClusterError as error:
                pause = min(MAX_BACKOFF_SECONDS, 2 * pause)
                what = "does not answer" if isinstance(error, ClusterSilent) else "fails"
                self._tell(None, f"the scheduler {what}, next try in {pause:g} s: {error}")
            self._tend_scorer()
            if time.time() > self._handover:
                self._hand_over()
                return None
            self._wait(pause)

    def _act(self, action: Action, tasks: list[TaskStatus]) -> None:
        if isinstance(action, Submit):
            self._submit(action, tasks)
        elif isinstance(action, Cancel):
            self._tell(None, f"cancelling {', '.join(action.job_ids)}: {action.why}")
            self._cluster.cancel(list(action.job_ids))
        elif isinstance(action, Revoke):
            held = action.held
            self._tell(None, f"{held.claim.owner} died; its {held.span} is free again")
            Ledger(self._dir, action.ledger).revoke(held.span, held.attempt, "died")
        elif isinstance(action, Release):
            number = list(read_rounds(self._dir))[-1].number
            files.write(self._dir.released(number, action.node), "")
        elif isinstance(action, NewRound):
            self._new_round()

    def _submit(self, action: Submit, tasks: list[TaskStatus]) -> None:
        """Submit once: an earlier submission whose answer was lost is found by its name."""
        job = action.job
        self._check_epoch()
        if jobs.is_metric(self._run, job.name):
            self._count_array()
        found = next((t.job_id for t in tasks if t.name == job.name), None)
        refusal = ""
        if found is None:
            try:
                found = self._cluster.submit(job)
            except SubmitRefused as error:
                if self._strict and not any(s.job_id for s in read_submitted(self._dir)):
                    raise
                refusal = str(error)
                self._tell(None, f"{job.name} was refused: {refusal}")
        submitted = Submitted(job=job, job_id=found, refusal=refusal, time=time.time())
        files.write_record(self._dir.job(job.name), submitted)

    def _count_array(self) -> None:
        """How many arrays of metric pullers in a row have published nothing."""
        published = sum(1 for _ in self._dir.root.glob("answers/*/*.jsonl"))
        self._idle_arrays = self._idle_arrays + 1 if published == self._answered else 0
        self._answered = published

    def _new_round(self) -> None:
        """Ask which nodes are free now; nothing happens while none is."""
        rounds = list(read_rounds(self._dir))
        run = self._run
        nodes, busy = self._cluster.nodes()
        if run.gpu_type:
            nodes = [node for node in nodes if node.gpu_type == run.gpu_type]
        gib = keeper_gib(run)
        try:
            chosen = choose(nodes, busy, run.settings, run.tensor_parallel, gib)
        except UserError as error:
            self._tell(None, f"waiting for a free GPU: {str(error).splitlines()[0]}")
            return
        left = Ledger(self._dir, "outputs").undone(s.span for s in run.shards)
        shares = [
            NodeShare(node=n.name, gpu_type=n.gpu_type, trials=n.trials, memory_gib=gib)
            for n in chosen[: max(1, len(left))]
        ]
        seconds = {s.span: s.gpu_seconds for s in run.shards}
        trial = run.settings.trial
        new = Round(
            number=len(rounds),
            created=time.time(),
            shares=shares,
            minutes=jobs.time_limit_minutes(
                trial.time_limit_factor,
                sum(seconds[span] for span in left) + trial.engine_start_seconds,
                trial.min_minutes,
                trial.max_minutes,
            ),
        )
        files.create(self._dir.round(new.number), new.model_dump_json(indent=1))

    def _finish(self, action: Finish, facts: Facts) -> dict[str, Any]:
        """Write the results, then let go of every node and job of the run."""
        self._end_scorer()
        results = report.collect(self._dir, self._run, action.why)
        results["scheduler_calls"] = dict(self._cluster.calls)
        files.write(self._dir.results, files.pretty(results))
        self._tell(facts, "drain")
        for round_ in read_rounds(self._dir):
            for share in round_.shares:
                released = self._dir.released(round_.number, share.node)
                if not released.exists():
                    files.write(released, "")
        self._drain()
        return results

    def _drain(self) -> None:
        """Wait for keepers to leave; cancel whatever else there is, and them if they stay."""
        give_up = time.monotonic() + DRAIN_SECONDS
        while True:
            with contextlib.suppress(ClusterError):
                tasks = [
                    t
                    for t in self._cluster.poll(jobs.prefix(self._run))
                    if t.state is not State.ENDED and not jobs.is_supervisor(self._run, t.name)
                ]
                if not tasks:
                    return
                late = time.monotonic() > give_up
                leaving = {
                    t.job_id
                    for t in tasks
                    if late or not jobs.is_keeper(self._run, t.name) or t.state is State.PENDING
                }
                if leaving:
                    self._cluster.cancel(sorted(leaving))
            if time.monotonic() > give_up + DRAIN_SECONDS:
                return
            time.sleep(min(1.0, self._run.settings.supervisor.poll_seconds))

    def _tend_scorer(self) -> None:
        """Have a scorer while anything is unscored: it loads the harness while engines start."""
        if self._scorer is not None and self._scorer.poll() is not None:
            if self._scorer.returncode:
                self._scorers += 1
            self._scorer = None
        if self._scorer is not None or not unscored(self._dir, self._run):
            return
        if self._scorers >= MAX_SCORERS:
            tail = report.log_tail(self._dir, "score")
            for dataset in unscored(self._dir, self._run):
                files.write(self._dir.dataset_error(dataset.name), f"the scorer crashed:\n{tail}\n")
            return
        self._dir.logs.mkdir(exist_ok=True)
        argv = [sys.executable, "-m", "coordinate_eval", "_score", str(self._dir.root)]
        with (self._dir.logs / "score.log").open("ab") as log:
            self._scorer = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | ENDS_WITH_PARENT,
            )

    def _end_scorer(self) -> None:
        if self._scorer is not None:
            self._scorer.terminate()
            self._scorer.wait()
            self._scorer = None

    def _wait(self, seconds: float) -> None:
        """Sleep, but not past the moment at which the last dataset is scored."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self._scorer is not None and self._scorer.poll() is not None:
                return
            time.sleep(min(0.2, seconds))

    def _check_epoch(self) -> None:
        if latest_epoch(self._dir) > self._epoch:
            raise Superseded

    def _hand_over(self) -> None:
        """Submit the next supervisor; it takes over when it starts."""
        job = jobs.supervisor_job(self._run, self._dir, self._epoch + 1)
        submitted = Submitted(job=job, job_id=self._cluster.submit(job), time=time.time())
        files.write_record(self._dir.job(job.name), submitted)


def keeper_gib(run: Run) -> float:
    """Memory that the keepers of a run ask for."""
    converting = run.checkpoint.format is CheckpointFormat.TORCH
    return jobs.keeper_memory_gib(staged_bytes(run.checkpoint), converting)


def latest_epoch(run_dir: RunDir) -> int:
    """The highest epoch that anybody took; 0 when nobody has."""
    stems = (name.removesuffix(".json") for name in files.names(run_dir.supervisors))
    return max((int(stem) for stem in stems if stem.isdigit()), default=0)


def take_over(run_dir: RunDir) -> int:
    """Become the supervisor; the new epoch."""
    while True:
        epoch = latest_epoch(run_dir) + 1
        entry = Epoch(
            epoch=epoch,
            host=os.uname().nodename,
            pid=os.getpid(),
            time=time.time(),
            token=files.token(),
        )
        if files.create(run_dir.supervisor(epoch), entry.model_dump_json()):
            return epoch
