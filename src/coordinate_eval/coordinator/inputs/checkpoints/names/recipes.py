"""Put tensors by the names of Hugging Face together from those of a trainer.

A mapping says which belong together. What comes out is a recipe for each tensor: rows of others,
one after the other, and whether their order changes.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from coordinate_eval._format import brief
from coordinate_eval.coordinator.inputs.checkpoints.formats import torch_file
from coordinate_eval.coordinator.inputs.checkpoints.formats.layouts import Tensor
from coordinate_eval.coordinator.inputs.checkpoints.names import patterns
from coordinate_eval.coordinator.inputs.checkpoints.names.patterns import Numbers, pattern
from coordinate_eval.errors import UserError
from coordinate_eval.records import names


class Piece(NamedTuple):
    """A part of a tensor of the trainer."""

    name: str
    begin: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Recipe:
    """The recipe of a tensor."""

    tensor: Tensor
    pieces: tuple[Piece, ...]
    """Put together in their first dimension."""
    base: tuple[int, ...]
    """The shape that they get then."""
    transpose: bool
    heads: int
    """Heads whose rows are pairs, and become halves; 0: none."""

    @property
    def reorders(self) -> bool:
        """Return whether elements get another order when pieces are put together."""
        return self.transpose or bool(self.heads)

    def view(self, made: Any) -> Any:  # noqa: ANN401 - an array or a tensor
        """Return what was put together in the order of the tensor, in more dimensions or not."""
        if self.transpose:
            made = made.swapaxes(-1, -2)
        if self.heads:
            pairs = made.shape[0] // self.heads // 2
            made = made.reshape(self.heads, pairs, 2, *made.shape[1:]).swapaxes(1, 2)
        return made


class _Key(NamedTuple):
    """The value that tensors of a trainer share if they become tensors together."""

    rule: int
    values: tuple[tuple[str, str], ...]
    """Numbers and words that are in both names."""
    stacked: bool
    """A number of theirs is none of the names that they become."""


class Recipes:
    """Work out how each tensor is made."""

    def __init__(
        self, tensors: Mapping[str, Tensor], mapping: names.TensorMapping, numbers: Numbers
    ) -> None:
        """Take the tensors of the trainer, a mapping, and the numbers of the model's config."""
        self._tensors, self._mapping, self._numbers = tensors, mapping, numbers
        self._recipes: dict[str, Recipe] = {}
        self.zero: list[str] = []
        """Tensors of the trainer that are left out, and should be zero."""

    def made(self) -> dict[str, Recipe]:
        """Return the recipe of each tensor, by the name of Hugging Face.

        Raises:
            UserError: the mapping does not fit the tensors.
        """
        matched = patterns.match(self._tensors, self._mapping.rules)
        if matched.left_over:
            raise self._wrong(
                f"{len(matched.left_over):,} of {len(self._tensors):,} tensors fit none of its "
                f"rules, such as {brief(matched.left_over[0])}"
            )
        own = torch_file.own_names(self._tensors)
        together: dict[_Key, dict[int, dict[int, str]]] = {}
        for name, member in matched.members.items():
            rule = self._mapping.rules[member.rule]
            if not rule.to:
                self.zero += [name] * rule.zero
                continue
            if rule.kept:
                self._keep(name, own.get(name))
                continue
            wanted = _wanted(rule)
            stacked = [h for h in member.values if h not in wanted and "|" not in h]
            if len(stacked) > 1:
                raise self._wrong(f"it stacks {brief(name)} twice, by {' and '.join(stacked)}")
            number = int(member.values[stacked[0]]) if stacked else 0
            values = sorted((hole, v) for hole, v in member.values.items() if hole in wanted)
            key = _Key(member.rule, tuple(values), bool(stacked))
            place = together.setdefault(key, {}).setdefault(member.place, {})
            if number in place:
                raise self._twice(name, place[number], rule.to[0])
            place[number] = name
        for key, sources in together.items():
            rule = self._mapping.rules[key.rule]
            for number, text in enumerate(rule.source):
                if number not in sources:
                    one = next(iter(next(iter(sources.values())).values()))
                    raise self._wrong(f"{brief(one)} is there without {brief(text)}")
            self._make(key, [self._stack(sources[place]) for place in sorted(sources)])
        return self._recipes

    def _keep(self, name: str, own: str | None) -> None:
        """Add a tensor that is as it is, by its own name; None is beside the model."""
        if own is None:
            return
        if own in self._recipes:
            raise self._twice(name, self._recipes[own].pieces[0].name, own)
        tensor = self._tensors[name]
        piece = Piece(name, (0,) * len(tensor.shape), tensor.shape)
        self._recipes[own] = Recipe(tensor, (piece,), tensor.shape, transpose=False, heads=0)

    def _stack(self, members: Mapping[int, str]) -> list[str]:
        """Return the names of tensors that are stacked, in order."""
        lacking = set(range(len(members))) - members.keys()
        if lacking and len(members) > 1:
            one = next(iter(members.values()))
            raise self._wrong(f"number {min(lacking)} is missing of those like {brief(one)}")
        return [members[number] for number in sorted(members)]

    def _make(self, key: _Key, sources: Sequence[Sequence[str]]) -> None:
        """Add the recipes of tensors that belong together."""
        rule, values = self._mapping.rules[key.rule], dict(key.values)
        ordered = [n for text in (*rule.source, *rule.to) for n in pattern(text).numbers]
        wanted = _wanted(rule)
        lacking = [n for n in dict.fromkeys(ordered) if n in wanted and n not in values]
        views = [[self._view(rule, name, len(lacking)) for name in each] for each in sources]
        first = views[0][0]
        for index in itertools.product(*map(range, first.lead)):
            chosen = {**values, **dict(zip(lacking, index, strict=True))}
            for place, text in enumerate(rule.to):
                name = pattern(text).filled(chosen)
                recipe = self._recipe(key, place, views, index)
                if name in self._recipes:
                    other = self._recipes[name].pieces[0].name
                    raise self._twice(recipe.pieces[0].name, other, name)
                self._recipes[name] = recipe

    def _view(self, rule: names.Rule, name: str, lead: int) -> "_View":
        """Return a tensor as a rule sees it."""
        shape = self._tensors[name].shape
        parts = self._numbers(rule.unflatten) if rule.unflatten else 0
        if parts and (not shape or shape[0] % parts):
            raise self._wrong(f"{brief(name)} of shape {list(shape)} is not {parts} stacked ones")
        seen = (parts, shape[0] // parts, *shape[1:]) if parts else shape
        if len(seen) < lead:
            raise self._wrong(f"{brief(name)} of shape {list(shape)} is not stacked {lead} times")
        return _View(name, shape, bool(parts), seen[:lead], seen[lead:])

    def _recipe(
        self, key: _Key, place: int, views: Sequence[Sequence["_View"]], index: tuple[int, ...]
    ) -> Recipe:
        """Return how one tensor is made."""
        rule, first = self._mapping.rules[key.rule], views[0][0]
        kinds = {self._tensors[view.name].dtype for each in views for view in each}
        rests = {view.shape[1:] for each in views for view in each}
        if len(kinds) > 1 or len(rests) > 1:
            raise self._wrong(
                f"{brief(first.name)} and those that belong to it differ in type or shape"
            )
        if key.stacked:
            pieces = [view.rows(index, 0, view.count) for view in views[0]]
            base: tuple[int, ...] = (len(pieces), *first.shape)
        elif not first.shape:
            pieces, base = [first.rows(index, 0, 1)], ()
        else:
            runs = list(_joined(self._runs(rule, place, [each[0] for each in views])))
            if rule.rows:
                runs = self._kept(rule, runs)
            pieces = [view.rows(index, start, stop) for view, start, stop in runs]
            base = (sum(stop - start for _, start, stop in runs), *first.shape[1:])
        shape = base
        if rule.transpose:
            if len(shape) < 2:
                raise self._wrong(f"{brief(first.name)} of shape {list(shape)} has no columns")
            shape = (*shape[:-2], shape[-1], shape[-2])
        heads = self._heads(rule, place)
        if heads and (not shape or shape[0] % (2 * heads)):
            raise self._wrong(
                f"{brief(first.name)} gives {shape[0] if shape else 1:,} rows, which are not those "
                f"of {heads} heads"
            )
        tensor = Tensor(kinds.pop(), shape)
        return Recipe(tensor, tuple(pieces), base, rule.transpose, heads)

    def _kept(
        self, rule: names.Rule, runs: Sequence[tuple["_View", int, int]]
    ) -> list[tuple["_View", int, int]]:
        """Return the first rows, which are no padding."""
        rows, there = self._numbers(rule.rows), sum(stop - start for _, start, stop in runs)
        if there < rows:
            raise self._wrong(
                f"{brief(runs[0][0].name)} has {there:,} rows, and {rule.rows} is {rows:,}"
            )
        kept = []
        for view, start, stop in runs:
            kept.append((view, start, min(stop, start + rows)))
            rows -= kept[-1][2] - start
        return [run for run in kept if run[1] < run[2]]

    def _heads(self, rule: names.Rule, place: int) -> int:
        if not rule.rotary:
            return 0
        return self._numbers(rule.rotary[place if len(rule.rotary) > 1 else 0])

    def _runs(
        self, rule: names.Rule, place: int, views: Sequence["_View"]
    ) -> Iterator[tuple["_View", int, int]]:
        """Return the rows that a tensor is made of."""
        into = self._numbers(rule.into)
        if len(views) > 1:
            for group in range(into):
                for view in views:
                    rows = self._cut(view, view.count, into)
                    yield view, group * rows, (group + 1) * rows
            return
        (view,) = views
        if not rule.parts:
            yield view, 0, view.count
            return
        parts, groups = list(map(self._numbers, rule.parts)), self._numbers(rule.groups)
        unit = self._cut(view, view.count, groups * sum(parts))
        begins = [0, *itertools.accumulate(part * unit for part in parts)]
        span = sum(parts) * unit

        def part(number: int, low: int, high: int) -> Iterator[tuple["_View", int, int]]:
            """Return some rows of a part, which has some in each group."""
            size = parts[number] * unit
            for group in range(low // size, math.ceil(high / size)) if size else ():
                begin = group * span + begins[number]
                start, stop = max(low - group * size, 0), min(high - group * size, size)
                yield view, begin + start, begin + stop

        if len(rule.to) > 1:
            yield from part(place, 0, groups * parts[place] * unit)
            return
        for group in range(into):
            for number, size in enumerate(parts):
                rows = self._cut(view, groups * size * unit, into)
                yield from part(number, group * rows, (group + 1) * rows)

    def _cut(self, view: "_View", rows: int, parts: int) -> int:
        """Return the rows of a part, if they can be cut into so many."""
        if not parts or rows % parts:
            raise self._wrong(f"{rows:,} rows of {brief(view.name)} cannot be cut into {parts:,}")
        return rows // parts

    def _twice(self, one: str, other: str, name: str) -> UserError:
        return self._wrong(f"both {brief(one)} and {brief(other)} become {brief(name)}")

    def _wrong(self, words: str) -> UserError:
        return UserError(
            f"the mapping {self._mapping.trainer} does not fit the checkpoint: {words}. Give one "
            "that does with --mapping FILE, or the config.json of this model with --config"
        )


@dataclass(frozen=True)
class _View:
    """A tensor of the trainer, as a rule sees it."""

    name: str
    stored: tuple[int, ...]
    unflattened: bool
    """Its first dimension counts as two."""
    lead: tuple[int, ...]
    """Dimensions whose indices are numbers in the names that it becomes."""
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """Return the number of rows."""
        return self.shape[0] if self.shape else 1

    def rows(self, index: tuple[int, ...], start: int, stop: int) -> Piece:
        """Return some of its rows, of the tensor that has this index."""
        if self.unflattened:
            size = self.shape[0] if index else math.prod(self.stored[:1]) // self.count
            begin = index[0] * size + start if index else start * size
            length = stop - start if index else (stop - start) * size
            rest = self.stored[1:]
            return Piece(self.name, (begin, *(0 for _ in rest)), (length, *rest))
        rest = self.shape[1:]
        if not self.shape:
            return Piece(self.name, index, (1,) * len(index))
        ones = (1,) * len(index)
        return Piece(self.name, (*index, start, *(0 for _ in rest)), (*ones, stop - start, *rest))


def _wanted(rule: names.Rule) -> set[str]:
    """Return the numbers and words in the names that tensors of a rule become."""
    return {hole for text in rule.to for hole in patterns.holes(text)}


def _joined(runs: Iterable[tuple[_View, int, int]]) -> Iterator[tuple[_View, int, int]]:
    """Join rows that follow one another."""
    last: tuple[_View, int, int] | None = None
    for view, start, stop in runs:
        if last and last[0] is view and last[2] == start:
            last = (view, last[1], stop)
        elif stop > start:
            if last:
                yield last
            last = (view, start, stop)
    if last:
        yield last
