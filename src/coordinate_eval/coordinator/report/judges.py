"""Compare the judges of several runs: only scores of the same judge can be compared."""

from collections.abc import Iterable
from typing import Any

from coordinate_eval.records import DatasetResults, judge_name


def judged(results: DatasetResults) -> dict[str, Any]:
    """Return who judged a dataset, by what, and how many items; nothing if no judge did."""
    return {"items": results.items, **results.judge} if results.judge else {}


def judged_differently(judges: Iterable[tuple[str, dict[str, Any]]]) -> str:
    """Return how the judges of a dataset differ in several runs; empty if they do not.

    They are the same if model, revision and rubric are, and the prompts wherever runs have the same
    items. Each is given with its run's id.
    """
    runs: dict[str, str] = {}
    prompts: dict[int, dict[str, str]] = {}
    for run, judge in judges:
        model = judge_name(judge.get("model", ""), judge.get("revision", ""))
        rubric = f"{judge.get('rubric', '')} ({judge.get('rubric_digest', '')})"
        runs.setdefault(f"{model} by rubric {rubric}", run)
        prompts.setdefault(judge["items"], {}).setdefault(judge.get("prompts_digest", ""), run)
    if len(runs) > 1:
        each = "; ".join(f"{said} in {run}" for said, run in runs.items())
        return f"its judges differ: {each}"
    told = next((each for each in prompts.values() if len(each) > 1), None)
    if told is not None:
        return (
            f"its judge was told different things in {' and '.join(told.values())}, in its prompts "
            "or of the baseline"
        )
    return ""
