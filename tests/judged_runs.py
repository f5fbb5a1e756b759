"""A run whose datasets a judge rates: a server, or another checkpoint."""

import shutil
from pathlib import Path
from typing import Any

from coordinate_eval.coordinator.inputs.checkpoints.judge_checkpoint import named
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.records import Dataset, Message, Rubric, Suite
from tests.decisions import make_run
from tests.own_judge import TEMPLATE
from tests.plans import CHECKPOINT
from tests.tiny import tiny_model

RUBRIC = Rubric(
    name="r", prompts={"one": [Message(role="user", content="Rate {{ answer }}.")]},
    patterns=["(.)"],
)  # fmt: skip
RATED = Dataset(name="rated", task="rated", rubric=RUBRIC, items=100)
OTHER = Dataset(name="other", task="other", rubric=RUBRIC, items=50)
SUITE = Suite(name="s", digest="d", datasets=[RATED, OTHER])
SERVER = {"base_url": "http://host/v1", "model": "gpt", "revision": "2026"}


def judged_run(folder: Path, **of_judge: Any) -> Run:
    """A run of two judged datasets, in portions of their own."""
    settings = Settings.model_validate(
        {"priors_dir": str(folder / "priors"), "judge": of_judge or SERVER}, extra="forbid"
    )
    return make_run(
        suite=SUITE, asks=["rated", "other"], judged=["rated", "other"], settings=settings,
        shards=[
            {"dataset": name, "start": 0, "stop": 9, "gpu_seconds": 1, "metric_cpu_seconds": 0}
            for name in ("rated", "other")
        ],
    )  # fmt: skip


def checkpoint_judged(folder: Path) -> Run:
    """The same run, judged by a checkpoint."""
    judge = folder / "chat"
    shutil.copytree(tiny_model(), judge)
    (judge / "chat_template.jinja").write_text(TEMPLATE)
    run = judged_run(folder, checkpoint=str(judge))
    return run.model_copy(update={"settings": named(run.settings), "checkpoint": CHECKPOINT})
