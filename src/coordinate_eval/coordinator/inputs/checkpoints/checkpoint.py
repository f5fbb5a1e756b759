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
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from coordinate_eval import _format
from coordinate_eval._format import brief
from coordinate_eval._text_config import TextConfig, text_config
from coordinate_eval.coordinator.inputs.checkpoints import (
    adapter,
    average,
    checkpoint_files,
    dcp,
    deepspeed_zero,
    fit,
    folder_file,
    formats,
    megatron,
    merged,
    safetensors_file,
    torch_file,
)
from coordinate_eval.coordinator.inputs.checkpoints.average import Members
from coordinate_eval.coordinator.inputs.checkpoints.layers import LAYERS
from coordinate_eval.coordinator.inputs.checkpoints.model_shape import model_shape
from coordinate_eval.coordinator.inputs.checkpoints.names import mapping as mappings
from coordinate_eval.coordinator.inputs.checkpoints.names.renamed import Renamed
from coordinate_eval.coordinator.inputs.checkpoints.quantized import quantized
from coordinate_eval.coordinator.inputs.checkpoints.saved import step_of
from coordinate_eval.coordinator.inputs.checkpoints.sources import Source, Tensor
from coordinate_eval.coordinator.inputs.checkpoints.torch_pickle import ITEM_BYTES
from coordinate_eval.errors import UserError
from coordinate_eval.records import Checkpoint, CheckpointFormat
from coordinate_eval.records.names import TensorMapping

_CONFIG = "config.json"
# The second has the quantization of a model of ModelOpt up to 0.29.
MODELOPT: Final = "hf_quant_config.json"
_BESIDE_CONFIG = ("generation_config.json", MODELOPT)
_MOST_CONFIG_BYTES = 4 << 20  # read, JSON takes up to thirty times as much
_MOST_WEIGHT_BYTES = 1 << 50
_MOST_LEVELS = 5  # of checkpoints that are made of others
_MOST_PARTS = 1200


class Reader(Protocol):
    """A module that reads checkpoints of one format."""

    def find(
        self, place: Path, names: Sequence[str], parts: Collection[str]
    ) -> tuple[list[Path], list[Path]] | None:
        """Return the weight files at a place, and small files that engines need with them.

        Weight files are all files that tensors are read from, and those that say where tensors are.
        Return None if the place has no weights of this format. `parts` are the names that tell
        another format.
        """
        ...

    def open_source(self, weights: Sequence[Path], files: Sequence[Path]) -> Source:
        """Return the tensors of weight files.

        `files` are the small files of the checkpoint; those that `find` returned are among them.

        Raises:
            UserError: A file is torn, or not what its name says.
        """
        ...


_READERS: Final[Mapping[CheckpointFormat, Reader]] = {
    CheckpointFormat.SAFETENSORS: safetensors_file,
    CheckpointFormat.TORCH: torch_file,
    CheckpointFormat.MEGATRON: megatron,
    CheckpointFormat.DCP: dcp,
    CheckpointFormat.DEEPSPEED: deepspeed_zero,
}
"""The formats that are read. The first that finds weights counts.

A torch file of any other name than a model's comes last: it may be what a trainer saved besides.
"""


def inspect(
    what: Path | Members,
    *,
    config: Path | None = None,
    tokenizer: Path | None = None,
    mapping: Path | None = None,
    base: Path | None = None,
) -> Checkpoint:
    """Describe a checkpoint: a folder, a .pt, .pth or .bin file, or an average.

    An average is given by its members, or as the YAML file that names them.

    Links are resolved here, so a `latest` that moves on later does not matter. `config` and
    `tokenizer` (a file, or its folder) are used instead of those of the checkpoint, and `base`
    instead of the one that an adapter names. `mapping` is the user's own, from the names of tensors
    to those of Hugging Face; else a shipped one is taken if the names are those of a trainer.
    What is not given may be in a `coordinate-eval.yaml`.

    Raises:
        UserError: A file is missing, torn, malformed, unreadable, or would run code.
    """
    return _inspect(what, _Given(config, tokenizer, mapping, base), _Opened((), []))


