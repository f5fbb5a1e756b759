"""Compare the scores of two runs, dataset by dataset.

Scores can be compared if the same questions were asked in the same way. What differs between the
runs is named; see `unlike`.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from coordinate_eval.coordinator.comparison.item_pairs import (
    Both,
    paired_items,
    scored_at,
    unlike,
)
from coordinate_eval.coordinator.comparison.paired import (
    CONFIDENCE,
    Difference,
    detectable,
    difference,
    significant,
    weighted_difference,
)
from coordinate_eval.coordinator.inputs.checkpoints.saved import step_of
from coordinate_eval.coordinator.report import state
from coordinate_eval.coordinator.report.main_metric import (
    Member,
    higher_is_better,
    main_score,
    why_unlike,
)
from coordinate_eval.coordinator.run.claiming.decided import Verdict, why_stopped
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, read_run
from coordinate_eval.errors import UserError
from coordinate_eval.records import Aggregate, Record, schema


class Side(Record):
    """One of the two runs."""

    run: str
    dir: str
    checkpoint: str
    step: int | None
    complete: bool
    decided: str = Field(default="", description="why it stopped before all items were asked")


class Measured(Record):
    """A difference: the second run's score less the first's. Null where it cannot be known."""

    name: str = Field(description="of the dataset or group")
    datasets: int = 1
    first: float
    second: float
    difference: float
    stderr: float | None = None
    low: float | None = Field(default=None, description="95 % interval of the difference")
    high: float | None = None
    p: float | None = None
    detectable: float | None = Field(
        default=None, description="difference that such a comparison finds in 80 % of all cases"
    )
    items: int | None = None
    of_items: int | None = Field(
        default=None, description="that the first run has, where the second has fewer"
    )
    clusters: int | None = Field(default=None, description="of items that share a passage")
    metric: str = ""
    higher_is_better: bool = True
    verdict: Verdict = Field(default="", description="of the second run; empty without interval")
    why_not: str = Field(default="", description="why there is no interval")

    @property
    def has_interval(self) -> bool:
        """Return whether the uncertainty is known."""
        return self.low is not None


class Comparison(Record):
    """The document that `coordinate-eval compare --json` prints."""

    schema_: Literal["coordinate-eval/comparison@1"] = schema("coordinate-eval/comparison@1")

    first: Side
    second: Side
    confidence: float = CONFIDENCE
    datasets: list[Measured]
    groups: list[Measured] = Field(description="unweighted means over the datasets of a group")
    aggregates: list[Measured] = Field(default=[], description="those that the suites define")
    mean: Measured | None = Field(description="unweighted mean over all datasets with an interval")
    unlike: dict[str, list[str]] = Field(description="dataset → what was asked differently")
    left_out: dict[str, str] = Field(description="datasets that are not compared, and why")


def compare(
    first: RunDir,
    second: RunDir,
    *,
    names: Sequence[str] = (),
    metric: str | None = None,
    anyway: bool = False,
    look: int = 0,
) -> Comparison:
    """Return how the second run's scores differ from the first's.

    Args:
        first: the run that is compared with, such as that of an earlier checkpoint.
        second: the run whose change is asked for.
        names: datasets to compare; all if empty.
        metric: compared in place of the main one, for datasets that have it.
        anyway: compare also what the runs have asked differently.
        look: number of a look of the second run, whose scores are compared; 0 for those it has.

    Raises:
        UserError: a named dataset is in neither run, the runs have asked differently, or nothing
            can be compared.
    """
    runs = read_run(first), read_run(second)
    tables = [{d.name: d for d in run.suite.datasets} for run in runs]
    known = list(dict.fromkeys(name for table in tables for name in table))
    for name in names:
        if name not in known:
            raise UserError(f"no dataset {name!r} in these runs: they have {', '.join(known)}")
    left_out: dict[str, str] = {}
    both: dict[str, Both] = {}
    for name in names or known:
        pair = []
        for run_dir, run, table in zip((first, second), runs, tables, strict=True):
            number = look if run_dir is second else 0
            scored = scored_at(run_dir, run, table[name], number) if name in table else None
            if scored is not None:
                pair.append(scored)
            elif name not in left_out:
                what = "not scored" if name in table else "not a dataset"
                left_out[name] = f"{what} in run {run.id}"
        if len(pair) == 2:
            both[name] = pair[0], pair[1]
    unequal = {name: why for name, pair in both.items() if (why := list(unlike(*pair)))}
    if unequal and not anyway:
        raise UserError(
            refusal(
                unequal, "Name datasets that are alike with --dataset, or compare with --anyway"
            )
        )
    measured = [
        each
        for name, pair in both.items()
        if (each := _measure(name, pair, metric, left_out)) is not None
    ]
    if not measured:
        told = "; ".join(f"{name}: {why}" for name, why in left_out.items())
        raise UserError(f"nothing can be compared in these runs: {told or 'they have no datasets'}")
    datasets = with_verdicts(measured)
    groups: dict[str, list[Measured]] = {}
    for each in datasets:
        if group := both[each.name][1].dataset.group:
            groups.setdefault(group, []).append(each)
    aggregates = [] if names or metric else list(_aggregates(runs, datasets, left_out))
    return Comparison(
        first=_side(first, runs[0]),
        second=_side(second, runs[1]),
        datasets=datasets,
        groups=with_verdicts([m for name, of in groups.items() if (m := mean_of(name, of))]),
        aggregates=with_verdicts(aggregates),
        mean=next(iter(with_verdicts([m for m in [mean_of("all datasets", datasets)] if m])), None),
        unlike=unequal,
        left_out=left_out,
    )


def _aggregates(
    runs: tuple[Run, Run], datasets: Sequence[Measured], left_out: dict[str, str]
) -> Iterator[Measured]:
    """Yield the differences of the aggregates that both suites define alike."""
    known = {each.name: each for each in datasets}
    ours, theirs = (run.suite.aggregates for run in runs)
    for name in {**ours, **theirs}:
        if ours.get(name) != theirs.get(name):
            left_out[name] = "the suites define it differently"
        elif lacking := ours[name].missing(known):
            left_out[name] = f"not known without {', '.join(lacking[:5])}"
        elif why := _why_unlike({each: known[each] for each in ours[name].factors}):
            left_out[name] = why
        else:
            yield aggregate_of(name, ours[name], known)


def _why_unlike(members: Mapping[str, Measured]) -> str:
    return why_unlike(
        {n: Member(m.metric, m.first, m.higher_is_better) for n, m in members.items()}
    )


def aggregate_of(name: str, aggregate: Aggregate, known: Mapping[str, Measured]) -> Measured:
    """Return the difference of an aggregate from those of its datasets, all of which are known."""
    parts = [(factor, known[each]) for each, factor in aggregate.factors.items()]
    return _weighted(name, parts, aggregate.offset)


def _weighted(name: str, parts: Sequence[tuple[float, Measured]], offset: float = 0.0) -> Measured:
    """Return the difference of a weighted mean over datasets."""
    plain = Measured(
        name=name,
        datasets=len(parts),
        first=sum(factor * each.first for factor, each in parts) - offset,
        second=sum(factor * each.second for factor, each in parts) - offset,
        difference=sum(factor * each.difference for factor, each in parts),
        items=sum(each.items or 0 for _, each in parts),
        higher_is_better=parts[0][1].higher_is_better,
    )
    if without := [each.name for _, each in parts if not each.has_interval]:
        return plain.model_copy(update={"why_not": f"no interval of {', '.join(without[:5])}"})
    found = weighted_difference([(factor, _difference(each)) for factor, each in parts])
    return plain.model_copy(update=_interval(found))


def _difference(each: Measured) -> Difference:
    return Difference(
        each.difference, each.stderr or 0.0, each.low or 0.0, each.high or 0.0, each.p or 0.0,
        each.clusters or 0,
    )  # fmt: skip


def _side(run_dir: RunDir, run: Run) -> Side:
    return Side(
        run=run.id,
        dir=str(run_dir.root),
        checkpoint=run.checkpoint.path,
        step=step_of(run.checkpoint.path) if run.step is None else run.step,
        complete=state.is_complete(run_dir),
        decided=why_stopped(run_dir),
    )


def refusal(unequal: dict[str, list[str]], advice: str) -> str:
    """Return why two runs are not compared, and what to do."""
    lines = [f"{name}: {'; '.join(why)}" for name, why in unequal.items()]
    shown = "\n  ".join(lines[:10] + [f"… and {len(lines) - 10} more"] * (len(lines) > 10))
    return (
        f"these runs have asked differently, so their scores say little about the checkpoints:\n"
        f"  {shown}\n{advice}"
    )


def _measure(
    name: str, pair: Both, metric: str | None, left_out: dict[str, str]
) -> Measured | None:
    """Return the difference of a dataset; None if its scores are not comparable at all."""
    scores = [main_score(scored.results, metric) for scored in pair]
    if scores[0] is None or scores[1] is None:
        left_out[name] = f"no score{f' with metric {metric!r}' if metric else ''} in both runs"
        return None
    if scores[0].metric != scores[1].metric:
        left_out[name] = f"its metric is {scores[0].metric} and {scores[1].metric}"
        return None
    plain = Measured(
        name=name,
        first=scores[0].value,
        second=scores[1].value,
        difference=scores[1].value - scores[0].value,
        metric=scores[0].metric,
        higher_is_better=higher_is_better(pair[1].results, scores[0].metric),
    )
    paired, why_not = paired_items(pair, (scores[0], scores[1]))
    if paired is None:
        return plain.model_copy(update={"why_not": why_not})
    found = difference(paired.strata)
    more: dict[str, Any] = {"items": paired.items}
    if paired.some:
        means = (
            sum(
                s.weight * float(values.mean()) for s, values in zip(paired.strata, of, strict=True)
            )
            for of in ([s.first for s in paired.strata], [s.second for s in paired.strata])
        )
        more |= dict(zip(("first", "second"), means, strict=True))
        more |= {"difference": found.value, "of_items": paired.of_items}
    if math.isnan(found.stderr):
        one = "it has one item" if paired.items == 1 else "all of its items are one cluster"
        more["why_not"] = one
    else:
        more |= _interval(found)
    return plain.model_copy(update=more)


def _interval(found: Difference) -> dict[str, float]:
    return {
        "stderr": found.stderr,
        "low": found.low,
        "high": found.high,
        "p": found.p,
        "detectable": detectable(found.stderr),
        "clusters": found.clusters,
    }


def in_mean(measured: Sequence[Measured]) -> list[Measured]:
    """Return those of a mean: with an interval, and scores from 0 to 1, where more is better."""
    return [
        each
        for each in measured
        if each.has_interval and each.higher_is_better
        if 0 <= min(each.first, each.second) <= max(each.first, each.second) <= 1
    ]


def mean_of(name: str, measured: Sequence[Measured], least: int = 2) -> Measured | None:
    """Return the difference of the mean over datasets; None for fewer than `least` of them."""
    counted = in_mean(measured)
    if len(counted) < least:
        return None
    return _weighted(name, [(1 / len(counted), each) for each in counted])


def with_verdicts(measured: Sequence[Measured]) -> list[Measured]:
    """Return the differences with verdicts; of those that are found, 5 % may be false."""
    known = [each for each in measured if each.p is not None]
    found = significant([each.p for each in known if each.p is not None])
    changed = {id(each) for each, yes in zip(known, found, strict=True) if yes}

    def verdict(each: Measured) -> Verdict:
        if not each.has_interval:
            return ""
        if id(each) not in changed:
            return "no difference"
        return "better" if (each.difference > 0) == each.higher_is_better else "worse"

    return [each.model_copy(update={"verdict": verdict(each)}) for each in measured]
