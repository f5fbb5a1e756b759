"""An average of several models, computed while it is read, and the file that names them."""

import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from coordinate_eval._format import brief, plural
from coordinate_eval.coordinator.inputs import yaml_file
from coordinate_eval.coordinator.inputs.checkpoints import checkpoint_files, remote
from coordinate_eval.coordinator.inputs.checkpoints.formats.layouts import ITEM_BYTES, Tensor
from coordinate_eval.coordinator.inputs.checkpoints.formats.sources import (
    BLOCK_BYTES,
    Source,
    bytes_of,
    compute_on_one_thread,
)
from coordinate_eval.coordinator.inputs.checkpoints.mixed.merged import Merged
from coordinate_eval.coordinator.inputs.checkpoints.model.fit import FLOATS
from coordinate_eval.coordinator.inputs.checkpoints.saved import (
    Pattern,
    Saved,
    look,
    step_of,
    training_of,
)
from coordinate_eval.errors import UserError

if TYPE_CHECKING:
    import torch

SUFFIXES: Final = (".yaml", ".yml")
"""Endings of files that name the checkpoints of an average."""

_MOST_FILE_BYTES = 1 << 20
_MOST_MEMBERS = 1000
_MOST_WEIGHT = 1e9  # float32 has room for its product with a number of a model
_DIGITS = 6
_MOST_TOGETHER = 8  # members whose files are open at once


