"""The shard that a trial answers next: one of its plan, a free one, a suspect, or a slow trial's.

A trial begins with the shards that the plan gave it, and goes on with any that are free, the
longest first. Shards at which an engine died come then, one at a time. Last come the shards that
slower trials hold. A trial claims no shard that it cannot end before its time limit.
"""

import time
from collections.abc import Callable, Iterator

from coordinate_eval import _files
from coordinate_eval.coordinator.planning.plan import Plan
from coordinate_eval.coordinator.run.claiming.claims import Ledger
from coordinate_eval.coordinator.run.claiming.work import given_up
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.coordinator.workers.second_attempts import SecondAttempts
from coordinate_eval.records import Shard, Span


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
        """Claim a shard of a slow trial. Return it and the attempt's number, or None."""
        wanted = {s.span for s in self._wanted() if self._time_left.in_time(s.gpu_seconds)}
        return SecondAttempts(self._dir, self._run, self._trial).claim(wanted, self._task)

    def _wanted(self) -> Iterator[Shard]:
        lost = given_up(self._dir)
        return (shard for shard in self._run.shards if shard.dataset not in lost)
