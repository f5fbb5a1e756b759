"""Supervision as a pure function of facts: no clock, no files, no scheduler.

`decide` is called after each poll. Every action may be carried out twice without harm.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from coordinate_eval.cluster import Job, State, TaskStatus
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.claims import MAX_DEATHS, LedgerName, OpenClaim
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.pullers import (
    Pullers,
    is_pullers,
    most_pullers,
    pullers_job,
    useful_pullers,
    works_on,
)
from coordinate_eval.coordinator.run.records import (
    JudgeProgress,
    Round,
    RoundNode,
    Run,
    StageProgress,
    Submitted,
)
from coordinate_eval.records import Span

MAX_IDLE_ROUNDS = 3
"""Rounds in a row without any response after which the run is given up."""

ROUND_PAUSE_SECONDS = 10.0
"""Wait between rounds without any response, times their number: the cause may pass."""

MAX_IDLE_ARRAYS = 3
"""Arrays of pullers in a row that did nothing, after which their work is given up."""

ARRAY_PAUSE_SECONDS = 30.0
"""Wait after an array before one that is not the only hope: what is wrong may pass."""


@dataclass(frozen=True)
class Facts:
    """The state of a run: its directory and one poll. Times are seconds since the epoch.

    Attributes:
        now: time of the poll.
        cancelled: the user has cancelled the run.
        round: the last one, or None before the first.
        submitted: jobs by name, those that the scheduler refused included.
        tasks: the answer to the poll.
        stages: progress of the last round's keepers, by node.
        released: nodes of the last round whose weights nobody needs any more.
        unpublished: shards without published responses.
        claimable: spans that a job can claim now, by ledger; in "outputs" by a trial.
        open_claims: on spans of all ledgers.
        unbuilt: datasets with neither requests nor an error, while the run has no plan.
        unbuildable: datasets whose requests cannot be built.
        unscored: datasets with neither results nor an error.
        idle_rounds: last rounds in a row without any response.
        idle_arrays: last arrays of pullers in a row that did nothing, by kind.
        recurring: all trials of the last round failed, and others would fail in the same way.
        cores: of this machine, if all jobs of the run share it.
        judge: how far the judge is, None before it is asked.
    """

    now: float
    cancelled: bool
    round: Round | None
    submitted: Mapping[str, Submitted]
    tasks: list[TaskStatus]
    stages: Mapping[str, StageProgress]
    released: frozenset[str]
    unpublished: list[Span]
    claimable: Mapping[LedgerName, list[Span]]
    open_claims: list[tuple[LedgerName, OpenClaim]]
    unbuilt: int
    unbuildable: list[str]
    unscored: int
    idle_rounds: int
    idle_arrays: Mapping[Pullers, int]
    recurring: bool
    cores: int | None = None
    judge: JudgeProgress | None = None

    def alive(self, name: str) -> list[TaskStatus]:
        """Return the tasks of a job that have not ended."""
        return [t for t in self.tasks if t.name == name and t.state is not State.ENDED]

    def waiting_for(self, run: Run, kind: Pullers) -> int:
        """Return how many spans pullers of this kind can claim now."""
        return sum(
            works_on(run, kind, ledger, span.dataset)
            for ledger, spans in self.claimable.items()
            for span in spans
        )

    def held_by(self, run: Run, kind: Pullers) -> int:
        """Return how many open claims are on work of this kind of pullers."""
        return sum(
            works_on(run, kind, ledger, open_claim.span.dataset)
            for ledger, open_claim in self.open_claims
        )

    def ended(self, name: str) -> bool:
        """Return whether a job was submitted and all of its tasks have ended."""
        return name in self.submitted and not self.alive(name)


@dataclass(frozen=True)
class Submit:
    """Submit a job, unless the scheduler has one of its name or refused the one it is `beside`."""

    job: Job
    beside: str = ""


@dataclass(frozen=True)
class Cancel:
    """Cancel jobs or tasks."""

    job_ids: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Revoke:
    """Declare the owner of a claim dead."""

    ledger: LedgerName
    claim: OpenClaim


@dataclass(frozen=True)
class Release:
    """Tell a node's keeper that no trial needs the weights any more."""

    round: int
    node: str


