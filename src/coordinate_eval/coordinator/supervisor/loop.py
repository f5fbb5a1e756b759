"""The supervisor's loop: poll the scheduler, gather facts, decide, act.

Nobody else of a run submits or watches its jobs. A supervisor can be killed at any instruction: the
next one goes on from the files of the run directory. Of two that run at the same time, the one
with the lower epoch leaves.
"""

import contextlib
from collections.abc import Callable, Set
from dataclasses import replace
from typing import Any

from coordinate_eval import _files
from coordinate_eval._clock import Clock, SystemClock, growing
from coordinate_eval._format import plural
from coordinate_eval.clusters.local import cores
from coordinate_eval.clusters.protocol import Cluster, State, TaskStatus
from coordinate_eval.coordinator.comparison.deciding import unlike_prompts
from coordinate_eval.coordinator.incidents import remedies
from coordinate_eval.coordinator.incidents.causes import Causes
from coordinate_eval.coordinator.prompts.request_cache import link_found
from coordinate_eval.coordinator.report import first_signal
from coordinate_eval.coordinator.run import jobs, lease
from coordinate_eval.coordinator.run.claiming.claims import Ledger
from coordinate_eval.coordinator.run.claiming.work import all_spans, unscored_datasets
from coordinate_eval.coordinator.run.own import check_there, is_removed, work_folder
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import JudgeProgress, Submitted, read_run
from coordinate_eval.coordinator.run.supervision import latest_epoch, take_over
from coordinate_eval.coordinator.supervisor import ending
from coordinate_eval.coordinator.supervisor.decide import decide
from coordinate_eval.coordinator.supervisor.decide_jobs import holds_up_trials
from coordinate_eval.coordinator.supervisor.ending import sweep
from coordinate_eval.coordinator.supervisor.gather import gather_facts, refresh_listings
from coordinate_eval.coordinator.supervisor.handover import Handover
from coordinate_eval.coordinator.supervisor.placing.other_runs import OtherRuns
from coordinate_eval.coordinator.supervisor.placing.search import Search
from coordinate_eval.coordinator.supervisor.polls import (
    MAX_BACKOFF_SECONDS,
    MAX_FAULTS,
    Polls,
    Silence,
)
from coordinate_eval.coordinator.supervisor.refused import Guard, refuse
from coordinate_eval.coordinator.supervisor.submitting import Submitter
from coordinate_eval.coordinator.supervisor.values import (
    Action,
    Cancel,
    EndHung,
    Facts,
    FindCauses,
    Finish,
    Hands,
    MakePlan,
    NewRound,
    Release,
    Revoke,
    Submit,
)
from coordinate_eval.errors import (
    ClusterError,
    ClusterSilent,
    CoordinateError,
    NotFromHere,
    RecordError,
    SettingsRefused,
    SubmitRefused,
    UserError,
)

LOCAL_POLL_SECONDS = 0.2
"""Longest time between polls of a cluster on this machine, where a poll costs nothing."""


class Superseded(Exception):
    """A later supervisor has taken over."""


