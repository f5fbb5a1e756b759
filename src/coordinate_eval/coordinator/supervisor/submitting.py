"""Submitting the jobs of a run: each of them once, and what is refused for now again later."""

import contextlib
from collections import Counter
from collections.abc import Callable

from coordinate_eval import _files
from coordinate_eval._clock import Clock, growing
from coordinate_eval._format import plural
from coordinate_eval.clusters.protocol import Cluster, Job, JobLimits, State, TaskStatus
from coordinate_eval.coordinator.incidents.bad_nodes import read_avoided, suspected_nodes
from coordinate_eval.coordinator.incidents.incident import read_incidents
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.claiming.pullers import Pullers, is_pullers, kind_of
from coordinate_eval.coordinator.run.claiming.work import work_left
from coordinate_eval.coordinator.run.jobs import read_submitted
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Refusal, Refusals, Run, Submitted
from coordinate_eval.coordinator.supervisor.decide_jobs import is_hopeful
from coordinate_eval.coordinator.supervisor.values import Facts, Finish, Hands, Submit
from coordinate_eval.errors import (
    ArrayRefused,
    ClusterError,
    NotFromHere,
    SettingsRefused,
    SubmitLater,
    SubmitRefused,
    UserError,
)

LIMITS_SECONDS = 300.0
"""Time for which an answer counts. A maintenance is announced long before it begins."""

NO_ANSWER_SECONDS = 60.0
"""Time after a question without an answer before the next one."""


class CurrentLimits:
    """The limits on jobs, which are asked for when a job is submitted and the last ones are old.

    A run that submits nothing asks nothing. While the scheduler does not tell, the last limits
    that it told count.
    """

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster, self._clock = cluster, clock
        self._limits = JobLimits()
        self._due = float("-inf")

    def within(self, job: Job) -> Job:
        """Return a job that asks for no more time than it may have now.

        If the scheduler tells no limits now, the job keeps those that the run knew.
        """
        now = self._clock.passed()
        if now >= self._due:
            self._due = now + NO_ANSWER_SECONDS
            # What is wrong with the settings is said by the submission itself.
            with contextlib.suppress(ClusterError, UserError):
                self._limits = self._cluster.limits()
                self._due = now + LIMITS_SECONDS
        return jobs.within(job, self._limits, self._clock.now())


FIRST_PAUSE_SECONDS = 15.0
"""Wait after a scheduler refused a job, before it is tried again. It doubles each time."""

LONGEST_PAUSE_SECONDS = 300.0
"""Longest such wait."""

MAX_REFUSALS = 8
"""Refusals in a row that may not pass, after a quarter of an hour, that end the tries of a kind."""


KEEPER, TRIALS = "keeper", "trials"
"""Kinds of refused job besides arrays of pullers."""


class Arrays:
    """Counts the arrays of pullers that one supervisor has submitted and that did nothing."""

    def __init__(self, run_dir: RunDir) -> None:
        self._dir = run_dir
        self._left: dict[Pullers, tuple[int, int]] = {}
        self.idle: Counter[Pullers] = Counter()
        """Arrays in a row that ended with nothing done though there was work, by kind."""

    def count(self, run: Run, kind: Pullers, facts: Facts) -> None:
        """Note that an array is submitted now.

        The array before it counts if all of its tasks have ended, and if there was work for them.
        """
        alive = [task.name for task in facts.tasks if task.state is not State.ENDED]
        if any(is_pullers(run, name, kind) for name in alive) or not facts.waiting_for(run, kind):
            return
        left = work_left(self._dir, run, kind)
        self.idle[kind] = self.idle[kind] + 1 if left == self._left.get(kind) else 0
        self._left[kind] = left


