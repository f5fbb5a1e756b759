"""The outcomes of a run's datasets: their requests, their results, or why there are none."""

import contextlib

from coordinate_eval import _files
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.errors import RecordError
from coordinate_eval.records import Dataset, DatasetRequests


def given_up(run_dir: RunDir) -> set[str]:
    """Return the datasets that cannot be scored: further responses to them are no use."""
    names = _files.names(run_dir.results_folder)
    return {name.removesuffix(".error") for name in names if name.endswith(".error")}


def unbuildable(run_dir: RunDir) -> list[str]:
    """Return the datasets whose requests cannot be built, in alphabetical order."""
    names = _files.names(run_dir.requests_folder)
    return sorted(name.removesuffix(".error") for name in names if name.endswith(".error"))


def unscored_datasets(run_dir: RunDir, run: Run) -> list[Dataset]:
    """Return the datasets with neither results nor an error."""
    done = _files.names(run_dir.results_folder)
    return [
        d
        for d in run.suite.datasets
        if f"{d.name}.json" not in done and f"{d.name}.error" not in done
    ]


def request_indexes(run_dir: RunDir, run: Run) -> dict[str, DatasetRequests]:
    """Return the indexes of the datasets' requests, without any that cannot be read."""
    found = {}
    for dataset in run.suite.datasets:
        with contextlib.suppress(RecordError):
            path = run_dir.requests_index(dataset.name)
            found[dataset.name] = _files.read_record(path, DatasetRequests)
    return found
