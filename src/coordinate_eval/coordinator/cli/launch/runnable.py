"""The datasets of a suite that can be evaluated: which are left out, and what stops a run."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from coordinate_eval._format import plural
from coordinate_eval.coordinator.cli.output import say
from coordinate_eval.coordinator.inputs import judge
from coordinate_eval.coordinator.inputs.checkpoints import judge_checkpoint
from coordinate_eval.coordinator.inputs.folders import check_writable
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.inputs.suites import known_tasks, suite
from coordinate_eval.coordinator.planning.new_run import Inputs
from coordinate_eval.errors import UserError
from coordinate_eval.evaluators.engines import base as engines
from coordinate_eval.records import Suite


def runnable(inputs: Inputs, *, scored: bool = True) -> Inputs:
    """Leave out the datasets that cannot be run, and say on stderr which and why.

    With `scored`, datasets that no judge would rate are left out, too. Datasets whose task is
    missing, or that ask for what engines or the checkpoint do not have, stay in the run if the
    inputs are not strict. Building their prompts fails, so that the run ends incomplete without
    them.
    """
    kept, left_out = suite.runnable(inputs.suite, inputs.settings.judge if scored else None)
    wrong = known_tasks.wrong_tasks(kept, _cache(inputs.settings), inputs.folder)
    wrong |= known_tasks.without_chat_template(kept, inputs.checkpoint.files, inputs.folder)
    _check_wrong(wrong, kept, strict=inputs.strict)
    say_by_reason(f"left out of suite {inputs.suite.name}", left_out)
    return replace(inputs, suite=kept, left_out=left_out)


def check_common(settings: Settings, asked: Suite, *, strict: bool) -> None:
    """Check what would be wrong for every checkpoint: settings, and the suite."""
    named = judge_checkpoint.named(settings)
    here = settings.container.image_of("trial") is None
    engines.by_name(settings.engine.name).check_args(settings.engine.args, here=here)
    judge.check(named.judge, asked, os.environ)
    for name in ("cache_dir", "runs_dir"):
        check_writable(settings, name)
    kept, _ = suite.runnable(asked, named.judge)
    wrong = known_tasks.wrong_tasks(kept, _cache(settings), str(Path.cwd()))
    if strict or len(wrong) == len(kept.datasets):
        _check_wrong(wrong, kept, strict=strict)


def _cache(settings: Settings) -> Path:
    return Path(settings.cache_dir).expanduser()


def _check_wrong(wrong: Mapping[str, str], kept: Suite, *, strict: bool) -> None:
    """Say on stderr which datasets of a suite cannot be evaluated, if others can."""
    if not wrong:
        return
    said = "\n".join(wrong.values())
    left = len(kept.datasets) - len(wrong)
    if strict or not left:
        raise UserError(said)
    say(
        f"{said}\nThe run will be incomplete: {plural(left, 'dataset')} of {len(kept.datasets)} "
        "can be evaluated. When the others are mended, evaluate them with --only"
    )


def say_by_reason(what: str, reasons: Mapping[str, str]) -> None:
    """Say on stderr what happens to datasets, in one line with their names by reason."""
    names: dict[str, list[str]] = {}
    for name, why in reasons.items():
        names.setdefault(why, []).append(name)
    if names:
        said = "; ".join(f"{', '.join(some)} ({why})" for why, some in names.items())
        say(f"{what}: {said}")