def _inspect(what: Path | Members, given: "_Given", above: "_Opened") -> Checkpoint:
    config, tokenizer, mapping, _ = given
    path = what.paths[-1] if isinstance(what, Members) else what
    with _words_of(path):
        if isinstance(what, Members):
            return _average(what.place, what, given, above.within(what.place))
        place = _resolve(path)
        opened = above.within(place)
        if place.suffix in average.SUFFIXES and place.is_file():
            return _average(place, average.read_file(place), given, opened)
        weights, kind, extra = _find_weights(place)
        if kind is CheckpointFormat.ADAPTER:
            return _adapter(weights, given, opened)
        # Configs may lie beside a link to a file, or beside the file; or above parts of ranks.
        beside = [place.parent, path.absolute().parent]
        if place.is_dir():
            beside = [place, place.parent] if kind.converted else [place]
        told = folder_file.of(place)
        mapping = mapping or told.mapping
        config = config or told.unless(beside, "config", [_CONFIG])
        tokenizer = tokenizer or told.unless(beside, "tokenizer", checkpoint_files.TOKENIZERS)
        config_file = _find_config(place, beside, config)
        files = {
            *extra,
            config_file,
            *checkpoint_files.present(config_file.parent, _BESIDE_CONFIG),
            *_find_tokenizer(place, beside, tokenizer),
        }
        _check_weights(weights)
        sides = sorted(files, key=lambda file: file.name)
        return _described(place, kind, weights, sides, mapping=mapping)


class Made(Protocol):
    """The record of a checkpoint, and of those that it is made of."""

    @property
    def path(self) -> str: ...  # noqa: D102
    @property
    def format(self) -> CheckpointFormat: ...  # noqa: D102
    @property
    def parts(self) -> "Sequence[Made]": ...  # noqa: D102
    @property
    def shares(self) -> Sequence[float]: ...  # noqa: D102


def named(checkpoint: Made) -> Path | Members:
    """Return what `inspect` describes as this checkpoint."""
    path = Path(checkpoint.path)
    if checkpoint.format is not CheckpointFormat.AVERAGE or path.suffix in average.SUFFIXES:
        return path
    return Members([Path(part.path) for part in checkpoint.parts], list(checkpoint.shares))


def base_of(checkpoint: Made) -> Path | None:
    """Return the base that an adapter, or all those of an average, are merged into."""
    if checkpoint.format is CheckpointFormat.ADAPTER:
        return Path(checkpoint.parts[0].path)
    bases = set(filter(None, map(base_of, checkpoint.parts)))
    return bases.pop() if len(bases) == 1 else None


def trained_step(checkpoint: Checkpoint) -> int | None:
    """Return the training step that a checkpoint's name tells; of an average, its last one's."""
    if checkpoint.format is CheckpointFormat.AVERAGE:
        return trained_step(checkpoint.parts[-1])
    return step_of(checkpoint.path)


class _Given(NamedTuple):
    """What the user names in place of what a checkpoint has."""

    config: Path | None
    tokenizer: Path | None
    mapping: Path | None
    base: Path | None


class _Opened(NamedTuple):
    """What is being described, if one checkpoint is made of others."""

    above: tuple[Path, ...]
    """Those that this one is a part of."""
    all: list[Path]
    """All of them so far."""

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
        return _Opened((*self.above, place), self.all)


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
    for part in parts:
        if part.quantization:
            raise UserError(
                f"{part.path} is quantized ({part.quantization}), and such weights have no "
                "average. Average the models before they are quantized"
            )
    average.check_configs(
        [text_config_of(part)[0] for part in parts], [part.path for part in parts]
    )
    kind = CheckpointFormat.AVERAGE
    opened = _open_mixed(kind, [], parts, members.weights)
    sides = _files_of(parts[-1])
    return _described(place, kind, [], sides, opened, parts=parts, shares=members.weights)


