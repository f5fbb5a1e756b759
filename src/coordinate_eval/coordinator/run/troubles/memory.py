"""Out of memory: the next engine computes less at once."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from coordinate_eval import _files
from coordinate_eval._engines import kind_of
from coordinate_eval.clusters.protocol import End
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, TrialProgress
from coordinate_eval.coordinator.run.troubles.causes import read_causes
from coordinate_eval.coordinator.run.troubles.trouble import read_troubles
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


def lighter_load(run_dir: RunDir, run: Run) -> Load:
    """Return the load of the next engine: half of the least at which one ran out of memory.

    What was before the run was last resumed does not count.
    """
    return _load_after(run, out_of_memory(run_dir, run).values())


def out_of_memory(run_dir: RunDir, run: Run) -> dict[str, int]:
    """Return the trials that ran out of memory since the run was last resumed.

    With each of them the sequences that its engine ran at once.
    """
    full = sequences(run.settings.engine, run.gpu_type)
    killed = {t.trial for t in read_troubles(run_dir) if t.how is End.OUT_OF_MEMORY}
    killed |= {job for job, cause in read_causes(run_dir).items() if cause.of_gpu_memory}
    since = _files.modified(run_dir.resumed)
    return {
        trial.trial: trial.sequences or full
        for path in _files.records_in(run_dir.trials_folder)
        if (trial := _files.read_record_if_there(path, TrialProgress)) is not None
        and (trial.cause == "out of memory" or trial.trial in killed)
        and _files.modified(path) >= since
    }


def is_lighter_left(run: Run, met: Mapping[str, int]) -> bool:
    """Return whether the next engine runs fewer sequences than any of those in `out_of_memory`."""
    return bool(met) and _load_after(run, met.values()).sequences < min(met.values())


def _load_after(run: Run, met: Collection[int]) -> Load:
    full = sequences(run.settings.engine, run.gpu_type)
    return Load(max(1, full // LEAST_PART, min(met) // 2) if met else full, full)
