"""A trial: one engine on its GPUs, which answers shards as long as there are any.

`coordinate-eval _trial RUN NODE`; the environment has the trial's index on the node. A trial runs
the shards that the plan gave it, then claims any that are free. The engine pulls requests through
one iterator over all shards and datasets, so it stays full.
"""

import contextlib
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from coordinate_eval import _files, _job_log
from coordinate_eval.clusters.protocol import INDEX_VARIABLE
from coordinate_eval.coordinator.incidents.causes import (
    Failure,
    TrialErrors,
    cause_of_error,
)
from coordinate_eval.coordinator.incidents.incident import read_incidents
from coordinate_eval.coordinator.incidents.remedies import lighter_load
from coordinate_eval.coordinator.inputs.checkpoints.pipeline import layers_of_stages
from coordinate_eval.coordinator.planning.places import degrees
from coordinate_eval.coordinator.run import lease, measurements
from coordinate_eval.coordinator.run.claiming.claims import Ledger, own_task
from coordinate_eval.coordinator.run.claiming.work import request_indexes
from coordinate_eval.coordinator.run.jobs import trial_id
from coordinate_eval.coordinator.run.logs import own_log
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import (
    ANY_NODE,
    TrialProgress,
    read_run,
)
from coordinate_eval.coordinator.workers.follower import nodes_and_rank, run_follower
from coordinate_eval.coordinator.workers.next_shards import NextShards, TimeLeft
from coordinate_eval.coordinator.workers.on_node.engine_cache import compiled_files
from coordinate_eval.coordinator.workers.on_node.keeper import Arrival
from coordinate_eval.coordinator.workers.on_node.staging import (
    StagedWeights,
    Throttle,
    adapter_files,
    weights_name,
)
from coordinate_eval.coordinator.workers.open_shards import (
    OpenShards,
    deadly,
    next_batch,
    read_batch,
)
from coordinate_eval.coordinator.workers.ranks import RankLost, Ranks
from coordinate_eval.coordinator.workers.signals import (
    MARGIN_SECONDS,
    StopRequested,
    stop_on_signals,
)
from coordinate_eval.errors import CoordinateError, EngineError
from coordinate_eval.evaluators.engines import base as engines
from coordinate_eval.priors import this_machine
from coordinate_eval.priors.time_shares import Shares
from coordinate_eval.records import Request, RequestKind, Response, Shard, Span

PROGRESS_SECONDS = 2.0
"""Shortest time between two records of a running trial's progress."""

LOOK_SECONDS = 2.0
"""Shortest time between two looks at whether others have published shards that are open here."""

MAX_MESSAGE_CHARACTERS = 2000
"""Longest error in the record of a trial's progress."""


def run_trial(
    run_dir: RunDir, node: str, round_number: int, minutes: int, *, keeps: bool = False
) -> int:
    """Run a trial until no shard is left, or its time limit is near. Return the exit status.

    On the other nodes of a trial on several nodes, run this node's part of the engine. `minutes` is
    the time limit of its job. With `keeps`, no keeper comes.
    """
    trial = trial_id(node, int(os.environ.get(INDEX_VARIABLE, "0")), round_number)
    anywhere = node == ANY_NODE
    nodes, rank = nodes_and_rank(run_dir, node, round_number)
    alone = keeps or anywhere
    if rank:
        return run_follower(run_dir, trial, nodes, rank, round_number, alone=alone)
    stop_on_signals()
    deadline = time.time() + minutes * 60 - MARGIN_SECONDS
    runner = None
    try:
        runner = TrialRunner(run_dir, trial, nodes, round_number, deadline, alone=alone)
        runner.run()
    except StopRequested:
        if runner is not None:
            runner.write_progress("ended", message="stopped by a signal")
    except RankLost as lost:
        raise EngineError(str(lost)) from None  # it is recorded
    except BaseException as error:
        if runner is not None:
            runner.write_failure(error)
        else:
            _write_false_start(run_dir, trial, nodes[0], error)
        raise
    else:
        runner.write_progress("ended")
    return 0


