"""The changes that an adapter makes to a tensor of its base, computed as PEFT does it."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from coordinate_eval.coordinator.inputs.checkpoints.formats.sources import compute_on_one_thread

if TYPE_CHECKING:
    import torch

_BLOCK_NUMBERS = 1 << 18  # of a product at a time: a cache holds them


class Product(NamedTuple):
    """Two factors of low rank, whose product is added to a matrix."""

    a: str
    b: str
    scale: float
    transposed: bool = False
    """The rows of the product are columns of the matrix."""
    rounded: bool = False
    """The product gets the type of the base before it is added."""
    magnitude: str = ""
    """Tensor with the length of each row, in DoRA; empty without DoRA."""
    experts: int = 1
    expert: int | None = None
    """The only one of these experts whose matrix it is. None: the tensor has all of them."""
    first_row: int = 0
    """The first row of the product that belongs to the tensor."""


class Bias(NamedTuple):
    """A vector that is added."""

    name: str
    scale: float


class Rows(NamedTuple):
    """Rows that take the place of those of some tokens."""

    name: str
    tokens: Sequence[int]


Change = Product | Bias | Rows

Own = Callable[[str], "torch.Tensor"]
"""Reads a tensor of the adapter."""


def apply(change: Change, tensor: "torch.Tensor", own: Own) -> None:
    """Change a tensor in place."""
    import torch

    match change:
        case Product():
            _add(change, tensor, own)
        case Bias():
            tensor += own(change.name).to(torch.float32) * change.scale
        case Rows():
            rows = own(change.name).to(tensor.dtype)
            tensor.index_copy_(0, torch.tensor(change.tokens), rows)


def adding(
    product: Product, dtype: "torch.dtype", own: Own
) -> Callable[["torch.Tensor", int], None]:
    """Return what adds a product to some rows of a matrix of this type, from a row on."""
    import torch

    compute_on_one_thread()
    kind = torch.promote_types(dtype, torch.float32)
    a, b = (own(name).to(kind) for name in (product.a, product.b))
    if product.expert is not None:
        a = a.reshape(product.experts, -1, a.shape[-1])[product.expert]
        b = b.reshape(b.shape[0], -1, product.experts)[:, :, product.expert]
    b = b[product.first_row :]
    lengths = own(product.magnitude).to(kind).flatten() if product.magnitude else None

    def add(rows: "torch.Tensor", start: int) -> None:
        block = slice(start, start + len(rows))
        added = (b[block] @ a).mul_(product.scale)
        if lengths is not None:
            factor = lengths[block] / torch.linalg.norm(rows + added, dim=1)
            rows.copy_(factor.view(-1, 1) * (rows + added))
        else:
            rows += added.to(dtype) if product.rounded else added

    return add


def step(columns: int) -> int:
    """Return how many rows of a product are computed at a time: fewer may be rounded otherwise."""
    return max(1, _BLOCK_NUMBERS // max(1, columns))


def _add(product: Product, tensor: "torch.Tensor", own: Own) -> None:
    """Add a product to a tensor, block by block."""
    if product.experts > 1 and product.expert is None:
        for expert in range(product.experts):
            _add(product._replace(expert=expert), tensor[expert], own)
        return
    add = adding(product, tensor.dtype, own)
    matrix = tensor.T if product.transposed else tensor
    rows = step(matrix.shape[1])
    for start in range(0, matrix.shape[0], rows):
        add(matrix[start : start + rows], start)
