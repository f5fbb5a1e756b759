"""The time without a sign of life after which a trial, or a job on CPUs, counts as hanging."""

from collections.abc import Iterable, Mapping

from coordinate_eval.coordinator.run.records import Run, TrialProgress

HANG_FACTOR = 5.0
"""Multiple of the predicted seconds after which an answer is overdue: predictions are rough."""

STARTING_TIMES = 2
"""Factor by which an engine may be silent longer while it starts: the first one compiles."""

TOKEN_SECONDS = 0.1
"""Seconds per token of an answer in a full batch: few engines are slower."""

SIGN_SECONDS = 30.0
"""Time between two signs of life of a build, metric, judge's or scoring job."""

LEAST_SIGNS = 6
"""Such signs in a row that must be missing: storage may fail, and a network may hide some."""


def answer_seconds(
    run: Run, floor_seconds: Mapping[str, float], longest_output_tokens: Mapping[str, int]
) -> dict[str, float]:
    """Return the seconds after which an answer of each dataset is due, by generous predictions.

    That is a whole shard's time, or that of its longest item, if predictions are wrong by
    `HANG_FACTOR`; or the time of the longest answer that is allowed.

    Args:
        floor_seconds: of each dataset, the predicted seconds of its longest item.
        longest_output_tokens: of each dataset, the most that one request may generate.
    """
    predicted = dict(floor_seconds)
    for shard in run.shards:
        predicted[shard.dataset] = max(predicted.get(shard.dataset, 0.0), shard.gpu_seconds)
    return {
        name: max(HANG_FACTOR * seconds, TOKEN_SECONDS * longest_output_tokens.get(name, 0))
        for name, seconds in predicted.items()
    }


def silence_seconds(
    run: Run,
    progress: TrialProgress | None,
    held: Iterable[str],
    due: Mapping[str, float],
) -> float:
    """Return how long a trial may give no sign of life.

    Args:
        progress: of the trial; None if it has not said anything.
        held: datasets of which it has shards.
        due: seconds of an answer, from `answer_seconds`.
    """
    least = run.settings.trial.hang_minutes * 60
    start = STARTING_TIMES * max(
        least, HANG_FACTOR * (run.engine_start_seconds + (run.copy_seconds or 0.0))
    )
    # A server that starts for too long says so itself.
    own_minutes = float(run.settings.engine.args.get("start_minutes", 0))
    start = max(start, least + 60 * own_minutes)
    if progress is None or progress.state in ("staging", "starting"):
        return start
    answer = max(least, max((due.get(name, 0.0) for name in held), default=0.0))
    # What an engine does for the first time it may have to compile.
    return answer if progress.ready is not None else max(start, answer)


def quiet_seconds(run: Run, *, begun: bool) -> float:
    """Return how long a build, metric, judge's or scoring job may give no sign of life.

    It gives signs whatever it does, however long that takes. So nothing is predicted here.

    Args:
        begun: it has given a sign; before the first one, Python starts.
    """
    least = max(LEAST_SIGNS * SIGN_SECONDS, run.settings.trial.hang_minutes * 60)
    return least if begun else STARTING_TIMES * least
