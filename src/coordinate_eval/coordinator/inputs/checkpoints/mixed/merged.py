"""An adapter, merged into its base while it is read.

A tensor is merged as PEFT's `merge_and_unload` does it: in float32, stored in the type of the base.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from coordinate_eval._format import brief
from coordinate_eval.coordinator.inputs.checkpoints.formats.layouts import Layout, Tensor
from coordinate_eval.coordinator.inputs.checkpoints.formats.sources import (
    Source,
    blocks,
    compute_on_one_thread,
    cut_to,
)
from coordinate_eval.coordinator.inputs.checkpoints.mixed import changes
from coordinate_eval.coordinator.inputs.checkpoints.mixed.adapter import (
    MERGE,
    AdapterConfig,
    Factors,
    Found,
    Names,
)
from coordinate_eval.coordinator.inputs.checkpoints.mixed.changes import Bias, Change, Product, Rows
from coordinate_eval.coordinator.inputs.checkpoints.model.fit import FLOATS, is_embedding, is_output
from coordinate_eval.errors import UserError

if TYPE_CHECKING:
    import torch

_OTHER = "Is it the adapter's base? --base names another one"

# What all experts' matrices in one tensor are in files that have each expert's apart.
_PARTS = {
    "gate_up_proj": (("gate_proj", "up_proj"), ("w1", "w3")),
    "down_proj": (("down_proj",), ("w2",)),
}


_CONV1D = ("c_attn", "c_fc", "c_proj")  # the modules of GPT-2 that may be Conv1D


@dataclass
class _Plan:
    """The changes of an adapter to one tensor."""

    begin: str
    """The tensor that it begins as."""
    tensor: Tensor
    own: bool = False
    """It begins as a tensor of the adapter, not of the base."""
    changes: list[Change] = field(default_factory=list)


class Merged(Source):
    """The tensors of a base with an adapter merged into it."""

    def __init__(
        self,
        base: Source,
        adapter: Source,
        config: AdapterConfig,
        *,
        tied: bool | None,
        where: str,
        layers: int = 0,
    ) -> None:
        """Plan what becomes of each tensor. Nothing is read.

        Args:
            base: the model that was adapted.
            adapter: the tensors of the adapter, by PEFT's names.
            config: that of the adapter.
            tied: whether the config of the base says that its output layer is its embedding. None
                if the config is silent: then it is so if there is no output layer.
            where: the base, for messages.
            layers: of the base, all of which an adapter adapts alike; 0 if that is not known.

        Raises:
            UserError: The adapter does not fit the base.
        """
        self._base, self._adapter, self._config = base, adapter, config
        self._place, self._where = config.file.parent, where
        self._own = lru_cache(maxsize=4)(adapter.read)  # those of one expert are those of all
        embeddings = [name for name in base.tensors if is_embedding(name)]
        self._embedding = embeddings[0] if embeddings else ""
        tied = not any(map(is_output, base.tensors)) if tied is None else tied
        self._tied = tied and bool(embeddings)
        self._untied = False
        self._plans = {
            name: _Plan(name, tensor)
            for name, tensor in base.tensors.items()
            if not (self._tied and is_output(name))  # engines leave it out, if it is there
        }
        found = Found(adapter.tensors, self._place)
        self._named = Names(self._plans, self._wanted(found))
        self._untie(found)
        for name, stored in sorted(found.whole.items()):
            self._replace(self._named(name), stored)
        for module, stored in found.rows.items():
            self._take_rows(module, stored)
        # Of tied layers, which are one tensor, the embedding comes first.
        for module in sorted(found.products, key=lambda each: is_output(f"{each}.weight")):
            self._adapt(module, found.products[module])
        adapted = {self._named(f"{module}.weight") for module in found.products}
        if lacking := config.lacking(adapted, self._plans, layers):
            raise self._refuse(
                f"does not adapt {brief(lacking)}, as it does in other layers of {where}. {_OTHER}"
            )

    @cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        """Return the type and the shape of each tensor by its name."""
        return {name: plan.tensor for name, plan in self._plans.items()}

    def read(self, name: str) -> "torch.Tensor":
        """Return a tensor, merged."""
        import torch

        plan = self._plans[name]
        source = self._adapter if plan.own else self._base
        tensor = source.read(plan.begin).to(getattr(torch, plan.tensor.dtype))
        for each in plan.changes:
            changes.apply(each, tensor, self._own)
        return tensor

    def parts(self, name: str, buffer: memoryview) -> Iterator[memoryview]:
        """Yield the bytes of `read` in order, each time as many as a buffer has room for.

        A matrix that changes row by row is read by rows.
        """
        layout = self._by_rows(name)
        if layout is None:
            yield from super().parts(name, buffer)
            return
        import torch

        compute_on_one_thread()
        kind, columns = getattr(torch, layout.dtype), layout.shape[1]
        products = (each for each in self._plans[name].changes if isinstance(each, Product))
        adding = [changes.adding(each, kind, self._own) for each in products]
        room = bytearray(changes.step(columns) * columns * kind.itemsize)
        start = 0
        for block in blocks(layout, memoryview(room)):
            rows = torch.frombuffer(block, dtype=kind).view(-1, columns)
            for add in adding:
                add(rows, start)
            start += len(rows)
            yield from cut_to(buffer, block)

    def held(self, name: str) -> int:
        """Return the most bytes that `parts` of a tensor has in memory besides its buffer."""
        layout = self._by_rows(name)
        return super().held(name) if layout is None else layout.placed().held

    def _by_rows(self, name: str) -> Layout | None:
        """Return where a matrix lies of which the adapter changes row by row; None if otherwise."""
        layout = self._stored(name)
        one_by_one = all(
            isinstance(each, Product) and not each.transposed for each in self._plans[name].changes
        )
        return layout if layout and len(layout.shape) == 2 and one_by_one else None

    def layout(self, name: str) -> Layout | None:
        """Return where a tensor lies that the adapter leaves as it is, or has whole."""
        return None if self._plans[name].changes else self._stored(name)

    def _stored(self, name: str) -> Layout | None:
        """Return where a tensor lies before it is changed, if it has its type there."""
        plan = self._plans[name]
        layout = (self._adapter if plan.own else self._base).layout(plan.begin)
        return layout if layout is not None and layout.dtype == plan.tensor.dtype else None

    def adapted(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the config of the base as that of the merged model.

        The adapter may bring an embedding of more tokens, or an output layer of its own.
        """
        differing: dict[str, object] = {}
        if self._embedding:
            before = self._base.tensors[self._embedding].shape[0]
            now = self._plans[self._embedding].tensor.shape[0]
            differing = {"vocab_size": now} if now != before else {}
        if self._untied:
            differing["tie_word_embeddings"] = False

        def changed(part: Mapping[str, Any]) -> dict[str, Any]:
            return {**part, **{key: value for key, value in differing.items() if key in part}}

        inner = {k: changed(v) if isinstance(v, dict) else v for k, v in config.items()}
        return {**changed(inner), **({"tie_word_embeddings": False} if self._untied else {})}

    def _wanted(self, found: Found) -> list[str]:
        """Return tensors of the base that the adapter is for, by the names of modules."""
        inner = [f"{module}.weight" for module in (*found.products, *found.rows)]
        for module in found.products:
            for parameter in self._config.parameters(module):
                inner += _first(module, parameter)
        return [name for name in (*inner, *found.whole) if not is_output(name)]

    def _untie(self, found: Found) -> None:
        """Give the model an output layer of its own, if one of two tied layers was trained whole.

        PEFT copies the layer that is trained, so the other one stays as it was.
        """
        whole = [name for name in found.whole if is_output(name) or is_embedding(name)]
        trained = [name for name in whole if self._config.saves(name.removesuffix(".weight"))]
        if not (self._tied and trained) or self._config.keeps_ties:
            return
        self._untied = True
        output = next(filter(is_output, found.whole), "lm_head.weight")
        before = self._base.tensors[self._embedding]
        self._plans[output] = _Plan(self._embedding, before)

    def _replace(self, name: str, stored: str) -> None:
        """Let a tensor be the adapter's own."""
        if name not in self._plans and is_output(name) and self._tied:
            name = self._embedding  # it was saved for its size
        plan = self._target(name, stored)
        dtype, shape = self._adapter.tensors[stored]
        before = plan.tensor.shape
        first = 1 if is_output(name) or is_embedding(name) else 0  # rows are tokens
        if len(shape) != len(before) or shape[first:] != before[first:]:
            raise self._refuse(
                f"has {brief(stored)} of the shape {list(shape)}, and it is {list(before)} in "
                f"{self._where}. {_OTHER}"
            )
        if dtype not in FLOATS:
            raise self._refuse(f"has {brief(stored)} in {dtype}. {MERGE}")
        plan.begin, plan.own, plan.tensor = stored, True, Tensor(plan.tensor.dtype, shape)

    def _take_rows(self, module: str, stored: str) -> None:
        """Let the rows of some tokens be the adapter's own."""
        plan = self._target(self._named(f"{module}.weight"), stored)
        tokens, shape = self._config.tokens(module), self._adapter.tensors[stored].shape
        rows, *width = plan.tensor.shape
        if shape != (len(tokens), *width) or not all(0 <= token < rows for token in tokens):
            raise self._refuse(
                f"has {brief(stored)} of the shape {list(shape)} for {len(tokens)} tokens, and "
                f"{self._where} has an embedding of the shape {list(plan.tensor.shape)}. {_OTHER}"
            )
        plan.changes.append(Rows(stored, tokens))

    def _adapt(self, module: str, levels: Mapping[int, Factors]) -> None:
        """Add products to the weight of a module, or to its parameters."""
        for factors in levels.values():
            if not {"A", "B"} <= factors.keys():
                raise self._refuse(f"lacks lora_A or lora_B of {brief(module)}. Save it again")
        name = self._named(f"{module}.weight")
        named = self._config.parameters(module)
        there = name in self._plans or (self._tied and is_output(name))
        if parameters := [each for each in named if self._has(module, each) and not there]:
            self._adapt_parameters(module, parameters, levels)
            return
        factors = levels[min(levels)]
        plan = self._target(name, factors["A"])
        (rank, columns), (rows, _) = self._matrices(module, factors)
        shape = plan.tensor.shape
        if shape not in ((rows, columns), (columns, rows)):
            raise self._misfit(module, (rows, columns), name, shape)
        magnitude = factors.get("magnitude", "")
        if magnitude and self._adapter.tensors[magnitude].shape not in ((rows,), (1, rows)):
            raise self._refuse(f"has {brief(magnitude)} for other than {rows:,} rows")
        turned = factors.embedding or self._is_conv1d(name)
        scale = self._config.scale(module, rank)
        plan.changes.append(
            Product(
                factors["A"],
                factors["B"],
                scale,
                magnitude=magnitude,
                rounded=factors.embedding or "weight" in named or self._config.rounds,
                transposed=shape != (rows, columns) or (rows == columns and turned),
            )
        )
        if bias := factors.get("bias"):
            target = self._target(self._named(f"{module}.bias"), bias)
            if self._adapter.tensors[bias].shape != target.tensor.shape:
                raise self._refuse(f"has {brief(bias)} of another shape than the base's. {_OTHER}")
            target.changes.append(Bias(bias, scale))

    def _adapt_parameters(
        self, module: str, parameters: Sequence[str], levels: Mapping[int, Factors]
    ) -> None:
        """Add products to parameters of a module, such as all experts' matrices in one tensor.

        PEFT wraps the module once for each, the first one innermost. Which order that is, shapes
        tell; where they do not, it is that of transformers' modules.
        """
        inside_first = [levels[depth] for depth in sorted(levels, reverse=True)]
        if len(parameters) != len(inside_first):
            raise self._refuse(
                f"adapts {len(inside_first)} parameters of {brief(module)}, and target_parameters "
                f"in {self._config.file.name} names {len(parameters)}. {MERGE}"
            )
        fits = [
            [self._places(module, *each) for each in zip(order, inside_first, strict=True)]
            for order in (parameters, parameters[::-1])
        ]
        chosen = next((each for each in fits if all(each)), None)
        if chosen is None:
            (_, columns), (rows, _) = self._matrices(module, inside_first[0])
            raise self._misfit(module, (rows, columns), "/".join(parameters), ())
        for places in chosen:
            for name, product in places:
                self._plans[name].changes.append(product)

    def _has(self, module: str, parameter: str) -> bool:
        """Return whether a module of the base has a parameter, or its experts its parts."""
        return any(self._named(name) in self._plans for name in _first(module, parameter))

    def _places(self, module: str, parameter: str, factors: Factors) -> list[tuple[str, Product]]:
        """Return the tensors of the base that a parameter is, each with its product.

        None if the base has no such tensors, or of other shapes.
        """
        (ranks, columns), (rows, _) = self._matrices(module, factors)
        whole = self._named(f"{module}.{parameter}")
        if whole in self._plans:
            shape = self._target(whole, factors["A"]).tensor.shape
            experts = shape[0] if len(shape) == 3 else 1
            matrix = shape[-2:]
            if matrix not in ((rows, columns), (columns, rows)) or ranks % experts:
                return []
            turned = matrix != (rows, columns)
            if rows == columns:
                turned = self._is_turned(whole)
            return [(whole, self._product(module, parameter, factors, experts, transposed=turned))]
        return self._places_of_experts(module, parameter, factors)

    def _places_of_experts(
        self, module: str, parameter: str, factors: Factors
    ) -> list[tuple[str, Product]]:
        """Return the same for a base whose files have each expert's matrices apart."""
        (ranks, columns), (rows, _) = self._matrices(module, factors)
        for parts in _PARTS.get(parameter, ()):
            own = [
                [self._named(f"{module}.{expert}.{part}.weight") for part in parts]
                for expert in range(self._experts(module, parts[0]))
            ]
            names = [name for each in own for name in each]
            wanted = (rows // len(parts), columns)
            if not names or ranks % len(own) or len(parts) * wanted[0] != rows:
                continue
            if all(name in self._plans for name in names) and all(
                self._target(name, factors["A"]).tensor.shape == wanted for name in names
            ):
                product = self._product(module, parameter, factors, len(own), transposed=False)
                return [
                    (name, product._replace(expert=expert, first_row=place * wanted[0]))
                    for expert, each in enumerate(own)
                    for place, name in enumerate(each)
                ]
        return []

    def _experts(self, module: str, part: str) -> int:
        count = 0
        while self._named(f"{module}.{count}.{part}.weight") in self._plans:
            count += 1
        return count

    def _product(
        self, module: str, parameter: str, factors: Factors, experts: int, *, transposed: bool
    ) -> Product:
        rank = self._adapter.tensors[factors["A"]].shape[0] // experts
        scale = self._config.scale(f"{module}.{parameter}", rank)
        return Product(factors["A"], factors["B"], scale, transposed, rounded=True, experts=experts)

    def _is_turned(self, name: str) -> bool:
        """Return whether experts' square matrices are stored with their inputs first.

        The width of the model tells, and what is between two matrices, which others have.
        """
        module = name.rpartition(".")[0]
        both, down = (self._plans.get(f"{module}.{part}") for part in ("gate_up_proj", "down_proj"))
        if both is None or down is None:
            return False
        return both.tensor.shape[-1] == 2 * down.tensor.shape[-2]

    def _is_conv1d(self, name: str) -> bool:
        """Return whether a square matrix is of GPT-2's Conv1D, stored with its inputs first.

        What is thrice as wide tells. A config's `fan_in_fan_out` is that of the last module.
        """
        inner = name.rpartition(".")[0].rpartition(".")[2]
        return inner in _CONV1D and any(
            each.endswith("attn.c_attn.weight") and shape == (shape[0], 3 * shape[0])
            for each, (_, shape) in self._base.tensors.items()
            if shape
        )

    def _matrices(self, module: str, factors: Factors) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the shapes of both factors.

        Raises:
            UserError: They are no factors of a product.
        """
        a, b = (self._adapter.tensors[factors[key]] for key in "AB")
        match a.shape, b.shape:
            case (rank, columns), (rows, inner) if rank == inner > 0:
                return (rank, columns), (rows, inner)
        raise self._refuse(
            f"has factors of the shapes {list(a.shape)} and {list(b.shape)} for {brief(module)}, "
            f"which are not those of two matrices. {MERGE}"
        )

    def _target(self, name: str, stored: str) -> _Plan:
        """Return the plan of a tensor that is adapted. A tied output layer is the embedding."""
        if name not in self._plans and is_output(name) and self._tied:
            name = self._embedding
        plan = self._plans.get(name)
        if plan is None:
            raise self._refuse(
                f"has {brief(stored)}, and {self._where} has no {brief(name)}. {_OTHER}"
            )
        if plan.tensor.dtype not in FLOATS:
            raise self._refuse(
                f"adapts {brief(name)}, which {self._where} has in {plan.tensor.dtype}: name the "
                "base that is not quantized with --base"
            )
        return plan

    def _misfit(
        self, module: str, product: tuple[int, int], name: str, shape: tuple[int, ...]
    ) -> UserError:
        there = f"is {list(shape)}" if shape else "is missing or of other shapes"
        return self._refuse(
            f"is made for a matrix of the shape {list(product)} at {brief(module)}, and "
            f"{brief(name)} in {self._where} {there}. {_OTHER}"
        )

    def _refuse(self, words: str) -> UserError:
        return UserError(f"adapter {self._place} {words}")


def _first(module: str, parameter: str) -> list[str]:
    """Return the names that a parameter may have in files, or those of the first expert's parts."""
    parts = [part for each in _PARTS.get(parameter, ()) for part in each]
    return [f"{module}.{parameter}", *(f"{module}.0.{part}.weight" for part in parts)]
