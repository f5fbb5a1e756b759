"""Checkpoints, described from headers and small files without torch and without the weights.

A checkpoint is a folder of safetensors with config and tokenizer, as `save_pretrained` writes it,
or a state dict of torch.save with config and tokenizer beside it. Or it is made of others: an
adapter and its base, or an average. Files that are missing, torn or still being written are
reported before anything is submitted.
"""

import contextlib
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Final, NamedTuple

import platformdirs

from coordinate_eval import _format
from coordinate_eval._text_config import text_config
from coordinate_eval.coordinator.inputs.checkpoints import (
    checkpoint_files,
    config_file,
    finding,
    folder_file,
    kept_files,
    reading,
    remote,
)
from coordinate_eval.coordinator.inputs.checkpoints.formats import (
    megatron_settings,
    safetensors_file,
)
from coordinate_eval.coordinator.inputs.checkpoints.formats.layouts import ITEM_BYTES, Tensor
from coordinate_eval.coordinator.inputs.checkpoints.formats.sources import Source, Stored
from coordinate_eval.coordinator.inputs.checkpoints.mixed import adapter, average
from coordinate_eval.coordinator.inputs.checkpoints.mixed.average import Members
from coordinate_eval.coordinator.inputs.checkpoints.model import fit
from coordinate_eval.coordinator.inputs.checkpoints.model.model_shape import model_shape
from coordinate_eval.coordinator.inputs.checkpoints.model.quantized import quantized
from coordinate_eval.coordinator.inputs.checkpoints.names import mapping as mappings
from coordinate_eval.coordinator.inputs.checkpoints.names.renamed import Renamed
from coordinate_eval.coordinator.inputs.checkpoints.saved import step_of
from coordinate_eval.errors import StoreSilent, UserError
from coordinate_eval.records import Checkpoint, CheckpointFormat, Made
from coordinate_eval.records.names import TensorMapping

# The second has the quantization of a model of ModelOpt up to 0.29.
MODELOPT: Final = "hf_quant_config.json"
_BESIDE_CONFIG = ("generation_config.json", MODELOPT)
_MOST_WEIGHT_BYTES = 1 << 50
_MOST_LEVELS = 5  # of checkpoints that are made of others
_MOST_PARTS = 1200


def inspect(
    what: Path | Members,
    *,
    config: Path | None = None,
    tokenizer: Path | None = None,
    mapping: Path | None = None,
    base: Path | None = None,
    cache: Path | None = None,
) -> Checkpoint:
    """Describe a checkpoint: a folder, a .pt, .pth or .bin file, or an average.

    An average is given by its members, or as the YAML file that names them.

    Links are resolved here, so a `latest` that moves on later does not matter. `config` and
    `tokenizer` (a file, or its folder) are used instead of those of the checkpoint, and `base`
    instead of the one that an adapter names. `mapping` is the user's own, from the names of tensors
    to those of Hugging Face; else a shipped one is taken if the names are those of a trainer.
    What is not given may be in a `coordinate-eval.yaml`. Of a checkpoint in a store, small files
    are copied into a folder in `cache`, by default this user's.

    Raises:
        UserError: A file is missing, torn, malformed, unreadable, or would run code.
    """
    remote.forget()
    cache = cache or Path(platformdirs.user_cache_dir("coordinate-eval"))
    found = _inspect(what, _Given(config, tokenizer, mapping, base), _Opened((), [], cache))
    if base is not None and not _has_adapter(found):
        raise UserError(
            f"{found.path} is no adapter, and --base names what adapters are merged into: leave "
            "it out, or give the adapter's folder"
        )
    return found


