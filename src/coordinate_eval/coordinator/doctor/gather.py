"""A node's job in a world: one all-gather among all of its GPUs, checked and timed.

A job says that it is ready when torch is loaded there. When all nodes of its world are, it is told
the address of the first one, and from then on has `GATHER_SECONDS`. A job that fails says why in
the last line of its log, and ends with status 1; one that hangs is ended by a timer that works
whatever the process is stuck in. One that Slurm ends for the sake of others says so: its node is
not bad, and neither are those that wait for it.
"""

import faulthandler
import multiprocessing
import os
import signal
import time
from datetime import timedelta
from multiprocessing import connection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, cast

from pydantic import Field

from coordinate_eval import _files
from coordinate_eval._format import brief
from coordinate_eval.clusters.protocol import ENDS_WITH_PARENT
from coordinate_eval.coordinator.workers.signals import end_with_parent_if_asked
from coordinate_eval.records import Record

if TYPE_CHECKING:
    import torch

START_SECONDS = 240
"""Time until a job is ready: from a busy file system, an import of torch has taken minutes."""

GATHER_SECONDS = 120
"""Time from then on. NCCL has taken half a minute to connect many GPUs."""

_LIMIT = timedelta(seconds=GATHER_SECONDS - 20)
"""Time for which torch waits for others. Then it says for whom, as the timer cannot."""

BYTES = 16 << 20
"""Bytes that each process gives to all others."""

_ENDING = (signal.SIGTERM, signal.SIGUSR1)
"""Signals of a preemption, a cancellation and a time limit."""

_REPEATS = 5
_LOOK_SECONDS, _TOUCH_SECONDS = 0.5, 2.0


class World(Record):
    """Nodes that run together."""

    nodes: tuple[str, ...]
    gpus: tuple[int, ...] = Field(description="of each node's job")
    wait_seconds: float = Field(description="time for which a job waits for the others")


class Address(Record):
    """Address of a world's first node, which serves the others."""

    host: str
    port: int


class Passed(Record):
    """A node's report at the end, if all was well."""

    backend: str
    processes: int = Field(description="of all nodes together")
    bytes_per_second: float = Field(
        description="received by each process from all others; 0 if there is no other"
    )


class _Rank(NamedTuple):
    """A process of a world."""

    number: int
    processes: int
    """Processes of the world."""
    local: int
    """Number of its GPU on its node."""
    on_gpus: bool

    @property
    def backend(self) -> str:
        return "nccl" if self.on_gpus else "gloo"


def world_file(folder: Path, world: str) -> Path:
    """Return the path of a world's record."""
    return folder / f"{world}.world.json"


def ready_file(folder: Path, world: str, node: str) -> Path:
    """Return the path at which a node says that it is ready, with an address of its own."""
    return folder / f"{world}.{node}.ready.json"


def go_file(folder: Path, world: str) -> Path:
    """Return the path of the address with which the nodes of a world begin."""
    return folder / f"{world}.go.json"


def passed_file(folder: Path, world: str, node: str) -> Path:
    """Return the path at which a node says that all was well."""
    return folder / f"{world}.{node}.passed.json"


def stopped_file(folder: Path, world: str, node: str) -> Path:
    """Return the path at which a node says that it was told to end."""
    return folder / f"{world}.{node}.stopped"


def gather(folder: Path, name: str, node: str) -> None:
    """Take part in a world as one of its nodes: what such a job does.

    Raises:
        SystemExit: the gathering failed; has the reason.
    """
    world = _files.read_record(world_file(folder, name), World)
    note = stopped_file(folder, name, node)
    for each in _ENDING:
        signal.signal(each, lambda *_: _end(note))
    try:
        passed = _as_node(folder, name, world, node, note)
    except Exception as error:  # whatever goes wrong here is what is looked for
        raise SystemExit(f"{type(error).__name__}: {brief(error)}") from None
    if passed is None:
        raise SystemExit(1)  # after the words of the process that failed
    _files.write_record(passed_file(folder, name, node), passed)


def _end(note: Path) -> NoReturn:
    """Leave a note that this job was told to end, and end."""
    try:
        _files.write(note, "")
    finally:
        os._exit(0)


