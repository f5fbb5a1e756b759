"""An estimate of the time until all scores of a run are there."""

import time
from collections.abc import Collection, Iterable, Sequence

from coordinate_eval.coordinator.run.claiming.claims import Ledger, whole
from coordinate_eval.coordinator.run.claiming.decided import without_withdrawn
from coordinate_eval.coordinator.run.claiming.work import all_portions, unscored_datasets
from coordinate_eval.coordinator.run.measurements import measured_pace
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, TrialProgress
from coordinate_eval.records import Span


def seconds_left(
    run_dir: RunDir,
    run: Run,
    trials: Collection[TrialProgress],
    begun: Iterable[TrialProgress],
    undone: Sequence[Span],
    unanswered: Iterable[Span],
    responded: float,
    planned: int,
) -> float | None:
    """Return an estimate of the seconds until all scores are there; None for less than a second.

    Args:
        trials: those of the rounds that go on.
        begun: those of all rounds.
        undone: shards without all responses.
        unanswered: portions whose questions are written and not all answered.
        responded: share of all responses that are there.
        planned: number of trials that the rounds which go on asked for.
    """
    run = without_withdrawn(run_dir, run)
    programs = sum(1 for span in unanswered if span.dataset not in run.judged)
    left = _without_judge(
        run, trials, begun, undone, programs, _scoring_left(run_dir, run), responded, planned
    )
    if asked := [span for span in all_portions(run) if span.dataset in run.judged]:
        lacking = len(Ledger(run_dir, "answers").unpublished(asked)) / len(asked)
        left = _with_judge(run, left, lacking)
    return left if left >= 1 else None


def _without_judge(
    run: Run,
    trials: Collection[TrialProgress],
    begun: Iterable[TrialProgress],
    undone: Sequence[Span],
    programs: int,
    scoring: Sequence[float],
    responded: float,
    planned: int,
) -> float:
    """Return the seconds that a run has left without its judge.

    The predicted seconds of the work that is left, corrected by how long the work that is done
    took, over the trials at work; metrics and scoring take at least their predicted seconds over
    their cores, and scoring at least those of its longest dataset.

    Args:
        programs: number of portions of programs that are not answered.
        scoring: predicted seconds that are left of each dataset without scores.
    """
    all_seconds = sum(shard.gpu_seconds for shard in run.shards)
    spans = set(undone)
    left = sum(shard.gpu_seconds for shard in run.shards if shard.span in spans)
    # Responses of shards in work count too, in proportion.
    left = min(left, all_seconds * (1 - responded)) if responded < 1 else left
    at_work = sum(1 for trial in trials if trial.state == "running")
    pace = measured_pace(begun, all_seconds - left, all_seconds)
    seconds = left * pace / max(1, at_work or planned)
    if undone and not at_work:
        starting = [time.time() - trial.started for trial in trials if trial.state == "starting"]
        started = min(starting, default=0.0)
        seconds += max(0.0, run.engine_start_seconds - started)
    metric = {s.span: s.metric_cpu_seconds for s in run.shards_with_questions()}
    asking = sum(value for span, value in metric.items() if span in spans)
    asking += programs * run.portion_seconds
    seconds = max(seconds, asking / max(1, run.settings.metrics.cpus))
    return max(seconds, sum(scoring) / run.settings.harness.jobs, *scoring)


def _with_judge(run: Run, left: float, lacking: float) -> float:
    """Return the seconds that a run has left with its judge.

    A server answers while trials go on. A checkpoint begins after them.

    Args:
        left: seconds without the judge.
        lacking: share of the judge's answers that are not there.
    """
    seconds = lacking * run.judge_seconds
    return left + seconds if run.settings.judge.checkpoint else max(left, seconds)


def _scoring_left(run_dir: RunDir, run: Run) -> list[float]:
    """Return the predicted seconds of each dataset without scores, less those since its claim."""
    unscored, now = unscored_datasets(run_dir, run), time.time()
    claims = Ledger(run_dir, "results").open_claims(whole(dataset.name) for dataset in unscored)
    begun = {claim.span.dataset: claim.claim.time for claim in claims}
    predicted = {dataset.name: run.score_seconds.get(dataset.name, 0.0) for dataset in unscored}
    return [max(0.0, value - (now - begun.get(name, now))) for name, value in predicted.items()]
