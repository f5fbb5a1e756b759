"""Compare tensors with what the architecture has, exactly, and count numbers that are not finite.

The tensors of an architecture are known from the class that transformers has for the config, made
without memory for weights. That needs torch and seconds, so no command waits for it: a run's
supervisor does it before the plan, and `coordinate-eval checkpoint CKPT --check` when asked. What
was found is kept for the next checkpoint of the same config.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field

from coordinate_eval import _files
from coordinate_eval._format import brief, plural
from coordinate_eval._text_config import text_config
from coordinate_eval.coordinator.inputs.checkpoints import checkpoint as checkpoints
from coordinate_eval.coordinator.inputs.checkpoints import config_file, reading
from coordinate_eval.coordinator.inputs.checkpoints.formats.layouts import Tensor
from coordinate_eval.coordinator.inputs.checkpoints.formats.sources import BLOCK_BYTES, Source
from coordinate_eval.coordinator.inputs.checkpoints.model.fit import (
    FLOATS,
    is_embedding,
    is_output,
    ties_embeddings,
)
from coordinate_eval.coordinator.inputs.checkpoints.names.renamed import OUTPUTS, Renamed
from coordinate_eval.errors import CoordinateError, WeightsRefused
from coordinate_eval.records import Checkpoint, Record
from coordinate_eval.records.base import schema

_THREADS = 4  # that read tensors whole
_SHOWN = 3
_MOST_FURTHER = 64  # layers that predict further tokens
_NUMBER = re.compile(r"\.\d+(?=\.)")
_BUFFERS = re.compile(r"inv_freq$|rotary_emb\.|\.masked_bias$|\.attention\.bias$|\.attn\.bias$")
"""Names of tensors that models compute, and that some checkpoints have."""

# Keys of a config that could name code, or kernels that are downloaded, and change no tensor.
_DROPPED = ("auto_map", "quantization_config", "attn_implementation", "experts_implementation")


class Architecture(Record):
    """The tensors that checkpoints of an architecture have."""

    shapes: dict[str, tuple[int, ...]]
    tied: frozenset[str] = Field(description="names that are others of these, and may lack")
    ignored: list[str] = Field(
        description="patterns of names that are no mistake: layers that predict further tokens, …"
    )
    prefix: str = Field(description="of names, but in files of the model without its output layer")

    def name_of(self, name: str) -> str:
        """Return the name that a tensor has here."""
        longer = f"{self.prefix}.{name}"
        return longer if name not in self.shapes and longer in self.shapes else name


class _Known(Record):
    """A file with an architecture, or none where transformers has no class for it."""

    schema_: Literal["coordinate-eval/architecture@1"] = schema("coordinate-eval/architecture@1")
    architecture: Architecture | None


def architecture(given: Mapping[str, Any], cache: Path | None = None) -> Architecture | None:
    """Return what a config's model has; None if transformers has no class for it, or is not there.

    No code is run but that of transformers. What was found out is kept in the user's `cache`; what
    could not be, as where torch is not installed, is tried again the next time.
    """
    text = json.dumps([_version(), given], sort_keys=True)
    name = f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"
    kept = None
    with contextlib.suppress(CoordinateError, OSError):
        if cache is not None:
            kept = _files.own_folder(cache / f"architectures-{os.geteuid()}") / name
        if kept is not None and (known := _files.read_record_if_there(kept, _Known)):
            return known.architecture
    try:
        found = _architecture(given)
    except Exception:
        return None
    with contextlib.suppress(OSError):
        if kept is not None:
            _files.write_record(kept, _Known(architecture=found))
    return found


def _version() -> str:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("transformers")
    return ""


def _architecture(given: Mapping[str, Any]) -> Architecture | None:
    kind = given.get("model_type")
    values = {
        k: _decoded(v) for k, v in given.items() if k not in _DROPPED and not k.startswith("_")
    }
    if "quantization_config" in given:
        return None
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.core_model_loading import revert_weight_conversion
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if kind not in CONFIG_MAPPING:
        return None
    made = CONFIG_MAPPING[str(kind)](**values)
    auto: Any = AutoModelForCausalLM
    with torch.device("meta"):
        model = auto.from_config(made, attn_implementation="eager")
    state = revert_weight_conversion(model, model.state_dict())
    ignored = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    return Architecture(
        shapes={name: tuple(tensor.shape) for name, tensor in state.items()},
        tied=frozenset(tied),
        ignored=[*ignored, *_further(given)],
        prefix=getattr(model, "base_model_prefix", ""),
    )


def _decoded(value: Any) -> Any:  # noqa: ANN401 - a value of JSON
    """Return a value of a config, with the numbers that JSON has no form for."""
    match value:
        case {"__float__": ("Infinity" | "-Infinity" | "NaN") as text}:
            return float(text)
        case dict():
            return {key: _decoded(inner) for key, inner in value.items()}
        case list():
            return [_decoded(inner) for inner in value]
    return value


def _further(given: Mapping[str, Any]) -> list[str]:
    """Return what matches the names of layers that predict further tokens, after all others."""
    first, count = given.get("num_hidden_layers"), given.get("num_nextn_predict_layers")
    if not isinstance(first, int) or not isinstance(count, int) or count > _MOST_FURTHER:
        return []
    return [rf"\.layers\.{first + each}\." for each in range(count)]


class Differences(NamedTuple):
    """The differences between tensors and an architecture."""

    missing: Sequence[str]
    unknown: Sequence[str]
    shapes: Sequence[tuple[str, tuple[int, ...], tuple[int, ...]]]
    """Names with the shape that is there, and the one that the architecture has."""
    quantized: Sequence[str] = ()
    """Names of weights that are quantized, and of their scales."""

    def words(self) -> str:
        """Return what is wrong, in words; empty if nothing is."""
        found = []
        if self.missing:
            found.append(
                f"{plural(len(self.missing), 'tensor')} of the model are missing: "
                f"{_listed(self.missing)}"
            )
        if self.unknown:
            found.append(
                f"the model has no tensor {_listed(self.unknown)}"
                + (f" ({len(self.unknown):,} such names)" if len(self.unknown) > 1 else "")
            )
        if self.quantized:
            found.append(
                f"{_listed(self.quantized)} are of quantized weights, and the config tells no "
                "quantization"
            )
        if self.shapes:
            name, there, wanted = self.shapes[0]
            found.append(
                f"{plural(len(self.shapes), 'tensor')} have another shape, such as {brief(name)}: "
                f"{list(there)}, and {list(wanted)} by the config"
            )
        return "; ".join(found)


def compare(tensors: Mapping[str, Tensor], wanted: Architecture, *, mapped: bool) -> Differences:
    """Compare tensors with an architecture.

    Names that transformers wrote long ago may be others than today's. So, unless a mapping made the
    names, unknown ones count only if they are biases, or in layers beyond the architecture's.
    Beside unknown ones, missing ones count only in modules that are known, unless most are missing.
    """
    tensors = {wanted.name_of(name): tensor for name, tensor in tensors.items()}
    unknown = [
        name
        for name in tensors
        if name not in wanted.shapes
        and not _BUFFERS.search(name)
        and not any(re.search(each, name) for each in wanted.ignored)
        and name.rpartition(".")[0] not in _outputs(wanted)
    ]
    missing = [name for name in wanted.shapes if name not in tensors and name not in wanted.tied]
    shapes = [
        (name, tensor.shape, wanted.shapes[name])
        for name, tensor in tensors.items()
        if name in wanted.shapes and tensor.shape != wanted.shapes[name]
    ]
    quantized = [
        name
        for name, tensor in tensors.items()
        if ("weight" in (last := name.rpartition(".")[2]) and tensor.dtype not in FLOATS)
        or ("scale" in last and name in unknown)
    ]
    if not mapped:
        known = {name.rpartition(".")[0] for name in tensors if name in wanted.shapes}
        if unknown and not _mostly_missing(missing, wanted):
            missing = [name for name in missing if name.rpartition(".")[0] in known]
        unknown = _beyond(unknown, wanted)
    return Differences(missing, unknown, shapes, quantized)


def _beyond(unknown: Sequence[str], wanted: Architecture) -> list[str]:
    """Return the names that the architecture would have if it had more layers, experts or biases.

    Engines pass over a bias that they do not expect.
    """
    modules = {name.rpartition(".")[0] for name in wanted.shapes}
    forms = {_NUMBER.sub(".", name) for name in wanted.shapes}
    numbered = {part for name in wanted.shapes for part in _numbered(name)}
    return [
        name
        for name in unknown
        if (_NUMBER.sub(".", name) in forms and not numbered.issuperset(_numbered(name)))
        or (name.endswith(".bias") and name.removesuffix(".bias") in modules)
    ]


def _mostly_missing(missing: Sequence[str], wanted: Architecture) -> bool:
    """Return whether most kinds of tensors are missing: names are those of another model."""
    forms = {_NUMBER.sub(".", name) for name in wanted.shapes}
    return 2 * len({_NUMBER.sub(".", name) for name in missing}) > len(forms)


def _numbered(name: str) -> list[str]:
    """Return the names of the numbered modules that a tensor is in."""
    return [name[: found.end()] for found in _NUMBER.finditer(name)]


def _outputs(wanted: Architecture) -> frozenset[str]:
    """Return the modules whose tensors are tied to others."""
    return frozenset(name.rpartition(".")[0] for name in wanted.tied)


class Verdict(NamedTuple):
    """The guard's verdict about a checkpoint."""

    differences: Differences | None
    """None if its architecture is not known."""
    why: str
    """The reason why it is refused; empty if it is not."""