def _inspect(what: Path | Members, given: "_Given", above: "_Opened") -> Checkpoint:
    config, tokenizer, mapping, _ = given
    path = remote.located(what.paths[-1] if isinstance(what, Members) else what)
    with _words_of(path):
        if isinstance(what, Members):
            return _average(what.place, what, given, above.within(what.place))
        place = finding.resolve(path)
        opened = above.within(place)
        if place.suffix in average.SUFFIXES and place.is_file():
            return _average(place, average.read_file(place), given, opened)
        weights, kind, extra = finding.find_weights(place)
        if kind is CheckpointFormat.ADAPTER:
            return _adapter(weights, given, opened)
        # Configs may lie beside a link to a file, or beside the file; or above parts of ranks.
        beside = [place.parent, path.absolute().parent]
        if place.is_dir():
            beside = [place, place.parent] if kind.converted else [place]
        told = folder_file.of(place)
        mapping = mapping or told.mapping
        if told.config and not config:
            of_models = finding.without_trainings(beside)
            config = told.unless(of_models, "config", [config_file.CONFIG])
        tokenizer = tokenizer or told.unless(beside, "tokenizer", checkpoint_files.TOKENIZERS)
        of_model = finding.find_config(place, beside, config, weights)
        files = {
            *extra,
            of_model,
            *checkpoint_files.present(of_model.parent, _BESIDE_CONFIG),
            *finding.find_tokenizer(place, beside, tokenizer),
        }
        finding.check_weights(weights)
        sides = kept_files.local(sorted(files, key=lambda file: file.name), above.cache)
        return _described(place, kind, weights, sides, mapping=mapping)


def check_usable(checkpoint: Checkpoint) -> None:
    """Check that prompts can be built for a checkpoint, and that an engine can tell its model.

    A plan alone needs neither.

    Raises:
        UserError: Its tokenizer.json has no vocabulary, or its config no `model_type`.
    """
    _, text = reading.text_config_of(checkpoint)
    if not text.kind:
        raise UserError(
            f"{text.file} has no model_type, so no engine can tell what model it is. Save the "
            "model's config again, or name another with --config"
        )
    for file in map(Path, checkpoint.files):
        if file.name == "tokenizer.json" and b'"vocab"' not in checkpoint_files.read(file):
            raise UserError(
                f"{file} has no vocabulary, so it is no tokenizer. Save the tokenizer again, or "
                "name another with --tokenizer"
            )


def named(checkpoint: Made) -> Path | Members:
    """Return what `inspect` describes as this checkpoint."""
    path = remote.located(checkpoint.path)
    if checkpoint.format is not CheckpointFormat.AVERAGE or path.suffix in average.SUFFIXES:
        return path
    return Members(
        [remote.located(part.path) for part in checkpoint.parts], list(checkpoint.shares)
    )


def base_of(checkpoint: Made) -> Path | None:
    """Return the base that an adapter, or all those of an average, are merged into."""
    if checkpoint.format is CheckpointFormat.ADAPTER:
        return remote.located(checkpoint.parts[0].path)
    bases = set(filter(None, map(base_of, checkpoint.parts)))
    return bases.pop() if len(bases) == 1 else None


def _has_adapter(checkpoint: Checkpoint) -> bool:
    return checkpoint.format is CheckpointFormat.ADAPTER or any(map(_has_adapter, checkpoint.parts))


def trained_step(checkpoint: Checkpoint) -> int | None:
    """Return the training step that a checkpoint's name tells; of an average, its last one's."""
    if checkpoint.format is CheckpointFormat.AVERAGE:
        return trained_step(checkpoint.parts[-1])
    return step_of(checkpoint.path)


class _Given(NamedTuple):
    """Files that the user names in place of the checkpoint's own."""

    config: Path | None
    tokenizer: Path | None
    mapping: Path | None
    base: Path | None


class _Opened(NamedTuple):
    """The checkpoints that are being described, where one is made of others."""

    above: tuple[Path, ...]
    """The checkpoints that this one is a part of."""
    all: list[Path]
    """All checkpoints that were opened so far."""
    cache: Path
    """The folder in which small files of stores are kept."""

    def within(self, place: Path) -> "_Opened":
        """Return the same for the parts of a checkpoint.

        Raises:
            UserError: It is a part of itself, or of too many levels or parts.
        """
        self.all.append(place)
        if place in self.above or len(self.above) >= _MOST_LEVELS or len(self.all) > _MOST_PARTS:
            raise UserError(
                f"{(*self.above, place)[0]} is made of itself, of more than {_MOST_LEVELS} levels "
                f"of averages and adapters, or of more than {_MOST_PARTS:,} checkpoints: it comes "
                f"to {place} again or too late. Name the checkpoints themselves"
            )
        return _Opened((*self.above, place), self.all, self.cache)


@contextlib.contextmanager
def _words_of(path: Path) -> Iterator[None]:
    """Turn errors of the operating system into words about a checkpoint."""
    try:
        yield
    except OSError as error:
        where = error.filename or path
        raise UserError(
            f"checkpoint {path}: cannot read {where} ({error.strerror or error}). "
            "Check its permissions, and that the run still writes there"
        ) from error


