"""The settings of the judge, checked before anything is submitted."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from coordinate_eval import _user_files
from coordinate_eval._format import plural
from coordinate_eval.coordinator.inputs.settings import JudgeSettings
from coordinate_eval.errors import UserError
from coordinate_eval.evaluators.servers.access import Access
from coordinate_eval.priors import catalogue
from coordinate_eval.records import Dataset, Suite


def why_not_judged(dataset: Dataset, judge: JudgeSettings) -> str:
    """Return why a judged dataset cannot be run with these settings; empty if it can."""
    if dataset.rubric is None:
        return ""
    if not (judge.base_url or judge.model or judge.checkpoint):
        also = ", and baseline" if dataset.rubric.pair and not judge.baseline else ""
        return f"it needs a judge: set [judge] base_url and model, or checkpoint{also}"
    if dataset.rubric.pair and not judge.baseline:
        return (
            "its answers are compared with others: set [judge] baseline to a file of them, or to "
            "the directory of a run"
        )
    return ""


def check(judge: JudgeSettings, suite: Suite, environ: Mapping[str, str]) -> None:
    """Check that the judge of a suite can be asked with these settings, as far as they tell.

    Raises:
        UserError: half of a judge is given, the key is not there, or the suite asks more questions
            than the budget has.
    """
    judged = [d for d in suite.datasets if d.rubric and not why_not_judged(d, judge)]
    if not judged:
        return
    if not judge.checkpoint:
        if not judge.base_url or not judge.model:
            given, lacks = ("model", "base_url") if judge.model else ("base_url", "model")
            raise UserError(
                f"setting judge.{given} is given, and judge.{lacks} is not: a judge needs both"
            )
        Access.of(judge.base_url, judge.model, judge.api_key_env, environ)
    counts = {d.name: most_questions(d, catalogue.items(d) or 0) for d in judged}
    check_budget(judge, counts)


def is_checkpoint(judge: JudgeSettings, suite: Suite) -> bool:
    """Return whether a checkpoint rates answers to some dataset of a suite."""
    return judge.checkpoint is not None and any(dataset.rubric for dataset in suite.datasets)


def moved(judge: JudgeSettings, given: JudgeSettings) -> JudgeSettings:
    """Return a run's judge with what the settings now say of its address, key, limits and budget.

    Its name stays, and with another name all stays: that is another judge.
    """
    if judge.checkpoint or given.checkpoint or (given.model and given.name != judge.name):
        return judge
    may_move = {"base_url", "api_key_env", "concurrency", "max_requests"}
    names = given.model_fields_set & may_move
    return judge.model_copy(update={name: getattr(given, name) for name in names})


def check_budget(judge: JudgeSettings, questions: Mapping[str, int]) -> None:
    """Check that the questions of datasets are not more than the budget has.

    Raises:
        UserError: there are too many questions; has both numbers.
    """
    total, most = sum(questions.values()), judge.max_requests
    if most is not None and total > most:
        each = ", ".join(f"{name} {count:,}" for name, count in questions.items())
        raise UserError(
            f"the judge would be asked up to {plural(total, 'question')} ({each}), and setting "
            f"judge.max_requests is {most:,}: raise it, or take less with --limit or --skip"
        )


def most_questions(dataset: Dataset, items: int) -> int:
    """Return how many questions a judge gets about these items, at most."""
    if dataset.rubric is None:
        return 0
    games = 2 if dataset.rubric.pair else 1
    return items * len(dataset.rubric.prompts) * games * (dataset.repeats or 1)


def identity(judge: JudgeSettings, suite: Suite) -> list[str]:
    """Return the part of a run's identity that its judge makes; empty if the suite needs none.

    Raises:
        UserError: the baseline cannot be read.
    """
    rubrics = [dataset.rubric for dataset in suite.datasets if dataset.rubric is not None]
    if not rubrics or not judge.model:
        return []
    pair = any(rubric.pair for rubric in rubrics)
    return [judge.name, *([baseline_digest(judge.baseline)] if pair and judge.baseline else [])]


def baseline_digest(baseline: str) -> str:
    """Return a hash of the answers that are compared with, or of the run that has them."""
    path = Path(baseline).expanduser()
    what = path / "run.json" if path.is_dir() else path
    text = _user_files.read_text(what, "setting judge.baseline:", anybodys=True)
    return hashlib.sha256(text.encode()).hexdigest()
