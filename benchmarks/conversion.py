"""Converting what training writes against cp of the same bytes

    PYTHONPATH=. python benchmarks/conversion.py --gib 1 --repeat 5

The time from the files of a checkpoint on disk to safetensors in a memory file system, by a process
of its own that does what a keeper does, from the headers to the last number that was looked at;
against cp of the files that it reads (of ZeRO, without those of the model's states). Both take
turns in every round, in another order. Before each, the files are read into the page cache, or
with `--cold` dropped from it. Seconds are medians; `cp / ours` is the median over rounds, so 1 is
as fast and more is faster. `of CPU` is the same ratio of processor seconds, which other work on
the machine changes less. Memory is the largest of the process that belongs to no file, torch
included where it is needed.

The weights are a Llama's, in bfloat16, as each trainer writes and names them; in float32 with ZeRO.
An adapter is of rank 16 on all linear layers, and an average is of two.

With `--sparse`, holes in the files of DCP stand for the numbers, there is no cp, and each file is
emptied when it is finished, and holds one tensor: what is measured is the memory of the process.
"""

import argparse
import contextlib
import io
import json
import math
import os
import pickle
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import save_file
from tests import rank_checkpoints, trainers
from torch.distributed.checkpoint import metadata as of_dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo

from coordinate_eval.coordinator.inputs.settings import StageSettings

WORDS = 32_000
WIDTHS = (0, 2048), (4, 4096), (50, 8192)
"""The width of a model from so many GiB on."""
RANKS = 4
ZEROS = bytes(1 << 20)

CONVERT = """
import json, os, sys, threading, time
from pathlib import Path
from coordinate_eval.coordinator.inputs.checkpoints import (reading)
from coordinate_eval.coordinator.inputs.checkpoints.mixed import (average)
from coordinate_eval.coordinator.inputs.checkpoints.checkpoint import inspect
from coordinate_eval.coordinator.workers.on_node import convert
sources, target, empty = json.loads(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
most, ended = 0, threading.Event()
def look():
    global most
    while not ended.wait(0.05):
        words = open("/proc/self/status").read().split()
        most = max(most, int(words[words.index("RssAnon:") + 1]) * 1024)
def report(done):
    for file in target.glob("*.safetensors") if empty else ():
        size = file.stat().st_size
        if file.stat().st_blocks:
            os.truncate(file, 0), os.truncate(file, size)
paths = [Path(each) for each in sources]
found = inspect(average.members(paths, None) if len(paths) > 1 else paths[0])
watch = threading.Thread(target=look)
watch.start()
began, used = time.perf_counter(), time.process_time()
small = {"shard_bytes": 1} if empty else {}
bad = convert.write(reading.source(found), target, report, **small)
took, used = time.perf_counter() - began, time.process_time() - used
assert bad == [], bad
ended.set(), watch.join()
print(json.dumps([took, used, most]))
"""

Tensors = dict[str, torch.Tensor]


class Source(NamedTuple):
    """A checkpoint, or the members of an average."""

    paths: list[Path]
    files: list[Path]
    """What is read of it."""


class Took(NamedTuple):
    """The cost of one conversion, and of cp beside it."""

    seconds: float
    cpu: float
    memory: int
    cp_seconds: float
    cp_cpu: float