def _average(place: Path, members: Members, given: _Given, above: _Opened) -> Checkpoint:
    parts = [_inspect(path, given, above) for path in members.paths]
    for number, part in enumerate(parts):
        if any(part.path == other.path for other in parts[:number]):
            raise UserError(f"{part.path} is in the average twice: give it a weight instead")
        if part.quantization:
            raise UserError(
                f"{part.path} is quantized ({part.quantization}), and such weights have no "
                "average. Average the models before they are quantized"
            )
    average.check_configs(
        [reading.text_config_of(part)[0] for part in parts], [part.path for part in parts]
    )
    kind = CheckpointFormat.AVERAGE
    opened = reading.open_mixed(kind, [], parts, members.weights)
    sides = _files_of(parts[-1])
    return _described(place, kind, [], sides, opened, parts=parts, shares=members.weights)


def _adapter(weights: list[Path], given: _Given, above: _Opened) -> Checkpoint:
    """Describe an adapter. Its folder's tokenizer counts if it has one."""
    place = weights[0].parent
    finding.check_weights(weights)
    told = folder_file.of(place)
    config = adapter.AdapterConfig(place / adapter.CONFIG)
    found = adapter.find_base(config, given.base or told.base)
    own = checkpoint_files.present(place, checkpoint_files.TOKENIZERS)
    try:
        said = told.unless([place], "tokenizer", checkpoint_files.TOKENIZERS)
        tokenizer = given.tokenizer or said or (place if own else None)
        stand_ins = _Given(given.config or told.config, tokenizer, given.mapping, None)
        base = _inspect(found, stand_ins, above)
    except UserError as error:
        raise UserError(f"the base of adapter {place}: {error}") from error
    if base.quantization:
        raise UserError(
            f"adapter {place} is merged into its base, and {base.path} is quantized "
            f"({base.quantization}): name the base that it was quantized from with --base"
        )
    kind = CheckpointFormat.ADAPTER
    opened = reading.open_mixed(kind, weights, [base], [])
    return _described(place, kind, weights, _files_of(base), opened, parts=[base])


def _files_of(part: Checkpoint) -> list[Path]:
    """Return the files beside the weights of a part, without the index of its weights."""
    return [file for file in map(Path, part.files) if file.name != safetensors_file.INDEX]


def _described(
    place: Path,
    kind: CheckpointFormat,
    weights: Sequence[Path],
    sides: Sequence[Path],
    mixed: Source | None = None,
    *,
    mapping: Path | None = None,
    parts: Sequence[Checkpoint] = (),
    shares: Sequence[float] = (),
) -> Checkpoint:
    """Describe a checkpoint whose files, or parts, have been found.

    Args:
        weights: the files of its own that tensors are read from.
        sides: the files beside them.
        mixed: the tensors, if it is made of others.
        parts: those that it is made of.
        shares: the weights of these.
    """
    finding.check_files(sides)
    of_model = config_file.file_of(sides)
    whole = config_file.read(of_model)
    names = None
    if mixed is None:
        opened: Source = reading.stored(kind, weights, sides)
        text = text_config(whole, of_model)
        if isinstance(opened, Stored) and opened.trained:
            megatron_settings.check_config(opened.trained, text)
        names = mappings.choose(opened.tensors, text.kind, mapping)
        names = names or mappings.unwrapping(opened.tensors)
        named = kind.converted or safetensors_file.named_for_engines(weights, sides)
        if names is None and not named:
            if weights[0].name.startswith("consolidated"):
                raise UserError(
                    f"checkpoint {place} has Mistral's own files, and no mapping fits names such "
                    f"as {_format.brief(next(iter(opened.tensors), ''))} for a model of type "
                    f"{text.kind}. Give the model's files in Hugging Face's format, or "
                    "--mapping FILE"
                )
            names = mappings.AS_THEY_ARE
        if names is not None:
            opened = Renamed(opened, names, text, tied=fit.ties_embeddings(whole, text))
    else:
        opened = mixed
        whole = reading.config_of(opened, whole)
        text = text_config(whole, of_model)
    tensors, converted = opened.tensors, kind.converted or names is not None
    if converted:
        _check_types(place, tensors)
    counts = _parameters_by_type(opened)
    if not counts:
        raise UserError(f"{place} has no parameters: its weight files hold no tensors")
    dtype = max(counts, key=lambda dtype: counts[dtype])
    size = sum(file.stat().st_size for file in weights)
    if converted:  # an optimizer may lie in the files
        size = sum(count * ITEM_BYTES[dtype] for dtype, count in counts.items())
    if size > _MOST_WEIGHT_BYTES:
        raise UserError(
            f"checkpoint {place} claims {_format.size(size)} of weights, which no disk holds. "
            "Save it again"
        )
    also = of_model.parent / MODELOPT
    more = config_file.read(also) if also in sides else {}
    shape = model_shape(text, dtype, quantized(whole, text, more), tensors)
    fit.check(place, tensors, whole, text)
    # A tensor that has several names is counted once.
    parameters = shape["parameters"]
    if not shape["quantization"]:
        parameters = min(parameters, sum(counts.values()))
    loaded = min(size, shape["loaded_bytes"])
    shape |= {
        "parameters": max(1, parameters),
        "active_parameters": min(parameters, shape["active_parameters"]),
        "loaded_bytes": loaded,
        "routed_bytes": min(loaded, shape["routed_bytes"]),
    }
    return Checkpoint(
        path=finding.as_text(place),
        identity=_identity(weights, sides, names, parts, shares),
        format=kind,
        weights=[finding.as_text(file) for file in weights],
        files=[finding.as_text(file) for file in sides],
        mapping=names,
        parts=list(parts),
        shares=list(shares),
        bytes=size,
        dtype=dtype,
        **shape,
    )