def judge(checkpoint: Checkpoint, source: Source, cache: Path | None = None) -> Verdict:
    """Compare a checkpoint with its architecture, which may be known in the user's cache."""
    config = config_file.file_of([*map(Path, checkpoint.files)])
    whole = reading.config_of(source, config_file.read(config))
    # The language model of a larger one has other names in it. ModelOpt tells of quantized weights
    # in a file of its own.
    others = checkpoints.MODELOPT in (Path(file).name for file in checkpoint.files)
    others = others or text_config(whole, config).given is not whole
    wanted = None if others else architecture(whole, cache)
    if wanted is None:
        return Verdict(None, "")
    mapped = _is_mapped(checkpoint)
    found = compare(source.tensors, wanted, mapped=mapped)
    words = found.words()
    if not words:
        return Verdict(found, "")
    by = f", by the mapping {checkpoint.mapping.trainer}" if checkpoint.mapping else ""
    named = mapped or _mostly_missing(found.missing, wanted)
    then = ", or a mapping of its names with --mapping" if named else ""
    return Verdict(
        found,
        f"checkpoint {checkpoint.path} is not the model of its config.json{by}: {words}. Give the "
        f"config.json of this model with --config{then}",
    )


def _is_mapped(checkpoint: Checkpoint) -> bool:
    """Return whether a mapping made the names of tensors, in the checkpoint or in its parts."""
    rules = checkpoint.mapping.rules if checkpoint.mapping else ()
    return not all(rule.kept for rule in rules) or any(map(_is_mapped, checkpoint.parts))


