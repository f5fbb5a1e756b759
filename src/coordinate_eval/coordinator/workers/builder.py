"""Build jobs: build the requests that a run still misses.

`coordinate-eval _build RUN`. A job claims a dataset, builds its requests into the cache, and links
them into the run directory. Datasets that take longest come first.
"""

import shlex
import sys

from coordinate_eval import _files
from coordinate_eval.coordinator.inputs.folders import folder_for_tasks, working_in
from coordinate_eval.coordinator.inputs.suites.suite import check_tasks
from coordinate_eval.coordinator.prompts.building import longest_first
from coordinate_eval.coordinator.prompts.request_cache import Builder, builder_of, link
from coordinate_eval.coordinator.run.claiming.pullers import Pullers
from coordinate_eval.coordinator.run.claiming.work import Piece
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, read_run
from coordinate_eval.coordinator.workers.pull import Puller, pull
from coordinate_eval.coordinator.workers.signals import until_stopped
from coordinate_eval.errors import DataMissing, UserError
from coordinate_eval.records import CheckpointFormat


def run_builder(run_dir: RunDir) -> int:
    """Build datasets until none can be claimed. Return the exit status."""
    run = read_run(run_dir)
    check_tasks(run.suite, run.settings.trusted_users)
    longest = longest_first(run.suite.datasets)
    run = run.model_copy(update={"suite": run.suite.model_copy(update={"datasets": longest})})
    with until_stopped(), working_in(folder_for_tasks(run.folder, run.checkpoint)):
        pull(run_dir, run, BuildJob(run_dir, run, builder_of(run)))
    return 0


class BuildJob(Puller):
    """Builds datasets."""

    kind = Pullers.BUILD

    idle_seconds = 0.0
    """All work of a builder is there when the builder starts."""

    def __init__(self, run_dir: RunDir, run: Run, builder: Builder) -> None:
        self._dir, self._run, self._builder = run_dir, run, builder
        self._datasets = {dataset.name: dataset for dataset in run.suite.datasets}

    def do(self, piece: Piece) -> None:
        """Build a dataset's requests into the run."""
        dataset = self._datasets[piece.span.dataset]
        sys.stdout.write(f"building {dataset.name}\n")
        sys.stdout.flush()
        link(self._builder.get(dataset), self._dir, dataset.name)

    def give_up(self, piece: Piece, error: Exception) -> None:
        """Write why a dataset's requests cannot be built."""
        if not isinstance(error, UserError):
            raise error
        sys.stdout.write(f"{error}\n")
        # The same words for all such datasets are said once for all.
        said = self._missing_here() if isinstance(error, DataMissing) else error
        _files.write(self._dir.requests_error(piece.span.dataset), f"{said}\n")

    def _missing_here(self) -> str:
        checkpoint = self._run.checkpoint
        made = checkpoint.format is CheckpointFormat.AVERAGE  # whose tokenizer is the last one's
        path = checkpoint.parts[-1].path if made else checkpoint.path
        asked = [path, "--suite", self._run.settings.suite]
        command = shlex.join(["coordinate-eval", "prefetch", *asked])
        return (
            "the data is in no cache that compute nodes see, and they reach no hub. Run "
            f"`{command}` on a machine that does, then ask again; details are in {self._dir.logs}"
        )
