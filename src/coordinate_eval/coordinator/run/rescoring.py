"""Rescoring: a run of its own beside another one, whose responses it scores again.

It begins where the other run's trials have ended: with its plan, requests and responses, which are
the same files (hard links), since none of them ever changes. So it asks for no GPU, and questions,
answers, claims and scores are its own. Nothing of the other run is touched.

Scoring compares the prompts that the tasks make now with those that were answered. A dataset whose
prompts have changed has no scores then, and the reason in their place.
"""

import itertools
import os
import shutil
import sys
import time

from coordinate_eval import _files
from coordinate_eval.coordinator.inputs.settings import JudgeSettings, Settings
from coordinate_eval.coordinator.run import baselines
from coordinate_eval.coordinator.run.claiming.claims import Ledger
from coordinate_eval.coordinator.run.create import create_whole
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, portion_seconds, write_planned, write_run
from coordinate_eval.errors import UserError
from coordinate_eval.records import Suite


def answered_datasets(run_dir: RunDir, run: Run) -> list[str]:
    """Return the datasets to which all responses are there."""
    left = Ledger(run_dir, "outputs").unpublished(shard.span for shard in run.shards)
    lacking = {span.dataset for span in left}
    return [name for name in {shard.dataset: 0 for shard in run.shards} if name not in lacking]


def rescoring(run_dir: RunDir, run: Run, suite: Suite, settings: Settings) -> Run:
    """Return a run that scores the responses to this part of the run's suite again.

    How metrics and scoring run, and the judge if there is one, is taken from `settings`; all else
    from the run. Datasets without all responses are left out.

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
    judge = _judge(settings.judge, run.settings.judge)
    shards = [shard for shard in run.shards if shard.dataset in names]
    asked = sum(shard.metric_cpu_seconds for shard in shards if shard.dataset in run.asks)
    update = {"metrics": settings.metrics, "scoring": settings.scoring, "judge": judge}
    return run.model_copy(
        update={
            "id": next(each for each in ids if not run_dir.root.with_name(each).exists()),
            "nonce": _files.token()[:6],
            "created": time.time(),
            "python": sys.executable,
            "suite": suite.model_copy(update={"datasets": kept}),
            "settings": run.settings.model_copy(update=update),
            "left_out": run.left_out | dict.fromkeys(lacking, "not all of its responses are there"),
            "rescores": str(run_dir.root),
            "asks": [name for name in run.asks if name in names],
            "judged": [name for name in run.judged if name in names],
            "shards": shards,
            "portion_seconds": portion_seconds(asked),  # a compacted run has larger ones
            "score_seconds": {n: s for n, s in run.score_seconds.items() if n in names},
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
        write_run(new, made)
        write_planned(new, made)

    return create_whole(run_dir.root.with_name(made.id), fill)


def _judge(now: JudgeSettings, before: JudgeSettings) -> JudgeSettings:
    """Return the judge of these settings, if they name one; it compares with the same baseline."""
    if not now.model:
        return before
    return now.model_copy(update={"baseline": now.baseline or before.baseline})
