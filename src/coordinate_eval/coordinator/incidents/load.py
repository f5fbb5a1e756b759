"""Out of memory: the next engine computes less at once."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from coordinate_eval._engines import kind_of
from coordinate_eval.coordinator.incidents.incident import Incident
from coordinate_eval.coordinator.run.records import Run
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
    """Those that it runs where no engine ran out of memory."""

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
