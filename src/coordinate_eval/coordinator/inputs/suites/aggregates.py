"""Aggregates of a suite: weighted means of its datasets and groups, in terms of single datasets."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from coordinate_eval.coordinator.inputs.suites.suite_yaml import FILE_NAME, matching, unknown
from coordinate_eval.coordinator.inputs.yaml_file import (
    Located,
    LocatedList,
    Place,
    only,
    wrong,
)
from coordinate_eval.errors import UserError
from coordinate_eval.records import Aggregate, Dataset

_KEYS = {"of", "normalized"}
_MOST_DEPTH = 20


class _NamesNothing(UserError):
    """A member of an aggregate is not there."""


def resolve(given: Located, datasets: Sequence[Dataset], where: str) -> dict[str, Aggregate]:
    """Return the aggregates that a suite defines.

    An inherited one goes with the datasets that it names: it is left out if the suite skips all
    that one of its members stands for.

    Raises:
        UserError: One is malformed, names nothing that is there, or is a part of itself; names file
            and line.
    """
    return _Resolver(given, datasets).every(where)


class _Resolver:
    def __init__(self, given: Located, datasets: Sequence[Dataset]) -> None:
        self._given = given
        self._datasets = {each.name: each for each in datasets}
        self._groups: dict[str, list[str]] = {}
        for each in datasets:
            if each.group:
                self._groups.setdefault(each.group, []).append(each.name)
        self._known: dict[str, Aggregate] = {}
        self._open: list[str] = []

    def every(self, where: str) -> dict[str, Aggregate]:
        for name in self._given:
            place = self._given.at(name)
            if not FILE_NAME.fullmatch(name):
                raise wrong(
                    place, f"aggregate {name!r}: use only letters, digits and _ . + = @ , -"
                )
            taken = {**dict.fromkeys(self._datasets, "a dataset"), "mean": "the mean of everything"}
            if what := ({**dict.fromkeys(self._groups, "a group"), **taken}).get(name):
                raise wrong(place, f"aggregate {name}: {what} has this name")
        for name in self._given:
            place = self._given.at(name)
            try:
                self._of(name, place)
            except _NamesNothing:
                if place.where == where:
                    raise
                self._open.clear()
        return self._known

    def _of(self, name: str, place: Place) -> Aggregate:
        if name in self._known:
            return self._known[name]
        if name in self._open:
            circle = " → ".join([*self._open[self._open.index(name) :], name])
            raise wrong(place, f"aggregate {name} is a part of itself: {circle}")
        if len(self._open) == _MOST_DEPTH:
            raise wrong(place, f"aggregate {name} is nested more than {_MOST_DEPTH} deep")
        self._open.append(name)
        entry = self._given[name]
        if not isinstance(entry, Located):
            raise wrong(self._given.at(name), f"aggregate {name} must be a mapping with `of`")
        only(entry, _KEYS, f"aggregate {name}")
        normalized = entry.get("normalized", False)
        if not isinstance(normalized, bool):
            raise wrong(entry.at("normalized"), f"aggregate {name}: normalized is true or false")
        weights = _weights(name, entry)
        total = math.fsum(weight for weight, _ in weights.values())
        factors: dict[str, float] = {}
        offset = 0.0
        for member, (weight, where) in weights.items():
            part = self._member(name, member, where, normalized=normalized)
            for dataset, factor in part.factors.items():
                factors[dataset] = factors.get(dataset, 0.0) + weight / total * factor
            offset += weight / total * part.offset
        self._check_alike(name, factors, self._given.at(name))
        self._open.pop()
        self._known[name] = Aggregate(factors=factors, offset=offset)
        return self._known[name]

    def _check_alike(self, name: str, members: Iterable[str], place: Place) -> None:
        """Check that no mean is of a judge's ratings and of something else."""
        scales = {each: _scale_of(self._datasets[each]) for each in members}
        for rated, scale in scales.items():
            other = next((each for each in scales if scales[each] != scale), None)
            if scale and other is not None:
                raise wrong(
                    place,
                    f"aggregate {name}: a judge rates {rated} from {scale[0]:g} to {scale[1]:g}, "
                    f"and {other} has another metric: their mean says nothing. Leave one of them "
                    "out",
                )

    def _member(self, name: str, member: str, place: Place, *, normalized: bool) -> Aggregate:
        """Return what a member stands for: a dataset, or the mean over those that it names."""
        if member in self._datasets:
            found = [member]
        elif member in self._groups:
            found = self._groups[member]
        elif member in self._given:
            return self._of(member, place)
        else:
            found = matching(member, self._datasets)
        if not found:
            known = [*self._datasets, *self._groups, *self._given]
            said = unknown("dataset, group or aggregate", member, known)
            raise _NamesNothing(str(wrong(place, f"aggregate {name}: {said}")))
        factors, offset = {}, 0.0
        for dataset in found:
            chance = (self._datasets[dataset].chance or 0.0) if normalized else 0.0
            factors[dataset] = 1 / len(found) / (1 - chance)
            offset += factors[dataset] * chance
        return Aggregate(factors=factors, offset=offset)


def _scale_of(dataset: Dataset) -> tuple[float, float] | None:
    """Return the scale of a judge's ratings, None of everything else."""
    return dataset.rubric.scale if dataset.rubric is not None else None


def _weights(name: str, entry: Located) -> Mapping[str, tuple[float, Place]]:
    """Return the weight of each member, and its line; those in a list have weight 1."""
    of: Any = entry.get("of")
    if isinstance(of, LocatedList) and all(isinstance(member, str) for member in of):
        found = {m: (1.0, place) for m, place in zip(of, of.places, strict=True)}
        if len(found) < len(of):
            twice = next(m for m in of if of.count(m) > 1)
            raise wrong(entry.at("of"), f"aggregate {name}: {twice} is listed twice")
    elif isinstance(of, Located):
        found = {}
        for member, weight in of.items():
            place = of.at(member)
            if isinstance(weight, bool) or not isinstance(weight, int | float):
                raise wrong(place, f"aggregate {name}: the weight of {member} must be a number")
            if not 0 < weight <= 1e9:
                shown = f"{weight:.9g}" if abs(weight) < 1e9 or weight != weight else "too large"
                raise wrong(
                    place,
                    f"aggregate {name}: the weight of {member} is {shown}; give a number "
                    "above 0, or leave it out",
                )
            found[member] = (float(weight), place)
    else:
        raise wrong(
            entry.at("of"),
            f"aggregate {name}: of must be a list of datasets, groups and aggregates, or a mapping "
            "from these to weights",
        )
    if not found:
        raise wrong(entry.at("of"), f"aggregate {name} names no dataset")
    return found
