"""Build jobs: build the requests that a run still misses.

`coordinate-eval _build RUN`. A job claims a dataset, builds its requests into the cache, links them
into the run directory, and leaves when there is none to claim. Datasets that take longest come
first. What cannot be built is said in the run directory.
"""

import contextlib
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from coordinate_eval import _files, _owner
from coordinate_eval.clusters.protocol import INDEX_VARIABLE
from coordinate_eval.coordinator.inputs.folders import why_not_for_tasks, working_in
from coordinate_eval.coordinator.inputs.suites.suite import check_tasks
from coordinate_eval.coordinator.planning.costs import read_priors
from coordinate_eval.coordinator.prompts.building import longest_first
from coordinate_eval.coordinator.prompts.request_cache import Builder, builder_of, link
from coordinate_eval.coordinator.run.claiming.claims import Ledger, own_task, whole
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import read_run
from coordinate_eval.coordinator.workers.signals import StopRequested, stop_on_signals
from coordinate_eval.errors import DataMissing, UserError
from coordinate_eval.records import Dataset


def run_builder(run_dir: RunDir) -> int:
    """Build datasets until none can be claimed. Return the exit status."""
    run = read_run(run_dir)
    _owner.trust(run.settings.trusted_users)
    check_tasks(run.suite)
    may_work = run.folder and not why_not_for_tasks(Path(run.folder), run.checkpoint)
    order = longest_first(run.suite.datasets, read_priors(run.settings))
    ledger = Ledger(run_dir, "requests")
    command = shlex.join(
        ["coordinate-eval", "prefetch", run.checkpoint.path, "--suite", run.settings.suite]
    )
    missing_here = (
        "the data is in no cache that compute nodes see, and they reach no hub. Run "
        f"`{command}` on a machine that does, then ask again; details are in {run_dir.logs}"
    )
    stop_on_signals()
    with contextlib.suppress(StopRequested), working_in(run.folder if may_work else ""):
        builder = builder_of(run)
        while (claimed := _claim(ledger, order)) is not None:
            dataset, attempt = claimed
            with ledger.held(whole(dataset.name), attempt):
                _build(run_dir, builder, dataset, missing_here)
            if run_dir.requests_error(dataset.name).exists():
                # The next supervisor removes the error, and the dataset is tried again.
                ledger.revoke(whole(dataset.name), attempt, "released")
    return 0


def _claim(ledger: Ledger, datasets: Sequence[Dataset]) -> tuple[Dataset, int] | None:
    """Claim a dataset. Return it and the attempt's number, or None if none is free."""
    owner = f"build-{os.environ.get(INDEX_VARIABLE, '0')}"
    named = {dataset.name: dataset for dataset in datasets}
    for span in ledger.claimable(whole(name) for name in named):
        attempt = ledger.claim(span, owner, own_task())
        if attempt is not None:
            return named[span.dataset], attempt
    return None


def _build(run_dir: RunDir, builder: Builder, dataset: Dataset, missing_here: str) -> None:
    """Build a dataset's requests into the run, or say there why they cannot be built."""
    sys.stdout.write(f"building {dataset.name}\n")
    sys.stdout.flush()
    try:
        link(builder.get(dataset), run_dir, dataset.name)
    except UserError as error:
        sys.stdout.write(f"{error}\n")
        # The same words for all such datasets are said once for all.
        said = missing_here if isinstance(error, DataMissing) else error
        _files.write(run_dir.requests_error(dataset.name), f"{said}\n")
