"""The ledger of a run: where each second of each GPU went, from the submission to the last score.

A round asks for GPUs. That of a trial is the run's until the first round that begins after the
trial's end, or to the end of the run. Each of its seconds is in exactly one `Use`.
"""

import time
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from pydantic import Field

from coordinate_eval import _files
from coordinate_eval.coordinator.run import measurements
from coordinate_eval.coordinator.run.claiming.work import portions_with_questions
from coordinate_eval.coordinator.run.jobs import trials_of
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import (
    JudgeProgress,
    Round,
    Run,
    StageProgress,
    TrialProgress,
)
from coordinate_eval.coordinator.run.rounds import read_rounds
from coordinate_eval.records import Answer, DatasetRequests, Record

WORTH_A_WORD = 0.1
"""Least share of the GPU time that is worth changing something for."""


class Use(StrEnum):
    """A use of a GPU of the run, or the wait for it."""

    QUEUE = "queue"
    """Asked for, and not given yet."""
    STAGING = "staging"
    """Waited for the weights in the node's memory, with or without a trial."""
    START = "engine start"
    """Loaded the engine's packages and the weights."""
    REQUESTS = "requests"
    """Answered, from the engine's start to the trial's last response."""
    DRAINING = "draining"
    """Had no more to answer, while other trials answered."""
    WAITING = "waiting"
    """Nobody could answer anything: prompts were not built, or only scores were missing."""
    LOST = "lost to faults"
    """Its trial had failed, was killed, or was told to go."""


class Life(NamedTuple):
    """A trial's times in seconds since the epoch; None for what has not happened."""

    trial: str
    gpus: int
    copied_from: float | None = None
    copied_to: float | None = None
    """The keeper's copy of the weights on its node."""
    started: float | None = None
    """Its process began."""
    prepared: float | None = None
    staged: float | None = None
    running: float | None = None
    last: float | None = None
    """Its last response."""
    ended: float | None = None
    """It does nothing more, or did nothing more that is known."""
    lost: bool = False
    """It ended before it had no more to do."""
    node: str = ""


class Asked(NamedTuple):
    """A round: when it began, and the trials that it asked for."""

    time: float
    lives: Sequence[Life]


class Stretch(NamedTuple):
    """A time from `begin` to `end`, in seconds since the epoch, of one use."""

    begin: float
    end: float
    use: Use


class Row(NamedTuple):
    """All of the time in which a trial's GPUs were the run's."""

    life: Life
    stretches: Sequence[Stretch]


class JudgeUse(Record):
    """The judge's work for a run. No GPU of the run waits for it, unless it is one of its own."""

    questions: int = Field(description="that it answered")
    kept: int = Field(description="that it had answered for earlier runs")
    tokens: int = Field(description="that it read and wrote")
    seconds: float = Field(description="from each question to its answer, all together")
    gpu_seconds: float = Field(
        default=0.0, description="of its own job, where the judge is a checkpoint"
    )


class TimeLedger(Record):
    """The sums of a run, as `results.json` and `status --ledger` have them."""

    seconds: float = Field(description="from the submission to the last score, or until now")
    gpu_seconds: dict[Use, float] = Field(description="by use; their sum is all of the GPU time")
    total_gpu_seconds: float
    cpu_seconds: dict[str, float] = Field(description="of building, metrics and scoring")
    judge: JudgeUse | None = Field(default=None, description="of a run that asks one")
    advice: str = Field(description="what to change next, in a line")


def rows(begin: float, rounds: Sequence[Asked], end: float) -> Iterator[Row]:
    """Yield the time of each trial of each round.

    Args:
        begin: the submission, in seconds since the epoch.
        rounds: in order; there is none before the prompts are built.
        end: of the last score, or now.
    """
    for number, round_ in enumerate(rounds):
        since = round_.time if number else begin
        answered: dict[float, float] = {}
        for life in round_.lives:
            later = [each.time for each in rounds[number + 1 :] if _is_over(life, each.time)]
            until = min([*later, end])
            if until not in answered:
                answered[until] = _answered(list(_beside(rounds, number, until)), until)
            found = _stretches(life, round_.time, answered[until], final=not later)
            yield Row(life, list(_fitted(found, since, max(since, until))))


def sum_up(
    begin: float,
    rounds: Sequence[Asked],
    end: float,
    cpu_seconds: dict[str, float],
    judge: JudgeUse | None = None,
) -> TimeLedger:
    """Return the ledger of a run; for the arguments see `rows`."""
    found = list(rows(begin, rounds, end))
    seconds = dict.fromkeys(Use, 0.0)
    for row in found:
        for stretch in row.stretches:
            seconds[stretch.use] += row.life.gpus * (stretch.end - stretch.begin)
    asked = rounds[0].time if rounds else end
    unasked = sum(
        row.life.gpus * (min(stretch.end, asked) - stretch.begin)
        for row in found
        for stretch in row.stretches
        if stretch.begin < asked
    )
    return TimeLedger(
        seconds=round(max(0.0, end - begin), 3),
        gpu_seconds={use: round(value, 3) for use, value in seconds.items()},
        total_gpu_seconds=round(sum(seconds.values()), 3),
        cpu_seconds={what: round(value, 3) for what, value in cpu_seconds.items()},
        judge=judge,
        advice=_advice(seconds, unasked, cpu_seconds, judge),
    )


