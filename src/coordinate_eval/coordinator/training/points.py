"""The reports of a training about itself, whatever it writes: a series of points."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Point:
    """A training's report about one step.

    Args:
        step: number of the optimizer's step.
        loss: the training loss, which may be NaN or infinite; None where the line has none.
        gradient_norm: the norm of the gradients before clipping; None where the line has none.
        tokens_per_second: as the training says it, which may be of one of its devices; None where
            the line has none.
        written: unix seconds at which the line was written, or read where it has no time.
    """

    step: int
    loss: float | None = None
    gradient_norm: float | None = None
    tokens_per_second: float | None = None
    written: float | None = None