def _adapter(weights: list[Path], given: _Given, above: _Opened) -> Checkpoint:
    """Describe an adapter. Its folder's tokenizer counts if it has one."""
    place = weights[0].parent
    _check_weights(weights)
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
    opened = _open_mixed(kind, weights, [base], [])
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
        place: its path.
        kind: its format.
        weights: the files of its own that tensors are read from.
        sides: the files beside them.
        mixed: the tensors, if it is made of others.
        mapping: the user's own.
        parts: those that it is made of.
        shares: the weights of these.
    """
    _check_sides(sides)
    _check_whole(sides)
    config_file = next(file for file in sides if file.name == _CONFIG)
    whole = checkpoint_files.read_json(config_file, _MOST_CONFIG_BYTES)
    names = None
    if mixed is None:
        opened: Source = _stored(kind, weights, sides)
        text = text_config(whole, config_file)
        names = mappings.choose(opened.tensors, text.kind, mapping)
        if names is not None:
            opened = Renamed(opened, names, text, tied=fit.ties_embeddings(whole, text))
        elif kind is CheckpointFormat.SAFETENSORS and weights[0].name.startswith("consolidated"):
            raise UserError(
                f"checkpoint {place} has Mistral's own files, and no mapping fits names such as "
                f"{_format.brief(next(iter(opened.tensors), ''))} for a model of type {text.kind}. "
                "Give the model's files in Hugging Face's format, or --mapping FILE"
            )
    else:
        opened = mixed
        whole = config_of(opened, whole)
        text = text_config(whole, config_file)
    tensors, counts = opened.tensors, _parameters_by_type(opened)
    if not counts:
        raise UserError(f"{place} has no parameters: its weight files hold no tensors")
    dtype = max(counts, key=lambda dtype: counts[dtype])
    size = sum(file.stat().st_size for file in weights)
    if kind.converted or names is not None:  # an optimizer may lie in the files
        _check_types(place, tensors)
        size = sum(count * ITEM_BYTES[dtype] for dtype, count in counts.items())
    if size > _MOST_WEIGHT_BYTES:
        raise UserError(
            f"checkpoint {place} claims {_format.size(size)} of weights, which no disk holds. "
            "Save it again"
        )
    also = config_file.parent / MODELOPT
    more = checkpoint_files.read_json(also, _MOST_CONFIG_BYTES) if also in sides else {}
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
        path=_text(place),
        identity=_identity(weights, sides, names, parts, shares),
        format=kind,
        weights=[_text(file) for file in weights],
        files=[_text(file) for file in sides],
        mapping=names,
        parts=list(parts),
        shares=list(shares),
        bytes=size,
        dtype=dtype,
        **shape,
    )


class Found(NamedTuple):
    """What a folder or file is, as far as that can be told."""

    place: Path
    format: CheckpointFormat
    weights: Sequence[Path]
    source: Source
    """Its tensors by the names that they are stored under."""


def find(path: Path) -> Found:
    """Find the weights at `path`, whatever else is missing there.

    Raises:
        UserError: There are none, or a file is torn.
    """
    place = _resolve(path)
    weights, kind, extra = _find_weights(place)
    _check_weights(weights)
    return Found(place, kind, weights, _stored(kind, weights, extra))


def find_beside(
    path: Path, *, config: Path | None = None, tokenizer: Path | None = None
) -> tuple[Path | None, list[Path]]:
    """Return the config of a checkpoint and the files of its tokenizer, where they are found."""
    place = _resolve(path)
    beside = [*([place] if place.is_dir() else []), place.parent, path.absolute().parent]
    told = folder_file.of(place)
    config = config or told.unless(beside, "config", [_CONFIG])
    tokenizer = tokenizer or told.unless(beside, "tokenizer", checkpoint_files.TOKENIZERS)
    files: list[Path] = []
    config_file = None
    with contextlib.suppress(UserError):
        config_file = _find_config(place, beside, config)
    with contextlib.suppress(UserError):
        files = _find_tokenizer(place, beside, tokenizer)
    return config_file, files


def source(checkpoint: Checkpoint) -> Source:
    """Return the tensors of a checkpoint, as engines get them.

    Raises:
        UserError: A file is torn, or not what its name says.
    """
    weights, files = list(map(Path, checkpoint.weights)), list(map(Path, checkpoint.files))
    if checkpoint.parts:
        return _open_mixed(checkpoint.format, weights, checkpoint.parts, checkpoint.shares)
    opened = _stored(checkpoint.format, weights, files)
    if checkpoint.mapping is None:
        return opened
    whole, text = text_config_of(checkpoint)
    return Renamed(opened, checkpoint.mapping, text, tied=fit.ties_embeddings(whole, text))


def _open_mixed(
    kind: CheckpointFormat,
    weights: Sequence[Path],
    parts: Sequence[Checkpoint],
    shares: Sequence[float],
) -> Source:
    """Return the tensors of a checkpoint that is made of others."""
    if kind is CheckpointFormat.AVERAGE:
        names = [part.path for part in parts]
        return average.Average([source(part) for part in parts], shares, names)
    (base,) = parts
    return merged.Merged(
        source(base),
        _stored(kind, weights, []),
        adapter.AdapterConfig(weights[1]),
        tied=fit.ties_embeddings(*text_config_of(base)),
        where=base.path,
    )


def _stored(kind: CheckpointFormat, weights: Sequence[Path], files: Sequence[Path]) -> Source:
    """Return the tensors in the files of a checkpoint; of an adapter, its own."""
    if kind is CheckpointFormat.ADAPTER:
        own: Reader = torch_file if weights[0].suffix == ".bin" else safetensors_file
        return own.open_source(weights[:1], [])
    return _READERS[kind].open_source(weights, files)


def text_config_of(checkpoint: Checkpoint) -> tuple[dict[str, Any], TextConfig]:
    """Return the config beside a checkpoint's weights, and that of its language model in it."""
    file = next(file for file in map(Path, checkpoint.files) if file.name == _CONFIG)
    whole = checkpoint_files.read_json(file, _MOST_CONFIG_BYTES)
    return whole, text_config(whole, file)