class Average(Source):
    """The weighted mean of several models of one architecture."""

    def __init__(
        self, sources: Sequence[Source], weights: Sequence[float], names: Sequence[str]
    ) -> None:
        """Check that the models have the same tensors. Nothing is read.

        Args:
            weights: of each. They are divided by their sum.
            names: of the models, for messages.

        Raises:
            UserError: They have other tensors, or tensors of other shapes or types.
        """
        self._sources, self._weights, self._total = sources, weights, math.fsum(weights)
        self._tensors = sources[-1].tensors
        for source, name in zip(sources, names, strict=True):
            _check_same(self._tensors, source.tensors, names[-1], name)

        def held_inside(name: str) -> list[int]:
            return [source.held(name) for source in sources]

        self._held_inside = lru_cache(maxsize=64)(held_inside)

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Return the type and the shape of each tensor by its name."""
        return self._tensors

    def layout(self, name: str) -> None:
        """Return None: every tensor is computed."""

    def adapted(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return the config of the last model as it is with that model's tensors."""
        last = self._sources[-1]
        return last.adapted(config) if isinstance(last, Average | Merged) else config

    def read(self, name: str) -> "torch.Tensor":
        """Return the mean of a tensor: in float32, rounded once to its type.

        Of what are no numbers with a fraction, such as a count of steps, the last model's counts.
        """
        dtype, shape = self._tensors[name]
        if dtype not in FLOATS:
            return self._sources[-1].read(name)
        import torch

        made = torch.empty(shape, dtype=getattr(torch, dtype))
        room, done = bytes_of(made), 0
        for part in self.parts(name, memoryview(bytearray(min(BLOCK_BYTES, len(room))))):
            room[done : done + len(part)] = part
            done += len(part)
        assert done == len(room), name
        return made

    def parts(self, name: str, buffer: memoryview) -> Iterator[memoryview]:
        """Yield the bytes of `read` in order, each time as many as a buffer has room for.

        Those of few members are read together. Those of many are added up in turn, with the sums in
        memory whole.
        """
        dtype = self._tensors[name].dtype
        if dtype not in FLOATS:
            yield from self._sources[-1].parts(name, buffer)
            return
        import torch

        compute_on_one_thread()
        kind = getattr(torch, dtype)
        sums = self._sums_together if self._reads_together(name) else self._sums_in_turn
        for some in sums(name, kind, len(buffer)):
            made = buffer[: len(some) * kind.itemsize]
            torch.frombuffer(made, dtype=kind).copy_(some.div_(self._total))
            yield made

    def held(self, name: str) -> int:
        """Return the most bytes that `parts` of a tensor has in memory besides its buffer."""
        dtype, shape = self._tensors[name]
        inside = self._held_inside(name)
        if dtype not in FLOATS:
            return inside[-1]
        if self._reads_together(name):
            return sum(inside)
        return max(4, ITEM_BYTES[dtype]) * math.prod(shape) + max(inside)

    def _reads_together(self, name: str) -> bool:
        inside = self._held_inside(name)
        return len(inside) <= _MOST_TOGETHER and sum(inside) <= 2 * self._tensors[name].bytes

    def _sums_together(self, name: str, kind: "torch.dtype", size: int) -> Iterator["torch.Tensor"]:
        """Yield the weighted sums of numbers that are `size` bytes in one model, or fewer."""
        import torch

        # Two blocks for all: memory that is new costs more than the sums.
        sums, block = (_wide(size // kind.itemsize, kind) for _ in range(2))
        members = [source.parts(name, memoryview(bytearray(size))) for source in self._sources]
        for group in _side_by_side(members):
            some = sums[: len(group[0]) // kind.itemsize].zero_()
            for raw, weight in zip(group, self._weights, strict=True):
                _add(some, torch.frombuffer(raw, dtype=kind), weight, block)
            yield some

    def _sums_in_turn(self, name: str, kind: "torch.dtype", size: int) -> Iterator["torch.Tensor"]:
        """Yield the same, with all of one model added before those of the next."""
        import torch

        step = size // kind.itemsize
        sums, block = _wide(math.prod(self._tensors[name].shape), kind).zero_(), _wide(step, kind)
        buffer = memoryview(bytearray(size))
        for source, weight in zip(self._sources, self._weights, strict=True):
            done = 0
            for raw in source.parts(name, buffer):
                found = torch.frombuffer(raw, dtype=kind)
                _add(sums[done : done + len(found)], found, weight, block)
                done += len(found)
        for start in range(0, len(sums), max(1, step)):
            yield sums[start : start + step]


def _wide(count: int, kind: "torch.dtype") -> "torch.Tensor":
    """Return room for so many numbers of a type that sums of this one are rounded little in."""
    import torch

    return torch.empty(count, dtype=torch.promote_types(kind, torch.float32))


def _add(sums: "torch.Tensor", found: "torch.Tensor", weight: float, block: "torch.Tensor") -> None:
    """Add numbers to sums, times a weight. They are widened in `block`."""
    sums.add_(block[: len(found)].copy_(found), alpha=weight)


def _side_by_side(members: Sequence[Iterator[memoryview]]) -> Iterator[list[memoryview]]:
    """Yield the bytes of all members at the same places. Their parts may be of different sizes."""
    none = memoryview(b"")
    parts = [next(each, none) for each in members]
    while count := min(map(len, parts)):
        yield [part[:count] for part in parts]
        parts = [p[count:] or next(each, none) for p, each in zip(parts, members, strict=True)]


def _check_same(
    last: Mapping[str, Tensor], other: Mapping[str, Tensor], last_name: str, name: str
) -> None:
    """Check that two models have the same tensors."""
    for first, second, one, two in ((last, other, last_name, name), (other, last, name, last_name)):
        if lacking := sorted(first.keys() - second.keys()):
            raise UserError(
                f"{two} and {one} have no average: {two} lacks {plural(len(lacking), 'tensor')} "
                f"of the other, such as {brief(lacking[0])}"
            )
    for tensor, (dtype, shape) in last.items():
        found = other[tensor]
        if found.shape != shape or found.dtype != dtype:
            raise UserError(
                f"{name} and {last_name} have no average: {brief(tensor)} is {found.dtype} "
                f"{list(found.shape)} in one, and {dtype} {list(shape)} in the other"
            )
    for tensor, (dtype, _) in last.items():
        if dtype not in FLOATS and "weight" in tensor.rpartition(".")[2]:
            raise UserError(
                f"{last_name} has {brief(tensor)} in {dtype}: quantized weights have no average. "
                "Average the models before they are quantized"
            )


# What may differ between models of one architecture. The shapes of tensors tell the vocabulary.
_NO_ARCHITECTURE = re.compile(
    r"_.*|transformers_version|(?:torch_)?dtype|use_cache|architectures|auto_map|vocab_size|"
    r".*(?:_token_id|_token_index|dropout|_pdrop|_coef)|initializer_range|pretraining_tp|"
    r"gradient_checkpointing|output_.*|return_dict|id2label|label2id|problem_type|task_specific_.*"
)


def check_configs(configs: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    """Check that models are of one architecture, as far as their configs tell.

    Raises:
        UserError: They are not; names the key.
    """
    for config, name in zip(configs, names, strict=True):
        if key := _differing(config, configs[-1]):
            raise UserError(
                f"{name} and {names[-1]} have no average: {brief(key)} in config.json is not the "
                "same in both. Give the config.json of all with --config if one is wrong"
            )


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Return a key that two configs tell differently; empty if there is none."""
    for key in one.keys() & other.keys():
        if _NO_ARCHITECTURE.fullmatch(key):
            continue
        a, b = one[key], other[key]
        if isinstance(a, dict) and isinstance(b, dict):
            if inner := _differing(a, b):
                return f"{key}.{inner}"
        elif a != b:
            return str(key)
    return ""


class Members(NamedTuple):
    """The checkpoints of an average, in order, and the weight of each."""

    paths: list[Path]
    weights: list[float]

    @property
    def place(self) -> Path:
        """Return what stands for the path of the average where no file names the members.

        It is in the folder that all are in. Its name has the first and the last of them, and what
        tells other members and weights.
        """
        whole = [
            path if isinstance(path, remote.RemotePath) else Path(os.path.realpath(path))
            for path in map(remote.located, self.paths)
        ]
        around = [each for each in whole[-1].parents if each.is_absolute()]
        common = (each for each in around if all(each in path.parents for path in whole))
        folder = next(common, None)  # none of several buckets, or of a bucket and a file system
        first, last = (
            str(each.relative_to(folder)).replace("/", "-") if folder else each.name
            for each in (whole[0], whole[-1])
        )
        total = math.fsum(self.weights)
        told = [list(map(str, whole)), [f"{weight / total:.9g}" for weight in self.weights]]
        digest = hashlib.sha256(json.dumps(told).encode()).hexdigest()[:_DIGITS]
        name = f"average of {len(whole)}: {first}…{last} ({digest})"
        return (folder or whole[-1].parent) / name


def members(paths: Sequence[Path], weights: Sequence[float] | None) -> Members:
    """Return the members of an average. Without weights, all count the same.

    Raises:
        UserError: There are too few or too many, or the weights are not theirs.
    """
    if not 2 <= len(paths) <= _MOST_MEMBERS:
        raise UserError(
            f"an average is of at least two checkpoints, and of {_MOST_MEMBERS:,} at most, "
            f"not of {len(paths):,}"
        )
    given = [1.0] * len(paths) if weights is None else list(weights)
    if len(given) != len(paths):
        raise UserError(
            f"{plural(len(given), 'weight')} for {plural(len(paths), 'checkpoint')}: give each "
            "one, such as --weights 1,1,2"
        )
    try:
        total = math.fsum(given) if all(map(math.isfinite, given)) else math.nan
    except OverflowError:
        total = math.nan
    largest = max(map(abs, given))
    if not abs(total) >= 1e-6 * largest or not 1 / _MOST_WEIGHT <= largest <= _MOST_WEIGHT:
        raise UserError(
            f"the weights {', '.join(f'{each:g}' for each in given)} have no sum to divide by: "
            f"give numbers up to {_MOST_WEIGHT:g} whose sum is not 0"
        )
    return Members(list(paths), given)


def ending_with(each: Saved, saved: Sequence[Saved], most: int) -> list[Saved]:
    """Return the members of an average that ends with a checkpoint, the last one first.

    They are the checkpoints up to it of the same training, so many at most. `saved` has the latest
    first.
    """
    training = training_of(str(each.path))
    before = saved[saved.index(each) :] if each in saved else []
    return [one for one in before if training_of(str(one.path)) == training][:most]


def up_to(path: Path, most: int) -> Path | Members:
    """Return the average of so many checkpoints of a training at most that ends with this one.

    Without another that is finished before it, it is that checkpoint itself.

    Raises:
        UserError: Its name tells no step, or its folder cannot be read.
    """
    place = remote.located(path).resolve()
    training = remote.located(training_of(str(place)))
    step = step_of(str(place))
    if step is None:
        raise UserError(
            f"the name of {path} tells no step, so what was saved before it is not known: name the "
            "checkpoints of the average"
        )
    _, *inside = place.relative_to(training).parts
    suffix = place.suffix if not inside and place.is_file() else ""
    pattern = Pattern("/".join([f"*{suffix}", *inside]) if inside or suffix else None)
    found = [replace(each, step=step_of(str(each.path))) for each in look(training, pattern)]
    told = [each for each in found if each.step is not None and each.lacks is None]
    order = sorted(told, key=lambda each: each.step or 0, reverse=True)
    own = next((each for each in order if each.path == place), None)
    before = [each for each in order if each is own or (each.step or 0) < step]
    paths = [each.path for each in ending_with(own, before, most)] if own else []
    return members(paths[::-1], None) if len(paths) > 1 else path


def read_file(file: Path) -> Members:
    """Return the members that a YAML file names, by paths relative to it.

    Raises:
        UserError: It is no such file.
        OSError: It cannot be read.
    """
    try:
        text = checkpoint_files.read(file, _MOST_FILE_BYTES).decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8: {error}") from error
    content = yaml_file.document(
        yaml_file.Source(text, str(file), file.parent, str(file), "average")
    )
    known = {"average", "weights"}
    if not isinstance(content, dict) or not content.keys() <= known or "average" not in content:
        raise UserError(
            f"{file} is no average: it needs `average: [CKPT, CKPT, …]`, and may have "
            "`weights: [1, 2, …]`"
        )
    paths, weights = content["average"], content.get("weights")
    if not isinstance(paths, list) or not all(isinstance(each, str) and each for each in paths):
        raise UserError(f"{file}: average must be a list of checkpoints")
    given = _numbers(file, weights)
    try:
        return members([remote.joined(file.parent, each) for each in paths], given)
    except UserError as error:
        raise UserError(f"{file}: {error}") from error


def _numbers(file: Path, found: Any) -> list[float] | None:  # noqa: ANN401 - of anybody's file
    if found is None:
        return None
    if not isinstance(found, list) or not all(
        isinstance(each, int | float) and not isinstance(each, bool) for each in found
    ):
        raise UserError(f"{file}: weights must be a list of numbers")
    try:
        return [float(each) for each in found]
    except OverflowError as error:
        raise UserError(f"{file}: a weight is larger than numbers are here") from error
