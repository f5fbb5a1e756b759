"""Compare tensors with what the architecture has, exactly, and count numbers that are not finite.

The tensors of an architecture are known from the class that transformers has for the config, made
without memory for weights. That needs torch and seconds, so no command waits for it: a run's
supervisor does it before the plan, and `coordinate-eval checkpoint CKPT --check` when asked.
"""

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from coordinate_eval._format import brief, plural
from coordinate_eval._text_config import text_config
from coordinate_eval.coordinator.inputs.checkpoints import checkpoint_files
from coordinate_eval.coordinator.inputs.checkpoints.names.renamed import Renamed
from coordinate_eval.coordinator.inputs.checkpoints.sources import Source, Tensor
from coordinate_eval.errors import WeightsRefused
from coordinate_eval.records import Checkpoint

_MOST_CONFIG_BYTES = 4 << 20
_THREADS = 4  # that read tensors whole
_SHOWN = 3
_EMBEDDINGS = ("embed_tokens.weight", "embed_in.weight")
_BUFFERS = re.compile(r"inv_freq$|rotary_emb\.|\.masked_bias$|\.attention\.bias$|\.attn\.bias$")
"""Names of tensors that models compute, and that some checkpoints have."""

# Keys of a config that could name code, or kernels that are downloaded, and change no tensor.
_DROPPED = ("auto_map", "quantization_config", "attn_implementation", "experts_implementation")


class Architecture(NamedTuple):
    """The tensors that checkpoints of an architecture have."""

    shapes: Mapping[str, tuple[int, ...]]
    tied: frozenset[str]
    """Names of these that are others of these, and may lack."""
    ignored: tuple[re.Pattern[str], ...]
    """Names that are no mistake, such as those of layers that predict further tokens."""


def architecture(config: Path) -> Architecture | None:
    """Return what a config's model has; None if transformers has no class for it, or is not there.

    No code is run but that of transformers.
    """
    try:
        import torch
        from transformers import AutoModelForCausalLM
        from transformers.core_model_loading import revert_weight_conversion
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    except ImportError:
        return None
    given = checkpoint_files.read_json(config, _MOST_CONFIG_BYTES)
    kind = given.get("model_type")
    values = {k: v for k, v in given.items() if k not in _DROPPED and not k.startswith("_")}
    if "quantization_config" in given or kind not in CONFIG_MAPPING:
        return None
    try:
        made = CONFIG_MAPPING[str(kind)](**values)
        auto: Any = AutoModelForCausalLM
        with torch.device("meta"):
            model = auto.from_config(made, attn_implementation="eager")
        state = revert_weight_conversion(model, model.state_dict())
    except Exception:
        return None
    ignored = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    return Architecture(
        {name: tuple(tensor.shape) for name, tensor in state.items()},
        frozenset(tied),
        tuple(re.compile(each) for each in ignored),
    )


class Differences(NamedTuple):
    """What tensors and an architecture do not have in common."""

    missing: Sequence[str]
    unknown: Sequence[str]
    shapes: Sequence[tuple[str, tuple[int, ...], tuple[int, ...]]]
    """Names with the shape that is there, and the one that the architecture has."""

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
        if self.shapes:
            name, there, wanted = self.shapes[0]
            found.append(
                f"{plural(len(self.shapes), 'tensor')} have another shape, such as {brief(name)}: "
                f"{list(there)}, and {list(wanted)} by the config"
            )
        return "; ".join(found)


def compare(tensors: Mapping[str, Tensor], wanted: Architecture, *, mapped: bool) -> Differences:
    """Compare tensors with an architecture.

    Names that transformers wrote long ago may be others than today's. So unknown names count only
    where a mapping made them, and missing ones where all others are known.
    """
    unknown = [
        name
        for name in tensors
        if name not in wanted.shapes
        and not _BUFFERS.search(name)
        and not any(each.search(name) for each in wanted.ignored)
        and name.rpartition(".")[0] not in _outputs(wanted)
    ]
    missing = [name for name in wanted.shapes if name not in tensors and name not in wanted.tied]
    shapes = [
        (name, tensor.shape, wanted.shapes[name])
        for name, tensor in tensors.items()
        if name in wanted.shapes and tensor.shape != wanted.shapes[name]
    ]
    if not mapped:
        missing = [] if unknown else missing
        unknown = []
    return Differences(missing, unknown, shapes)