def config_of(opened: Source, whole: dict[str, Any]) -> dict[str, Any]:
    """Return the config of the model that a source is, from that of the model it is made of."""
    return opened.adapted(whole) if isinstance(opened, merged.Merged | average.Average) else whole


def write_config(opened: Source, folder: Path) -> None:
    """Change a config.json in a folder to that of the model that a source is."""
    file = folder / _CONFIG
    before = checkpoint_files.read_json(file, _MOST_CONFIG_BYTES)
    after = config_of(opened, before)
    if after != before:
        file.write_text(json.dumps(after, indent=2), encoding="utf-8")


def unchanged(checkpoint: Checkpoint) -> bool:
    """Return whether names, sizes and times of the files are still as inspected."""
    try:
        weights, files = map(Path, checkpoint.weights), map(Path, checkpoint.files)
        mixed = checkpoint.parts, checkpoint.shares
        now = _identity(list(weights), list(files), checkpoint.mapping, *mixed)
        return now == checkpoint.identity and all(map(unchanged, checkpoint.parts))
    except OSError:
        return False


def is_deleted(names: Iterable[str]) -> bool:
    """Return whether one of these files is surely not there. Storage that fails tells nothing."""
    for name in names:
        try:
            os.lstat(name)
        except FileNotFoundError:
            return True
        except OSError:
            return False
    return False


def _resolve(path: Path) -> Path:
    try:
        place = path.resolve(strict=True)
    except FileNotFoundError as error:
        raise UserError(
            f"checkpoint {path} does not exist. Check the path, and whether this machine "
            "mounts the file system it is on"
        ) from error
    except (RuntimeError, ValueError) as error:  # a circle of links; a NUL in the name
        raise UserError(f"checkpoint {path!r} is not a usable path: {error}") from error
    _text(place)
    return place


def _text(path: Path) -> str:
    """Return the path as text for records, which are UTF-8."""
    try:
        return str(path).encode().decode()
    except UnicodeEncodeError as error:
        raise UserError(f"the name of {path!r} is not UTF-8: rename it") from error


