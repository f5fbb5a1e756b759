"""Runs whose supervisors are real, on a simulated controller: their other jobs only write files.

Keepers copy, engines start, and trials claim and publish shards as real ones do, in virtual time.
Shards take the seconds that the priors predict, times a factor for each dataset of a run. Responses
and answers are empty files: nobody reads them here. What lost trials have answered is not lost.
"""

import math
import random
import time
from collections import deque
from functools import partial
from typing import Any

from benchmarks._controller import GPU_TYPE, Controller, SimulatedSlurm, Task
from benchmarks._simulated_trial import COPY_SECONDS, WATCH_SECONDS, Trial
from benchmarks._virtual_time import Alarm
from coordinate_eval import _files
from coordinate_eval.coordinator.planning.costs import conditions, dataset_cost
from coordinate_eval.coordinator.planning.plan import Cost, Plan
from coordinate_eval.coordinator.run import jobs, measurements
from coordinate_eval.coordinator.run.claiming.claims import Ledger, LedgerName, whole
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, StageProgress, read_run
from coordinate_eval.coordinator.supervisor.loop import Supervisor
from coordinate_eval.coordinator.supervisor.refused import Guard
from coordinate_eval.coordinator.supervisor.values import Facts
from coordinate_eval.priors import catalogue
from coordinate_eval.priors.predict import Priors
from coordinate_eval.records import Dataset, DatasetRequests, DatasetResults, Shard, Span

LOOK_SECONDS = 0.5
"""Time from when there is work for a puller until it has claimed it."""

QUESTION_SECONDS = 1.0
"""Time in which a scoring job writes the questions of a shard."""


def index_of(dataset: Dataset) -> DatasetRequests:
    """Return the index of a dataset's requests as the catalogue has it."""
    work, entry = catalogue.predicted_work(dataset), catalogue.find(dataset)
    assert work is not None and entry is not None
    generating = entry.kind != "loglikelihood"
    return DatasetRequests(
        dataset=dataset.name,
        key="simulated",
        items=work.items,
        requests=round(work.requests),
        prompt_tokens=round(work.prompt_tokens),
        cached_tokens=round(work.cached_tokens),
        generate_requests=round(work.requests) if generating else 0,
        max_output_tokens=round(work.requests * entry.max_output_tokens) if generating else 0,
        longest_output_tokens=round(work.longest_output_tokens),
        asks=work.metric_cpu_seconds >= work.items,
        offsets=[],
    )


