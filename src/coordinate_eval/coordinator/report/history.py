"""Reading the times of a run from its directory, for the ledger."""

import time
from collections.abc import Iterator

from coordinate_eval import _files
from coordinate_eval.coordinator.report.time_ledger import Asked, JudgeUse, Life, TimeLedger, sum_up
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
from coordinate_eval.records import Answer, DatasetRequests


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
        life = Life(trial, run.tensor_parallel, node=node.name)
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