def _find_weights(place: Path) -> tuple[list[Path], CheckpointFormat, list[Path]]:
    """Return the weight files, their format, and small files that belong to them.

    They may lie in the folder that a trainer's folder names as its last step.
    """
    names = [place.name] if place.is_file() else sorted(entry.name for entry in place.iterdir())
    words, parts = formats.recognized(place, names)
    found = _found(place, names, parts)
    if found is None and (own := adapter.find(place)):
        return own, CheckpointFormat.ADAPTER, []
    last = formats.last(place, names)
    if last and last.is_dir() and (found is None or _is_hull(*found)):
        inside = sorted(entry.name for entry in last.iterdir())
        inner, told = formats.recognized(last, inside)
        found = _found(last, inside, told) or found
        found = found or _lone(place, names, parts) or _lone(last, inside, told)
        words, parts = inner or words, parts | told
    if found := found or _lone(place, names, parts):
        return found
    if last and not last.is_dir():
        raise UserError(
            f"checkpoint {place} names {brief(last.name)} as its last step, which is not there. "
            "Copy it there, or give another step"
        )
    if place.is_file():
        raise UserError(
            words
            or f"checkpoint {place} is a file, but not a .pt, .pth or .bin file. "
            "Give the folder for safetensors"
        )
    words = words or _none(place, names, torch_file.candidates(place, names, parts))
    raise UserError(". ".join(filter(None, (words, formats.below(place, names)))))


def _found(
    place: Path, names: Sequence[str], parts: Collection[str]
) -> tuple[list[Path], CheckpointFormat, list[Path]] | None:
    for kind, reader in _READERS.items():
        if found := reader.find(place, names, parts):
            weights, extra = found
            return weights, kind, extra
    return None


def _lone(
    place: Path, names: Sequence[str], parts: Collection[str]
) -> tuple[list[Path], CheckpointFormat, list[Path]] | None:
    found = torch_file.lone(place, names, parts)
    return (found, CheckpointFormat.TORCH, []) if found else None


def _is_hull(weights: Sequence[Path], kind: CheckpointFormat, extra: Sequence[Path]) -> bool:
    """Return whether files have empty tensors: ZeRO 3 saves some where it gathers no weights."""
    tensors = _READERS[kind].open_source(weights, extra).tensors.values()
    return any(tensor.shape == (0,) for tensor in tensors)


def _none(place: Path, names: Sequence[str], files: Sequence[Path]) -> str:
    """Return words about a folder in which the weights are not found."""
    single, index = safetensors_file.SINGLE, safetensors_file.INDEX
    if any(name.endswith(".safetensors") for name in names):
        return (
            f"checkpoint {place} has safetensors, but neither {single} nor {index}, which is "
            "written last. Wait until it is saved, or save it with save_pretrained"
        )
    if files:
        shown = ", ".join(repr(file.name) for file in files[:8])
        return (
            f"checkpoint {place} has {len(files)} files that may hold the weights ({shown}). "
            "Name one of them; shards must be saved again with save_pretrained"
        )
    shown = f"only {', '.join(map(repr, names[:8]))}" if names else "nothing"
    return (
        f"checkpoint {place} has no weights ({single}, {index}, or one .pt, .pth or .bin): "
        f"it holds {shown}. If it is being written, try again afterwards"
    )


def _find_config(place: Path, beside: list[Path], given: Path | None) -> Path:
    where, folders = _where_to_look(place, beside, given)
    if given is not None and where.is_file() and where.name != "config.json":
        raise UserError(f"config {given} must be named config.json: engines look for that")
    found = [each for f in folders for each in checkpoint_files.present(f, ["config.json"])]
    if found:  # a trainer's own may lie beside a checkpoint, and the model's above it
        return next(filter(_is_of_model, found), found[0]) if len(found) > 1 else found[0]
    raise UserError(
        f"{where} has no config.json. Put the model's there in Hugging Face's format, give "
        f"--config FILE, or name it in a {folder_file.NAME} in the folder of the checkpoints: "
        "config: FILE"
    )


