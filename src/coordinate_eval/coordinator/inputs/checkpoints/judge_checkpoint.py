"""A checkpoint that is the judge, as settings name it."""

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from coordinate_eval._engines import kind_of
from coordinate_eval.coordinator.inputs.checkpoints import chat_template
from coordinate_eval.coordinator.inputs.checkpoints import checkpoint as checkpoints
from coordinate_eval.coordinator.inputs.settings import JudgeSettings, Settings
from coordinate_eval.errors import UserError
from coordinate_eval.evaluators.judged.thinking import begun_in
from coordinate_eval.records import Checkpoint, Rubric

_REVISION_DIGITS = 12


def named(settings: Settings, rubrics: Iterable[Rubric] | None = None) -> Settings:
    """Return settings in which a judge that is a checkpoint has a name and a revision.

    Its name is that of its folder, its revision is from its contents. Both stand in the results.

    Args:
        rubrics: what the judge is asked by. None if that is not known: then its chat template must
            take a system message, as most of them have.

    Raises:
        UserError: The checkpoint cannot be used, has no chat template that can be, or a server is
            named too.
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
    if not kind_of(settings.engine.name).serves:
        raise UserError(
            f"a checkpoint judges in a server, and the engine {settings.engine.name} has none: set "
            "[engine] name to vllm, or [judge] base_url and model to a server"
        )
    if why := _why_not_asked(found.files, rubrics):
        raise UserError(f"the judge {found.path} {why}")
    update = {
        "checkpoint": found.path,
        "model": Path(found.path).name,
        "revision": revision(found),
    }
    return settings.model_copy(update={"judge": judge.model_copy(update=update)})


def _why_not_asked(files: Sequence[str], rubrics: Iterable[Rubric] | None) -> str:
    """Return why questions cannot be put to a judge in its chat template; empty if they can."""
    template = chat_template.find(files)
    if not template.text:
        why = chat_template.why_unusable(template, files)
    else:
        tried = chat_template.try_out(template, files)
        why = chat_template.unusable(template, tried.alone)
        with_system = [each.name for each in rubrics or () if _has_system(each)]
        after = tried.after_system
        if not why and (with_system or (rubrics is None and after.problem)):
            why = chat_template.unusable(template, after)
            if why and with_system:
                why += f", with which rubric {with_system[0]!r} begins: use another judge or rubric"
            if why:
                return why
    ask = ", in which questions are put to it: use a checkpoint that was tuned for chats, or add"
    return f"{why}{ask} chat_template.jinja to it" if why else ""


def _has_system(rubric: Rubric) -> bool:
    return any(each.role == "system" for prompt in rubric.prompts.values() for each in prompt)


def begins_thinking(checkpoint: Checkpoint) -> bool:
    """Return whether the chat template of a judge begins its thinking."""
    with contextlib.suppress(UserError, OSError):  # its files may be gone
        template = chat_template.find(checkpoint.files)
        if template.text:
            return begun_in(chat_template.try_out(template, checkpoint.files).alone.end)
    return False


def revision(checkpoint: Checkpoint) -> str:
    """Return what tells a judge from other checkpoints of its name."""
    return checkpoint.identity[:_REVISION_DIGITS]


def settings_of_judge(settings: Settings) -> Settings:
    """Return the settings by which a judge is planned: those of the run, but for the model."""
    return settings.model_copy(
        update={
            "first_signal": False,
            "deadline_seconds": None,
            "judge": JudgeSettings(),
            "engine": settings.engine.model_copy(update={"args": settings.judge.engine_args}),
            "trial": settings.trial.model_copy(
                update={"max_length": None, "tensor_parallel": None}
            ),
        }
    )


def context_of(checkpoint: Checkpoint) -> int:
    """Return the tokens of the context with which a judge is served."""
    return checkpoint.short_length or checkpoint.max_length


def longest_answer(max_length: int) -> int:
    """Return the most tokens of a judge's answer: half of its context. Questions have the rest."""
    return max_length // 2
