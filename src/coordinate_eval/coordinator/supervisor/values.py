"""The inputs and outcomes of decisions: facts and actions.

Every action may be carried out twice without harm."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from coordinate_eval._clock import Clock
from coordinate_eval.clusters.protocol import Cluster, End, Job, State, TaskStatus
from coordinate_eval.coordinator.incidents.incident import Incident
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.claiming.claims import LedgerName, OpenClaim
from coordinate_eval.coordinator.run.claiming.pullers import Pullers, works_on
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import (
    JudgeProgress,
    Round,
    Run,
    StageProgress,
    Submitted,
    TrialProgress,
)
from coordinate_eval.records import Span


class Hands(NamedTuple):
    """The tools that the parts of a supervisor share."""

    dir: RunDir
    cluster: Cluster
    clock: Clock
    tell: Callable[[str], None]
    """Called with what happens, for the user."""
    note: Callable[[str], None]
    """Called with each step, for the log."""


NodeKey = tuple[int, str]
"""A round's number, and the name of one of its nodes."""


class Quiet(NamedTuple):
    """A job on CPUs that runs, and how long it has given no sign of life."""

    task: TaskStatus
    seconds: float
    begun: bool
    """True if it has ever given one."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The state of a run: its directory, one poll, and what its supervisor remembers."""

    # What the scheduler knows, and what it was asked for.

    now: float
    """Time of the poll, in seconds since the epoch."""
    tasks: list[TaskStatus]
    """The answer to the poll."""
    submitted: Mapping[str, Submitted] = field(default_factory=dict)
    """Jobs by name, those that the scheduler refused included."""
    cancelled: bool = False
    """The user has cancelled the run."""

    # The work that is left, and who works at it.

    unpublished: list[Span] = field(default_factory=list)
    """Shards without published responses."""
    claimable: Mapping[LedgerName, list[Span]] = field(default_factory=dict)
    """Spans that a job can claim now, by ledger; in "outputs" by a trial."""
    open_claims: list[tuple[LedgerName, OpenClaim]] = field(default_factory=list)
    """On spans of all ledgers."""
    claims_with_second_attempt: Sequence[OpenClaim] = ()
    """On shards, of owners that may go on beside a second one."""
    unbuilt: int = 0
    """Datasets with neither requests nor an error, while the run has no plan."""
    unbuildable: Sequence[str] = ()
    """Datasets whose requests cannot be built."""
    unscored: int = 0
    """Datasets with neither results nor an error."""
    deleted: bool = False
    """Nobody can read the checkpoint any more, and it is needed."""

    # Rounds: those that still have jobs, and the results of all.

    rounds: Sequence[Round] = ()
    """The rounds that go on, in order. `released`, `stages` and `trials` are about these rounds."""
    released: frozenset[NodeKey] = frozenset()
    """Nodes whose weights nobody needs any more."""
    stages: Mapping[NodeKey, StageProgress] = field(default_factory=dict)
    """Progress of keepers, by round and node."""
    trials: Mapping[str, TrialProgress] = field(default_factory=dict)
    """Progress of the trials that have begun."""
    last: tuple[Round, Sequence[TrialProgress]] | None = None
    """The last round with its trials that have begun, if it began since the last resume."""
    asked: float = 0.0
    """The time at which the last round began, 0 before the first."""
    answered: bool = False
    """A trial of this run has ever answered."""
    idle_rounds: int = 0
    """Last rounds in a row without any response."""
    waits: int = 0
    """Last rounds in a row without a response that do not count: see `remedies.py`."""
    fruitless_rounds: int = 0
    """Last rounds in a row in which no trial has answered, though others may."""
    most_trials: int = 0
    """Trials that the plan has, or that it would have had more GPUs been free."""
    ready_seconds: float = 0.0
    """From the submission of a trial until its engine answers: as seen here, else predicted."""
    pace: float | None = None
    """GPU seconds for a predicted one, as seen in this run; None before the first response."""

    # What went wrong since the last resume.

    incidents: Sequence[Incident] = ()
    """Incidents that are written, the last ones last."""
    worked: frozenset[Pullers] = frozenset()
    """Kinds of pullers that have incidents, and a job that has done something by now."""
    observed: Sequence[Incident] = ()
    """Incidents that are neither judged nor written yet."""
    judge: JudgeProgress | None = None
    """The progress of the judge, None before it is asked."""

    # What only this supervisor knows, since it began.

    idle_arrays: Mapping[Pullers, int]
    """Last arrays of pullers in a row that did nothing, by kind."""
    cores: int | None = None
    """The cores of this machine, if all jobs of the run share them."""
    job_limit: bool = False
    """Trials have waited in vain at a limit on how many jobs run at once."""
    stuck: float = 0.0
    """Seconds for which it has known that nothing starts by itself."""
    silent: Mapping[str, float] = field(default_factory=dict)
    """Seconds since the last sign of life of each trial whose task runs."""
    due: Mapping[str, float] = field(default_factory=dict)
    """Seconds after which an answer of each dataset is due."""
    quiet: Mapping[str, Quiet] = field(default_factory=dict)
    """Build, metric, judge's and scoring jobs whose task runs, by the id that cancels it."""

    def running_trials(self, run: Run) -> dict[str, tuple[NodeKey, TaskStatus]]:
        """Return the trials that have not ended and whose tasks run, with their round and node."""
        return {
            trial: found
            for trial, found in self.trials_with_tasks(run).items()
            if not self.says_it_ended(trial)
        }

    def says_it_ended(self, trial: str) -> bool:
        """Return whether a trial's own record says that it has ended."""
        progress = self.trials.get(trial)
        return progress is not None and progress.state in ("ended", "failed")

    def trials_with_tasks(self, run: Run) -> dict[str, tuple[NodeKey, TaskStatus]]:
        """Return the trials whose tasks run, with their round and node.

        A trial may have ended while its process has not.
        """
        nodes = {
            jobs.trials_name(run, round_.number, node.name): (round_, node)
            for round_ in self.rounds
            for node in round_.nodes
        }
        found = {}
        for task in self.tasks:
            if task.state is State.RUNNING and task.name in nodes:
                round_, node = nodes[task.name]
                whole = self.is_one_job(run, task.name)
                for index in range(node.trials) if whole else [task.index]:
                    trial = jobs.trial_id(node.name, index, round_.number)
                    found[trial] = (round_.number, node.name), task
        return found

    def is_one_job(self, run: Run, name: str) -> bool:
        """Return whether the job of this name runs all trials of its node in one task."""
        submitted = self.submitted.get(name)
        one = run.exclusive and run.nodes_per_trial == 1
        return one or (submitted is not None and jobs.is_one_job(submitted.job))

    def id_of(self, run: Run, task: TaskStatus) -> str:
        """Return the id that cancels one task of a submitted job, and no other."""
        found = self.submitted.get(task.name)
        array = not self.is_one_job(run, task.name) and found is not None and found.job.count > 1
        return f"{task.job_id}_{task.index}" if array else task.job_id

    def of_pullers(self, kind: Pullers) -> list[Incident]:
        """Return the incidents of such pullers."""
        return [each for each in self.incidents if each.kind is kind]

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

    def to_come(self, run: Run) -> Sequence[Span]:
        """Return the shards without responses, while a trial works on some or can claim some.

        Datasets that are left when there is neither are given up: no response comes.
        """
        held = any(ledger == "outputs" for ledger, _ in self.open_claims)
        trials = held or any(
            task.state is not State.ENDED and jobs.is_trials(run, task.name) for task in self.tasks
        )
        return self.unpublished if trials or self.claimable["outputs"] else ()

    def expects_questions(self, run: Run) -> bool:
        """Return whether some questions to the judge are still to be written."""
        held = [each.span for ledger, each in self.open_claims if ledger == "questions"]
        pending = [*self.to_come(run), *self.claimable.get("questions", ()), *held]
        return any(span.dataset in run.judged for span in pending)

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
    """Declare the owner of a claim dead. `end` is how its task ended."""

    ledger: LedgerName
    claim: OpenClaim
    end: End = End.UNKNOWN


@dataclass(frozen=True)
class FindCauses:
    """Find the causes of incidents, and write them."""

    incidents: tuple[Incident, ...]


@dataclass(frozen=True)
class EndHung:
    """End a job that hangs: write the incident, and cancel these jobs."""

    incident: Incident
    job_ids: tuple[str, ...]


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
    """Ask for nodes for at most `trials` trials: some have ended, and shards are left.

    `otherwise` is why the run ends if the only node is the one on which all trials failed.
    """

    trials: int
    otherwise: str = ""


@dataclass(frozen=True)
class Finish:
    """End the run. `why` is empty if it is complete."""

    why: str = field(default="")


Action = Submit | Cancel | Revoke | FindCauses | EndHung | Release | MakePlan | NewRound | Finish