class SimulatedRun:
    """One run: its real supervisor, and what its other jobs do."""

    def __init__(
        self,
        controller: Controller,
        run_dir: RunDir,
        run: Run,
        cluster: SimulatedSlurm,
        spread: float,
        seed: int,
    ) -> None:
        self.dir, self.asked = run_dir, controller.time.now
        self.results: dict[str, Any] | None = None
        self.last_score = 0.0
        self.cpu_seconds = 0.0
        """Of the supervisor."""
        self.polls = 0
        self.reactions: list[float] = []
        """Seconds from the end of each trial's task to the decision that follows."""
        self.published: list[tuple[float, Span]] = []
        self.trials: dict[str, Trial] = {}
        """Those that have begun, by the id of their task."""
        self.scored = Alarm()
        self.controller, self.clock, self.cluster = controller, controller.time, cluster
        self._run = run
        dice = random.Random(seed)  # noqa: S311  # times, not secrets
        on = conditions(run.checkpoint, run.settings.engine, GPU_TYPE, 1)
        self._indexes = {dataset.name: index_of(dataset) for dataset in run.suite.datasets}
        self._works = {
            dataset.name: catalogue.built_work(dataset, self._indexes[dataset.name])
            for dataset in run.suite.datasets
        }
        self._truth = {
            dataset.name: _slower(
                dataset_cost(dataset, self._works[dataset.name], on, Priors()),
                dice.lognormvariate(0, spread),
            )
            for dataset in run.suite.datasets
        }
        self._noticed: set[str] = set()
        self._ready: dict[tuple[int, str], float] = {}
        self._own: dict[str, deque[Shard]] = {}
        self._free: deque[Shard] = deque()
        self._done: dict[Span, float] = {}
        """The part of each shard that is answered, where that is not all."""
        self._work = {"score": deque[_Work](), "metric": deque[_Work]()}
        self._idle: dict[str, list[Task]] = {"score": [], "metric": []}
        self._unscored = {dataset.name for dataset in run.suite.datasets}
        self._unanswered: dict[str, int] = {}
        """By dataset: shards without responses, questions and portions without answers."""

    @property
    def ended(self) -> bool:
        """Return whether its supervisor has ended."""
        return self.results is not None

    @property
    def published_share(self) -> float:
        """Return the part of the predicted GPU seconds of which the responses are published."""
        done = {span for _, span in self.published}
        seconds = [(shard.gpu_seconds, shard.span in done) for shard in self._run.shards]
        whole_seconds = sum(each for each, _ in seconds)
        return sum(each for each, there in seconds if there) / max(whole_seconds, 1e-9)

    def begin(self, task: Task, kind: str, number: int, node: str | None) -> None:
        """Do what a task does that starts."""
        match kind:
            case "super":
                self.clock.process(lambda: self._supervise(task))
            case "keep":
                assert node is not None
                self._keep(task, number, node)
            case "trial":
                self._plan()
                trial = jobs.trial_id(str(node), task.index, number)
                self.trials[task.id] = Trial(self, task, trial, number)
            case _:
                self._idle[kind].append(task)
                self._hand_out(kind)

    def stop(self, task: Task) -> None:
        """Notice that the controller has ended a task."""
        if task.id in self.trials:
            self.trials[task.id].killed()
        for idle in self._idle.values():
            if task in idle:
                idle.remove(task)

    # The supervisor.

    def _supervise(self, task: Task) -> None:
        begun, answering = time.thread_time(), self.cluster.client.answering_seconds
        supervisor = _Supervisor(self, task.minutes)
        try:
            self.results = supervisor.run() or self.results
        finally:
            self.cpu_seconds += time.thread_time() - begun + supervisor.looking_seconds
            self.cpu_seconds -= self.cluster.client.answering_seconds - answering
            self.controller.end(task, "COMPLETED")

    def decides(self, _: Facts) -> None:
        """Note how long ago what a decision follows from was."""
        self.polls += 1
        for task_id, trial in self.trials.items():
            if not trial.task.alive and task_id not in self._noticed:
                self._noticed.add(task_id)
                self.reactions.append(self.clock.now - trial.task.ended)

    # Keepers.

    def _keep(self, task: Task, number: int, node: str) -> None:
        began = self.clock.now
        self._stage("copying", number, node, began)

        def copied() -> None:
            if task.alive:
                self._ready[number, node] = self.clock.now
                self._stage("ready", number, node, began)
                watch()

        def watch() -> None:
            if not task.alive:
                return
            if self.dir.released(number, node).exists():
                self._stage("removed", number, node, began)
                self.controller.end(task, "COMPLETED")
            else:
                self.clock.after(WATCH_SECONDS, watch)

        self.clock.after(COPY_SECONDS, copied)

    def _stage(self, state: str, number: int, node: str, began: float) -> None:
        size, now = self._run.staged_bytes, self.clock.now
        values = {"state": state, "done_bytes": 0 if state == "copying" else size}
        values |= {"total_bytes": size, "started": began, "updated": now}
        values |= {"ready": self._ready.get((number, node))}
        _files.write_record(self.dir.stage(number, node), StageProgress.model_validate(values))

    # What trials do with shards.

    def _plan(self) -> None:
        """Read what there is to do, when the first trial begins."""
        if self._run.planned:
            return
        self._run = run = read_run(self.dir)
        plan = _files.read_record(self.dir.plan, Plan)
        self._own = {trial.id: deque(trial.shards) for trial in plan.trials}
        self._free = deque(run.shards)
        for shard in run.shards:
            asks = shard.dataset in run.asks
            count = 2 + run.portion_count(shard) if asks else 1
            self._unanswered[shard.dataset] = self._unanswered.get(shard.dataset, 0) + count

    def ready_seconds(self, number: int, node: str) -> float:
        """Return the seconds until the weights are on a node; infinity while nobody knows."""
        return self._ready.get((number, node), math.inf) - self.clock.now

    def claim(self, trial: str, task: Task, most: float) -> Shard | None:
        """Claim the next shard of a trial: its own first, then the longest that is free.

        Claim none that is predicted to take longer than `most` seconds.
        """
        ledger = Ledger(self.dir, "outputs")
        own = self._own.get(trial, deque[Shard]())
        for queue in (own, self._free):
            again: list[Shard] = []
            found = None
            while queue and found is None:
                shard = queue.popleft()
                if ledger.is_published(shard.span):
                    continue
                attempt = None
                if shard.gpu_seconds < most:
                    attempt = ledger.claim(shard.span, trial, f"{task.id}.0")
                if attempt is None:
                    again.append(shard)  # its owner may die
                else:
                    found = shard
            if queue is self._free:
                # What is claimed by others is looked at last.
                queue.extend(again)
            if found is not None:
                return found
        return None

    def seconds(self, span: Span) -> tuple[float, float]:
        """Return how long an engine works on what is left of a shard, and until it is complete."""
        cost = self._truth[span.dataset]
        left = 1.0 - self._done.get(span, 0.0)
        took = left * cost.gpu_seconds * (span.stop - span.start) / cost.items
        took += cost.chunk_overhead_seconds * bool(span.start)
        return took, max(took, cost.floor_seconds)

    def lose(self, shard: Shard, share: float) -> None:
        """Note the part of a shard that a lost trial has answered."""
        before = self._done.get(shard.span, 0.0)
        self._done[shard.span] = before + (1 - before) * max(0.0, min(0.95, share))
        self._free.append(shard)

    def publish(self, shard: Shard, trial: str) -> None:
        """Publish the responses of a shard."""
        span, index = shard.span, self._indexes[shard.dataset]
        work = self._works[shard.dataset]
        _files.write(self.dir.published("outputs", span), "")
        share = (span.stop - span.start) / index.items
        cost = self._truth[span.dataset]
        line = measurements.ShardDone(
            time=self.clock.now,
            dataset=span.dataset,
            start=span.start,
            stop=span.stop,
            items=span.stop - span.start,
            requests=max(1, round(share * index.requests)),
            prompt_tokens=round(share * index.prompt_tokens),
            output_tokens=round(share * work.output_tokens),
            scored_tokens=0,
            longest_output_tokens=round(work.longest_output_tokens),
            gpu_seconds=cost.gpu_seconds * share,
        )
        measurements.append_line(self.dir.observations(trial), line)
        self.published.append((self.clock.now, span))
        if shard.dataset in self._run.asks:
            self._add("score", _Work("questions", self._run.portions(shard)[-1], QUESTION_SECONDS))
        self._one_less(shard.dataset)

    # What pullers do.

    def _one_less(self, dataset: str) -> None:
        self._unanswered[dataset] -= 1
        if not self._unanswered[dataset]:
            self._add("score", _Work("results", whole(dataset), self._truth[dataset].score_seconds))

    def _add(self, kind: str, work: "_Work") -> None:
        self._work[kind].append(work)
        self._hand_out(kind)

    def _hand_out(self, kind: str) -> None:
        while self._idle[kind] and self._work[kind]:
            task, work = self._idle[kind].pop(), self._work[kind].popleft()
            self.clock.after(LOOK_SECONDS, partial(self._take, kind, task, work))

    def _take(self, kind: str, task: Task, work: "_Work") -> None:
        if not task.alive or self.ended:
            return
        ledger = Ledger(self.dir, work.ledger)
        owner = f"{kind}-{task.index}"
        if ledger.claim(work.span, owner, f"{task.id}.0") is not None:
            self.clock.after(work.seconds, partial(self._finish, kind, task, work))
        else:
            self._free_again(kind, task)

    def _finish(self, kind: str, task: Task, work: "_Work") -> None:
        if not task.alive or self.ended:
            return
        span = work.span
        match work.ledger:
            case "questions":
                self._write_questions(span)
            case "answers":
                _files.write(self.dir.published("answers", span), "")
                self._one_less(span.dataset)
            case _:
                items = self._truth[span.dataset].items
                found = DatasetResults(dataset=span.dataset, items=items, results={})
                _files.write_record(self.dir.dataset_results(span.dataset), found)
                index = self._indexes[span.dataset]
                measurements.append_scoring(self.dir.scorings(span.dataset), work.seconds, index)
                self.last_score = self.clock.now
                self._unscored.discard(span.dataset)
                if not self._unscored:
                    self.scored.ring()
        self._free_again(kind, task)
        if kind == "metric" and not any(self._unanswered[name] for name in self._run.asks):
            for each in self._idle.pop(kind):
                self.controller.end(each, "COMPLETED")
            self._idle[kind] = []

    def _write_questions(self, last: Span) -> None:
        shards = self._run.shards_with_questions()
        shard = next(s for s in shards if self._run.portions(s)[-1] == last)
        each = self._truth[shard.dataset].metric_cpu_seconds / self._truth[shard.dataset].items
        for span in self._run.portions(shard):
            _files.write(self.dir.questions(span), "")
            self._add("metric", _Work("answers", span, each * (span.stop - span.start)))
        self._one_less(shard.dataset)

    def _free_again(self, kind: str, task: Task) -> None:
        self._idle[kind].append(task)
        self._hand_out(kind)