class Submitter:
    """Submits jobs, and remembers what the scheduler refuses.

    Args:
        has_room: returns whether the user's limit leaves room for a job of pullers with GPUs.
        strict: raise `SubmitRefused` if the scheduler refuses the run's first job.
    """

    def __init__(self, hands: Hands, *, strict: bool, has_room: Callable[[Job], bool]) -> None:
        self._dir, self._cluster, self._clock, self._tell, self._note = hands
        self._strict, self._has_room = strict, has_room
        self._refused: dict[str, Refusal] = {}
        self._most_tasks: int | None = None
        self._limits = CurrentLimits(self._cluster, self._clock)
        self.arrays = Arrays(self._dir)

    def submit(self, run: Run, action: Submit, facts: Facts) -> Finish | None:
        """Submit a job once. A job whose answer was lost is found by its name.

        Return how the run ends, where it waits for nothing but jobs that are always refused.

        Raises:
            NotFromHere: jobs cannot be submitted from this node.
        """
        job, what = action.job, what_of(run, action.job)
        refusal = self._refused.get(what)
        if refusal is not None:
            if refusal.again is None:
                return self._end(run, job, refusal.words, facts)
            if facts.now < refusal.again:
                return None
            job = smaller(job, facts.now - refusal.since, run.settings.supervisor.patience_seconds)
        trials = self._refused.get(TRIALS)
        if what == KEEPER and trials and trials.again is not None and facts.now < trials.again:
            return None  # it would hold the weights in memory for nobody
        if action.beside:
            path = self._dir.job(action.beside)
            accepted = _files.read_record_if_there(path, Submitted)
            if accepted is None or accepted.job_id is None:
                return None
        kind = kind_of(run, job.name)
        if kind is not None and not self._has_room(job):
            return None
        job = job if job.node or not job.gpus else self._away_from_avoided(run, job)
        try:
            job, job_id = self._submit_as_allowed(job, facts.tasks)
        except SubmitRefused as error:
            if isinstance(error, NotFromHere):
                raise
            return self._refuse(run, job, error, facts)
        if self._refused.pop(what, None) is not None:
            self._write_refusals()
        if kind is not None:
            self.arrays.count(run, kind, facts)
        where = f" on {job.node}" if job.node else ""
        self._note(f"{job.name} is job {job_id}: {plural(job.count, 'task')}{where}")
        self._record(job, job_id)
        return None

    def _submit_as_allowed(self, job: Job, tasks: list[TaskStatus]) -> tuple[Job, str]:
        """Return a job with its id, with as many tasks as the scheduler takes in one array.

        Later rounds and arrays have the others. Where the scheduler refuses an array, ask for half
        of it until it is taken, or has become a single task.
        """
        while True:
            if self._most_tasks is not None:
                job = job.model_copy(update={"count": min(job.count, self._most_tasks)})
            try:
                return self.find_or_submit(job, tasks)
            except ArrayRefused:
                if job.count == 1:
                    raise
                self._most_tasks = job.count // 2
                self._note(f"the scheduler takes no array of {plural(job.count, 'task')}")

    def find_or_submit(self, job: Job, tasks: list[TaskStatus]) -> tuple[Job, str]:
        """Return a job with its id: that of the job with its name, else that of a new job.

        A new job asks for no more time than the scheduler allows now.
        """
        found = next((t.job_id for t in tasks if t.name == job.name), None)
        if found is not None:
            return job, found
        job = self._limits.within(job)
        return job, self._cluster.submit(job)

    def _away_from_avoided(self, run: Run, job: Job) -> Job:
        """Return a job that may start on any node, kept from those that the user's runs avoid.

        Only existing nodes are avoided: Slurm refuses a name that it does not know. If the runs
        avoid all nodes, none is avoided.
        """
        now = self._clock.now()
        suspected = suspected_nodes(self._dir, now)
        avoided = read_avoided(run.settings, now).keys() | suspected.keys()
        if kind_of(run, job.name) is Pullers.JUDGE:
            incidents = read_incidents(self._dir)
            avoided |= {each.node for each in incidents if each.kind is Pullers.JUDGE}
        if not avoided:
            return job
        try:
            free, busy = self._cluster.nodes()
        except UserError:  # such as a partition that takes no jobs now: sbatch decides
            return job
        names = {node.name for node in free} | {node.name for node in busy}
        some = names & avoided if names - avoided else set()
        return job.model_copy(update={"avoid": tuple(sorted(some))})

    def forget(self) -> None:
        """Forget what was refused to a supervisor before this one."""
        self._dir.refused.unlink(missing_ok=True)

    def _refuse(self, run: Run, job: Job, error: SubmitRefused, facts: Facts) -> Finish | None:
        """Note a refusal: for a while, for this job, or for all of its kind."""
        later, settings = isinstance(error, SubmitLater), isinstance(error, SettingsRefused)
        words, what = str(error).splitlines()[0], what_of(run, job)
        # Without a keeper its trials may be taken: as one job with it.
        hopeless = not later and (settings or what != KEEPER)
        if self._strict and hopeless and not any(s.job_id for s in read_submitted(self._dir)):
            raise error
        self._tell(f"the scheduler refused {job.name}: {error}")
        kind = kind_of(run, job.name)
        if kind is None and not later:
            # Another node may do, or another form of the job.
            self._record(job, None, str(error))
            return self._end(run, job, words, facts) if settings else None
        last = self._refused.get(what)
        tries = last.tries + 1 if last is not None and last.passes is later else 1
        pause = growing(FIRST_PAUSE_SECONDS, tries - 1, LONGEST_PAUSE_SECONDS)
        given_up = settings or (tries >= MAX_REFUSALS and not later)
        self._refused[what] = Refusal(
            job=job.name,
            words=words,
            tries=tries,
            passes=later,
            since=last.since if last is not None else facts.now,
            again=None if given_up else facts.now + pause,
        )
        self._write_refusals()
        return self._end(run, job, words, facts) if given_up else None

    def _end(self, run: Run, job: Job, words: str, facts: Facts) -> Finish | None:
        """Return how the run ends with these refusals; None while something else goes on."""
        kind = kind_of(run, job.name)
        if kind is None:
            goes_on = any(
                task.state is not State.ENDED
                and (jobs.is_keeper(run, task.name) or jobs.is_trials(run, task.name))
                for task in facts.tasks
            )
        else:
            goes_on = bool(facts.to_come(run) or facts.open_claims) or any(
                facts.waiting_for(run, other)
                and other not in self._refused
                and is_hopeful(run, facts, other)
                for other in Pullers
                if other is not kind
            )
        refusal = self._refused.get(what_of(run, job))
        times = f" {refusal.tries} times in a row" if refusal and refusal.tries > 1 else ""
        return None if goes_on else Finish(f"the scheduler refused {job.name}{times}: {words}")

    def _record(self, job: Job, job_id: str | None, refusal: str = "") -> None:
        submitted = Submitted(job=job, job_id=job_id, refusal=refusal, time=self._clock.now())
        # Another supervisor may have been first. Then its job stays.
        _files.create_record(self._dir.job(job.name), submitted)

    def _write_refusals(self) -> None:
        """Write what is refused now, for whoever asks how the run is."""
        if self._refused:
            _files.write_record(self._dir.refused, Refusals(jobs=list(self._refused.values())))
        else:
            self._dir.refused.unlink(missing_ok=True)


def what_of(run: Run, job: Job) -> str:
    """Return which jobs of a run share the fate of this one when it is refused."""
    kind = kind_of(run, job.name)
    if kind is not None:
        return kind
    return KEEPER if jobs.is_keeper(run, job.name) else TRIALS


def smaller(job: Job, waited: float, patience: float) -> Job:
    """Return a job refused for `waited` seconds, with half of its tasks for each `patience`.

    The tasks of an array count one by one towards limits on submitted jobs, so a large array may
    never be taken. The tasks that start do the work of all.
    """
    return job.model_copy(update={"count": max(1, job.count >> min(30, int(waited // patience)))})
