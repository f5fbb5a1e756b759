"""Resumes of a run since it last made progress: `resumed` in its directory."""

import time

from pydantic import Field

from coordinate_eval import _files
from coordinate_eval.coordinator.run.claiming.claims import Ledger
from coordinate_eval.coordinator.run.claiming.work import all_portions
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import read_run
from coordinate_eval.coordinator.run.supervision import latest_epoch
from coordinate_eval.records import Record

MOST_TRIES = 3
"""Resumes in a row without progress after which asking again for the run is refused."""

STARTING_SECONDS = 60.0
"""Time in which a resume that no supervisor has taken up counts for all who ask for it."""


class Resumed(Record):
    """`resumed`: the last resume of a run. Failures from before it no longer count."""

    time: float
    tries: int = Field(
        description="resumes in a row without progress, this one included; 0 if typed by a person"
    )
    done: int = Field(
        description="built datasets, published shards, answers and scores at that time"
    )


def tries_without_progress(run_dir: RunDir) -> int:
    """Return the number of resumes in a row, by asking again, that made no progress.

    A resume that is starting may still make progress: whoever asks meanwhile asks for the same
    resume.
    """
    last = _files.read_record_if_there(run_dir.resumed, Resumed)
    if last is None or last.done != _count_done(run_dir):
        return 0
    return max(0, last.tries - _is_starting(run_dir, last))


def note(run_dir: RunDir, *, by_hand: bool) -> None:
    """Write that the run is resumed now, unless somebody else has asked for it just before."""
    last = _files.read_record_if_there(run_dir.resumed, Resumed)
    if not by_hand and last is not None and _is_starting(run_dir, last):
        return
    tries = 0 if by_hand else tries_without_progress(run_dir) + 1
    record = Resumed(time=time.time(), tries=tries, done=_count_done(run_dir))
    _files.write_record(run_dir.resumed, record)


def _is_starting(run_dir: RunDir, last: Resumed) -> bool:
    """Return whether the last resume was a moment ago, and no supervisor has taken it up."""
    supervised = (run_dir.supervisor(latest_epoch(run_dir)), run_dir.results)
    taken_up = max(map(_files.modified, supervised)) > _files.modified(run_dir.resumed)
    return time.time() - last.time < STARTING_SECONDS and not taken_up


def _count_done(run_dir: RunDir) -> int:
    """Return the number of built datasets, published shards, answered portions, and scores."""
    run = read_run(run_dir)
    shards = Ledger(run_dir, "outputs").unpublished(shard.span for shard in run.shards)
    portions = all_portions(run)
    unanswered = Ledger(run_dir, "answers").unpublished(portions)
    scored = sum(run_dir.dataset_results(d.name).exists() for d in run.suite.datasets)
    built = sum(run_dir.requests_index(d.name).exists() for d in run.suite.datasets)
    return built + len(run.shards) - len(shards) + len(portions) - len(unanswered) + scored
