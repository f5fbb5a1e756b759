"""Say what follows from incidents for the lost work, for the next round, and for the run.

| cause | remedy | the run gives up |
|---|---|---|
| the node, or unknown | another node (`bad_nodes.py`) | after three rounds without a response |
| out of memory | less load (`lighter_load`) | with the least load |
| an item | alone (`workers/open_shards.py`) | the item, after three deaths with nothing else |
| storage or a server is away | wait | after an hour |
| the scheduler starts nothing | wait | after a day |
| what every job would meet | stop | when two nodes, or two rounds, have shown it |
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from coordinate_eval import _files
from coordinate_eval._engines import kind_of
from coordinate_eval.clusters.protocol import End
from coordinate_eval.coordinator.incidents.incident import (
    Incident,
    keeper_id,
    read_incidents,
    without_node,
)
from coordinate_eval.coordinator.run.claiming.claims import (
    OF_DATASETS,
    ClaimEnd,
    Ledger,
    LedgerName,
    OpenClaim,
)
from coordinate_eval.coordinator.run.claiming.pullers import Pullers
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Round, Run, TrialProgress
from coordinate_eval.coordinator.run.rounds import UNAVAILABLE_SECONDS, read_trials_of
from coordinate_eval.diagnosis.cause import Remedy
from coordinate_eval.priors.conditions import sequences
from coordinate_eval.records import EngineSettings

LEAST_PART = 8
"""The fewest sequences are this part of those at first. Fewer hardly save memory, and take long."""

MAX_HALVINGS = LEAST_PART.bit_length() - 1
"""Times that the load is halved until it is the least."""


class Load(NamedTuple):
    """Number of sequences that an engine may run at once."""

    sequences: int
    full: int
    """Sequences that an engine runs where none ran out of memory."""

    @property
    def can_shrink(self) -> bool:
        """Return whether another engine may run fewer."""
        return self.sequences > max(1, self.full // LEAST_PART)

    @property
    def lighter(self) -> int:
        """Return how many times fewer sequences that are."""
        return self.full // self.sequences

    def engine_args(self, engine: EngineSettings) -> dict[str, Any]:
        """Return the engine's arguments for this load."""
        name = kind_of(engine.name).sequences_argument
        if not name or self.sequences == self.full:
            return engine.args
        return {**engine.args, name: self.sequences}