def main() -> None:
    """Measure each kind of source, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--gib", type=float, default=1.0, help="size of the weights (default 1)")
    parser.add_argument("--repeat", type=int, default=5, help="rounds (default 5)")
    parser.add_argument("--cold", action="store_true", help="read from the disk")
    parser.add_argument("--sparse", action="store_true", help="holes in the place of numbers")
    parser.add_argument("--only", default="", help="kinds whose names have this in them")
    parser.add_argument("--disk", default=".", help="folder of the source (default: this one)")
    parser.add_argument("--memory", default=StageSettings().root, help="folder of the copies")
    given = parser.parse_args()
    sizes = Sizes.of(given.gib)
    state = "cold" if given.cold else "warm"
    table = Table(title=f"{given.gib:g} GiB, {'sparse' if given.sparse else state}")
    names = "written as", "GiB read", "seconds", "cp, s", "cp / ours", "of CPU", "memory, GiB"
    for name in names:
        table.add_column(name, justify="left" if name == "written as" else "right")
    for name, write in SOURCES.items():
        if given.only not in name or (given.sparse and not name.startswith("DCP")):
            continue
        with contextlib.ExitStack() as stack:
            disk, memory = (
                Path(stack.enter_context(tempfile.TemporaryDirectory(dir=place)))
                for place in (given.disk, given.memory)
            )
            write_config(disk, sizes)
            source = write(disk, model(sizes, sparse=given.sparse))
            os.sync()
            took = [
                one_round(source, memory, number, cold=given.cold, sparse=given.sparse)
                for number in range(given.repeat)
            ]
            table.add_row(name, *shown(took, source))
    Console(width=110).print(table)


def one_round(source: Source, memory: Path, number: int, *, cold: bool, sparse: bool) -> Took:
    """Convert and copy the source, in one order or the other."""
    if sparse:
        return Took(*converted(source, memory, cold=True, empty=True), 0, 0)
    if number % 2:
        ours, cp = converted(source, memory, cold=cold), copied(source, memory, cold=cold)
    else:
        cp, ours = copied(source, memory, cold=cold), converted(source, memory, cold=cold)
    return Took(*ours, *cp)


def converted(
    source: Source, memory: Path, *, cold: bool, empty: bool = False
) -> tuple[float, float, int]:
    """Return the seconds of a conversion, those of processors, and the memory."""
    ready(source, cold=cold)
    target = memory / "to"
    target.mkdir()
    paths = json.dumps(list(map(str, source.paths)))
    argv = [sys.executable, "-c", CONVERT, paths, str(target), str(int(empty))]
    done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True)
    shutil.rmtree(target)
    seconds, cpu, most = json.loads(done.stdout)
    return seconds, cpu, most


def copied(source: Source, memory: Path, *, cold: bool) -> tuple[float, float]:
    """Return the seconds of cp, and those of processors."""
    ready(source, cold=cold)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    for number, file in enumerate(source.files):
        subprocess.run(["cp", file, memory / f"{number}"], check=True)
    seconds = time.perf_counter() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    for number in range(len(source.files)):
        (memory / f"{number}").unlink()
    return seconds, used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime


def ready(source: Source, *, cold: bool) -> None:
    """Read the files into the page cache, or drop them from it."""
    buffer = bytearray(1 << 20)
    for path in source.files:
        with path.open("rb", buffering=0) as file:
            if cold:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while not cold and file.readinto(buffer):
                pass


def shown(took: Sequence[Took], source: Source) -> list[str]:
    """Return the columns of a table."""

    def median(of: Callable[[Took], float]) -> float:
        return statistics.median(map(of, took))

    compared = bool(took[0].cp_seconds)
    return [
        f"{sum(file.stat().st_size for file in source.files) / 2**30:.2f}",
        f"{median(lambda t: t.seconds):.2f}",
        *(
            [
                f"{median(lambda t: t.cp_seconds):.2f}",
                f"{median(lambda t: t.cp_seconds / t.seconds):.2f}",
                f"{median(lambda t: t.cp_cpu / t.cpu):.2f}",
            ]
            if compared
            else [""] * 3
        ),
        f"{max(each.memory for each in took) / 2**30:.2f}",
    ]


class Sizes(NamedTuple):
    """The sizes of a model."""

    hidden: int
    inner: int
    layers: int

    @classmethod
    def of(cls, gib: float) -> "Sizes":
        """Return those of a model with so many GiB of weights."""
        hidden = max(width for least, width in WIDTHS if gib >= least)
        inner = hidden * 11 // 4
        layer = 2 * (4 * hidden**2 + 3 * hidden * inner)
        return cls(hidden, inner, max(1, round((gib * 2**30 - 4 * WORDS * hidden) / layer)))


def write_config(folder: Path, sizes: Sizes) -> None:
    """Write the files beside the weights."""
    heads = sizes.hidden // 128
    made = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": sizes.hidden,
        "intermediate_size": sizes.inner, "num_hidden_layers": sizes.layers, "head_dim": 128,
        "num_attention_heads": heads, "num_key_value_heads": heads, "vocab_size": WORDS,
        "tie_word_embeddings": False, "dtype": "bfloat16", "max_position_embeddings": 4096,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(made))
    (folder / "tokenizer.json").write_text("{}")


def shapes(sizes: Sizes) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name and the shape of each tensor."""
    hidden, inner, layers = sizes
    yield "model.embed_tokens.weight", (WORDS, hidden)
    for n in range(layers):
        for part in "qkvo":
            yield f"model.layers.{n}.self_attn.{part}_proj.weight", (hidden, hidden)
        for part in ("gate", "up"):
            yield f"model.layers.{n}.mlp.{part}_proj.weight", (inner, hidden)
        yield f"model.layers.{n}.mlp.down_proj.weight", (hidden, inner)
        for part in ("input", "post_attention"):
            yield f"model.layers.{n}.{part}_layernorm.weight", (hidden,)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (WORDS, hidden)