class NotFinite(NamedTuple):
    """Numbers of a tensor that are none."""

    name: str
    nan: int
    infinite: int

    def words(self) -> str:
        """Return them in words."""
        counts = [(self.nan, "NaN"), (self.infinite, "infinite")]
        return f"{brief(self.name)}: {', '.join(f'{n:,} {what}' for n, what in counts if n)}"


# Types whose numbers may not be finite: the bits of an infinite one, by the bits of unsigned ones.
_INFINITE = {
    "float64": ("u8", 0x7FF0_0000_0000_0000),
    "float32": ("u4", 0x7F80_0000),
    "float16": ("u2", 0x7C00),
    "bfloat16": ("u2", 0x7F80),
}


def count_not_finite(raw: memoryview, dtype: str) -> tuple[int, int]:
    """Return how many numbers in the bytes of a tensor are NaN, and how many infinite."""
    if dtype not in _INFINITE or not raw:  # float8 is scaled by others
        return 0, 0
    import numpy as np

    kind, infinite = _INFINITE[dtype]
    bits = np.frombuffer(raw, kind)
    sign = 1 << 8 * bits.itemsize - 1
    # What is negative is the greatest without a sign, and the least with one.
    if bits.max() < sign | infinite and bits.view(kind.replace("u", "i")).max() < infinite:
        return 0, 0
    size = bits & bits.dtype.type(sign - 1)
    return int((size > infinite).sum()), int((size == infinite).sum())


