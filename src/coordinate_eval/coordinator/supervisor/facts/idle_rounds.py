"""Rounds that brought no response: how many there were in a row, and which of them say nothing."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from coordinate_eval import _files
from coordinate_eval.coordinator.report.failures import read_trials_of
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Round, Run, TrialProgress
from coordinate_eval.coordinator.run.rounds import UNAVAILABLE_SECONDS
from coordinate_eval.coordinator.run.troubles.causes import JobCause, keeper_id, read_causes
from coordinate_eval.coordinator.run.troubles.memory import (
    MAX_HALVINGS,
    is_lighter_left,
    out_of_memory,
)
from coordinate_eval.diagnosis.reaction import Action

MAX_SEARCHING_ROUNDS = 6
"""Rounds without any response in which items that end engines are looked for: about four do."""

LONGEST_OUTAGE_SECONDS = 3600.0
"""So long a round does not count whose jobs died because storage or a server was away."""

LONGEST_QUEUE_SECONDS = 86_400.0
"""So long a round does not count of which the scheduler started no trial."""


class IdleRounds(NamedTuple):
    """The last rounds in a row, since the last resume, that brought no response."""

    rounds: int
    """Those that count."""
    waits: int
    """Those that do not yet count, because nothing of ours is at fault."""


def count_idle_rounds(run_dir: RunDir, run: Run, rounds: Sequence[Round], now: float) -> IdleRounds:
    """Return how many of the last rounds in a row, since the last resume, brought no response.

    A round that began while an earlier one's trials still answered does not count, nor do those
    before it. Nor do a few in which items that end engines were looked for, or in which all trials
    ran out of memory, as long as the next engine runs fewer sequences than any before. For a day a
    round does not count of which no trial began, and which waited in the queue. For an hour one
    does not whose jobs all died of what passes by itself.
    """
    answering = [
        _files.modified(run_dir.trial(trial.trial))
        for round_ in rounds
        for trial in read_trials_of(run_dir, round_)
        if trial.responses
    ]
    since = max(_files.modified(run_dir.resumed), *answering, 0.0)
    causes = read_causes(run_dir)
    short = out_of_memory(run_dir, run)
    lighter = is_lighter_left(run, short)
    idle, waits, searching, shrinking, end = 0, 0, 0, 0, now
    for round_ in reversed(rounds):
        created = _files.modified(run_dir.round(round_.number))
        if created < since:
            break
        trials = list(read_trials_of(run_dir, round_))
        if any(trial.responses for trial in trials):
            break
        searched = bool(answering) and any(trial.suspects for trial in trials)
        searching += searched
        shrunk = lighter and bool(trials) and all(trial.trial in short for trial in trials)
        shrinking += shrunk
        searches = searched and searching <= MAX_SEARCHING_ROUNDS
        if not (searches or (shrunk and shrinking <= MAX_HALVINGS)):
            queued = not trials and _waited(run_dir, run, round_, end - round_.created)
            excused = LONGEST_QUEUE_SECONDS if queued else 0.0
            if not queued and _met_an_outage(causes, round_, trials):
                excused = LONGEST_OUTAGE_SECONDS
            counts = not excused or now - round_.created >= excused
            idle, waits = idle + counts, waits + (not counts)
        end = round_.created
    return IdleRounds(idle, waits)


def _waited(run_dir: RunDir, run: Run, round_: Round, seconds: float) -> bool:
    """Return whether a round without any trial, over after so long, waited in the queue."""
    if seconds >= run.settings.supervisor.patience_seconds:
        return True
    begun = any(run_dir.stage(round_.number, node.name).exists() for node in round_.nodes)
    return seconds >= UNAVAILABLE_SECONDS and not begun


def count_short_rounds(run_dir: RunDir, run: Run, rounds: Sequence[Round], now: float) -> int:
    """Return how many of the last rounds in a row perhaps were too short for a response.

    It is 0 if all trials of the last round ended with an error.
    """
    states = {trial.state for round_ in rounds[-1:] for trial in read_trials_of(run_dir, round_)}
    return count_idle_rounds(run_dir, run, rounds, now).rounds if states - {"failed"} else 0


def _met_an_outage(
    known: Mapping[str, JobCause], round_: Round, trials: Sequence[TrialProgress]
) -> bool:
    """Return whether all jobs of a round that began died of what passes by itself."""
    tried = {trial.node for trial in trials}
    keepers = [keeper_id(round_.number, n.name) for n in round_.nodes if n.name not in tried]
    causes = [known.get(trial.trial) for trial in trials] + [
        known[keeper] for keeper in keepers if keeper in known
    ]
    return bool(causes) and all(c is not None and c.action is Action.WAIT for c in causes)