class Supervisor:
    """Supervises one run to its end.

    Args:
        minutes: time limit of the supervisor's own job.
        strict: raise `SubmitRefused` if the scheduler refuses the run's first job.
        show: called with the facts after each poll.
        ended: called with the results when the run has ended, before its last jobs leave.
        clock: the time, which everything here is told by.
    """

    def __init__(
        self,
        run_dir: RunDir,
        cluster: Cluster,
        *,
        minutes: float = float("inf"),
        strict: bool = False,
        show: Callable[[Facts], None] = lambda facts: None,
        tell: Callable[[str], None] = lambda event: None,
        ended: Callable[[dict[str, Any]], None] = lambda results: None,
        note: Callable[[str], None] = lambda step: None,
        clock: Clock | None = None,
    ) -> None:
        hands = Hands(run_dir, cluster, clock or SystemClock(), tell, note)
        self._dir, self._cluster, self._clock, self._tell, self._note = hands
        self._run = read_run(run_dir)
        self._strict, self._show, self._ended = strict, show, ended
        self._cores = cores() if cluster.local else None
        self._estimated: frozenset[str] = frozenset()
        self._silence = Silence(run_dir, self._clock)
        self._causes = Causes(run_dir, self._run.settings, tell)
        self._others = OtherRuns(run_dir, self._run, cluster, self._clock)
        self._submitter = Submitter(hands, strict=strict, has_room=self._others.has_room)
        prefix = jobs.prefix(self._run)
        self._handover = Handover(
            prefix, self._submit_next, cluster.cancel, run_dir.logs, minutes, tell, self._clock
        )
        self._successors: Set[str] = frozenset()
        self.results: dict[str, Any] | None = None
        self._poll_seconds = self._run.settings.supervisor.poll_seconds
        if cluster.local:
            self._poll_seconds = min(self._poll_seconds, LOCAL_POLL_SECONDS)
        self._guard = Guard(run_dir, self._run, self._tell)
        self._polls = Polls(cluster, prefix, self._clock)
        self._faults = self._silences = 0
        self._job_limit = False
        self._search = Search(hands, self._others, self._poll_seconds)
        _files.never_make(run_dir.root)
        work_folder(run_dir)
        self._epoch = take_over(run_dir)
        self._note(f"supervisor {self._epoch} of run {self._run.id}, in {run_dir.root}")

    def run(self) -> dict[str, Any] | None:
        """Supervise until the run is over. Return its results, or None if a successor goes on.

        Raises:
            CoordinateError, OSError: it cannot go on, or the run was removed.
        """
        try:
            self.begin()
            while not self.step():
                watch = not (self._faults or self._silences)
                self._wait(self.pause_seconds, watch=watch)
            if self.results is not None:
                self._drain()
                sweep(
                    self._run,
                    self._dir,
                    self._cluster,
                    self._poll_seconds,
                    self._clock,
                    self._check_epoch,
                    note=self._note,
                )
        except Superseded:
            return None
        return self.results

    def begin(self) -> None:
        """Make ready for the first step."""
        planned = {shard.dataset for shard in self._run.shards}
        for dataset in self._run.suite.datasets:
            if planned and dataset.name not in planned:
                continue  # the plan was made without it, for good
            # The cause of an earlier error may be gone: a full disk, a missing package.
            self._dir.requests_error(dataset.name).unlink(missing_ok=True)
            self._dir.dataset_error(dataset.name).unlink(missing_ok=True)
        self._ask_the_judge_again()
        self._submitter.forget()
        if self._run.planned:
            self._refuse()
        else:
            self._guard.start()
            self._link_found()

    def _ask_the_judge_again(self) -> None:
        """Forget what the judge said to jobs of an earlier supervisor, but not what it took."""
        said = _files.read_record_if_there(self._dir.judge, JudgeProgress)
        if said is not None:
            again = said.model_copy(update={"state": "asking", "said": ""})
            _files.write_record(self._dir.judge, again)

    def leave_soon(self) -> None:
        """Hand over to a successor as soon as possible. A signal handler may call this."""
        self._handover.ask()

    def step(self) -> bool:
        """Poll, decide and act until the next poll can wait: for `pause_seconds`.

        Return whether this supervision is over. `results` has the results then, if the run is.

        Raises:
            Superseded: a later supervisor has taken over.
            CoordinateError, OSError: it cannot go on, or the run was removed.
        """
        try:
            while True:
                ended = self._look()
                if ended is not None:
                    return ended
        except NotFromHere:
            raise
        except (ClusterError, OSError, RecordError, UserError) as error:
            self._bear(error)
        return False

    def _look(self) -> bool | None:
        """Poll once. Return whether supervision is over; None if the next poll is due at once."""
        check_there(self._dir)
        self._check_epoch()
        leaves = self._handover.due
        tasks = self._polls.tasks()
        if leaves:
            try:
                left = self._handover.submit(tasks, self._epoch + 1)
            except SettingsRefused as error:
                name = jobs.supervisor_name(self._run, self._epoch + 1)
                words = f"the scheduler refused {name}: {str(error).splitlines()[0]}"
                return self._finish(Finish(words), self._facts(tasks))
            if left and self._handover.has_to_leave:
                return True
        goes_on = False
        facts, actions = self._decide(tasks)
        if self._run.planned and not facts.unpublished:
            lease.end(self._run)
        for action in actions:
            found = self._act(action, facts)
            if isinstance(found, Finish):
                return self._finish(found, facts)
            goes_on = goes_on or found
        self._show_first_signal()
        self._faults = self._silences = 0
        return None if goes_on else False

    def _submit_next(self, epoch: int, alive: list[TaskStatus]) -> str:
        """Submit the supervisor of an epoch, unless it is among these tasks; return its id."""
        now = self._clock.now()
        job = jobs.supervisor_job(self._run, self._dir, epoch, now)
        job, job_id = self._submitter.find_or_submit(job, alive)
        _files.write_record(self._dir.job(job.name), Submitted(job=job, job_id=job_id, time=now))
        return job_id

    def _bear(self, error: Exception) -> None:
        """Say what went wrong, and try again later.

        Raises:
            CoordinateError, OSError: the run was removed, or another try would not help.
        """
        if is_removed(self._dir):
            self._drain()
            lease.end(self._run)
            check_there(self._dir)
        if isinstance(error, SubmitRefused | UserError) and self._strict:
            raise error
        # Wait for a silent scheduler for ever, but not for errors that may not pass.
        silent = isinstance(error, ClusterSilent)
        self._faults, self._silences = self._faults + (not silent), self._silences + silent
        if self._faults > MAX_FAULTS:
            raise error
        self._tell(_describe(error))

    @property
    def pause_seconds(self) -> float:
        """Return the seconds until the next step: ever more after errors."""
        failures = self._faults + self._silences
        seconds = self._poll_seconds
        if failures:
            seconds = growing(seconds, failures, MAX_BACKOFF_SECONDS)
        return self._polls.slower * seconds

    def _decide(self, tasks: list[TaskStatus]) -> tuple[Facts, list[Action]]:
        """Gather facts and decide. Look again before an action that follows from missing files."""
        facts = self._facts(tasks)
        actions = decide(self._run, self._dir, facts)
        if any(
            isinstance(a, EndHung | Revoke)
            or (isinstance(a, NewRound) and self._search.may_search(self._run, facts))
            or (isinstance(a, Finish) and a.why)
            for a in actions
        ):
            refresh_listings(self._dir, [dataset.name for dataset in self._run.suite.datasets])
            facts = self._facts(tasks)
            actions = decide(self._run, self._dir, facts)
        self._show(facts)
        return facts, actions

    def _facts(self, tasks: list[TaskStatus]) -> Facts:
        found = gather_facts(
            self._dir, self._run, tasks, self._clock.now(), self._submitter.arrays.idle, self._cores
        )
        found = self._silence.of(self._run, found)
        if not self._job_limit and holds_up_trials(self._run, found):
            self._job_limit = True
            self._tell("a limit on how many jobs run at once: nodes get one job each from now on")
        return replace(found, job_limit=self._job_limit)

    def _act(self, action: Action, facts: Facts) -> Finish | bool:
        """Carry out an action. Return how the run ends, or whether the next poll is due at once."""
        check_there(self._dir)
        self._check_epoch()
        if isinstance(action, Finish):
            return action
        if isinstance(action, MakePlan):
            return self._plan()
        if isinstance(action, NewRound):
            return self._search.new_round(self._run, action, facts)
        if isinstance(action, Submit):
            return self._submitter.submit(self._run, action, facts) or False
        if isinstance(action, Cancel):
            self._tell(f"cancelling {', '.join(action.job_ids)}: {action.why}")
            self._cluster.cancel(list(action.job_ids))
            self._silence.begins_again(*action.job_ids)
        elif isinstance(action, EndHung):
            self._causes.record([action.incident])
            self._cluster.cancel(list(action.job_ids))
            self._silence.begins_again(action.incident.job, *action.job_ids)
        elif isinstance(action, FindCauses):
            self._causes.record(action.incidents)
            return True
        elif isinstance(action, Revoke):
            said = remedies.revoke(self._dir, self._run, action.ledger, action.claim, action.end)
            self._tell(said)
        elif isinstance(action, Release):
            _files.write(self._dir.released(action.round, action.node), "")
        return False

    def _show_first_signal(self) -> None:
        """Write the first signal again when there are new estimates."""
        estimated = _files.names(self._dir.estimates_folder)
        if estimated - self._estimated:
            found = first_signal.collect(self._dir, self._run)
            _files.write_record(self._dir.first_signal, found)
            self._estimated = estimated

    def _link_found(self) -> None:
        """Take what is in the cache of requests. Build jobs say what is wrong with the others."""
        try:
            link_found(self._run, self._dir)
        except (OSError, CoordinateError) as error:
            self._tell(f"nothing is taken from the cache of requests: {error}")

    def _refuse(self) -> None:
        for refused in refuse(self._dir, self._run):
            self._tell(refused)

    def _plan(self) -> Finish | bool:
        """Plan the run if nodes are free. Return how the run ends, or whether it has a plan."""
        if not self._guard.is_over():
            return False
        if self._guard.why:
            return Finish(self._guard.why)
        unlike = self._run.against and self._is_built() and unlike_prompts(self._dir, self._run)
        if unlike:
            return Finish(unlike)
        planned = self._search.plan(self._run)
        if planned is None or isinstance(planned, Finish):
            return planned or False
        self._run = planned
        self._note("the prompts are built, and the run is planned")
        self._refuse()
        return True

    def _finish(self, action: Finish, facts: Facts) -> bool:
        """Release all nodes and write the results. Return True: supervision is over."""
        self._show_first_signal()
        ending.release_nodes(self._dir)
        self.results = ending.write_results(
            self._dir, self._run, self._cluster, action.why, self._tell
        )
        unscored = len(self.results["missing"])
        scored = f"{plural(unscored, 'dataset')} without scores" if unscored else "all are scored"
        self._successors = {
            task.job_id
            for task in facts.tasks
            if task.state is State.PENDING and jobs.is_supervisor(self._run, task.name)
        }
        self._note(action.why or f"nothing is left to do: {scored}")
        self._search.avoid_broken_nodes(self._run)
        ending.learn(self._dir, self._run, self._tell)
        self._others.leave()
        lease.end(self._run)
        self._ended(self.results)
        return True

    def _drain(self) -> None:
        ending.drain(
            self._run,
            self._cluster,
            self._poll_seconds,
            self._check_epoch,
            self._clock,
            self._successors,
        )

    def _wait(self, seconds: float, *, watch: bool) -> None:
        """Sleep until it is time to hand over or, with `watch`, something is there to be done."""
        end = self._clock.passed() + seconds
        before_plan = not self._run.planned and not self._may_plan()
        tried = self._handover.asked and not watch  # and the scheduler gave no answer
        while self._clock.passed() < end:
            if (self._handover.asked and not tried) or (
                watch and self._is_due(before_plan=before_plan)
            ):
                return
            self._clock.sleep(min(1.0, max(0.2, self._poll_seconds / 10), self._poll_seconds))

    def _is_due(self, *, before_plan: bool) -> bool:
        """Return whether everything is scored or, `before_plan`, all is there to make it."""
        if before_plan:
            return self._may_plan()
        return not unscored_datasets(self._dir, self._run)

    def _may_plan(self) -> bool:
        """Return whether the tensors are compared, and no requests are left to be built."""
        return self._guard.is_over() and self._is_built()

    def _is_built(self) -> bool:
        """Return whether no requests are left to be built."""
        return not Ledger(self._dir, "requests").unpublished(all_spans(self._run, "requests"))

    def _check_epoch(self) -> None:
        with contextlib.suppress(OSError):  # such as a full disk
            _files.touch(self._dir.supervisors_folder)
        if latest_epoch(self._dir) > self._epoch:
            raise Superseded


def _describe(error: Exception) -> str:
    if isinstance(error, ClusterSilent):
        return f"the scheduler does not answer: {error}"
    return f"an error, trying again: {error}"