def not_finite(source: Source) -> list[NotFinite]:
    """Return the tensors with numbers that are not finite. All tensors are read.

    Raises:
        UserError: A file was cut short.
    """

    def of(name: str) -> NotFinite:
        buffer, dtype = memoryview(bytearray(BLOCK_BYTES)), source.tensors[name].dtype
        counts = [count_not_finite(block, dtype) for block in source.parts(name, buffer)]
        return NotFinite(name, *map(sum, zip((0, 0), *counts, strict=True)))

    with ThreadPoolExecutor(_THREADS) as pool:
        return [found for found in pool.map(of, source.tensors) if found.nan or found.infinite]


def check_finite(path: str, found: Sequence[NotFinite]) -> None:
    """Check that no tensors of a checkpoint were found with numbers that are not finite.

    Raises:
        WeightsRefused: Some were; names the tensors.
    """
    if found:
        raise WeightsRefused(
            f"checkpoint {path} has numbers that are not finite in "
            f"{plural(len(found), 'tensor')}: {'; '.join(n.words() for n in found[:_SHOWN])}. "
            "Training diverged, or the save was damaged: use an earlier checkpoint"
        )


def check_left_out(checkpoint: Checkpoint, source: Source) -> None:
    """Check that tensors that are left out change nothing.

    An output layer that engines leave out is the embedding, and what the model has not is zero. Of
    what is made of others, each of these is checked.

    Raises:
        WeightsRefused: One does.
    """
    for part in checkpoint.parts:
        check_left_out(part, reading.source(part))
    if checkpoint.mapping and isinstance(source, Renamed) and (found := source.not_zero()):
        raise WeightsRefused(
            f"checkpoint {checkpoint.path}: {brief(found[0])} is not zero, and the model of its "
            "config.json has no such tensor, so it would answer otherwise than in training. Give "
            "the config.json of this model with --config; or leave the tensor out by a mapping of "
            "your own, with --mapping"
        )
    if checkpoint.parts or checkpoint.quantization:
        return
    if not ties_embeddings(*reading.text_config_of(checkpoint)):
        return
    left_out = source.tied if isinstance(source, Renamed) else ()
    stored = [name for name in source.tensors if is_output(name) and name.endswith(OUTPUTS)]
    embeddings = [name for name in source.tensors if is_embedding(name)]
    for name in (*left_out, *stored) if embeddings else ():
        layout = source.layout(name)
        if layout is not None and layout in map(source.layout, embeddings):
            continue
        output = source.read(name)
        if not any(_same(source.read(each), output) for each in embeddings):
            raise WeightsRefused(
                f"checkpoint {checkpoint.path}: tie_word_embeddings is true, and {brief(name)} "
                f"differs from {brief(embeddings[0])}. Set it to false in the config.json that "
                "you give with --config"
            )


def _same(one: Any, other: Any) -> bool:  # noqa: ANN401 - tensors, and torch is not loaded
    return one.dtype == other.dtype and bool(one.equal(other))


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(brief, names[:_SHOWN]))
    return shown + (", …" if len(names) > _SHOWN else "")
