"""The judge's job: ask the judge what metrics want to know, while trials still run.

`coordinate-eval _judge RUN`. One job, on one core, has many questions in flight. It claims portions
whose questions are written, asks those that nobody has answered yet, and publishes each portion
with its last answer. A job that is killed loses what was in flight. Where a checkpoint judges, the
job begins when all questions are written, has GPUs, and asks a server that it starts itself: see
`own_server.py`.

It leaves when all is answered, when the judge gave nothing usable for `[supervisor]
patience_seconds`, when the judge refuses, or when the budget is spent. `judge.json` says which.
"""

import asyncio
import contextlib
import math
import os
import resource
import signal
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from coordinate_eval import _files
from coordinate_eval._format import plural
from coordinate_eval.coordinator.run.claiming.claims import AttemptWriter
from coordinate_eval.coordinator.run.claiming.pullers import Pullers
from coordinate_eval.coordinator.run.claiming.work import (
    claim_next,
    recorded_answers,
    unfinished,
)
from coordinate_eval.coordinator.run.own import check_there
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import JudgeProgress, Run, read_run
from coordinate_eval.coordinator.workers.judging.answers import KeptAnswers, count_odd
from coordinate_eval.coordinator.workers.judging.own_server import (
    CONCURRENCY,
    own_server,
    this_node,
)
from coordinate_eval.coordinator.workers.signals import Supervision
from coordinate_eval.errors import CoordinateError, ServerRefuses, ServerSilent, UserError
from coordinate_eval.evaluators.judged.endpoint import Endpoint, is_question
from coordinate_eval.evaluators.servers.access import Access
from coordinate_eval.evaluators.servers.process import ServerEnded
from coordinate_eval.records import Answer, Question, Span

IDLE_SECONDS = 600.0
"""Time after which a job that finds nothing to claim leaves; the supervisor starts another."""

POLL_SECONDS = 0.5
"""Time between two looks at what can be claimed."""

PROGRESS_SECONDS = 5.0
"""Time between two notes of how far the judge is."""


class Spent(Exception):
    """The budget is spent. The text says which setting raises it."""


KEEPERS = 8
"""Threads that keep answers for later runs: storage may take its time."""


def run_judge(run_dir: RunDir) -> int:
    """Ask the judge until all is answered, or no more can be. Return the exit status."""
    run = read_run(run_dir)
    # Each question in flight has a connection, and each open portion a file.
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    return asyncio.run(_until_signalled(run_dir, run))


async def _until_signalled(run_dir: RunDir, run: Run) -> int:
    """Work until the end or a signal: then what was in flight is given back."""
    loop = asyncio.get_running_loop()
    work = asyncio.create_task(_work(run_dir, run))

    def stop() -> None:
        if not work.cancelling():  # a second signal would cancel the clean-up
            work.cancel()

    for known in (signal.SIGTERM, signal.SIGUSR1):
        loop.add_signal_handler(known, stop)
    try:
        return await work
    except asyncio.CancelledError:
        return 0


async def _work(run_dir: RunDir, run: Run) -> int:
    job = _JudgeJob(run_dir, run)
    try:
        if run.settings.judge.checkpoint:
            await job.work_with_own_server()
        else:
            async with _endpoint(run) as judge:
                await job.work(judge)
    except ServerSilent as error:
        return job.leave("silent", str(error))
    except ServerEnded as error:
        return job.leave("asking", str(error))
    except Spent as error:
        return job.leave("spent", str(error))
    except (ServerRefuses, UserError) as error:
        return job.leave("refuses", str(error))
    return job.leave("asking", "")


def _endpoint(run: Run) -> Endpoint:
    """Return the server that the run's settings name."""
    settings = run.settings.judge
    return Endpoint(
        Access.of(settings.base_url or "", settings.model or "", settings.api_key_env, os.environ),
        concurrency=settings.concurrency,
        patience_seconds=run.settings.supervisor.patience_seconds,
    )


@dataclass
class _OpenPortion:
    """One attempt at a portion, and the questions of it that are not answered."""

    span: Span
    writer: AttemptWriter
    unanswered: set[str]