@dataclass(frozen=True)
class MakePlan:
    """Plan the run on the nodes that are free: all requests are built."""


@dataclass(frozen=True)
class NewRound:
    """Ask for nodes again: all trials have ended, and shards are left."""


@dataclass(frozen=True)
class Finish:
    """End the run. `why` is empty if it is complete."""

    why: str = field(default="")


Action = Submit | Cancel | Revoke | Release | MakePlan | NewRound | Finish


def decide(run: Run, run_dir: RunDir, facts: Facts) -> list[Action]:
    """Return the actions that are due now, in order."""
    if facts.cancelled:
        return [Finish("cancelled")]
    orphans = _orphans(facts)
    actions: list[Action] = [Revoke(ledger, claim) for ledger, claim in orphans]
    actions += _doubles(run, facts)
    held = replace(facts, open_claims=[c for c in facts.open_claims if c not in orphans])
    for kind in Pullers:
        actions += _pullers(run, run_dir, facts, kind, held.held_by(run, kind))
    if not run.planned:
        return actions + _before_plan(run, facts)
    round_over = facts.round is None
    if facts.round is not None:
        for node in facts.round.nodes:
            actions += _node(run, run_dir, facts, facts.round, node)
        round_over = all(_over(run, facts, facts.round, node) for node in facts.round.nodes)
    if facts.unscored == 0:
        actions.append(Finish())
    elif facts.unpublished and round_over:
        actions += _next_round(facts)
    elif not facts.unpublished and round_over:
        actions += _waiting_for_scores(run, facts)
    return actions


def _before_plan(run: Run, facts: Facts) -> list[Action]:
    """Wait until all requests are built, then plan or say which cannot be."""
    if not facts.unbuilt:
        if not facts.unbuildable:
            return [MakePlan()]
        names = ", ".join(facts.unbuildable)
        prefetch = ["coordinate-eval", "prefetch", "--suite", run.settings.suite]
        return [
            Finish(
                f"the requests of {names} cannot be built. If data is missing here, "
                f"`{shlex.join([*prefetch, run.checkpoint.path])}` on a machine with a network "
                "gets it"
            )
        ]
    building = any(ledger == "requests" for ledger, _ in facts.open_claims) or any(
        is_pullers(run, task.name, Pullers.BUILD) and task.state is not State.ENDED
        for task in facts.tasks
    )
    idle = facts.idle_arrays[Pullers.BUILD]
    if building or (facts.claimable["requests"] and idle < MAX_IDLE_ARRAYS):
        return []
    if facts.claimable["requests"]:
        return [Finish(f"{idle} arrays of build jobs in a row built nothing")]
    return [Finish(f"{MAX_DEATHS} build jobs died at each dataset that is left")]


def _orphans(facts: Facts) -> list[tuple[LedgerName, OpenClaim]]:
    """Return the open claims of tasks that have ended."""
    living: set[str] = set()
    for task in facts.tasks:
        if task.state is not State.ENDED:
            living |= {task.job_id, f"{task.job_id}_{task.index}"}
    return [
        (ledger, open_claim)
        for ledger, open_claim in facts.open_claims
        if open_claim.claim.task.rsplit(".", 1)[0] not in living
    ]


def _doubles(run: Run, facts: Facts) -> list[Action]:
    """Cancel jobs that two supervisors submitted at the same time, but for the recorded ones."""
    doubles = set()
    for task in facts.tasks:
        first = facts.submitted.get(task.name)
        if task.state is State.ENDED or first is None or jobs.is_supervisor(run, task.name):
            continue
        if first.job_id not in (None, task.job_id):
            doubles.add(task.job_id)
    why = "another supervisor had submitted the same jobs"
    return [Cancel(tuple(sorted(doubles)), why)] if doubles else []


