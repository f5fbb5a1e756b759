"""Trials that take the place of lost ones while others answer, where the work that is left pays.

A further trial pays if it will answer at least as long as it takes to be ready. Until it is ready,
the trials that run go on with the work; of the rest, it gets its share.
"""

from collections.abc import Iterator, Sequence

from coordinate_eval.clusters.protocol import State
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.coordinator.supervisor.decisions.values import Action, Facts, NewRound
from coordinate_eval.records import Span

POLLS_PER_REPLACEMENT = 6
"""Polls between a round and one that replaces trials, doubled for each that answered nothing."""


def replace_lost(run: Run, facts: Facts) -> list[Action]:
    """Start a round beside those that go on, for as many trials as are missing and pay."""
    pause = POLLS_PER_REPLACEMENT * run.settings.supervisor.poll_seconds
    pause *= 2.0 ** min(facts.fruitless_rounds, 32)
    if facts.now - facts.asked < pause:
        return []
    missing = missing_trials(run, facts)
    return [NewRound(missing)] if missing > 0 else []


def missing_trials(run: Run, facts: Facts) -> int:
    """Return how many trials are missing of those that the plan has and the work left pays for.

    There is none before the first response: what ended some trials may end all others.
    """
    if facts.pace is None:
        return 0
    running, coming = count_trials(run, facts)
    claimable = facts.claimable["outputs"]
    wanted = min(facts.most_trials, _paying_trials(run, facts, running))
    return max(0, min(wanted - running - coming, len(claimable) - coming))


def pays_no_more(run: Run, facts: Facts) -> bool:
    """Return whether the trials that answer will have claimed everything when another is ready."""
    running, _ = count_trials(run, facts)
    claimable = seconds_of(run, facts, facts.claimable["outputs"])
    return facts.pace is not None and running > 0 and claimable <= running * facts.ready_seconds


def count_trials(run: Run, facts: Facts) -> tuple[int, int]:
    """Return how many trials run, and how many are to come: pending ones, or not submitted yet."""
    found = list(_by_node(run, facts))
    return sum(running for _, running, _ in found), sum(coming for _, _, coming in found)


def held_nodes(run: Run, facts: Facts) -> set[str]:
    """Return the nodes of these trials."""
    return {name for name, running, coming in _by_node(run, facts) if running or coming}


def _by_node(run: Run, facts: Facts) -> Iterator[tuple[str, int, int]]:
    """Yield each node of each round, how many of its trials run, and how many are to come."""
    for round_ in facts.rounds:
        for node in round_.nodes:
            name = jobs.trials_name(run, round_.number, node.name)
            if name not in facts.submitted:
                released = (round_.number, node.name) in facts.released
                yield node.name, 0, 0 if released else node.trials
                continue
            of_task = node.trials if facts.is_whole(run, name) else 1
            states = [task.state for task in facts.alive(name)]
            waiting = states.count(State.PENDING)
            yield node.name, of_task * states.count(State.RUNNING), of_task * waiting


def seconds_of(run: Run, facts: Facts, spans: Sequence[Span]) -> float:
    """Return the GPU seconds of these shards: as predicted, times the pace of what is done."""
    among = set(spans)
    pace = 1.0 if facts.pace is None else facts.pace
    return pace * sum(shard.gpu_seconds for shard in run.shards if shard.span in among)


def _paying_trials(run: Run, facts: Facts, running: int) -> int:
    """Return how many trials answer as long as they take to be ready, those that run included."""
    claimable = seconds_of(run, facts, facts.claimable["outputs"])
    left_then = claimable - running * facts.ready_seconds
    return int(left_then / max(1.0, facts.ready_seconds))
