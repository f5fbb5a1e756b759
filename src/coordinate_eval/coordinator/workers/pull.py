"""The loop of build, metric and scoring jobs: claim a piece of work, do it, claim the next one.

A job ends when nothing of its kind is left to do, or when it has found nothing to claim for a
while. It ends early if nobody supervises its run any more. A signal or a removed run ends it at
once. Whatever ends it, a piece that it has not finished can be claimed again.

Where storage fails, the attempt at a piece is over, and any job makes the next one after a pause.
After `MAX_DEATHS` attempts, and after any other error, the job gives the piece up and says why, or
ends itself if the error is no fault of the piece.
"""

import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from coordinate_eval.clusters.protocol import INDEX_VARIABLE
from coordinate_eval.coordinator.run.claiming.claims import MAX_DEATHS
from coordinate_eval.coordinator.run.claiming.pullers import Pullers
from coordinate_eval.coordinator.run.claiming.work import Piece, claim_next, unfinished
from coordinate_eval.coordinator.run.own import check_there
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.coordinator.workers.signals import Supervision

POLL_SECONDS = 0.5
"""Time between two looks at what can be claimed."""

STORAGE_PAUSE_SECONDS = 10.0
"""Wait after a failure of storage before the next attempt, times the failures so far."""


class Puller(ABC):
    """A kind of job: what it claims, and what it does with that."""

    kind: ClassVar[Pullers]

    idle_seconds: float
    """Time without work after which it leaves. The supervisor starts others when there is some."""

    @abstractmethod
    def do(self, piece: Piece) -> None:
        """Do a piece of work and publish its result.

        Raises:
            Exception: it failed. What is claimed can be claimed again.
        """

    @abstractmethod
    def give_up(self, piece: Piece, error: Exception) -> None:
        """Write into the run why a piece cannot be done.

        Raises:
            Exception: the error, if it says nothing about the piece. It ends the job.
        """


def pull(
    run_dir: RunDir, run: Run, puller: Puller, sleep: Callable[[float], None] | None = None
) -> None:
    """Claim and do pieces of work until nothing is left, or this job may leave."""
    sleep = sleep or time.sleep
    owner = f"{puller.kind}-{own_index()}"
    supervision = Supervision(run_dir, run.settings.supervisor.patience_seconds)
    worked = time.monotonic()
    while True:
        check_there(run_dir)
        is_lost = supervision.is_lost()
        piece = claim_next(run_dir, run, puller.kind, owner)
        if piece is not None:
            _do(puller, piece, sleep)
            worked = time.monotonic()
        elif (
            is_lost
            or time.monotonic() - worked >= puller.idle_seconds
            or not unfinished(run_dir, run, puller.kind)
        ):
            return
        else:
            sleep(POLL_SECONDS)


def own_index() -> int:
    """Return this job's number in its array."""
    return int(os.environ.get(INDEX_VARIABLE, "0"))


def _do(puller: Puller, piece: Piece, sleep: Callable[[float], None]) -> None:
    """Do a piece of work, or say why it cannot be done."""
    ledger, span, attempt = piece
    with ledger.held(span, attempt):
        try:
            puller.do(piece)
        except Exception as error:
            failures = ledger.count_deaths(span) + 1
            if isinstance(error, OSError) and failures < MAX_DEATHS:
                pause = STORAGE_PAUSE_SECONDS * failures
                sys.stderr.write(f"{error}; {span.dataset} is tried again in {pause:g} s\n")
                sleep(pause)
                ledger.revoke(span, attempt, "died")
            else:
                puller.give_up(piece, error)
                # The next supervisor removes what was written, and the piece is tried again.
                ledger.revoke(span, attempt, "released")
