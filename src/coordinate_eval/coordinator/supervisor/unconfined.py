"""Datasets that nobody may score here, found before a GPU works for them."""

import os

from coordinate_eval import _files
from coordinate_eval.coordinator.report.results import request_indexes, unscored_datasets
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.evaluators.confined.evaluator import find_level, refusal


def refuse_unconfined(run_dir: RunDir, run: Run) -> str:
    """Give up the datasets whose scoring may run what the model wrote, where nothing confines it.

    It is called before the first job is submitted: no GPU works for them. This node speaks for
    those of scoring jobs. One of them that confines less refuses such a dataset itself.

    Returns:
        An event for the user, mostly empty.
    """
    unscored = {dataset.name for dataset in unscored_datasets(run_dir, run)}
    indexes = request_indexes(run_dir, run)
    runs_text = {n: i.runs_text for n, i in indexes.items() if n in unscored and i.runs_text}
    level, why = find_level(run.settings.metrics.allow_unsafe_code) if runs_text else (None, "")
    if not runs_text or level is not None:
        return ""
    for name, what in runs_text.items():
        _files.write(run_dir.dataset_error(name), refusal(name, what, why) + "\n")
    return (
        f"not run: {', '.join(runs_text)}. Their scoring may run what the model wrote, and nothing "
        f"confines it on {os.uname().nodename}; results.json says what to do"
    )