def _is_over(life: Life, time: float) -> bool:
    """Return whether a trial does nothing more at a time, at which a round begins after its own."""
    return life.started is None or (life.ended is not None and life.ended <= time)


def _beside(rounds: Sequence[Asked], number: int, until: float) -> Iterator[Life]:
    """Yield the trials of a round, and those of others that live between its begin and `until`."""
    for other, round_ in enumerate(rounds):
        for life in round_.lives:
            late = other > number and round_.time >= until
            over = other < number and _is_over(life, rounds[number].time)
            if not late and not over:
                yield life


def _answered(lives: Sequence[Life], until: float) -> float:
    """Return when the last of these trials had answered; `until` if one goes on, or none began."""
    begun = [life for life in lives if life.started is not None]
    if not begun or any(life.ended is None or life.ended > until for life in begun):
        return until
    return max(life.last or life.started or 0.0 for life in begun)


def _stretches(
    life: Life, asked: float, answered: float, *, final: bool
) -> Iterator[tuple[float, Use]]:
    """Yield until when a trial's GPUs were used in which way, in order."""
    yield asked, Use.WAITING
    started = answered if life.started is None else life.started
    for when, use in ((life.copied_from, Use.QUEUE), (life.copied_to, Use.STAGING)):
        if when is not None:
            yield min(when, started), use
    yield started, Use.QUEUE
    if life.started is not None:
        marks = (life.prepared, Use.START), (life.staged, Use.STAGING), (life.running, Use.START)
        brought = life.last is not None or not life.lost
        over = life.ended is not None
        for time, use in (*marks, (life.last if over else None, Use.REQUESTS)):
            if time is not None and brought:
                yield time, use
            elif not over:  # it is at this, and goes on
                yield answered, use
        if life.lost:
            yield max(answered, life.ended or 0.0), Use.LOST
        yield answered, Use.DRAINING
    yield float("inf"), Use.WAITING if final else Use.QUEUE


def _fitted(found: Iterator[tuple[float, Use]], begin: float, end: float) -> Iterator[Stretch]:
    """Yield stretches that cover the time from `begin` to `end`, whatever clocks said."""
    for until, use in found:
        stop = min(max(until, begin), end)
        if stop > begin:
            yield Stretch(begin, stop, use)
            begin = stop


def _advice(
    seconds: dict[Use, float],
    unasked: float,
    cpu_seconds: dict[str, float],
    judge: JudgeUse | None,
) -> str:
    """Return what to change next: about the largest part of the time that is no answering.

    `unasked` are the GPU seconds before a GPU was asked for.
    """
    total = sum(seconds.values())
    if not total:
        return "no GPU was asked for"
    use = max(set(Use) - {Use.REQUESTS}, key=lambda each: seconds[each])
    if seconds[use] < WORTH_A_WORD * total:
        use = Use.REQUESTS
    hint = _HINTS[use]
    if use is Use.WAITING and unasked > seconds[use] / 2:
        hint = "prompts were being built; `coordinate-eval prefetch` builds them before a run"
    elif use is Use.WAITING and judge and judge.gpu_seconds:
        hint = "the judge began after the last response; a server answers while trials go on"
    elif use is Use.WAITING and judge and judge.seconds > sum(cpu_seconds.values()):
        hint = "the judge's answers came after the last response: raise [judge] concurrency"
    elif use is Use.WAITING and cpu_seconds["scoring"] > cpu_seconds["metrics"]:
        hint = "scores came after the last response: raise [harness] jobs"
    return f"{seconds[use] / total:.0%} of GPU time was {use}: {hint}"


_HINTS = {
    Use.QUEUE: "ask for less with --max-gpus or [trial] cpus and memory_gib, or in another "
    "partition",
    Use.STAGING: "keep checkpoints on faster storage",
    Use.START: "take fewer GPUs, with --max-gpus or --objective gpu-hours",
    Use.REQUESTS: "only more or faster GPUs, or fewer items, make it shorter",
    Use.DRAINING: "some trials ended early; the next plan knows what this run has measured",
    Use.WAITING: "answers of metrics came after the last response: raise [metrics] cpus",
    Use.LOST: "`coordinate-eval status` and the logs have the errors",
}