def model(sizes: Sizes, *, sparse: bool) -> Tensors:
    """Return the weights: numbers that no file system leaves out, or zeros. They share memory."""
    all_shapes = dict(shapes(sizes))
    if sparse:
        zero = torch.zeros((), dtype=torch.bfloat16)
        return {name: zero.expand(shape) for name, shape in all_shapes.items()}
    numbers = torch.randn(max(map(math.prod, all_shapes.values()))).mul_(0.02).bfloat16()
    return {name: numbers[: math.prod(s)].reshape(s) for name, s in all_shapes.items()}


def all_of(path: Path, pattern: str = "*", more: Sequence[Path] = ()) -> Source:
    """Return a checkpoint of the files in a folder that have names of a pattern."""
    return Source([path], [*(f for f in path.rglob(pattern) if f.is_file()), *more])


def file_of_torch(folder: Path, state: Tensors, *, turned: bool = False) -> Source:
    """Write one file of torch.save, each matrix in order or transposed."""
    torch.save(
        {n: t.T.contiguous().T if turned and t.ndim == 2 else t.clone() for n, t in state.items()},
        folder / "model.pt",
    )
    return Source([folder / "model.pt"], [folder / "model.pt"])


def shards_of_torch(folder: Path, state: Tensors) -> Source:
    """Write `.bin` shards with an index."""
    names = list(state)
    where: dict[str, str] = {}
    for number in range(RANKS):
        file = f"pytorch_model-{number + 1:05}-of-{RANKS:05}.bin"
        own = names[number::RANKS]
        torch.save({name: state[name].clone() for name in own}, folder / file)
        where |= dict.fromkeys(own, file)
    index = {"metadata": {}, "weight_map": where}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    return all_of(folder, "*.bin")


def distributed(folder: Path, state: Tensors, dimension: int = 0, ranks: int = RANKS) -> Source:
    """Write a distributed checkpoint, as ranks that each have some rows or columns do."""
    made = folder / "step-1"
    made.mkdir()
    whole = of_dcp.Metadata({}, {}, {})
    blobs: dict[torch.Size, bytes] = {}
    with contextlib.ExitStack() as stack:
        names = [f"__{rank}_0.distcp" for rank in range(ranks)]
        files = [stack.enter_context((made / name).open("wb")) for name in names]
        for name, tensor in state.items():
            cut = min(dimension, tensor.ndim - 1)
            chunks, start = [], 0
            for rank, part in enumerate(tensor.chunk(ranks, cut)):
                begin = torch.Size(start if d == cut else 0 for d in range(tensor.ndim))
                start += part.shape[cut]
                blob = blobs.get(part.shape) if part.stride(0) == 0 else None
                blob = blobs[part.shape] = blob or saved_part(part)
                at = files[rank].tell()
                for first in range(0, len(blob), len(ZEROS)):
                    block = blob[first : first + len(ZEROS)]
                    if block == ZEROS[: len(block)]:
                        files[rank].seek(len(block), os.SEEK_CUR)
                    else:
                        files[rank].write(block)
                index = of_dcp.MetadataIndex(name, begin, rank)
                whole.storage_data[index] = _StorageInfo(names[rank], at, len(blob))
                chunks.append(of_dcp.ChunkStorageMetadata(begin, part.shape))
            kind = of_dcp.TensorProperties(tensor.dtype)
            described = of_dcp.TensorStorageMetadata(kind, tensor.shape, chunks)
            whole.state_dict_metadata[name] = described
    (made / ".metadata").write_bytes(pickle.dumps(whole))
    return all_of(made, "*.distcp")


