"""A checkpoint that is the judge, as settings name it."""

from pathlib import Path

from coordinate_eval.coordinator.inputs.checkpoints import checkpoint as checkpoints
from coordinate_eval.coordinator.inputs.checkpoints import checkpoint_files
from coordinate_eval.coordinator.inputs.settings import JudgeSettings, Settings
from coordinate_eval.errors import UserError
from coordinate_eval.records import Checkpoint

DATASET, TASK = "questions", "judge_questions"
"""The only dataset of a judge's run, whose item n is the n-th question; and its task."""

_REVISION_DIGITS = 12


def named(settings: Settings) -> Settings:
    """Return settings in which a judge that is a checkpoint has a name and a revision.

    Its name is that of its folder, its revision is from its contents. Both stand in the results.

    Raises:
        UserError: The checkpoint cannot be used, has no chat template, or a server is named too.
    """
    judge = settings.judge
    if judge.checkpoint is None:
        return settings
    if judge.base_url or judge.model:
        raise UserError(
            "judge.checkpoint names a judge, and judge.base_url or judge.model another one: give "
            "either a checkpoint or a server"
        )
    try:
        found = checkpoints.inspect(Path(judge.checkpoint))
    except UserError as error:
        raise UserError(f"setting judge.checkpoint: {error}") from error
    if not checkpoint_files.has_chat_template(found.files):
        raise UserError(
            f"the judge {found.path} has no chat template, in which questions are put to it: use "
            "a checkpoint that was tuned for chats, or add chat_template.jinja to it"
        )
    update = {
        "checkpoint": found.path,
        "model": Path(found.path).name,
        "revision": revision(found),
    }
    return settings.model_copy(update={"judge": judge.model_copy(update=update)})


def revision(checkpoint: Checkpoint) -> str:
    """Return what tells a judge from other checkpoints of its name."""
    return checkpoint.identity[:_REVISION_DIGITS]


def settings_of_judge(settings: Settings) -> Settings:
    """Return the settings of the judge's run: those of the first, but for what is of its model."""
    return settings.model_copy(
        update={
            "first_signal": False,
            # Its trials stand in the queue while the first run has the GPUs, and start one by one.
            "queue": True,
            "deadline_seconds": None,
            "after_run": [],
            # Its jobs get no key either.
            "judge": JudgeSettings(api_key_env=settings.judge.api_key_env),
            "engine": settings.engine.model_copy(update={"args": settings.judge.engine_args}),
            "trial": settings.trial.model_copy(
                update={"max_length": None, "tensor_parallel": None}
            ),
        }
    )


def longest_answer(max_length: int) -> int:
    """Return the most tokens of a judge's answer: half of its context. Questions have the rest."""
    return max_length // 2