def read_time_ledger(run_dir: RunDir, run: Run, *, ended: bool) -> TimeLedger:
    """Return the ledger of a run that has ended just now, or goes on.

    A run that was resumed counts from then on: nobody waited for it before.
    """
    begin = begin_of(run_dir, run)
    cpu_seconds = {
        "building": _building(run_dir, run, begin),
        "metrics": _metrics(run_dir, run, begin),
        "scoring": _scoring(run_dir, run, begin),
    }
    judge = None
    if run.judged:
        progress = _files.read_record_if_there(run_dir.judge, JudgeProgress)
        judge = _judge(run_dir, run, begin, progress)
        cpu_seconds["asking the judge"] = progress.cpu_seconds if progress else 0.0
    asked = read_asked(run_dir, run, ended=ended)
    return sum_up(begin, asked, time.time(), cpu_seconds, judge)


def read_asked(run_dir: RunDir, run: Run, *, ended: bool) -> list[Asked]:
    """Return the rounds since the run was created or last resumed, with the times of all trials.

    An earlier round counts if it went on then. It held no GPU if all of its trials had ended.
    """
    begin = begin_of(run_dir, run)
    every = list(read_rounds(run_dir))
    new = [found for found in every if found.created >= begin]
    rounds = new or every[-1:]
    asked = [
        Asked(round_.created, list(_lives(run_dir, run, round_, ended=ended))) for round_ in rounds
    ]
    lives = [life for each in asked for life in each.lives if not ended or life.started is not None]
    over = all(life.ended is not None and life.ended < begin for life in lives)
    return [] if over and not new else asked


def begin_of(run_dir: RunDir, run: Run) -> float:
    """Return when the run was created or last resumed, in seconds since the epoch."""
    return max(run.created, _files.modified(run_dir.resumed))


def _lives(run_dir: RunDir, run: Run, round_: Round, *, ended: bool) -> Iterator[Life]:
    """Yield the times of a round's trials. They are over if the run has `ended`.

    So are those of a node that was released: the supervisor saw that none of them lived.
    """
    stages: dict[str, StageProgress | None] = {}
    over: dict[str, bool] = {}
    for trial, node in trials_of(round_):
        if node.name not in stages:
            path = run_dir.stage(round_.number, node.name)
            stages[node.name] = _files.read_record_if_there(path, StageProgress)
            released = run_dir.released(round_.number, node.name)
            over[node.name] = ended or released.exists()
        stage = stages[node.name]
        life = Life(trial, run.gpus_per_trial, node=node.name)
        if stage is not None:
            copied_to = stage.ready if stage.ready is not None else stage.updated
            life = life._replace(copied_from=stage.started, copied_to=copied_to)
        found = _files.read_record_if_there(run_dir.trial(trial), TrialProgress)
        if found is not None:
            done, failed = found.state == "ended", found.state == "failed"
            life = life._replace(
                started=found.started,
                prepared=found.prepared,
                staged=found.staged,
                running=found.running,
                last=found.last,
                ended=found.updated if over[node.name] or done or failed else None,
                # A message says why it ended early. One that is over without an end was killed.
                lost=bool(found.message) if done else over[node.name] or failed,
            )
        yield life


def _building(run_dir: RunDir, run: Run, begin: float) -> float:
    seconds = 0.0
    for dataset in run.suite.datasets:
        found = _files.read_record_if_there(run_dir.requests_index(dataset.name), DatasetRequests)
        if found is not None and found.built is not None and found.built >= begin:
            seconds += found.build_cpu_seconds or 0.0
    return seconds


def _metrics(run_dir: RunDir, run: Run, begin: float) -> float:
    return sum(answer.seconds for answer in _answers(run_dir, run, begin, judged=False))


def _judge(run_dir: RunDir, run: Run, begin: float, progress: JudgeProgress | None) -> JudgeUse:
    # A question that several portions ask was asked once.
    answers = {a.id: a for a in _answers(run_dir, run, begin, judged=True)}.values()
    kept = sum(answer.kept for answer in answers)
    return JudgeUse(
        questions=len(answers) - kept,
        kept=kept,
        tokens=sum(answer.tokens for answer in answers),
        seconds=round(sum(answer.seconds for answer in answers), 3),
        gpu_seconds=progress.gpu_seconds if progress else 0.0,
    )


def _answers(run_dir: RunDir, run: Run, begin: float, *, judged: bool) -> Iterator[Answer]:
    """Yield the answers that were published since a time: those of a judge, or of programs."""
    for portion in portions_with_questions(run_dir, run):
        path = run_dir.published("answers", portion)
        if (portion.dataset in run.judged) == judged and _files.modified(path) >= begin:
            for line in _files.whole_lines(path):
                yield Answer.model_validate_json(line)


def _scoring(run_dir: RunDir, run: Run, begin: float) -> float:
    return sum(
        scored.seconds
        for dataset in run.suite.datasets
        for scored in measurements.read_scorings(run_dir.scorings(dataset.name))
        if scored.time >= begin
    )
