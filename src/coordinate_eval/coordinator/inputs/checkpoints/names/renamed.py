"""A source of tensors by the names of Hugging Face, made of those of a trainer by a mapping.

Each tensor is put together of rows of others: splits and merges, stacked layers and experts are
nothing else. So what it needs is read of a file, and no more.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from coordinate_eval._text_config import TextConfig
from coordinate_eval.coordinator.inputs.checkpoints.formats.layouts import (
    Box,
    Layout,
    Tensor,
    window,
)
from coordinate_eval.coordinator.inputs.checkpoints.formats.sources import (
    Source,
    bits,
    blocks,
    copy,
    cuts,
    kind_of,
    put_together,
)
from coordinate_eval.coordinator.inputs.checkpoints.names.patterns import Numbers
from coordinate_eval.coordinator.inputs.checkpoints.names.recipes import Piece, Recipe, Recipes
from coordinate_eval.records import names

if TYPE_CHECKING:
    import numpy as np
    import torch

OUTPUTS = ("lm_head.weight", "embed_out.weight")
"""Names of an output layer, which is left out where the config says that it is the embedding."""


class Renamed(Source):
    """The tensors of another source by the names of Hugging Face."""

    def __init__(
        self,
        source: Source,
        mapping: names.TensorMapping,
        config: TextConfig,
        *,
        tied: bool | None = None,
    ) -> None:
        """Take a source, a mapping, and the config that has its numbers.

        `tied` is whether the config says that the output layer is the embedding.

        Raises:
            UserError: A name fits no rule, tensors that belong together are not all there, two
                become the same, or their shapes are not those that the mapping expects.
        """
        self._source = source
        work = Recipes(source.tensors, mapping, Numbers(config, mapping.trainer))
        recipes = work.made()
        self._zero = work.zero
        self.tied = tuple(name for name in OUTPUTS if tied and name in recipes)
        """Output layers that are there, and left out since they should be the embedding."""
        self._recipes = recipes

    @cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        """Return the type and the shape of each tensor by its name."""
        recipes = self._recipes.items()
        return {name: each.tensor for name, each in recipes if name not in self.tied}

    def not_zero(self) -> list[str]:
        """Return the tensors of the trainer that are left out as if they were zero, and are not."""
        return [name for name in self._zero if self._source.read(name).any()]

    def read(self, name: str) -> "torch.Tensor":
        """Return a tensor, made of those of the trainer."""
        import torch

        recipe = self._recipes[name]
        layout = self._base(recipe)
        if layout is not None:
            made = put_together(layout)
        else:
            rest = recipe.base[1:]
            found = [self._part(piece) for piece in recipe.pieces]
            made = torch.cat([part.reshape(-1, *rest) for part in found]).reshape(recipe.base)
        reordered: torch.Tensor = recipe.view(made).reshape(recipe.tensor.shape)
        return reordered.contiguous()

    def parts(self, name: str, buffer: memoryview) -> Iterator[memoryview]:
        """Yield the bytes of `read` in order, each time as many as a buffer has room for.

        Rows that are reordered within heads are read by heads.
        """
        recipe = self._recipes[name]
        layout = self._base(recipe)
        if layout is None or not recipe.reorders:
            yield from super().parts(name, buffer)
        elif recipe.transpose:
            yield from _in_order(recipe.view(bits(layout)), buffer)
        else:
            import numpy as np

            head = max(1, recipe.tensor.bytes // recipe.heads)
            room = memoryview(bytearray(head * max(1, len(buffer) // head)))
            for block in blocks(layout, room):
                some = replace(recipe, heads=len(block) // head)
                rows = np.frombuffer(block, kind_of(layout)).reshape(-1, *recipe.base[1:])
                yield from _in_order(some.view(rows), buffer)

    def held(self, name: str) -> int:
        """Return the most bytes that `parts` of a tensor has in memory besides its buffer."""
        recipe = self._recipes[name]
        layout = self._base(recipe)
        if layout is None or not recipe.reorders:
            return super().held(name)
        return layout.placed().held + (recipe.tensor.bytes if recipe.transpose else 0)

    def layout(self, name: str) -> Layout | None:
        """Return where the elements of a tensor lie; None if their order is another."""
        recipe = self._recipes[name]
        return None if recipe.reorders else self._base(recipe)

    def _base(self, recipe: Recipe) -> Layout | None:
        """Return where the elements lie of which a tensor is made, before they are reordered."""
        boxes: list[Box] = []
        flats: set[bool] = set()
        elements, placed = 0, None
        for piece in recipe.pieces:
            stored = self._source.layout(piece.name)
            found = stored and window(stored, piece.begin, piece.shape)
            if found is None:
                return None
            placed = found.found
            single = len(piece.shape) == 1 != len(recipe.base)
            flat = found.flat or single  # such as a matrix that is stored as one row
            lead = len(piece.shape) - len(recipe.base)
            row = max(1, math.prod(recipe.base[1:]))
            flats.add(flat)
            for box in found.boxes:
                if flat:
                    boxes.append(box._replace(begin=(box.begin[0] + elements,)))
                elif lead == -1 and math.prod(piece.shape) == row:  # of a stack
                    begin = (elements // row, *box.begin)
                    shape, strides = (1, *box.shape), (1, *box.strides)
                    saved = box.saved or box.shape
                    boxes.append(
                        box._replace(begin=begin, shape=shape, strides=strides, saved=saved)
                    )
                elif lead >= 0:
                    begin = box.begin[lead:]
                    if begin:
                        begin = (begin[0] + elements // row, *begin[1:])
                    shape, strides, saved = (
                        box.shape[lead:],
                        box.strides[lead:],
                        box.saved or box.shape,
                    )
                    boxes.append(
                        box._replace(begin=begin, shape=shape, strides=strides, saved=saved)
                    )
                else:
                    return None
            elements += math.prod(piece.shape)
        if len(flats) != 1:
            return None
        return Layout(recipe.tensor.dtype, recipe.base, tuple(boxes), flats.pop(), placed)

    def _part(self, piece: Piece) -> "torch.Tensor":
        """Return a part of a tensor of the trainer."""
        found = self._source.read(piece.name)
        for dimension, (start, length) in enumerate(zip(piece.begin, piece.shape, strict=True)):
            found = found.narrow(dimension, start, length)
        return found


def _in_order(view: "np.ndarray[Any, Any]", buffer: memoryview) -> Iterator[memoryview]:
    """Yield the bytes of an array in the order of its indices, each time as many as fit."""
    import numpy as np

    for begin, size in cuts(view.shape, len(buffer) // view.itemsize):
        block = buffer[: math.prod(size) * view.itemsize]
        end = map(sum, zip(begin, size, strict=True))
        copy(np.frombuffer(block, view.dtype).reshape(size), view[tuple(map(slice, begin, end))])
        yield block
