"""Conversion of a state dict written by torch.save into safetensors, the format engines read.

The weights are mapped, not read: only one shard is in memory at a time. The pickle is first
checked without being executed (`inputs/checkpoints/torch_file.py`), then loaded with torch's
restricted loader.
"""

import contextlib
import json
import pickle
import resource
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinate_eval._format import brief
from coordinate_eval.coordinator.inputs.checkpoints import checkpoint_files, torch_file
from coordinate_eval.errors import UserError

if TYPE_CHECKING:
    import torch

SHARD_BYTES = 5_000_000_000
"""Largest shard, as in `save_pretrained`. A larger tensor is a shard of its own."""

_LOADER_BYTES = 1 << 30


def torch_to_safetensors(
    source: Path,
    target: Path,
    progress: Callable[[int], None],
    *,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write the weights in `source` into the folder `target`, as `save_pretrained` would.

    Files appear under their names when they are whole, the index last. The `config.json` in
    `target`, or else the one beside `source`, tells whether embeddings are tied.

    Args:
        source: a file written by torch.save.
        target: folder of the safetensors files.
        progress: called with the bytes of weights written so far.
        shard_bytes: most bytes of one file.

    Raises:
        UserError: the file is torn, would execute code, or holds no state dict.
    """
    import torch

    torch_file.read(source)
    with checkpoint_files.opened(source, weights=True) as opened:
        path = checkpoint_files.open_path(opened)
        try:
            with _bounded_memory(source.stat().st_size):
                tree = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError, MemoryError) as error:
            raise UserError(f"{source} cannot be loaded as weights: {brief(error)}") from error
    found = torch_file.model_tensors(tree, lambda value: isinstance(value, torch.Tensor), source)
    torch_file.check_total((tensor.nbytes for tensor in found.values()), source)
    tensors = _without_tied(_renamed(found, source), _ties_embeddings(source, target))
    _write(_shards(tensors, shard_bytes), target, progress)


@contextlib.contextmanager
def _bounded_memory(size: int) -> Iterator[None]:
    """Let this process map no more memory than a file of `size` bytes asks for, in the block.

    The file is mapped once. What its pickle makes is smaller, or it is no file of weights.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + 2 * size + _LOADER_BYTES
    allowed = [each for each in (limit, soft, hard) if each != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(allowed), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _renamed(tensors: dict[str, Any], source: Path) -> "dict[str, torch.Tensor]":
    """Return the tensors under the model's own names, without those of training wrappers."""
    names = torch_file.own_names(tensors)
    if len(set(names.values())) < len(names):
        raise UserError(f"{source} has tensors that differ only in the names of wrappers")
    return {names[old]: tensor for old, tensor in tensors.items()}


def _ties_embeddings(source: Path, target: Path) -> bool:
    for folder in (target, source.parent):
        try:
            config = json.loads(checkpoint_files.read(folder / "config.json"))
        except (
            UserError,
            OSError,
            ValueError,
            RecursionError,
        ):  # judged by `checkpoint.inspect`, not here
            continue
        return isinstance(config, dict) and config.get("tie_word_embeddings") is True
    return False


def _without_tied(tensors: "dict[str, torch.Tensor]", tied: bool) -> "dict[str, torch.Tensor]":
    """Return the tensors without an output layer that is the embedding itself."""
    if not tied:
        return tensors
    places = [_storage(tensor) for tensor in tensors.values()]
    return {
        name: tensor
        for name, tensor in tensors.items()
        if not (
            name.split(".")[-2:] == ["lm_head", "weight"] and places.count(_storage(tensor)) > 1
        )
    }


def _storage(tensor: "torch.Tensor") -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride()


def _shards(tensors: "dict[str, torch.Tensor]", limit: int) -> "list[dict[str, torch.Tensor]]":
    shards: list[dict[str, torch.Tensor]] = [{}]
    size = 0
    for name, tensor in sorted(tensors.items()):
        if shards[-1] and size + tensor.nbytes > limit:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    return shards


def _write(
    shards: "list[dict[str, torch.Tensor]]", target: Path, progress: Callable[[int], None]
) -> None:
    from safetensors.torch import save_file

    names = [
        f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)
    ]
    if len(shards) == 1:
        names = ["model.safetensors"]
    target.mkdir(parents=True, exist_ok=True)
    written = 0
    with tempfile.TemporaryDirectory(dir=target, prefix=".convert-") as unfinished:
        for name, shard in zip(names, shards, strict=True):
            save_file(_separate(shard), Path(unfinished, name), metadata={"format": "pt"})
            written += sum(tensor.nbytes for tensor in shard.values())
            progress(written)
        if len(shards) > 1:
            index = {
                "metadata": {"total_size": written},
                "weight_map": {t: n for n, s in zip(names, shards, strict=True) for t in s},
            }
            names.append("model.safetensors.index.json")
            Path(unfinished, names[-1]).write_text(json.dumps(index, indent=2), encoding="utf-8")
        for name in names:
            Path(unfinished, name).replace(target / name)


def _separate(shard: "dict[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
    """Return the tensors contiguous and without shared memory, as the format requires."""
    seen: set[int] = set()
    separate = {}
    for name, tensor in shard.items():
        storage = tensor.untyped_storage().data_ptr()
        separate[name] = tensor.clone() if storage in seen else tensor
        separate[name] = separate[name].contiguous()
        seen.add(storage)
    return separate
