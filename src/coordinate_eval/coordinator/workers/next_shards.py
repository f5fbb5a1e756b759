"""The shard that a trial answers next: one of its plan, a free one, a suspect, or a slow trial's.

A trial begins with the shards that the plan gave it, and goes on with any that are free, the
longest first. Shards at which an engine died come then, one at a time. A trial claims no shard that
it cannot end before its time limit.

Last come second attempts: an idle trial also answers what a slow trial has left of a shard. The
first to finish wins. Each trial has an elapsed time and the predicted seconds of what it has
answered meanwhile, which make its slowdown. A shard is attempted again if this trial needs at most
a part of the time that its owner still needs.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from coordinate_eval import _files
from coordinate_eval.coordinator.planning.plan import Plan
from coordinate_eval.coordinator.run import measurements
from coordinate_eval.coordinator.run.claiming.claims import Ledger, OpenClaim
from coordinate_eval.coordinator.run.claiming.work import given_up
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, TrialProgress
from coordinate_eval.records import DatasetRequests, Shard, Span


class TimeLeft:
    """Tells whether a trial can finish another shard before its time limit.

    It compares the predicted seconds of the trial's shards with the seconds that its engine took.

    Shards overlap in an engine, so the time from a shard's begin to its end says little. What
    counts is the shard's share of the engine's time; see `priors.time_shares`.

    Args:
        deadline: seconds of `clock` at which the trial must have given back its shards.
    """

    def __init__(self, deadline: float, clock: Callable[[], float] = time.time) -> None:
        self._deadline = deadline
        self._clock = clock
        self._begun = self._done = self._took = 0.0

    @property
    def begun(self) -> bool:
        """Return whether the engine was given any shard."""
        return self._begun > 0

    def begin(self, predicted: float) -> None:
        """Count a shard, or the rest of one, of `predicted` seconds as given to the engine."""
        self._begun += predicted

    def end(self, predicted: float, took: float) -> None:
        """Count `predicted` seconds that were begun as done. The engine needed `took` seconds."""
        self._done += predicted
        self._took += took

    def drop(self, predicted: float) -> None:
        """Count `predicted` seconds that were begun as given back. They say nothing of the pace."""
        self._begun -= predicted

    def in_time(self, predicted: float) -> bool:
        """Return whether a shard of `predicted` seconds, begun now, ends before the deadline.

        An engine that was slower than predicted so far is expected to stay as slow. A faster
        engine is not expected to stay as fast.
        """
        slowdown = max(1.0, self._took / self._done) if self._done else 1.0
        waiting = max(0.0, self._begun - self._done)
        return self._clock() + (waiting + predicted) * slowdown < self._deadline


MOST_OF_OWNERS_TIME = 0.5
"""Most time of a second attempt, as a part of what the owner still needs: predictions are rough."""

LEAST_GAIN_SECONDS = 30.0
"""Least time by which a second attempt must end sooner than the owner: an engine drops what the
other has answered only every two seconds, and both compute until then."""

MOST_SEEN = 64
"""Shards that are looked at. While more are left, a slow trial is not what a run waits for."""


class Owner(NamedTuple):
    """The speed of a trial so far."""

    slowdown: float
    """Seconds that a predicted second took."""
    silent: float
    """Seconds since its last answer."""


class Held(NamedTuple):
    """A shard that a trial has in work, and the predicted seconds of what it has not answered."""

    claim: OpenClaim
    left: float


def choose(
    held: Sequence[Held],
    owners: Mapping[str, Owner],
    own: float,
    floors: Mapping[str, float],
    least_gain: float = LEAST_GAIN_SECONDS,
) -> list[OpenClaim]:
    """Return the claims whose shards are worth a second attempt, those that gain most first.

    Args:
        held: shards of other trials.
        owners: by name. Trials of unknown speed are left alone.
        own: slowdown of the trial that would make the attempts.
        floors: predicted seconds of each dataset's longest item, which no trial can split.
        least_gain: seconds by which the attempts must end sooner than the owners.
    """
    left: dict[str, float] = {}
    for each in held:
        owner = each.claim.claim.owner
        left[owner] = left.get(owner, 0.0) + each.left
    gains = []
    for each in held:
        owner = each.claim.claim.owner
        if owner not in owners:
            continue
        needed = max(owners[owner].slowdown * left[owner], owners[owner].silent)
        ours = own * max(each.left, floors.get(each.claim.span.dataset, 0.0))
        if ours <= MOST_OF_OWNERS_TIME * needed and needed - ours >= least_gain:
            gains.append((ours - needed, -each.left, each.claim))
    return [claim for *_, claim in sorted(gains)]


class NextShards:
    """Chooses and claims the shards of one trial.

    Args:
        trial: the name of the trial.
        task: its process, as claims name it.
        time_left: tells which shards end before the trial has to.
    """

    def __init__(
        self, run_dir: RunDir, run: Run, trial: str, task: str, time_left: TimeLeft
    ) -> None:
        self._dir, self._run, self._trial, self._task = run_dir, run, trial, task
        self._time_left = time_left
        self._ledger = Ledger(run_dir, "outputs")
        self._shards = {shard.span: shard for shard in run.shards}

    def claim(self, shard: Shard) -> int | None:
        """Claim a shard. Return the number of the attempt, or None if somebody else has it."""
        return self._ledger.claim(shard.span, self._trial, self._task)

    def free(self) -> set[Span]:
        """Return the shards that can be claimed, but those of datasets that cannot be scored."""
        return set(self._ledger.claimable(shard.span for shard in self._wanted()))

    def in_order(self) -> Iterator[Shard]:
        """Yield the plan's shards for this trial, then free ones in the run's order.

        A shard that cannot end in time is left out, and one at which a trial died. Where none can
        end in time, one is begun all the same: later trials go on with it where this one stops.
        """
        plan = _files.read_record_if_there(self._dir.plan, Plan)
        trials = plan.trials if plan is not None else []
        planned = next((t.shards for t in trials if t.id == self._trial), [])
        suspects = self._ledger.suspects(shard.span for shard in planned)
        for shard in planned:
            wanted = shard.dataset not in given_up(self._dir) and shard.span not in suspects
            if wanted and self._time_left.in_time(shard.gpu_seconds):
                yield shard
        tried: set[Span] = set()
        while True:
            free = self.free() - tried
            free -= self._ledger.suspects(free).keys()
            if not free:
                return
            for shard in self._run.shards:
                if shard.span in free and self._time_left.in_time(shard.gpu_seconds):
                    yield shard
            for shard in reversed(self._run.shards):  # the shortest first
                if shard.span in free and not self._time_left.begun:
                    yield shard
            tried |= free

    def claim_suspect(self) -> tuple[Shard, int] | None:
        """Claim a shard at which a trial died. Return it and the attempt's number, or None."""
        deaths = self._ledger.suspects(self.free())
        # Fewest deaths first, so that a shard that ends every engine holds up no other.
        suspects = [shard for shard in self._run.shards if shard.span in deaths]
        for shard in sorted(suspects, key=lambda shard: deaths[shard.span]):
            has_time = self._time_left.in_time(shard.gpu_seconds) or not self._time_left.begun
            if has_time and (attempt := self.claim(shard)) is not None:
                return shard, attempt
        return None

    def claim_slow(self) -> tuple[Shard, int] | None:
        """Claim a shard that another trial holds, if a second attempt is worth it.

        Return it with the number of the attempt, or None. A shard has one second attempt beside
        its owner's, and none if a trial died at it.
        """
        wanted = {s.span for s in self._wanted() if self._time_left.in_time(s.gpu_seconds)}
        unpublished = self._ledger.unpublished(wanted)
        if len(unpublished) > MOST_SEEN:
            return None
        suspects = self._ledger.suspects(unpublished)
        held = [
            Held(each, self._left(self._shards[each.span], each.attempt))
            for each in self._ledger.open_claims(set(unpublished) - suspects.keys())
            if each.claim.owner != self._trial and not self._ledger.has_second_attempt(each.span)
        ]
        if not held:
            return None
        plan = _files.read_record_if_there(self._dir.plan, Plan)
        floors = plan.floor_seconds if plan is not None else {}
        owners = self._owners(held)
        own = owners.pop(self._trial, Owner(slowdown=1.0, silent=0.0))
        for span, attempt, _ in choose(held, owners, own.slowdown, floors):
            self._ledger.revoke(span, attempt, "doubled")
            second = self.claim(self._shards[span])
            if second is not None:
                return self._shards[span], second
        return None

    def _wanted(self) -> Iterator[Shard]:
        lost = given_up(self._dir)
        return (shard for shard in self._run.shards if shard.dataset not in lost)

    def _owners(self, held: Sequence[Held]) -> dict[str, Owner]:
        """Return how fast the owners of these shards have been, and this trial."""
        in_work = {self._trial: 0.0}
        for each in held:
            owner = each.claim.claim.owner
            done = self._shards[each.claim.span].gpu_seconds - each.left
            in_work[owner] = in_work.get(owner, 0.0) + done
        now = time.time()
        found = {name: self._owner(name, done, now) for name, done in in_work.items()}
        return {name: owner for name, owner in found.items() if owner is not None}

    def _owner(self, trial: str, in_work: float, now: float) -> Owner | None:
        """Return how fast a trial has been, None before its first answer.

        `in_work` has the predicted seconds of what it has answered of shards that it still holds.
        """
        progress = _files.read_record_if_there(self._dir.trial(trial), TrialProgress)
        if progress is None or progress.ready is None:
            return None
        done = in_work
        for line in measurements.read_lines(self._dir.observations(trial)):
            if isinstance(line, measurements.ShardDone):
                shard = self._shards.get(Span(line.dataset, line.start, line.stop))
                done += shard.gpu_seconds if shard else 0.0
        last = progress.last or progress.ready
        slowdown = max(0.0, now - progress.ready) / done if done else 1.0
        return Owner(max(1.0, slowdown), max(0.0, now - last))

    def _left(self, shard: Shard, attempt: int) -> float:
        """Return the predicted seconds of what an attempt has not answered yet."""
        index = _files.read_record(self._dir.requests_index(shard.dataset), DatasetRequests)
        asked = (shard.stop - shard.start) * index.requests / max(1, index.items)
        written = self._dir.unpublished("outputs", shard.span, attempt)
        answered = sum(1 for _ in _files.whole_lines(written))
        return shard.gpu_seconds * (1 - min(1.0, answered / max(1.0, asked)))
