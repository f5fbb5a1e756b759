"""The main metric of a dataset: the one number that stands for it in lists and tables.

A task usually reports several metrics. The main one is, in this order:

1. the metric that the user names, with or without its filter (`exact_match,strict-match`);
2. `acc_norm`, as on the usual leaderboards: accuracy with log-likelihoods normalized by length;
3. the first metric of which more is better, in the order of the task's own configuration;
4. the first metric.

Of a judged dataset, the answers without a verdict and the judge's position bias are the main metric
only if the user names them.

A group without a score of its own has the unweighted mean over its tasks, if all of these have
the same main metric; no standard error is known of it.
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from coordinate_eval.records import DatasetResults

PREFERRED = "acc_norm"

NOT_METRICS = ("sample_len", "sample_count", "samples")
"""Numbers that the harness puts among the metrics and that score nothing."""

_OF_HUNDRED = ("bleu", "chrf", "ter")
"""Metrics from 0 to 100."""

_NOT_FINITE = ("NaN", "Infinity", "-Infinity")

OF_JUDGES = ("no_verdict", "position_bias")
"""Metrics of a judged dataset that say something of its judge, and nothing of the checkpoint."""


class Score(NamedTuple):
    """The main metric of a dataset."""

    metric: str
    """Name and filter, as in the harness; without the filter `none`."""
    value: float
    stderr: float | None
    tasks: int
    """Tasks over which the value is a mean; 1 for a score of the dataset's own."""


def main_score(found: DatasetResults, metric: str | None = None) -> Score | None:
    """Return the main metric of a dataset, or the one named; None if it has no such number."""
    if found.dataset in found.results:
        own = _choose(found, found.dataset, metric)
        if own is not None:
            return own
    leaves = [_choose(found, name, metric) for name in found.results if name not in found.groups]
    scores = [score for score in leaves if score is not None]
    if not scores or len(scores) < len(leaves) or len({score.metric for score in scores}) > 1:
        return None
    if len(scores) == 1:
        return scores[0]
    mean = sum(score.value for score in scores) / len(scores)
    return Score(scores[0].metric, mean, None, len(scores))


def higher_is_better(results: DatasetResults, metric: str) -> bool:
    """Return whether more of a metric is better, as the dataset's tasks say."""
    name = metric.partition(",")[0]
    said = [table[name] for table in results.higher_is_better.values() if name in table]
    return all(each is not False for each in said)


class Member(NamedTuple):
    """The score of a dataset, as a part of a mean."""

    metric: str
    value: float
    higher_is_better: bool

    @property
    def scale(self) -> str:
        """Return on what the score is: all shares from 0 to 1 are on one scale."""
        name = self.metric.partition(",")[0]
        share = self.higher_is_better and 0 <= self.value <= 1 and name not in _OF_HUNDRED
        return "" if share else name


def why_unlike(members: Mapping[str, Member]) -> str:
    """Return why a mean of datasets would say nothing, with two that are unlike; else nothing."""
    lower = next((name for name, each in members.items() if not each.higher_is_better), None)
    higher = next((name for name, each in members.items() if each.higher_is_better), None)
    if lower is not None and higher is not None:
        both = [f"{name} ({members[name].metric})" for name in (higher, lower)]
        return (
            "of some of its datasets more is better, and of others less: "
            f"of {both[0]} more, of {both[1]} less"
        )
    for first, second in itertools.pairwise(members):
        if members[first].scale != members[second].scale:
            both = [f"{name} ({members[name].metric})" for name in (first, second)]
            return f"unlike metrics: {' and '.join(both)}"
    return ""


def metrics(entry: Mapping[str, Any]) -> Iterator[tuple[str, float, float | None]]:
    """Yield name, value and standard error of each metric of a task, in the task's order."""
    for name, value in entry.items():
        metric, _, filter_name = name.partition(",")
        number = _number(value)
        if number is None or metric.endswith("_stderr") or metric in NOT_METRICS:
            continue
        yield name, number, _number(entry.get(f"{metric}_stderr,{filter_name}"))


def task_metric(found: DatasetResults, task: str, metric: str | None = None) -> str | None:
    """Return name and filter of a task's main metric, or of the one named; None without any."""
    score = _choose(found, task, metric) if task in found.results else None
    if score is None:
        return None
    return score.metric if "," in score.metric else f"{score.metric},none"


def _number(value: object) -> float | None:
    """Return a value that a number can have here, None for all others."""
    if value in _NOT_FINITE:  # as records write them
        return float(str(value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _choose(found: DatasetResults, task: str, wanted: str | None) -> Score | None:
    known = list(metrics(found.results[task]))
    if wanted is not None:
        known = [each for each in known if wanted in (each[0], each[0].partition(",")[0])]
    elif found.judge:
        known = [each for each in known if not each[0].startswith(OF_JUDGES)]
    if not known:
        return None
    higher = found.higher_is_better.get(task, {})

    def rank(name: str) -> int:
        metric = name.partition(",")[0]
        return 0 if metric == PREFERRED else 1 if higher.get(metric, True) else 2

    name, value, error = min(known, key=lambda each: rank(each[0]))
    return Score(name.removesuffix(",none"), value, error, 1)