def lighter_load(run: Run, incidents: Sequence[Incident]) -> Load:
    """Return the load of the next engine: half of the least at which one ran out of memory."""
    full = sequences(run.settings.engine, run.gpu_type)
    met = out_of_memory(run, incidents).values()
    return Load(max(1, full // LEAST_PART, min(met) // 2) if met else full, full)


def out_of_memory(run: Run, incidents: Sequence[Incident]) -> dict[str, int]:
    """Return the trials that ran out of memory, with the sequences that their engines ran."""
    full = sequences(run.settings.engine, run.gpu_type)
    return {each.job: each.sequences or full for each in incidents if each.of_memory}


NOT_BY_ITSELF = frozenset(
    {End.NODE_FAILED, End.PREEMPTED, End.TIME_LIMIT, End.CANCELLED, End.COMPLETING}
)
"""Ends that no work of the job brings about."""

OPINIONS = 2
"""Nodes, or rounds or arrays, on which jobs must have died of one cause that all would meet."""

MOST_ROUNDS = {"alone": 6, "less load": MAX_HALVINGS}
"""Rounds in a row without a response in which a remedy is tried. About six find a deadly item."""

MOST_SECONDS = {"wait": 3600.0, "queue": 86_400.0}
"""Time for which rounds do not count of which nothing of ours is at fault."""


_LEFT: Mapping[LedgerName, str] = {
    "outputs": "responses of",
    "answers": "answers to questions of",
    "questions": "questions of",
    "requests": "the prompts of",
    "results": "the scores of",
    "looks": "the scores of the first items of",
    "comparisons": "comparison",
    "estimates": "the first signal of",
}
"""Work that a dead job leaves undone, by ledger."""


def claim_end(end: End) -> ClaimEnd:
    """Return why the claims of a job are over that ended in this way without giving them back.

    An end that the scheduler does not explain counts as the work's fault, so that no work that ends
    its jobs is tried for ever.
    """
    return "lost" if end in NOT_BY_ITSELF else "died"


def revoke(run_dir: RunDir, run: Run, ledger: LedgerName, held: OpenClaim, end: End) -> str:
    """End the attempt of a dead job, so that another one can begin. Return words for people.

    Where memory ran out, the next engine does the same work with less load.
    """
    span, attempt, claim = held
    cause = claim_end(end)
    if ledger == "outputs" and end is End.OUT_OF_MEMORY:
        cause = "lost" if lighter_load(run, read_incidents(run_dir)).can_shrink else "died"
    Ledger(run_dir, ledger).revoke(span, attempt, cause, end)
    what = f"{_LEFT[ledger]} {span.dataset}"
    if ledger not in OF_DATASETS:
        what += f" (items {span.stem})"
    known = end not in (End.UNKNOWN, End.FAILED, End.COMPLETED)
    ended = f"ended ({end})" if known else "ended"
    return f"{claim.owner} {ended} without finishing {what}; another one will"


class Recurring(NamedTuple):
    """An incident that every other job would meet."""

    last: Incident
    elsewhere: bool
    """One node has shown it once, and may be at fault: another one is tried before the end."""


def recurring(latest: Sequence[Incident], known: Sequence[Incident]) -> Recurring | None:
    """Return what every other job would die of like the latest ones; None if they may not.

    All of the latest must have died of one cause. Bad input fails again for certain. Anything else
    must be shown on two nodes, or again in another round or array, where others may have run.
    """
    whats = {_what(each) for each in latest}
    if len(whats) != 1 or None in whats:
        return None
    alike = [each for each in known if _what(each) in whats]
    nodes, batches = {each.node for each in alike}, {each.batch for each in alike}
    last = latest[-1]
    shown = max(len(nodes), len(batches)) >= OPINIONS or all(each.of_input for each in latest)
    if not shown and not last.stops:
        return None  # an engine did not start, and no rule knows why
    return Recurring(last, elsewhere=not shown)


def _what(incident: Incident) -> str | None:
    """Return what every other job would meet, so that equal ones are equal; None if nothing."""
    starved = isinstance(incident.kind, Pullers) and incident.reason == "Out of Memory"
    if incident.stops or (starved and incident.before_work):
        return incident.reason
    if incident.said in ("input", "engine start"):
        return without_node(incident.message, incident.node)
    return None


class IdleRounds(NamedTuple):
    """The last rounds in a row, since the last resume, that brought no response."""

    rounds: int
    """Incidents that count."""
    waits: int
    """Incidents that do not count yet, because nothing of ours is at fault."""


def count_idle_rounds(run_dir: RunDir, run: Run, rounds: Sequence[Round], now: float) -> IdleRounds:
    """Return how many of the last rounds in a row, since the last resume, brought no response.

    A round that began while an earlier one's trials still answered does not count, nor do those
    before it, nor those in which a remedy is tried: see `MOST_ROUNDS` and `MOST_SECONDS`.
    """
    trials = {round_.number: list(read_trials_of(run_dir, round_)) for round_ in rounds}
    answering = [
        _files.modified(run_dir.trial(trial.trial))
        for group in trials.values()
        for trial in group
        if trial.responses
    ]
    since = max(_files.modified(run_dir.resumed), *answering, 0.0)
    incidents = {each.job: each for each in read_incidents(run_dir)}
    spent: Counter[str] = Counter()
    idle, waits, end = 0, 0, now
    for round_ in reversed(rounds):
        tried = trials[round_.number]
        began = _files.modified(run_dir.round(round_.number))
        if began < since or any(trial.responses for trial in tried):
            break
        met = _incidents_of(round_, tried, incidents)
        if answering and any(trial.suspects for trial in tried):
            remedy = "alone"
        elif tried and _loads_lighter(run, tried, list(incidents.values())):
            remedy = "less load"
        elif not tried and _waited(run_dir, run, round_, end - round_.created):
            remedy = "queue"
        elif met and all(each is not None and each.remedy is Remedy.WAIT for each in met):
            remedy = "wait"
        else:
            remedy = ""
        spent[remedy] += 1
        if spent[remedy] > MOST_ROUNDS.get(remedy, 0):
            excused = now - round_.created < MOST_SECONDS.get(remedy, 0.0)
            idle, waits = idle + (not excused), waits + excused
        end = round_.created
    return IdleRounds(idle, waits)


def count_short_rounds(run_dir: RunDir, run: Run, rounds: Sequence[Round], now: float) -> int:
    """Return how many of the last rounds in a row perhaps were too short for a response.

    It is 0 if all trials of the last round ended with an error.
    """
    states = {trial.state for round_ in rounds[-1:] for trial in read_trials_of(run_dir, round_)}
    return count_idle_rounds(run_dir, run, rounds, now).rounds if states - {"failed"} else 0


def _incidents_of(
    round_: Round, tried: Sequence[TrialProgress], incidents: Mapping[str, Incident]
) -> list[Incident | None]:
    """Return the incidents of a round: of each trial, and of keepers that no trial followed."""
    nodes = {trial.node for trial in tried}
    untried = [node for node in round_.nodes if nodes.isdisjoint(node.names)]
    keepers = [keeper_id(round_.number, name) for node in untried for name in node.names]
    found = [incidents[keeper] for keeper in keepers if keeper in incidents]
    return [*(incidents.get(trial.trial) for trial in tried), *found]


def _loads_lighter(run: Run, tried: Sequence[TrialProgress], incidents: Sequence[Incident]) -> bool:
    """Return whether all trials ran out of memory, and the next engine loads less than any did."""
    short = out_of_memory(run, incidents)
    if not all(trial.trial in short for trial in tried):
        return False
    return lighter_load(run, incidents).sequences < min(short.values())


def _waited(run_dir: RunDir, run: Run, round_: Round, seconds: float) -> bool:
    """Return whether a round without any trial, over after so long, waited in the queue."""
    if seconds >= run.settings.supervisor.patience_seconds:
        return True
    begun = any(run_dir.stage(round_.number, name).exists() for name in round_.node_names)
    return seconds >= UNAVAILABLE_SECONDS and not begun