def _node(run: Run, run_dir: RunDir, facts: Facts, round_: Round, node: RoundNode) -> list[Action]:
    """Decide for one node of a round: keeper, then trials, then release."""
    keeper = jobs.keeper_name(run, round_.number, node.name)
    trials = jobs.trials_name(run, round_.number, node.name)
    if trials in facts.submitted:
        return [*_late_keeper(run, facts, keeper, trials), *_trials(run, facts, node.name, trials)]
    if not facts.unpublished:
        return _release(facts, node.name)
    if run.exclusive:
        return [Submit(jobs.node_job(run, run_dir, round_, node))]
    if keeper not in facts.submitted:
        both: list[Action] = [Submit(jobs.keeper_job(run, run_dir, round_, node))]
        if _nearly_staged(run, facts, node.name):
            both.append(Submit(jobs.trials_job(run, run_dir, round_, node), beside=keeper))
        return both
    if facts.ended(keeper):
        stage = facts.stages.get(node.name)
        if stage is None or stage.state not in ("copying", "ready"):
            return _release(facts, node.name)
        # The keeper was killed. Trials finish its copy themselves, and remove it at the end.
        return [Submit(jobs.trials_job(run, run_dir, round_, node))]
    if _nearly_staged(run, facts, node.name):
        return [Submit(jobs.trials_job(run, run_dir, round_, node))]
    return _cancel_late(run, facts, keeper)


def _late_keeper(run: Run, facts: Facts, keeper: str, trials: str) -> list[Action]:
    """Cancel a keeper that does not start in time, or whose trials have ended before it began."""
    if keeper not in facts.submitted:  # it is in the job of its trials
        return []
    pending = [t for t in facts.alive(keeper) if t.state is State.PENDING]
    if facts.ended(trials):
        return _cancel(facts, pending, "its trials have ended")
    return _cancel_late(run, facts, keeper)


def _trials(run: Run, facts: Facts, node: str, trials: str) -> list[Action]:
    if facts.ended(trials):
        return _release(facts, node)
    if not facts.unpublished:
        pending = [t for t in facts.alive(trials) if t.state is State.PENDING]
        return _cancel(facts, pending, "no shard is left")
    return _cancel_late(run, facts, trials)


def _nearly_staged(run: Run, facts: Facts, node: str) -> bool:
    """Return whether the rest of the copy takes no longer than an engine's start.

    Where nothing is copied yet, this is as predicted: trials wait in the queue with the keeper.
    """
    stage = facts.stages.get(node)
    if stage is not None and stage.state != "copying":
        return stage.state == "ready"
    left = run.copy_seconds
    if stage is not None and stage.done_bytes > 0 and stage.updated > stage.started:
        seconds_per_byte = (stage.updated - stage.started) / stage.done_bytes
        left = (stage.total_bytes - stage.done_bytes) * seconds_per_byte
    return left is not None and left <= run.engine_start_seconds


def _cancel_late(run: Run, facts: Facts, name: str) -> list[Action]:
    """Cancel tasks that are pending for longer than `patience_seconds`."""
    submitted = facts.submitted[name]
    patience = run.settings.supervisor.patience_seconds
    pending = [t for t in facts.alive(name) if t.state is State.PENDING]
    if facts.now - submitted.time < patience or not pending:
        return []
    return _cancel(
        facts,
        pending,
        f"not started within {patience:g} s (the scheduler says: {pending[0].reason})",
    )


def _over(run: Run, facts: Facts, round_: Round, node: RoundNode) -> bool:
    """Return whether a node has done its part in this round."""
    trials = jobs.trials_name(run, round_.number, node.name)
    if trials in facts.submitted:
        return facts.ended(trials)
    return node.name in facts.released or not facts.unpublished


def _next_round(facts: Facts) -> list[Action]:
    if facts.recurring:
        return [
            Finish(
                "every trial of a round failed with the same error; another round would fail too"
            )
        ]
    if facts.idle_rounds >= MAX_IDLE_ROUNDS:
        return [Finish(f"{facts.idle_rounds} rounds in a row produced no response")]
    if not facts.claimable["outputs"] and not any(
        ledger == "outputs" for ledger, _ in facts.open_claims
    ):
        return [Finish(f"{MAX_DEATHS} trials died on each shard that is left")]
    pause = ROUND_PAUSE_SECONDS * facts.idle_rounds
    if not facts.claimable["outputs"] or (facts.round and facts.now - facts.round.created < pause):
        return []
    return [NewRound()]