def _slower(cost: Cost, factor: float) -> Cost:
    """Return a cost of which the engine's part takes `factor` times as long."""
    longer = {
        "gpu_seconds": cost.gpu_seconds * factor,
        "floor_seconds": cost.floor_seconds * factor,
    }
    return cost.model_copy(update=longer)


class _NoGuard(Guard):
    """Compares no tensors: the process that does it takes real seconds."""

    def start(self) -> None:
        """Start nothing."""


class _Supervisor(Supervisor):
    """A supervisor that sleeps between two polls in one go.

    A real one looks several times a second whether everything is scored.
    """

    def __init__(self, run: "SimulatedRun", minutes: float) -> None:
        super().__init__(run.dir, run.cluster, minutes=minutes, show=run.decides)
        self._guard = _NoGuard(run.dir, self._run, self._tell)
        self._simulated = run
        self.looking_seconds = 0.0
        """CPU seconds of the looks that are left out."""

    def _wait(self, seconds: float, *, watch: bool) -> None:
        begun = time.thread_time()
        if watch and self._is_due(before_plan=False):
            return
        each, began = time.thread_time() - begun, self._simulated.clock.now
        self._simulated.clock.sleep(seconds, self._simulated.scored if watch else None)
        slept = self._simulated.clock.now - began
        self.looking_seconds += each * slept / max(0.2, self._poll_seconds / 10)


class _Work:
    """The work that a puller may claim, and its seconds."""

    def __init__(self, ledger: LedgerName, span: Span, seconds: float) -> None:
        self.ledger: LedgerName = ledger
        self.span, self.seconds = span, seconds
