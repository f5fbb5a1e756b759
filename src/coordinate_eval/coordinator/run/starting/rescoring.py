"""Rescoring: a run of its own beside another one, whose responses it scores again.

It begins where the other run's trials have ended: with its plan, requests and responses, which are
the same files (hard links), since none of them ever changes. So it has no trials, and questions,
answers, claims and scores are its own. Only a judge that is a checkpoint takes GPUs, in a run of
its own as always. Nothing of the other run is touched.

Scoring compares the prompts that the tasks make now with those that were answered. A dataset whose
prompts have changed has no scores then, and the reason in their place.
"""

import itertools
import os
import shutil
import sys
import time
from typing import Any

from coordinate_eval import _files
from coordinate_eval.coordinator.inputs import judge
from coordinate_eval.coordinator.inputs.settings import JudgeSettings, Settings
from coordinate_eval.coordinator.run.claiming.claims import Ledger
from coordinate_eval.coordinator.run.claiming.decided import (
    cut_short,
    sample,
    stopped,
    without_withdrawn,
)
from coordinate_eval.coordinator.run.claiming.work import request_indexes
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, write_planned, write_run
from coordinate_eval.coordinator.run.starting import baselines
from coordinate_eval.coordinator.run.starting.create import create_whole
from coordinate_eval.errors import UserError
from coordinate_eval.records import Record, Suite

_PLACES = (
    "nodes",
    "max_gpus",
    "gpu_type",
    "gpu_memory_gib",
    "queue",
    "restraint",
    "stage",
    "trial",
    "limits",
    "supervisor",
    "slurm",
    "local",
    "ray",
)
"""Settings that decide where jobs run, what they may use, and for how long."""


def answered_datasets(run_dir: RunDir, run: Run) -> list[str]:
    """Return the datasets to which all responses are there, or all of their sample."""
    left = Ledger(run_dir, "outputs").unpublished(shard.span for shard in run.shards)
    lacking = {span.dataset for span in left}
    lacking |= cut_short(run, stopped(run_dir))
    return [name for name in {shard.dataset: 0 for shard in run.shards} if name not in lacking]


def rescoring(run_dir: RunDir, run: Run, suite: Suite, settings: Settings) -> Run:
    """Return a run that scores the responses to this part of the run's suite again.

    How metrics and scoring run, and the judge if one is named, is taken from `settings`. So is what
    they say of where jobs run, unless they leave it at its default. All else is the run's. Datasets
    without all responses are left out.

    Raises:
        UserError: no dataset has all responses.
    """
    there = answered_datasets(run_dir, run)
    kept = [dataset for dataset in suite.datasets if dataset.name in there]
    if not kept:
        raise UserError(
            f"run {run.id} has no dataset with all responses"
            + (f" among {', '.join(d.name for d in suite.datasets)}" if there else "")
        )
    lacking = [dataset.name for dataset in suite.datasets if dataset.name not in there]
    names = {dataset.name for dataset in kept}
    ids = (f"{run.id}-rescored-{n}" for n in itertools.count(1))
    shards = [shard for shard in without_withdrawn(run_dir, run).shards if shard.dataset in names]
    sampled = {name: items for name, items in stopped(run_dir).items() if name in names}
    update = _places(settings, run.settings) | {
        "metrics": settings.metrics,
        "harness": settings.harness,
        "judge": _judge(settings.judge, run.settings.judge),
    }
    return run.model_copy(
        update={
            "id": next(each for each in ids if not run_dir.root.with_name(each).exists()),
            "nonce": _files.token()[:6],
            "created": time.time(),
            "python": sys.executable,
            "suite": suite.model_copy(update={"datasets": kept}),
            "settings": run.settings.model_copy(update=update),
            "left_out": run.left_out | dict.fromkeys(lacking, "not all of its responses are there"),
            "against": "",
            "stages": {name: [items, run.stages[name][-1]] for name, items in sampled.items()},
            "sampled": sampled,
            "rescores": str(run_dir.root),
            "asks": [name for name in run.asks if name in names],
            "judged": [name for name in run.judged if name in names],
            "shards": shards,
            "score_seconds": {n: s for n, s in run.score_seconds.items() if n in names},
            "judge_seconds": 0.0,  # another judge takes other times
        }
    )


def create_rescoring(run_dir: RunDir, run: Run, made: Run) -> RunDir:
    """Write the directory of `made`, which `rescoring` returned, beside that of the other run.

    Raises as `create` does.
    """

    def fill(new: RunDir) -> None:
        shutil.copytree(run_dir.model, new.model)
        new.requests_folder.mkdir()
        for dataset in made.suite.datasets:
            for path in (run_dir.requests(dataset.name), run_dir.requests_index(dataset.name)):
                os.link(path, new.requests_folder / path.name)
        for shard in made.shards:
            target = new.published("outputs", shard.span)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(run_dir.published("outputs", shard.span), target)
        if made.settings.judge.baseline != run.settings.judge.baseline:
            baselines.write(new, made)
        elif run_dir.baselines_folder.exists():
            shutil.copytree(run_dir.baselines_folder, new.baselines_folder)
        if (sampled := sample(made, request_indexes(run_dir, made))) is not None:
            _files.write_record(new.sample, sampled)
        write_run(new, made)
        write_planned(new, made)

    return create_whole(run_dir.root.with_name(made.id), fill)


def _places(now: Settings, before: Settings) -> dict[str, Any]:
    """Return where jobs run: what is set now, and as before where nothing is."""
    found: dict[str, Any] = {}
    for name in now.model_fields_set.intersection(_PLACES):
        section, old = getattr(now, name), getattr(before, name)
        if isinstance(section, Record):
            # The responses were made with the old length of the context.
            given = {key: getattr(section, key) for key in section.model_fields_set}
            found[name] = old.model_copy(
                update={key: value for key, value in given.items() if key != "max_length"}
            )
        else:
            found[name] = section
    return found


def _judge(now: JudgeSettings, before: JudgeSettings) -> JudgeSettings:
    """Return the judge of these settings, if they name one, with the same baseline.

    If they name none, it is the one before, which may have moved.
    """
    if now.model or (now.base_url and before.checkpoint):
        return now.model_copy(update={"baseline": now.baseline or before.baseline})
    return judge.moved(before, now)