def _as_node(folder: Path, name: str, world: World, node: str, note: Path) -> Passed | None:
    """Start a process for each GPU, and wait for them. Return None if one of them fails.

    This process imports torch, which the others then have at once, and uses no GPU.
    """
    faulthandler.dump_traceback_later(START_SECONDS, exit=True)
    ranks = _ranks(world, node)
    faulthandler.cancel_dump_traceback_later()  # a child would wait for ever for its thread
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    go = go_file(folder, name)
    processes = [
        fork.Process(target=_as_rank, args=(go, world.wait_seconds, rank, sender), daemon=True)
        for rank in ranks
    ]
    for each in processes:
        each.start()
    sender.close()
    server = _store() if ranks[0].number == 0 else None
    port = server.port if server is not None else 0
    address = Address(host=os.uname().nodename, port=port)
    _files.write_record(ready_file(folder, name, node), address)
    running = {each.sentinel: each for each in processes}
    while running:
        for ended in connection.wait(list(running), timeout=_TOUCH_SECONDS):
            process = running.pop(cast("int", ended))
            process.join()
            # All processes of the job may have been told, and a child first.
            if note.exists() or -(process.exitcode or 0) in _ENDING:
                _end(note)
            if process.exitcode:
                return None  # the others end with this process
        if not go.exists():
            _files.touch(folder)  # so that this node's client looks again
    speed = float(receiver.recv_bytes())
    return Passed(backend=ranks[0].backend, processes=ranks[0].processes, bytes_per_second=speed)


def _as_rank(go: Path, seconds: float, rank: _Rank, sender: Connection) -> None:
    """Be the process of a GPU, as long as the node's first process lives."""
    for each in _ENDING:
        signal.signal(each, signal.SIG_DFL)
    os.environ.update(ENDS_WITH_PARENT)
    end_with_parent_if_asked()
    try:
        speed = _all_gather(_await(go, seconds), rank)
    except Exception as error:
        raise SystemExit(f"{type(error).__name__}: {brief(error)}") from None
    if rank.local == 0:
        sender.send_bytes(str(speed).encode())


def _ranks(world: World, node: str) -> list[_Rank]:
    """Return the processes of a node: one for each GPU, or one if torch is built for CPUs."""
    import torch

    on_gpus = bool(torch.version.cuda or torch.version.hip)
    counts = world.gpus if on_gpus else (1,) * len(world.nodes)
    number = world.nodes.index(node)
    first = sum(counts[:number])
    return [_Rank(first + local, sum(counts), local, on_gpus) for local in range(counts[number])]


def _await(go: Path, seconds: float) -> Address:
    """Return the address with which a world begins, once it is there."""
    end = time.monotonic() + seconds
    while (found := _files.read_record_if_there(go, Address)) is None:
        if time.monotonic() > end:
            raise TimeoutError(f"nobody said within {seconds:.0f} s that all nodes are ready")
        time.sleep(_LOOK_SECONDS)
    return found


def _all_gather(address: Address, rank: _Rank) -> float:
    """Gather what all processes give, check it, and return the bytes received in a second."""
    faulthandler.dump_traceback_later(GATHER_SECONDS, exit=True)
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", rank.local) if rank.on_gpus else torch.device("cpu")
    if rank.on_gpus:
        if (seen := torch.cuda.device_count()) <= rank.local:
            raise RuntimeError(f"torch sees {seen} GPUs, and the node's job has more")
        torch.cuda.set_device(device)
    store = _store(address)
    dist.init_process_group(
        rank.backend, store=store, rank=rank.number, world_size=rank.processes, timeout=_LIMIT
    )
    mine = _pattern(rank.number, device)
    parts = [torch.zeros_like(mine) for _ in range(rank.processes)]
    dist.all_gather(parts, mine)  # the first one connects, and is not timed
    _check(parts)
    for part in parts:
        part.zero_()
    _synchronize(device)
    began = time.monotonic()
    for _ in range(_REPEATS):
        dist.all_gather(parts, mine)
    _synchronize(device)
    seconds = time.monotonic() - began
    _check(parts)
    dist.destroy_process_group()
    faulthandler.cancel_dump_traceback_later()
    return _REPEATS * BYTES * (rank.processes - 1) / max(seconds, 1e-9)


def _store(served: Address | None = None) -> Any:  # noqa: ANN401 - no public name
    """Return the store in which processes find each other: serve one, or join one."""
    from torch import distributed

    make = distributed.TCPStore  # type: ignore[attr-defined]  # documented, but not in __all__
    if served is None:
        return make("0.0.0.0", 0, is_master=True, wait_for_workers=False, timeout=_LIMIT)  # noqa: S104 - other nodes join it
    return make(served.host, served.port, timeout=_LIMIT)


def _pattern(rank: int, device: "torch.device") -> "torch.Tensor":
    """Return what a process gives: numbers that nobody else gives."""
    import torch

    return torch.arange(BYTES // 8, dtype=torch.int64, device=device) * 2_654_435_761 + rank


def _check(parts: "list[torch.Tensor]") -> None:
    """Raise an error if not each process's part is what it gave."""
    import torch

    for rank, part in enumerate(parts):
        if not torch.equal(part, _pattern(rank, part.device)):
            raise ValueError(f"what process {rank} gave has arrived with other content")


def _synchronize(device: "torch.device") -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