def _outputs(wanted: Architecture) -> frozenset[str]:
    """Return the modules whose tensors are tied to others."""
    return frozenset(name.rpartition(".")[0] for name in wanted.tied)


class Verdict(NamedTuple):
    """What the guard says of a checkpoint."""

    differences: Differences | None
    """None if its architecture is not known."""
    why: str
    """Why it is refused; empty if it is not."""


def judge(checkpoint: Checkpoint, source: Source) -> Verdict:
    """Compare a checkpoint with its architecture."""
    config = next(Path(file) for file in checkpoint.files if Path(file).name == "config.json")
    whole = checkpoint_files.read_json(config, _MOST_CONFIG_BYTES)
    # The language model of a larger one has other names in it.
    wanted = architecture(config) if text_config(whole, config).given is whole else None
    if wanted is None:
        return Verdict(None, "")
    mapped = checkpoint.mapping is not None
    found = compare(source.tensors, wanted, mapped=mapped)
    words = found.words()
    if not words:
        return Verdict(found, "")
    by = f", by the mapping {checkpoint.mapping.trainer}" if checkpoint.mapping else ""
    then = ", or a mapping of your own with --mapping" if mapped else ""
    return Verdict(
        found,
        f"checkpoint {checkpoint.path} is not the model of its config.json{by}: {words}. Give the "
        f"config.json of this model with --config{then}",
    )


class NotFinite(NamedTuple):
    """Numbers of a tensor that are none."""

    name: str
    nan: int
    infinite: int

    def words(self) -> str:
        """Return them in words."""
        counts = [(self.nan, "NaN"), (self.infinite, "infinite")]
        return f"{brief(self.name)}: {', '.join(f'{n:,} {what}' for n, what in counts if n)}"


def not_finite(source: Source) -> list[NotFinite]:
    """Return the tensors with numbers that are not finite. All tensors are read.

    Raises:
        UserError: A file was cut short.
    """

    def of(name: str) -> NotFinite | None:
        import torch

        tensor = source.read(name)
        if not tensor.dtype.is_floating_point or tensor.dtype.itemsize == 1:
            return None  # float8 is scaled by others
        # Faster than asking each number, several times: NaN counts as least and as greatest.
        if not tensor.numel() or bool(torch.isfinite(torch.stack(torch.aminmax(tensor))).all()):
            return None
        nan = int(torch.isnan(tensor).sum())
        return NotFinite(name, nan, int(torch.isinf(tensor).sum()))

    with ThreadPoolExecutor(_THREADS) as pool:
        return [found for found in pool.map(of, source.tensors) if found is not None]


def check_finite(path: str, source: Source) -> None:
    """Check that all numbers are finite.

    Raises:
        WeightsRefused: Some are not; names the tensors.
    """
    if found := not_finite(source):
        raise WeightsRefused(
            f"checkpoint {path} has numbers that are not finite in "
            f"{plural(len(found), 'tensor')}: {'; '.join(n.words() for n in found[:_SHOWN])}. "
            "Training diverged, or the save was damaged: use an earlier checkpoint"
        )


def check_tied(path: str, source: Source) -> None:
    """Check that an output layer that a mapping leaves out is the embedding.

    Raises:
        WeightsRefused: It is another one.
    """
    for name in source.tied if isinstance(source, Renamed) else ():
        embedding = next(each for each in source.tensors if each.endswith(_EMBEDDINGS))
        if not source.read(name).equal(source.read(embedding)):
            raise WeightsRefused(
                f"checkpoint {path}: tie_word_embeddings is true, and {name} differs from "
                f"{embedding}. Set it to false in the config.json that you give with --config"
            )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(brief, names[:_SHOWN]))
    return shown + (", …" if len(names) > _SHOWN else "")
