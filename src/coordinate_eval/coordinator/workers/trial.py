"""A trial: one engine on its GPUs, fed with shards as long as there are any.

`coordinate-eval _trial RUN NODE`, its index on the node in the environment. It runs the shards
that the plan gave it, then claims what nobody else has begun. The engine pulls requests through
one iterator that crosses shard and dataset borders, so it stays full; responses are appended to
the part of their shard and the shard is published with its last one.
"""

import contextlib
import os
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Literal

from coordinate_eval import _files
from coordinate_eval.coordinator.cluster import INDEX_VARIABLE, TASK_VARIABLE
from coordinate_eval.coordinator.planning.plan import Plan
from coordinate_eval.coordinator.run import measurements
from coordinate_eval.coordinator.run.claims import AttemptWriter, Ledger
from coordinate_eval.coordinator.run.failures import own_log
from coordinate_eval.coordinator.run.jobs import trial_id
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, TrialProgress
from coordinate_eval.coordinator.workers.pace import Pace
from coordinate_eval.coordinator.workers.signals import (
    MARGIN_SECONDS,
    StopRequested,
    stop_on_signals,
)
from coordinate_eval.coordinator.workers.staging import StagedWeights, Throttle
from coordinate_eval.errors import CoordinateError, EngineError, RecordError, UserError
from coordinate_eval.evaluators.engines import base as engines
from coordinate_eval.priors import this_machine
from coordinate_eval.priors.time_shares import Shares
from coordinate_eval.records import DatasetRequests, Request, Response, Shard, Span

STAGE_PATIENCE_SECONDS = 120.0
"""How long a trial waits for a keeper that has not begun before it copies by itself."""


@dataclass
class _Open:
    """A shard in work: its writer, and the responses it still waits for."""

    shard: Shard
    attempt: int
    writer: AttemptWriter
    missing: set[tuple[str, int, int, int, int]]
    tally: measurements.Tally = field(default_factory=measurements.Tally)
    predicted: float = 0.0  # seconds for what earlier attempts have not answered


def run_trial(run_dir: RunDir, node: str, round_number: int, minutes: int) -> int:
    """Run to the end, or until the time limit of `minutes` is near; the exit status."""
    trial = trial_id(node, int(os.environ.get(INDEX_VARIABLE, "0")), round_number)
    stop_on_signals()
    runner = TrialRunner(run_dir, trial, node, time.time() + minutes * 60 - MARGIN_SECONDS)
    try:
        runner.run()
    except StopRequested:
        runner.progress("ended", message="stopped by a signal")
    except BaseException as error:
        runner.fail(error)
        raise
    else:
        runner.progress("ended")
    return 0