def saved_part(part: torch.Tensor) -> bytes:
    """Return what torch.save writes of a part."""
    blob = io.BytesIO()
    torch.save(part.clone(memory_format=torch.contiguous_format), blob)
    return blob.getvalue()


def torchtitan(folder: Path, state: Tensors) -> Source:
    """Write what torchtitan does: half of each head's rows lie between those of the other."""
    made = trainers.torchtitan(state, json.loads((folder / "config.json").read_text()))
    return distributed(folder, made)


def megatron(folder: Path, state: Tensors) -> Source:
    """Write what Megatron's tensor ranks do."""
    made = trainers.megatron(state, json.loads((folder / "config.json").read_text()))
    numbers = {k: v for k, v in made.items() if "_extra_state" not in k}
    return all_of(rank_checkpoints.megatron(folder, numbers, tensor=RANKS), "*.pt")


def torch_dist(folder: Path, state: Tensors) -> Source:
    """Write what Megatron does by default: layers stacked, in a distributed checkpoint."""
    made = trainers.megatron(state, json.loads((folder / "config.json").read_text()), "stacked")
    numbers = {k: v for k, v in made.items() if "_extra_state" not in k}
    source = distributed(folder, numbers)
    torch.save({"args": argparse.Namespace(), "iteration": 1}, folder / "step-1" / "common.pt")
    return source


def zero(folder: Path, state: Tensors, stage: int) -> Source:
    """Write what DeepSpeed does."""
    whole = {name: tensor.float() for name, tensor in state.items()}
    made = rank_checkpoints.deepspeed(folder, whole, stage=stage, ranks=RANKS)
    return all_of(made, "*optim_states.pt")


def adapter(folder: Path, state: Tensors) -> Source:
    """Write an adapter of all linear layers, and its base."""
    base = saved(folder / "base", state)
    made = folder / "adapter"
    made.mkdir()
    parts = [n.removesuffix(".weight") for n, t in state.items() if "proj" in n]
    factors = {}
    for name in parts:
        rows, columns = state[f"{name}.weight"].shape
        factors[f"base_model.model.{name}.lora_A.weight"] = torch.randn(16, columns) * 0.01
        factors[f"base_model.model.{name}.lora_B.weight"] = torch.randn(rows, 16) * 0.01
    save_file(factors, made / "adapter_model.safetensors")
    told = {
        "peft_type": "LORA", "r": 16, "lora_alpha": 16, "base_model_name_or_path": str(base),
        "target_modules": sorted({name.rpartition(".")[2] for name in parts}),
    }  # fmt: skip
    (made / "adapter_config.json").write_text(json.dumps(told))
    return all_of(made, "*.safetensors", [base / "model.safetensors"])


def average(folder: Path, state: Tensors) -> Source:
    """Write two checkpoints."""
    members = [saved(folder / f"step-{n}", state) for n in (1, 2)]
    return Source(members, [member / "model.safetensors" for member in members])


def saved(folder: Path, state: Tensors) -> Path:
    """Write a Hugging Face folder with the files beside this one's weights."""
    folder.mkdir()
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(folder.parent / name, folder)
    save_file(
        {n: t.clone() for n, t in state.items()}, folder / "model.safetensors", {"format": "pt"}
    )
    return folder


SOURCES: dict[str, Callable[[Path, Tensors], Source]] = {
    "one .pt file": file_of_torch,
    "one .pt file, transposed": lambda folder, state: file_of_torch(folder, state, turned=True),
    ".bin shards": shards_of_torch,
    "DCP, rows of 4 ranks": distributed,
    "DCP, columns of 4 ranks": lambda folder, state: distributed(folder, state, 1),
    "DCP, rows of 64 ranks": lambda folder, state: distributed(folder, state, ranks=64),
    "torchtitan, 4 ranks": torchtitan,
    "Megatron torch_dist, 4 ranks": torch_dist,
    "Megatron, 4 tensor ranks": megatron,
    "ZeRO 2, 4 ranks": lambda folder, state: zero(folder, state, 2),
    "ZeRO 3, 4 ranks": lambda folder, state: zero(folder, state, 3),
    "adapter, merged": adapter,
    "average of two": average,
}

if __name__ == "__main__":
    main()
