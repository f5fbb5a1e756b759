"""What to do after a spike, a divergence or a fall of the scores."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Advice:
    """Hold whether a training goes on, or goes back, and why.

    Args:
        onset: the first step that went wrong; None where training goes on.
        checkpoint: the checkpoint to start from; None where training goes on, or where no
            checkpoint before the onset is known to be healthy.
        skip: the first and the last step whose data is not read again, both included; None
            where the data is not to blame.
        cause: words that are equal for two onsets of one cause, such as "loss diverged at data of
            steps 1,200 to 1,260". A training never goes back twice for one cause by itself.
        evidence: sentences for people, the strongest first.
    """

    onset: int | None = None
    checkpoint: Path | None = None
    skip: tuple[int, int] | None = None
    cause: str = ""
    evidence: tuple[str, ...] = ()
