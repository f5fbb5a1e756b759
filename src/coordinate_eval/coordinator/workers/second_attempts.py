"""Second attempts: an idle trial also answers what a slow trial has left. The first to finish wins.

A trial that finds nothing free looks at the shards that others hold. Each trial has an elapsed time
and the predicted seconds of what it has answered meanwhile, which make its slowdown. A shard is
attempted again if this trial needs at most a part of the time that its owner still needs.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from coordinate_eval import _files
from coordinate_eval.coordinator.planning.plan import Plan
from coordinate_eval.coordinator.run import measurements
from coordinate_eval.coordinator.run.claiming.claims import Ledger, OpenClaim
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, TrialProgress
from coordinate_eval.records import DatasetRequests, Shard, Span

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


class SecondAttempts:
    """The shards of other trials, as one trial of the run sees them."""

    def __init__(self, run_dir: RunDir, run: Run, trial: str) -> None:
        self._dir, self._trial = run_dir, trial
        self._shards = {shard.span: shard for shard in run.shards}
        self._ledger = Ledger(run_dir, "outputs")

    def claim(self, wanted: Iterable[Span], task: str) -> tuple[Shard, int] | None:
        """Claim a wanted shard that another trial holds, if a second attempt is worth it.

        Return it with the number of the attempt, or None. A shard has one second attempt beside
        its owner's, and none if a trial died at it.
        """
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
            second = self._ledger.claim(span, self._trial, task)
            if second is not None:
                return self._shards[span], second
        return None

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