def _write_false_start(run_dir: RunDir, trial: str, node: str, error: BaseException) -> None:
    """Record the error of a trial that could not read what it is to do."""
    now = time.time()
    failed = TrialProgress(
        trial=trial,
        task=own_task(),
        node=node,
        state="failed",
        started=now,
        updated=now,
        message=_in_words(error),
        cause=cause_of_error(error, engine_started=False),
        log=own_log(),
    )
    _files.write_record(run_dir.trial(trial), failed)


def _in_words(error: BaseException) -> str:
    """Return an error in the words of a trial's record."""
    ours = isinstance(error, CoordinateError | RankLost)
    message = str(error) if ours else f"{type(error).__name__}: {error}"
    return message[:MAX_MESSAGE_CHARACTERS]


class TrialRunner:
    """Runs one trial.

    Args:
        nodes: where it runs. On the first is this process.
        round_number: of its round, which has a keeper on the node, unless it is alone.
        deadline: seconds since the epoch at which it must have given back its shards.
        alone: the node has no keeper.
    """

    def __init__(
        self,
        run_dir: RunDir,
        trial: str,
        nodes: Sequence[str],
        round_number: int,
        deadline: float,
        *,
        alone: bool = False,
    ) -> None:
        self._dir = run_dir
        self._run = read_run(run_dir)
        self._trial, self._nodes, self._node = trial, list(nodes), nodes[0]
        self._part = 0, self._run.nodes_per_trial
        self._arrival = Arrival(run_dir, self._run, self._node, round_number, anywhere=alone)
        self._task = own_task()
        self._log = own_log()
        self._errors = TrialErrors(self._log, self._run.settings)
        self._failure: Failure | None = None
        self._ledger = Ledger(run_dir, "outputs")
        time_left = TimeLeft(deadline)
        self._next = NextShards(run_dir, self._run, trial, self._task, time_left)
        self._open = OpenShards(run_dir, trial, time_left, self._run.stages)
        self._load = lighter_load(self._run, read_incidents(run_dir))
        self._shares = Shares(self._load.sequences)
        self._throttle = Throttle(PROGRESS_SECONDS)
        self._looks = Throttle(LOOK_SECONDS)
        self._started = time.time()
        self._times: dict[str, float] = {}
        """Seconds since the epoch at which the states timed in `TrialProgress` were reached."""
        self._responses = 0
        self._suspects = 0
        self._engine_started = False

    def run(self) -> None:
        """Wait for the weights, start the engine, and answer until no shard can be claimed."""
        if not self._next.free():
            return
        began = time.monotonic()
        folder = self._run.settings.stage.folder
        weights = StagedWeights(folder, weights_name(self._run), self._node, self._part)
        with weights.hold(), self._compiled_files(), self._ranks() as ranks:
            self.write_progress("staging")
            name, width = self._run.settings.engine.name, self._run.gpus_per_trial
            engines.by_name(name).prepare(width, self._threads())
            self._reached("prepared")
            waiting = time.monotonic()
            if not self._run.settings.engine.elsewhere:
                self._arrival.wait(weights)
            began += time.monotonic() - waiting
            self._reached("staged")
            across = self._begin(ranks) if ranks is not None else None
            self.write_progress("starting")
            engine = self._start_engine(weights, across)
            _job_log.draw_line()  # what was said while it started did not end it
            try:
                self._give_up_for(engine)
                self._reached("running")
                self.write_progress("running")
                self._record_start(time.monotonic() - began)
                self._answer(engine)
            except StopRequested:
                if ranks is not None:
                    ranks.end()
                self._open.give_back("released")
                raise
            except BaseException as error:
                self._failure = self._why(error)
                self._end_attempts(self._failure)
                if isinstance(error, RankLost):
                    self._write_lost(error)  # the engine waits for it, and may not end by itself
                raise
            else:
                if ranks is not None:
                    ranks.end()
            finally:
                engine.close()

    @contextlib.contextmanager
    def _ranks(self) -> Iterator[Ranks | None]:
        """Lead the processes on the other nodes of this trial, if it has some, during the block."""
        if len(self._nodes) == 1:
            yield None
            return
        with Ranks(self._dir, self._trial, self._task, self._nodes) as ranks:
            try:
                ranks.lead(self._write_lost)
                yield ranks
            except StopRequested:
                ranks.end()
                raise
            except RankLost as lost:
                self._write_lost(lost)
                raise

    def _write_lost(self, lost: RankLost) -> None:
        """Record that another process of this trial has ended, and where."""
        self._node = lost.node
        self.write_failure(lost)

    def _begin(self, ranks: Ranks) -> engines.Across:
        """Have all nodes of this trial start their parts of the engine."""
        stages = self._run.checkpoint.stages
        layers = layers_of_stages(stages, len(self._nodes)) if stages > 1 else []
        return ranks.begin(layers, args=self._engine_args(), lighter=self._load.lighter)

    def _end_attempts(self, failure: Failure) -> None:
        """Give back all shards. They are blamed for the end only if nothing else is."""
        if failure.in_doubt:
            self._open.lose()
        elif failure.cause == "node" or (
            failure.cause == "out of memory" and self._load.can_shrink
        ):
            self._open.give_back("lost")
        else:
            self._open.die(killed=failure.killed)

    def write_failure(self, error: BaseException) -> None:
        """Record an error, and whether other trials would meet it too."""
        why = self._failure or self._why(error)
        self.write_progress("failed", _in_words(error), why.cause)

    def _why(self, error: BaseException) -> Failure:
        """Return why this trial failed; on another node as that says."""
        if isinstance(error, RankLost):
            starting = error.why.cause == "other" and not self._engine_started
            return Failure("engine start") if starting else error.why
        return self._errors.why(error, engine_started=self._engine_started)

    def write_progress(self, state: str, message: str = "", cause: str | None = None) -> None:
        """Record how far this trial is."""
        record = TrialProgress.model_validate(
            {
                "trial": self._trial,
                "task": self._task,
                "node": self._node,
                "others": [node for node in self._nodes if node != self._node],
                "state": state,
                "started": self._started,
                **self._times,
                "updated": time.time(),
                "shards": self._open.published,
                "responses": self._responses,
                "suspects": self._suspects,
                "sequences": self._load.sequences,
                "message": message,
                "cause": cause,
                "log": self._log,
            }
        )
        _files.write_record(self._dir.trial(self._trial), record)

    def _reached(self, state: str) -> None:
        self._times[state] = time.time()

    def _threads(self) -> int:
        """Return the cores of this trial for each of its GPUs."""
        there = len(os.sched_getaffinity(0)) // max(1, self._run.tensor_parallel)
        return max(1, min(self._run.settings.trial.cpus, there))

    def _compiled_files(self) -> contextlib.AbstractContextManager[None]:
        """Keep in the node's memory what the engine compiles while the block runs."""
        config = self._dir.model / "config.json"
        return compiled_files(self._run, config, lambda: self._engine_started, self._part)

    def _start_engine(
        self, weights: StagedWeights, across: engines.Across | None
    ) -> engines.Engine:
        settings = self._run.settings.engine
        model = self._dir.model if settings.elsewhere else weights.link()
        length, args = self._run.engine_context, self._engine_args()
        what = engines.Loading(
            model, self._run.tensor_parallel, length, args, self._load.lighter, across
        )
        with self._adapter(weights) as adapter:
            engine = engines.by_name(settings.name).start(what._replace(adapter=adapter))
        self._engine_started = True
        return engine

    def _adapter(self, weights: StagedWeights) -> contextlib.AbstractContextManager[Path | None]:
        """Have the files of an adapter that vLLM is to serve while it starts."""
        whole = lease.leased(self._run)
        if self._run.settings.engine.loads(whole) is whole:
            return contextlib.nullcontext()
        return adapter_files(weights, whole)

    def _engine_args(self) -> dict[str, Any]:
        run, settings = self._run, self._run.settings.engine
        of_model = degrees.engine_args(run.checkpoint, settings.name, run.tensor_parallel)
        return of_model | self._load.engine_args(settings)

    def _give_up_for(self, engine: engines.Engine) -> None:
        """Give up the datasets that this engine cannot answer, and no other of its settings."""
        for name, index in request_indexes(self._dir, self._run).items() if engine.unable else ():
            asks = {
                RequestKind.GENERATE: index.generate_requests > 0,
                RequestKind.LOGLIKELIHOOD: index.requests > index.generate_requests,
            }
            if why := "; ".join(why for kind, why in engine.unable.items() if asks[kind]):
                _files.write(self._dir.dataset_error(name), f"{why}\n")

    def _record_start(self, seconds: float) -> None:
        started = measurements.EngineStarted(
            time=time.time(),
            engine_version=this_machine.engine_version(self._run.settings.engine.name),
            processor=this_machine.processor(),
            start_seconds=seconds,
        )
        measurements.append_line(self._dir.observations(self._trial), started)

    def _answer(self, engine: engines.Engine) -> None:
        """Feed the engine until no shard can be claimed.

        Then come the shards at which engines died, alone, and last those that slower trials hold.
        """
        while True:
            self._store(engine, self._requests())
            self._open.check_none_left()
            if suspect := self._next.claim_suspect():
                self._run_alone(engine, *suspect)
            elif slow := self._next.claim_slow():
                self._answer_too(engine, *slow)
            else:
                return

    def _store(self, engine: engines.Engine, requests: Iterator[Request]) -> None:
        """Have the engine answer requests, and store its responses, until all is over."""
        with _closing(engine.run(requests, self._unwanted)) as responses:
            for response in responses:
                self._reached("last")
                self._times.setdefault("ready", self._times["last"])
                self._responses += 1 + len(response.turns)
                self._open.store(response, self._shares.answered(response, engine.computing))
                if self._throttle():
                    self.write_progress("running")

    def _unwanted(self) -> Callable[[Request], bool] | None:
        """Drop the shards that another attempt has answered. Return which requests are theirs."""
        if not self._looks():
            return None
        gone = self._open.drop_published()
        for span, identities in gone.items():
            self._shares.dropped(span.dataset, identities)
        names = {(span.dataset, each) for span, identities in gone.items() for each in identities}
        return (lambda request: (request.dataset, request.identity()) in names) if names else None

    def _answer_too(self, engine: engines.Engine, shard: Shard, attempt: int) -> None:
        """Answer what the owner of a shard has not answered, until either is first."""
        span = shard.span
        self._store(engine, self._given(span, self._open.open(shard, attempt)))
        self._open.check_none_left()

    def _run_alone(self, engine: engines.Engine, shard: Shard, attempt: int) -> None:
        """Answer a shard in batches, in which the engine has nothing else."""
        span = shard.span
        deaths = [read_batch(note) for note in self._ledger.deaths(span, attempt)]
        requests = self._open.open(shard, attempt)
        while batch := next_batch(self._open.items_left(span), deaths):
            self._open.run_alone(span, batch)
            self._suspects += 1
            self.write_progress("running")
            items = set(batch)
            self._store(engine, self._given(span, (r for r in requests if r.item in items)))
        if left := self._open.items_left(span):
            self._open.give_up(span, deadly(left, deaths))

    def _given(self, span: Span, requests: Iterable[Request]) -> Iterator[Request]:
        """Yield the requests of an open shard as the engine pulls them, until it is dropped."""
        for request in requests:
            if not self._open.holds(span):
                return
            self._open.pulled(span, request)
            self._shares.pulled(request)
            yield request

    def _requests(self) -> Iterator[Request]:
        """Yield requests shard by shard. A shard is claimed when its first request is pulled."""
        for shard in self._next.in_order():
            if self._open.holds(shard.span):
                continue
            attempt = self._next.claim(shard)
            if attempt is None:
                continue
            yield from self._given(shard.span, self._open.open(shard, attempt))


@contextlib.contextmanager
def _closing(responses: Iterator[Response]) -> Iterator[Iterator[Response]]:
    """Close a generator when the block ends, so that an engine aborts what is in flight."""
    try:
        yield responses
    finally:
        if isinstance(responses, Generator):
            responses.close()