class TrialRunner:
    """The state of one trial between its first claim and its last."""

    def __init__(self, run_dir: RunDir, trial: str, node: str, deadline: float) -> None:
        self._dir = run_dir
        self._run = _files.read_record(run_dir.run, Run)
        self._ledger = Ledger(run_dir, "outputs")
        self._trial, self._node = trial, node
        self._task = os.environ.get(TASK_VARIABLE, f"{os.uname().nodename}:{os.getpid()}")
        self._open: dict[str, dict[Span, _Open]] = {}
        self._started = time.time()
        self._pace = Pace(deadline)
        self._ready: float | None = None
        self._engine_started = False
        self._log = own_log()
        self._shards = self._responses = 0
        self._shares = Shares()
        self._throttle = Throttle(2.0)

    def run(self) -> None:
        """Stage, start the engine, and answer until nothing is left to claim."""
        free = set(self._ledger.claimable(shard.span for shard in self._run.shards))
        if not any(s.span in free and self._pace.in_time(s.gpu_seconds) for s in self._run.shards):
            return
        began = time.monotonic()
        place = StagedWeights(self._run.settings.stage.root, self._run.id, self._node)
        with place.hold():
            self.progress("staging")
            settings = self._run.settings.engine
            engines.prepare(settings.name, self._run.tensor_parallel)
            waiting = time.monotonic()
            self._wait_for_weights(place)
            began += time.monotonic() - waiting
            self.progress("starting")
            engine = engines.start(
                settings.name,
                place.folder,
                tensor_parallel=self._run.tensor_parallel,
                max_length=self._run.max_length,
                args=settings.args,
            )
            self._engine_started = True
            try:
                self.progress("running")
                self._note_start(settings.name, time.monotonic() - began)
                self._answer(engine)
            except StopRequested:
                self._give_back("released")
                raise
            except BaseException:
                # What is open now may be what ended the engine: it counts as a death.
                self._give_back("died")
                raise
            finally:
                engine.close()

    def fail(self, error: BaseException) -> None:
        """Record the error, and whether other trials would meet it too."""
        ours = isinstance(error, CoordinateError)
        message = str(error) if ours else f"{type(error).__name__}: {error}"
        cause = "other"
        if isinstance(error, UserError):
            cause = "input"
        elif isinstance(error, EngineError) and not self._engine_started:
            cause = "engine start"
        self.progress("failed", message[:2000], cause)

    def progress(self, state: str, message: str = "", cause: str | None = None) -> None:
        """Record how far this trial is."""
        record = TrialProgress.model_validate(
            {
                "trial": self._trial,
                "task": self._task,
                "node": self._node,
                "state": state,
                "started": self._started,
                "ready": self._ready,
                "updated": time.time(),
                "shards": self._shards,
                "responses": self._responses,
                "message": message,
                "cause": cause,
                "log": self._log,
            }
        )
        _files.write_record(self._dir.trial(self._trial), record)

    def _wait_for_weights(self, place: StagedWeights) -> None:
        """Until the keeper has them; where it died, or none shows, copy for the node."""
        give_up = time.monotonic() + STAGE_PATIENCE_SECONDS
        while not place.ready(self._run.checkpoint.identity):
            abandoned = place.copied_bytes() > 0 or time.monotonic() > give_up
            if abandoned and place.fill(self._run.checkpoint, lambda _: None):
                copies = self._dir.copies(self._node)
                measurements.note_copy(copies, place.copy_seconds, self._run.checkpoint)
                return
            time.sleep(0.2)

    def _note_start(self, engine: str, seconds: float) -> None:
        started = measurements.EngineStarted(
            time=time.time(),
            engine_version=this_machine.engine_version(engine),
            processor=this_machine.processor(),
            start_seconds=seconds,
        )
        measurements.write_line(self._dir.observations(self._trial), started)

    def _answer(self, engine: engines.Engine) -> None:
        self._shares = Shares()
        with _closing(engine.run(self._requests())) as responses:
            for response in responses:
                if self._ready is None:
                    self._ready = time.time()
                self._responses += 1
                self._store(response, self._shares.answered(response, engine.computing))
                if self._throttle():
                    self.progress("running")
        self._finish_empty()

    def _requests(self) -> Iterator[Request]:
        """Requests of one claimed shard after the other, claimed when they are pulled."""
        for shard in self._shards_in_order():
            attempt = self._ledger.claim(shard.span, self._trial, self._task)
            if attempt is None:
                continue
            yield from self._begin(shard, attempt)

    def _shards_in_order(self) -> Iterator[Shard]:
        """The plan's own for this trial, then free ones in the run's order, until none is left."""
        plan = _files.read_record_if_there(self._dir.plan, Plan)
        trials = plan.trials if plan is not None else []
        own = next((t.shards for t in trials if t.id == self._trial), [])
        for shard in own:
            if self._pace.in_time(shard.gpu_seconds):
                yield shard
        tried: set[Span] = set()
        while True:
            free = set(self._ledger.claimable(s.span for s in self._run.shards)) - tried
            if not free:
                return
            for shard in self._run.shards:
                if shard.span in free:
                    tried.add(shard.span)
                    if self._pace.in_time(shard.gpu_seconds):
                        yield shard

    def _begin(self, shard: Shard, attempt: int) -> Iterator[Request]:
        """Open the shard, take over what dead attempts answered, yield the rest."""
        span = shard.span
        requests = list(read_requests(self._dir, span))
        wanted = {r.identity(): r.prompt_hash for r in requests}
        work = _Open(shard, attempt, AttemptWriter(self._ledger, span, attempt), set(wanted))
        self._open.setdefault(span.dataset, {})[span] = work
        for line in self._ledger.earlier_lines(span, attempt):
            with contextlib.suppress(ValueError):
                old = Response.model_validate_json(line)
                key = old.identity()
                if key in work.missing and wanted[key] == old.prompt_hash:
                    work.missing.discard(key)
                    work.writer.write(line)
        todo = [r for r in requests if r.identity() in work.missing]
        work.predicted = shard.gpu_seconds * len(todo) / max(1, len(requests))
        self._pace.begin(work.predicted)
        if not todo:
            self._publish(work)
        work.tally.items = len({r.item for r in todo})
        work.tally.prompt_tokens = sum(len(r.tokens) + len(r.continuation) for r in todo)
        for request in todo:
            self._shares.pulled(request)
            yield request

    def _store(self, response: Response, seconds: float) -> None:
        for span, work in self._open.get(response.dataset, {}).items():
            if span.start <= response.item < span.stop and response.identity() in work.missing:
                work.writer.write(response.line())
                work.tally.add(response, seconds)
                work.missing.discard(response.identity())
                if not work.missing:
                    self._publish(work)
                return
        raise RecordError(f"the engine answered what was not asked: {response.identity()}")

    def _publish(self, work: _Open) -> None:
        work.writer.publish()
        measurements.write_line(
            self._dir.observations(self._trial), work.tally.done(work.shard.span)
        )
        del self._open[work.shard.dataset][work.shard.span]
        self._shards += 1
        self._pace.end(work.predicted, work.tally.gpu_seconds)

    def _finish_empty(self) -> None:
        left = [span for works in self._open.values() for span in works]
        if left:
            raise RecordError(f"the engine left requests of {left[0]} unanswered")

    def _give_back(self, cause: Literal["released", "died"]) -> None:
        """Let others have what is not finished; its lines so far are theirs to use."""
        for works in self._open.values():
            for work in works.values():
                work.writer.give_back(cause)
        self._open.clear()


def read_requests(run_dir: RunDir, span: Span) -> Iterator[Request]:
    """The requests of a span, read from where they lie in the dataset's file."""
    index = _files.read_record(run_dir.requests_index(span.dataset), DatasetRequests)
    begin, end = index.offsets[span.start], index.offsets[span.stop]
    with run_dir.requests(span.dataset).open("rb") as file:
        file.seek(begin)
        text = file.read(end - begin)
    for line in text.splitlines():
        yield Request.model_validate_json(line)


@contextlib.contextmanager
def _closing(responses: Iterator[Response]) -> Iterator[Iterator[Response]]:
    """Close a generator when the block ends, so that an engine aborts what is in flight."""
    try:
        yield responses
    finally:
        if isinstance(responses, Generator):
            responses.close()