class _JudgeJob:
    """One job that asks the judge."""

    def __init__(self, run_dir: RunDir, run: Run) -> None:
        self._dir, self._run = run_dir, run
        self._settings = run.settings.judge
        self._concurrency = self._settings.concurrency
        if self._settings.checkpoint:  # its engine is to be full
            self._concurrency = max(CONCURRENCY, self._concurrency)
        cache = Path(run.settings.cache_dir).expanduser()
        self._kept = KeptAnswers(cache, self._settings.name)
        self._answers = recorded_answers(run_dir, run.judged)
        asked = [answer for answer in self._answers.values() if not answer.kept]
        self._asked, self._tokens = len(asked), sum(answer.tokens for answer in asked)
        """Questions to the judge in this run, and the tokens that it read and wrote."""
        self._queue: deque[Question] = deque()
        self._waiting: dict[str, list[_OpenPortion]] = {}
        """Open portions by the question that they wait for: in flight, queued, or put aside."""
        self._running: dict[asyncio.Task[Answer], Question] = {}
        self._done: asyncio.Queue[asyncio.Task[Answer]] = asyncio.Queue()
        self._keepers = ThreadPoolExecutor(KEEPERS)
        self._leaving = self._given_back = False
        self._aside: list[str] = []
        """Errors of questions to which nothing usable came, while others had answers."""
        before = _files.read_record_if_there(run_dir.judge, JudgeProgress)
        self._cpu_before = before.cpu_seconds if before else 0.0
        self._gpu_before = before.gpu_seconds if before else 0.0
        self._nodes = before.nodes if before else []
        self._gpus = run.judge_place.gpus if self._settings.checkpoint else 0
        self._began = time.monotonic()
        self._noted = 0.0

    async def work(self, judge: Endpoint) -> None:
        """Answer until nothing is left or nothing can be found any more.

        Raises:
            ServerRefuses, ServerSilent, Spent: there is no sense in going on.
        """
        supervision = Supervision(self._dir, self._run.settings.supervisor.patience_seconds)
        busy_at, looked = time.monotonic(), -math.inf
        # Files are read in a task of their own, so that questions in flight do not wait.
        opening = asyncio.create_task(self._open_some())
        try:
            while True:
                if opening.done():
                    opening.result()
                    if time.monotonic() - looked > POLL_SECONDS:
                        opening = asyncio.create_task(self._open_some())
                        looked = time.monotonic()
                self._begin(judge)
                self._note("asking", judge.said if judge.is_failing else "")
                if self._running:
                    busy_at = time.monotonic()
                    await self._collect(judge)
                elif not opening.done():
                    await asyncio.wait([opening])
                elif self._queue:
                    continue
                elif self._waiting:
                    raise ServerSilent(self._aside[-1])
                elif (
                    not unfinished(self._dir, self._run, Pullers.JUDGE)
                    or time.monotonic() - busy_at > IDLE_SECONDS
                    or supervision.is_lost()
                ):
                    return
                else:
                    await asyncio.sleep(POLL_SECONDS)
        finally:
            self._leaving = True
            for task in self._running:
                task.cancel()
            # A claim that is being made is also given back.
            await asyncio.gather(opening, *self._running, return_exceptions=True)
            self._give_back()

    async def work_with_own_server(self) -> None:
        """Answer all questions by a checkpoint, whose server this job starts if any is left.

        Raises:
            UserError: the checkpoint cannot be used.
            Spent: the budget is too small for them.
            ServerEnded: the server has ended, or does not answer, or this node is at fault.
            ServerRefuses: there is no sense in going on.
        """
        try:
            while await self._open_one():
                pass
            if not self._waiting:
                return
            if why_not := self._why_not(len(self._queue)):
                raise Spent(f"{why_not}; {plural(len(self._queue), 'question')} are to be asked")
            self._nodes = [*self._nodes, this_node()]
            self._note("asking", "the judge's server is starting")
            async with own_server(self._dir, self._run) as server:
                await server.answers()
                self._noted = 0.0
                await server.process.while_it_runs(self.work(server.endpoint))
        except ServerSilent as error:
            raise ServerEnded(str(error)) from error
        except UserError as error:
            if isinstance(error.__cause__, OSError):  # of this node's memory or storage
                raise ServerEnded(str(error)) from error
            raise
        finally:
            self._give_back()
            self._nodes = [name for name in self._nodes if name != this_node()]
            self._noted = 0.0
            self._note("asking", "")

    def _why_not(self, questions: int) -> str:
        """Return why the budget does not allow so many more questions; empty if it does."""
        most = self._settings.max_requests
        if most is None or self._asked + questions <= most:
            return ""
        return (
            f"the budget is spent: the judge was asked {plural(self._asked, 'question')}, "
            f"and [judge] max_requests is {most:,}"
        )

    def _give_back(self) -> None:
        """End all open attempts, once. The next ones use their lines."""
        if self._given_back:
            return
        self._given_back = True
        self._keepers.shutdown()
        for portion in {id(p): p for ps in self._waiting.values() for p in ps}.values():
            portion.writer.give_back("released")

    def leave(self, state: Literal["asking", "silent", "refuses", "spent"], said: str) -> int:
        """Note why this job ends. Return its exit status."""
        self._noted = 0.0
        self._note(state, said)
        sys.stdout.write(f"{said}\n" if said else "nothing is left to be asked\n")
        return 1 if said else 0

    async def _open_some(self) -> None:
        """Open portions until enough questions are queued, or none is free."""
        while len(self._queue) < self._concurrency and not self._leaving:
            check_there(self._dir)
            if not await self._open_one():
                return

    async def _open_one(self) -> bool:
        """Claim a portion and queue its questions, the longest first. False if none is free."""
        claimed = await asyncio.to_thread(self._claim)
        if claimed is None:
            return False
        portion, questions, known = claimed
        for question in sorted(questions, key=lambda each: -len(each.content)):
            answer = self._answers.get(question.id) or known.get(question.id)
            if answer is not None:
                self._answers[question.id] = answer
                portion.writer.write(answer.line())
                continue
            portion.unanswered.add(question.id)
            if question.id not in self._waiting:
                self._queue.append(question)
            self._waiting.setdefault(question.id, []).append(portion)
        if not portion.unanswered:
            portion.writer.publish()
        return True

    def _claim(self) -> tuple[_OpenPortion, list[Question], dict[str, Answer]] | None:
        """Claim a portion. Return its questions, and their answers that need no judge."""
        piece = claim_next(self._dir, self._run, Pullers.JUDGE, "judge")
        if piece is None:
            return None
        ledger, span, attempt = piece
        writer = AttemptWriter(ledger, span, attempt)
        try:
            lines = _files.lines(self._dir.questions(span))
            asked = {q.id: q for q in (Question.model_validate_json(line) for line in lines)}
            known: dict[str, Answer] = {}
            for line in ledger.earlier_lines(span, attempt):
                with contextlib.suppress(ValueError):
                    answer = Answer.model_validate_json(line)
                    known[answer.id] = answer
            for question in asked.values():
                if question.id not in known and (found := self._answer_without_judge(question)):
                    known[question.id] = found
        except BaseException:
            writer.give_back("released")
            raise
        return _OpenPortion(span, writer, set()), list(asked.values()), known

    def _answer_without_judge(self, question: Question) -> Answer | None:
        """Return an answer of this or an earlier run, or a refusal of what is no question."""
        if answered := self._answers.get(question.id):
            return answered
        if not is_question(question, self._settings.name):
            why = "refused: it is no question to this judge"
            return Answer(id=question.id, passed=False, result=why, seconds=0.0, kept=True)
        return self._kept.find(question)

    def _begin(self, judge: Endpoint) -> None:
        """Ask queued questions, as many as may be in flight, and as the budget allows.

        Raises:
            Spent: it allows none, and nothing is in flight.
        """
        while self._queue and len(self._running) < self._concurrency:
            if why_not := self._why_not(len(self._running) + 1):
                if not self._running:
                    left = plural(len(self._waiting), "question")
                    raise Spent(f"{why_not}; {left} or more are left")
                return
            question = self._queue.popleft()
            task = asyncio.create_task(judge.ask(question))
            task.add_done_callback(self._done.put_nowait)
            self._running[task] = question

    async def _collect(self, judge: Endpoint) -> None:
        """Wait for an answer, or a while, and store the answers that came.

        Raises:
            ServerRefuses, ServerSilent: there will be no more.
        """
        done = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_SECONDS):
                done.append(await self._done.get())
        while not self._done.empty():
            done.append(self._done.get_nowait())
        ended: CoordinateError | None = None
        for task in done:
            del self._running[task]
            try:
                self._store(task.result())
            except ServerRefuses as error:
                ended = error
            except ServerSilent as error:
                self._aside.append(str(error))
                if judge.is_silent:
                    ended = ended or error
        if ended is not None:
            raise ended

    def _store(self, answer: Answer) -> None:
        """Write an answer into all portions that wait for it, and publish those that are whole."""
        self._answers[answer.id] = answer
        self._asked, self._tokens = self._asked + 1, self._tokens + answer.tokens
        if answer.passed:
            self._keepers.submit(self._kept.store, answer)
        for portion in self._waiting.pop(answer.id):
            portion.writer.write(answer.line())
            portion.unanswered.discard(answer.id)
            if not portion.unanswered:
                portion.writer.publish()

    def _note(self, state: Literal["asking", "silent", "refuses", "spent"], said: str) -> None:
        """Write how far the judge is, every few seconds."""
        if time.monotonic() - self._noted < PROGRESS_SECONDS and self._noted:
            return
        self._noted = time.monotonic()
        progress = JudgeProgress(
            state=state,
            said=said,
            answered=self._asked,
            kept=sum(answer.kept for answer in self._answers.values()),
            left=len(self._waiting),
            tokens=self._tokens,
            odd=count_odd(self._answers.values()),
            cpu_seconds=round(self._cpu_before + time.process_time(), 3),
            nodes=self._nodes,
            gpu_seconds=round(self._gpu_before + self._gpus * (time.monotonic() - self._began), 3),
            updated=time.time(),
        )
        _files.write_record(self._dir.judge, progress)
