"""The reasons why datasets of a run have no results."""

import contextlib
import re
from collections.abc import Mapping
from typing import Any

from coordinate_eval import _files
from coordinate_eval._format import listed
from coordinate_eval.coordinator.run.claiming.claims import MAX_DEATHS, Ledger, whole
from coordinate_eval.coordinator.run.claiming.pullers import Pullers, pullers_name
from coordinate_eval.coordinator.run.claiming.work import unbuildable
from coordinate_eval.coordinator.run.logs import tail
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import JudgeProgress, Run
from coordinate_eval.errors import ForeignError
from coordinate_eval.records import Span


def why_missing(run_dir: RunDir, run: Run, dataset: str) -> str:
    """Return what a dataset without results still needed when the run ended."""
    path = run_dir.dataset_error(dataset)
    if path.exists():
        return _files.read(path).decode(errors="replace").strip()
    if not run.planned:
        return _why_not_planned(run_dir, run, dataset)
    spans = [s.span for s in run.shards if s.dataset == dataset]
    outputs = Ledger(run_dir, "outputs")
    unpublished = outputs.unpublished(spans)
    deadly = _deadly(outputs, unpublished)
    if deadly:
        return f"{deadly}; logs: {run_dir.logs}"
    if unpublished:
        items = sum(s.stop - s.start for s in unpublished)
        return f"{items} items have no responses"
    asked = [
        p for s in run.shards_with_questions() if s.dataset == dataset for p in run.portions(s)
    ]
    if dataset in run.judged and Ledger(run_dir, "answers").unpublished(asked):
        return _why_not_judged(run_dir, run)
    if Ledger(run_dir, "answers").unpublished(asked):
        why = "the questions of its metric are not all answered"
        said = _last_words(run_dir, run, Pullers.METRIC)
        return "\n".join([f"{why}; the last metric job said:", *said]) if said else why
    if Ledger(run_dir, "results").count_deaths(whole(dataset)) >= MAX_DEATHS:
        return f"{MAX_DEATHS} scoring jobs died on it; logs: {run_dir.logs}"
    said = _last_words(run_dir, run, Pullers.SCORE)
    return "\n".join(["not scored; the last scoring job said:", *said]) if said else "not scored"


def _deadly(outputs: Ledger, unpublished: list[Span]) -> str:
    """Return which items of a dataset end engines; empty if none do."""
    items = [item for span in unpublished for item in outputs.given_up(span) or ()]
    if not items:
        return ""
    what, them = ("item", "it") if len(items) == 1 else ("items", "them")
    return f"{what} {listed(items)}: engines die at {them}, also with nothing else"


def _why_not_judged(run_dir: RunDir, run: Run) -> str:
    """Return what the judge, or the job that asks it, said last."""
    progress = _files.read_record_if_there(run_dir.judge, JudgeProgress)
    said = progress.said if progress is not None else ""
    said = said or " ".join(_last_words(run_dir, run, Pullers.JUDGE)) or "it was not asked"
    return f"waits for its judge: {said}; `coordinate-eval resume {run.id}` goes on"


def _why_not_planned(run_dir: RunDir, run: Run, dataset: str) -> str:
    """Return what a dataset needed when the run ended before it had a plan."""
    path = run_dir.requests_error(dataset)
    if path.exists():
        return _files.read(path).decode(errors="replace").strip()
    if run_dir.requests_index(dataset).exists():
        return "it was not run: the run ended before its plan was made"
    said = _last_words(run_dir, run, Pullers.BUILD)
    why = "its requests are not built"
    return "\n".join([f"{why}; the last build job said:", *said]) if said else why


def _last_words(run_dir: RunDir, run: Run, kind: Pullers) -> list[str]:
    """Return the last lines of the newest puller that said anything, such as why it cannot."""
    pattern = pullers_name(run, kind, 0).removesuffix("0") + "*.log"
    for log in sorted(run_dir.logs.glob(pattern), key=_files.modified, reverse=True):
        with contextlib.suppress(OSError, ForeignError):
            # Slurm's words about a job that the end of the run has ended.
            if said := [line for line in tail(str(log)) if "CANCELLED AT" not in line]:
                return said
    return []


def reasons(results: Mapping[str, Any] | None) -> list[str]:
    """Return why a run ended incomplete, a line for each reason, from its `results.json`.

    First the errors of jobs with their logs, and refused jobs, then why the run was given
    up, then the datasets without results, those that need the same together.
    """
    if results is None:
        return []
    lines = list(results["failures"])
    if results.get("reason"):
        lines.append(results["reason"])
    alike: dict[str, list[str]] = {}
    for dataset, why in results["missing"].items():
        if any(why in failure for failure in results["failures"]):
            continue
        last = why.strip().splitlines()[-1] if why.strip() else "not scored"
        alike.setdefault(_without_numbers(last), []).append(dataset)
    return lines + [f"no results of {listed(datasets)}: {why}" for why, datasets in alike.items()]


def _without_numbers(why: str) -> str:
    """Return a reason without the numbers in which equal reasons of several datasets differ."""
    return re.sub(r"^items? \d[^:]*:", "some items:", re.sub(r"^\d+ items", "items", why))


def build_errors(run_dir: RunDir) -> list[str]:
    """Return why requests cannot be built; what several datasets have in common is said once."""
    alike: dict[str, list[str]] = {}
    for name in unbuildable(run_dir):
        said = _files.read(run_dir.requests_error(name)).decode(errors="replace").strip()
        alike.setdefault(said, []).append(name)
    return [
        said if len(names) == 1 else f"{', '.join(names)}: {said}" for said, names in alike.items()
    ]