def _waiting_for_scores(run: Run, facts: Facts) -> list[Action]:
    """Wait for answers and scores, which are all that is missing, or give up."""
    stuck = [kind for kind in Pullers if facts.waiting_for(run, kind)]
    hopeful = any(_hopeful(run, facts, kind) for kind in stuck)
    # What the judge said last may be of the job before the one that is there.
    asking = any(
        is_pullers(run, task.name, Pullers.JUDGE) and task.state is not State.ENDED
        for task in facts.tasks
    )
    if facts.open_claims or hopeful or (asking and Pullers.JUDGE in stuck):
        return []
    if Pullers.JUDGE in stuck and facts.judge is not None and facts.judge.said:
        return [Finish(f"questions wait for their judge: {facts.judge.said}")]
    for kind in stuck:
        return [Finish(f"{facts.idle_arrays[kind]} arrays of {kind} jobs in a row did nothing")]
    return [Finish("the datasets that are left cannot be scored")]


def _hopeful(run: Run, facts: Facts, kind: Pullers) -> bool:
    """Return whether another array of pullers may do what those before it have not done.

    A judge that was silent may answer again. It is waited for as long as other work goes on.
    """
    if kind is not Pullers.JUDGE or facts.judge is None or facts.judge.state == "asking":
        return facts.idle_arrays[kind] < MAX_IDLE_ARRAYS
    if facts.judge.asked_no_more:
        return False
    others = [each for each in Pullers if each is not Pullers.JUDGE]
    return bool(facts.unpublished) or any(
        facts.held_by(run, each) or (facts.waiting_for(run, each) and _hopeful(run, facts, each))
        for each in others
    )


def _pullers(run: Run, run_dir: RunDir, facts: Facts, kind: Pullers, busy: int) -> list[Action]:
    """Submit an array of pullers if there is work and fewer than half of those for it are there.

    `busy` of those that are there have work.
    """
    if not _hopeful(run, facts, kind):
        return []
    arrays = [name for name in facts.submitted if is_pullers(run, name, kind)]
    alive = sum(len(facts.alive(name)) for name in arrays)
    last = max((facts.submitted[name].time for name in arrays), default=0.0)
    free = alive - busy
    waiting = facts.waiting_for(run, kind)
    # The harness starts while weights are copied and engines start.
    early = kind is Pullers.SCORE and not alive and facts.unscored > 0 and _has_nodes(run, facts)
    wanted = min(most_pullers(run, kind, facts.cores) - busy, max(waiting, early))
    if wanted <= 0 or free >= wanted / 2:
        return []
    # Where nothing waits for them, those before may have ended because none can run here.
    pause = ARRAY_PAUSE_SECONDS * (1 if waiting else len(arrays))
    if (alive or not waiting) and facts.now - last < pause:
        return []
    # More work is to come when the first ones start.
    count = wanted - free if arrays else useful_pullers(run, kind, facts.cores)
    if kind is Pullers.BUILD:  # no other work of this kind comes later
        count = min(count, waiting)
    return [Submit(pullers_job(run, run_dir, kind, len(arrays), count))]


def _has_nodes(run: Run, facts: Facts) -> bool:
    """Return whether a keeper or a trial runs."""
    running = [task.name for task in facts.tasks if task.state is State.RUNNING]
    return any(jobs.is_keeper(run, name) or jobs.is_trials(run, name) for name in running)


def _release(facts: Facts, node: str) -> list[Action]:
    if facts.round is None or node in facts.released:
        return []
    return [Release(facts.round.number, node)]


def _cancel(facts: Facts, tasks: list[TaskStatus], why: str) -> list[Action]:
    """Cancel tasks: single ones of an array, or a whole job if it has one task."""
    ids = set()
    for task in tasks:
        submitted = facts.submitted.get(task.name)
        array = submitted is not None and submitted.job.count > 1
        ids.add(f"{task.job_id}_{task.index}" if array else task.job_id)
    return [Cancel(tuple(sorted(ids)), why)] if ids else []
