"""Decide by a policy whether a checkpoint passes: GO, NO-GO, or INCONCLUSIVE.

A rule has a bound, and is decided only if the whole 95 % interval lies on one side of it.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from coordinate_eval.coordinator.comparison.compare import (
    Comparison,
    Measured,
    aggregate_of,
    mean_of,
)
from coordinate_eval.coordinator.comparison.paired import CONFIDENCE
from coordinate_eval.coordinator.history.rows import Row
from coordinate_eval.coordinator.history.series import Column, Series, Value, column
from coordinate_eval.coordinator.inputs import yaml_file
from coordinate_eval.errors import UserError
from coordinate_eval.records import Record

Decision = Literal["GO", "NO-GO", "INCONCLUSIVE"]

BOUNDS = {
    "at_least": "the score is at least",
    "at_most": "the score is at most",
    "loses_at_most": "it is worse than the baseline by at most",
    "gains_at_least": "it is better than the baseline by at least",
}
"""The bounds that a rule may have, and what each asks for."""

_AGAINST = ("loses_at_most", "gains_at_least")


class Rule(BaseModel):
    """A rule of a policy: what is looked at, and one bound."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    of: str = Field(description="a dataset, a group, or a mean: `mean`, `mean(mmlu,arc*)`")
    at_least: FiniteFloat | None = None
    at_most: FiniteFloat | None = None
    loses_at_most: FiniteFloat | None = Field(default=None, ge=0)
    gains_at_least: FiniteFloat | None = Field(default=None, ge=0)

    @property
    def bound(self) -> tuple[str, float]:
        """Return the name of its bound, and its value."""
        (found,) = [(name, value) for name in BOUNDS if (value := getattr(self, name)) is not None]
        return found


class Policy(BaseModel):
    """`policy.yaml`: the rules that a checkpoint has to meet, all of them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rules: list[Rule] = Field(min_length=1)

    @property
    def compares(self) -> bool:
        """Return whether a rule needs a baseline."""
        return any(rule.bound[0] in _AGAINST for rule in self.rules)


class Finding(Record):
    """The outcome of a rule."""

    of: str
    datasets: int = 1
    bound: str
    limit: float
    value: float | None = Field(description="score, or difference from the baseline")
    low: float | None = Field(default=None, description="95 % interval")
    high: float | None = None
    decision: Decision
    why: str = Field(default="", description="why nothing is decided")
    items: int | None = Field(
        default=None, description="items that would decide it, if the value stays as it is"
    )


class Known(NamedTuple):
    """A value with its interval, if it has an interval."""

    value: float
    half: float | None
    """Half of the interval's width."""
    items: int


def read_policy(path: Path) -> Policy:
    """Read a policy.

    Raises:
        UserError: the file is missing or malformed; names the field.
    """
    policy = yaml_file.read_as(Policy, path, "policy", "rules")
    for number, rule in enumerate(policy.rules):
        given = [name for name in BOUNDS if getattr(rule, name) is not None]
        if len(given) != 1:
            raise UserError(
                f"policy {path}: rules.{number} ({rule.of}) has {len(given)} bounds: give it "
                f"one of {', '.join(BOUNDS)}"
            )
    return policy


def judge(policy: Policy, found: Series, row: Row, compared: Comparison | None) -> list[Finding]:
    """Return the outcome of each rule for a checkpoint.

    Args:
        found: the series with the checkpoint, which says what datasets and groups there are.
        compared: its comparison with the baseline; None if there is none.

    Raises:
        UserError: a rule names what is not there, or needs a baseline that nobody gave.
    """
    findings = []
    for rule in policy.rules:
        of = column(rule.of, found)
        bound, limit = rule.bound
        higher = (
            row.score(of.datasets[0]).higher_is_better if of.datasets[0] in row.scores else True
        )
        if bound in _AGAINST:
            if compared is None:
                raise UserError(
                    f"the rule of {rule.of!r} compares: give the baseline with --against"
                )
            known, why = _difference(of, compared)
            sign = 1 if higher else -1
            least = sign * (-limit if bound == "loses_at_most" else limit)
            findings.append(_decided(rule, of, known, why, least, sign))
        else:
            known, why = _score(of, row)
            sign = 1 if bound == "at_least" else -1
            findings.append(_decided(rule, of, known, why, limit, sign))
    return findings


def decision(findings: Sequence[Finding]) -> Decision:
    """Return the decision on a checkpoint: GO if all rules say so, NO-GO if one does."""
    said = {finding.decision for finding in findings}
    return "NO-GO" if "NO-GO" in said else "INCONCLUSIVE" if "INCONCLUSIVE" in said else "GO"


def _decided(
    rule: Rule, of: Column, known: Known | None, why: str, limit: float, sign: int
) -> Finding:
    """Return the outcome of a rule: values above the limit meet it; with sign -1, those below."""
    bound, told = rule.bound
    plain = Finding(
        of=rule.of, datasets=len(of.datasets), bound=bound, limit=told,
        value=known.value if known else None,
        decision="INCONCLUSIVE", why=why,
    )  # fmt: skip
    if known is None or known.half is None:
        return plain
    room = sign * (known.value - limit)
    interval = {"low": known.value - known.half, "high": known.value + known.half}
    if room >= known.half:
        return plain.model_copy(update={**interval, "decision": "GO"})
    if -room > known.half:
        return plain.model_copy(update={**interval, "decision": "NO-GO"})
    needed = math.ceil(known.items * (known.half / abs(room)) ** 2) if room else None
    return plain.model_copy(
        update={
            **interval,
            "items": needed,
            "why": "the interval has the bound in it" if room else "it is at the bound",
        }
    )


def _score(of: Column, row: Row) -> tuple[Known | None, str]:
    value: Value | None = of.value(row)
    if value is None:
        lacking = [name for name in of.datasets if name not in row.scores]
        return None, f"not scored: {', '.join(lacking[:5])}"
    items = sum(row.score(name).items for name in of.datasets)
    error = of.known_error(row)
    if error is None:
        return Known(value.value, None, items), "its standard error is not known"
    from scipy.stats import norm

    reach = float(norm.ppf(1 - (1 - CONFIDENCE) / 2))
    return Known(value.value, reach * error, items), ""


def _difference(of: Column, compared: Comparison) -> tuple[Known | None, str]:
    table = {each.name: each for each in compared.datasets}
    lacking = [name for name in of.datasets if name not in table]
    if lacking:
        return None, f"not compared: {', '.join(lacking[:5])}"
    parts = [table[name] for name in of.datasets]
    if unlike := [f"{name} ({'; '.join(compared.unlike[name])})" for name in of.datasets
                  if name in compared.unlike]:  # fmt: skip
        return None, f"asked differently: {', '.join(unlike[:5])}"
    if without := [each.name for each in parts if not each.has_interval]:
        return None, f"no interval of {', '.join(without[:5])}"
    found: Measured | None = parts[0] if len(parts) == 1 else mean_of(of.name, parts)
    if of.aggregate is not None:
        found = aggregate_of(of.name, of.aggregate, table)
    if found is None or found.low is None or found.high is None:
        return None, "not comparable as a mean"
    return Known(found.difference, (found.high - found.low) / 2, found.items or 0), ""