def _is_of_model(file: Path) -> bool:
    """Return whether a config describes a model in Hugging Face's format, not a training."""
    whole = checkpoint_files.read_json(file, _MOST_CONFIG_BYTES)
    return any(key in whole for key in ("model_type", "architectures", "text_config", *LAYERS))


def _find_tokenizer(place: Path, beside: list[Path], given: Path | None) -> list[Path]:
    where, folders = _where_to_look(place, beside, given)
    for folder in folders:
        if checkpoint_files.present(folder, checkpoint_files.TOKENIZERS):
            return checkpoint_files.present(folder, checkpoint_files.TOKENIZER_FILES)
    raise UserError(
        f"{where} has no tokenizer (tokenizer.json, tokenizer.model, or vocabulary files). Put "
        f"the model's there, give --tokenizer FOLDER, or name it in a {folder_file.NAME} in the "
        "folder of the checkpoints: tokenizer: FOLDER"
    )


def _where_to_look(place: Path, beside: list[Path], given: Path | None) -> tuple[Path, list[Path]]:
    """Return a place for messages, and its folders: that of a given file, else the checkpoint's."""
    if given is None:
        return place, beside
    try:
        where = given.resolve(strict=True)
    except (FileNotFoundError, RuntimeError, ValueError) as error:
        raise UserError(f"{given} does not exist") from error
    return where, [where if where.is_dir() else where.parent]


def _check_sides(files: Sequence[Path]) -> None:
    """Refuse more than can be copied to every node."""
    sizes = {file: file.stat().st_size for file in files}
    most = checkpoint_files.MOST_SIDE_BYTES_IN_ALL
    if sum(sizes.values()) > most:
        largest = max(sizes, key=lambda file: sizes[file])
        raise UserError(
            f"the files beside the weights have {_format.size(sum(sizes.values()))}, more than "
            f"the {_format.size(most)} that a checkpoint may have. The largest is {largest}"
        )


def _check_whole(files: Sequence[Path]) -> None:
    """Refuse an empty tokenizer, and a tokenizer.json that is torn.

    It is known by its ends: to parse one takes seconds and much memory.
    """
    for file in files:
        if file.name in checkpoint_files.TOKENIZERS and file.is_file() and not file.stat().st_size:
            raise UserError(f"{file} is empty. Copy it again, or save the tokenizer again")
        if file.name == "tokenizer.json":
            content = checkpoint_files.read(file).strip()
            if not (content.startswith(b"{") and content.endswith(b"}")):
                raise UserError(
                    f"{file} is torn: it is no JSON object. If it is being written, try again "
                    "afterwards; else save the tokenizer again"
                )


def _check_weights(weights: Sequence[Path]) -> None:
    """Check the first bytes of each weight file.

    Raises:
        UserError: A file is empty, or something else stands in its place.
    """
    for file in weights:
        checkpoint_files.check_link(file)
        with checkpoint_files.opened(file, weights=True) as opened:
            if not (head := opened.read(checkpoint_files.HEAD_BYTES)):
                raise UserError(f"{file} is empty. If it is being written, try again afterwards")
            checkpoint_files.check_head(file, head)


def _parameters_by_type(opened: Source) -> dict[str, int]:
    """Return the number of parameters by type. Those that have several names count once."""
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
    found = [(file.name, file.stat()) for file in weights]
    # In whatever folders they are, since a run may read links to them.
    for each in sorted([name, status.st_size, status.st_mtime_ns] for name, status in found):
        digest.update(json.dumps(each).encode())
    for file in sorted(files, key=lambda file: file.name):
        content = hashlib.sha256(checkpoint_files.read(file)).hexdigest()
        digest.update(json.dumps([file.name, content]).encode())
    return digest.hexdigest()


def staged_bytes(checkpoint: Checkpoint) -> int:
    """Return the bytes of the staged copy: weights and small files."""
    return checkpoint.bytes + sum(Path(f).stat().st_size for f in checkpoint.files)
