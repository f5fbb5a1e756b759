"""How long training is blocked by a save, against torch.save and torch's own checkpoints

    python benchmarks/saving.py --mib 16 128 --ranks 1 2 4 --repeat 5

Each rank has so many MiB of float32 tensors, as optimizers and models that are cut among ranks
have. It saves them to the same disk in each of the ways, in turn, round after round. Counted is the
time until training may go on, of the slowest rank; before the next save, all that is written in the
background is waited for. The first save of each way also makes what later ones use again: it is in
a column of its own, and for our `Saver` it comes after `load` on an empty folder, as in a training.

- *torch.save*: each rank writes a file of its own. It is in the page cache then, not on the disk.
- *torch.save, synced*: the same with `fsync`, as all other ways do it.
- *DCP*: `torch.distributed.checkpoint.save`.
- *DCP async*: `async_save`, with the process group that torch asks for and its default settings.
- *DCP async, kept*: the same with a stager that keeps its buffers, pinned for a GPU.
- *Saver*: `coordinate_eval.checkpointing`.

*Times less* is the time of torch.save by that of the way in the same round, the median over rounds;
of the first save, that of one round. With `--device cuda`, tensors are on a GPU, and there is one
rank for each.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncSaveResponse, async_save, save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from coordinate_eval.checkpointing import Saver

WAYS = ("torch.save", "torch.save, synced", "DCP", "DCP async", "DCP async, kept", "Saver")
TENSOR_BYTES = 4 << 20


def main() -> None:
    """Measure each size with each number of ranks, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--mib", type=int, nargs="+", default=[16, 128], help="state of a rank")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1], help="numbers of ranks")
    parser.add_argument("--repeat", type=int, default=5, help="rounds after the first (default 5)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--disk", type=Path, default=Path(), help="where it is saved (default: .)")
    parser.add_argument("--json", action="store_true", help="print all seconds as JSON lines")
    parser.add_argument("--rank", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        measure(int(given.rank[0]), int(given.rank[1]), Path(given.rank[2]), given)
        return
    if not given.json:
        print(f"{'ranks':>5} {'MiB each':>8}  {'way':<19}{'first, ms':>10}{'later, ms':>10}"
              f"{'times less, first':>19}{'later':>8}")  # fmt: skip
    for ranks in given.ranks:
        for mib in given.mib:
            found = together(ranks, mib, given)
            if given.json:
                print(json.dumps({"ranks": ranks, "mib": mib, "seconds": found}), flush=True)
            else:
                print("\n".join(rows(ranks, mib, found)), flush=True)


def together(ranks: int, mib: int, given: argparse.Namespace) -> dict[str, list[float]]:
    """Run all ranks. Return the seconds of the slowest for each way, by round."""
    with tempfile.TemporaryDirectory(dir=given.disk.absolute()) as folder:
        argv = [sys.executable, __file__, "--mib", str(mib), "--repeat", str(given.repeat)]
        argv += ["--device", given.device]
        processes = [
            subprocess.Popen([*argv, "--rank", str(rank), str(ranks), folder])
            for rank in range(ranks)
        ]
        if any(process.wait() for process in processes):
            raise SystemExit("a rank has failed")
        each = [json.loads((Path(folder) / f"rank-{r}.json").read_text()) for r in range(ranks)]
    return {way: [max(s) for s in zip(*(e[way] for e in each), strict=True)] for way in WAYS}


def rows(ranks: int, mib: int, found: dict[str, list[float]]) -> Iterator[str]:
    """Yield the lines of a table."""
    base = found["torch.save"]
    for way, seconds in found.items():
        times = statistics.median(b / s for b, s in zip(base[1:], seconds[1:], strict=True))
        later = statistics.median(seconds[1:])
        yield (
            f"{ranks:>5} {mib:>8}  {way:<19}{seconds[0] * 1e3:>10.1f}{later * 1e3:>10.1f}"
            f"{base[0] / seconds[0]:>19.1f}{times:>8.1f}"
        )


def measure(rank: int, ranks: int, folder: Path, given: argparse.Namespace) -> None:
    """Save in each way, in turn, and write the seconds."""
    warnings.filterwarnings("ignore")
    os.environ["LOCAL_RANK"] = str(rank)
    torch.set_num_threads(1)
    on_gpu = given.device == "cuda"
    if on_gpu:
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=ranks,
    )
    state = made(given.mib[0], rank, ranks, given.device)
    kept = DefaultStager(StagingOptions(on_gpu, False, False, on_gpu))
    saver = Saver(folder / "saver", keep=1)
    saver.load(state)
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(given.repeat + 1):
        for way in WAYS:
            for tensor in state.values():
                tensor.add_(1)  # as training does
            after: Callable[[], Any] = lambda: None  # noqa: E731
            place = folder / f"{number}-{way}"
            if rank == 0:
                place.mkdir()
            if on_gpu:
                torch.cuda.synchronize()
            dist.barrier()
            began = time.perf_counter()
            if way.startswith("torch.save"):
                with (place / f"{rank}.pt").open("wb") as file:
                    torch.save({name: local(tensor) for name, tensor in state.items()}, file)
                    if way.endswith("synced"):
                        file.flush()
                        os.fsync(file.fileno())
            elif way == "DCP":
                save(state, checkpoint_id=place)
            elif way == "DCP async":
                after = _result(async_save(state, checkpoint_id=place))
            elif way == "DCP async, kept":
                after = _result(async_save(state, checkpoint_id=place, async_stager=kept))
            else:
                saver.save(number, state)
                after = saver.wait
            seconds[way].append(time.perf_counter() - began)
            after()
            dist.barrier()
            if rank == 0:
                shutil.rmtree(place)
    saver.close()
    (folder / f"rank-{rank}.json").write_text(json.dumps(seconds))
    dist.destroy_process_group()


def made(mib: int, rank: int, ranks: int, device: str) -> dict[str, DTensor]:
    """Return a state that is cut among ranks."""
    mesh = init_device_mesh(device, (ranks,))
    count = max(1, (mib << 20) // TENSOR_BYTES)
    rows = TENSOR_BYTES // 4 // 1024
    generator = torch.Generator().manual_seed(rank)
    return {
        f"layers.{number}.weight": DTensor.from_local(
            torch.rand(rows, 1024, generator=generator).to(device), mesh, [Shard(0)]
        )
        for number in range(count)
    }


def _result(saving: Future[Any] | AsyncSaveResponse) -> Callable[[], Any]:
    """Return what waits for an asynchronous save of torch."""
    return saving.result if isinstance(saving, Future) else saving.upload_completion.result


def local(tensor: DTensor) -> torch.Tensor:
    """Return the part of a rank."""
    return tensor.to_local()


if __name__ == "__main__":
    main()