def unchanged(checkpoint: Checkpoint) -> bool:
    """Return whether names, sizes and times of the files are still as inspected."""
    remote.forget()
    try:
        weights, files = map(remote.located, checkpoint.weights), map(Path, checkpoint.files)
        mixed = checkpoint.parts, checkpoint.shares
        now = _identity(list(weights), list(files), checkpoint.mapping, *mixed)
        return now == checkpoint.identity and all(map(unchanged, checkpoint.parts))
    except OSError:
        return False


def is_deleted(names: Iterable[str]) -> bool:
    """Return whether one of these files is surely not there. Storage that fails tells nothing."""
    for name in names:
        try:
            remote.located(name).lstat()
        except FileNotFoundError:
            return True
        except (OSError, StoreSilent):
            return False
    return False


def _parameters_by_type(opened: Source) -> dict[str, int]:
    """Return the number of parameters by type. A tensor with several names counts once."""
    held = {opened.layout(name) or name: tensor for name, tensor in opened.tensors.items()}
    counts: dict[str, int] = {}
    for dtype, shape in held.values():
        if elements := math.prod(shape):
            counts[dtype] = counts.get(dtype, 0) + elements
    return counts


def _check_types(place: Path, tensors: Mapping[str, Tensor]) -> None:
    """Check that tensors can be written as safetensors.

    Raises:
        UserError: One has numbers of a type that safetensors lack.
    """
    for name, (dtype, _) in tensors.items():
        if dtype not in safetensors_file.TYPES:
            raise UserError(
                f"checkpoint {place}: {_format.brief(name)} has numbers of type {dtype}, which no "
                "engine reads. Save it in another type"
            )


def _identity(
    weights: Sequence[Path],
    files: Sequence[Path],
    names: TensorMapping | None = None,
    parts: Sequence[Checkpoint] = (),
    shares: Sequence[float] = (),
) -> str:
    digest = hashlib.sha256(names.model_dump_json().encode() if names else b"")
    total = math.fsum(shares)
    for part, share in zip_longest(parts, shares):
        digest.update(json.dumps([part.identity, share and share / total]).encode())
    found = [_as_now(file) for file in weights]
    # In whatever folders they are, since a run may read links to them.
    for each in sorted(found):
        digest.update(json.dumps(each).encode())
    for file in sorted(files, key=lambda file: file.name):
        content = hashlib.sha256(checkpoint_files.read(file)).hexdigest()
        digest.update(json.dumps([file.name, content]).encode())
    return digest.hexdigest()


def _as_now(file: Path) -> list[int | str]:
    found = file.stat()
    return [file.name, found.st_size, checkpoint_files.version(file, found)]


def staged_bytes(checkpoint: Checkpoint) -> int:
    """Return the bytes of the staged copy: weights and small files."""
    return checkpoint.bytes + sum(Path(f).stat().st_size for f in checkpoint.files)
