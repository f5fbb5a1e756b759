"""A training of a tiny model, as one of several ranks: its model is cut by FSDP2 then.

It begins at the newest save, takes its data in an order that is shuffled, draws dropout at random,
and prints the weights' digest at its end.
"""

import hashlib
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict as states
from torch.distributed.fsdp import fully_shard

from coordinate_eval.checkpointing import SaveError, Saver


class Training:
    """A model, its optimizer, its place in the data, and its random numbers."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        torch.manual_seed(7)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(16, 64), torch.nn.Dropout(0.1), torch.nn.Linear(64, 16)
        )
        if size > 1:
            fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.order = torch.randperm(1000, generator=torch.Generator().manual_seed(3))
        self.step = 0
        torch.manual_seed(rank)

    def train(self) -> None:
        seed = int(self.order[self.step]) * self.size + self.rank
        generator = torch.Generator().manual_seed(seed)
        data = torch.randn(8, 16, generator=generator)
        loss = (self.model(data) - data.flip(1)).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = states.get_state_dict(self.model, self.optimizer)
        return {
            "model": model,
            "optimizer": optimizer,
            "step": self.step,
            f"random-{self.rank}": torch.get_rng_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        states.set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        self.step = state["step"]
        torch.set_rng_state(state[f"random-{self.rank}"])

    def digest(self) -> str:
        found = hashlib.sha256()
        for value in self.model.state_dict().values():
            whole = value.full_tensor() if hasattr(value, "full_tensor") else value
            found.update(whole.numpy().tobytes())
        return found.hexdigest()


def hear(saver: Saver) -> None:
    """Print what saves say that failed."""
    try:
        saver.wait()
    except SaveError as error:
        print(f"heard: {error}", flush=True)


def full_disk(saver: Saver, training: Training) -> None:
    """No room on the disk of the last rank, for one save."""
    was = resource.getrlimit(resource.RLIMIT_FSIZE)
    if training.rank == training.size - 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, was[1]))
    saver.save(training.step, {"app": training})
    hear(saver)
    resource.setrlimit(resource.RLIMIT_FSIZE, was)


def dying_rank(saver: Saver, training: Training) -> None:
    """The last rank ends while the others save."""
    if training.rank == training.size - 1:
        os._exit(9)
    saver.save(training.step, {"app": training})
    hear(saver)
    os._exit(8)


def other_step(saver: Saver, training: Training) -> None:
    """Ranks save different steps."""
    saver.save(training.step + training.rank, {"app": training})
    hear(saver)


def lost_tensor(saver: Saver, training: Training) -> None:
    """One rank lacks a tensor that it has written for all."""
    state = {f"t{n}": torch.full((100,), float(n)) for n in range(8)}
    saver.save(1001, state)
    saver.wait()
    saver.save(1002, dict(list(state.items())[4:]) if training.rank else state)
    hear(saver)
    for value in state.values():
        value += 100
    saver.save(1003, state)
    saver.wait()
    os.environ.pop("COORDINATE_EVAL_RESUME_FROM", None)
    loaded = {name: torch.zeros(100) for name in state}
    assert saver.load(loaded) == 1003
    assert all(torch.equal(loaded[name], state[name]) for name in state)
    print("copied in part:", saver._stager._own is not None, flush=True)


FAULTS: dict[str, Callable[[Saver, Training], None]] = {
    fault.__name__: fault for fault in (full_disk, dying_rank, other_step, lost_tensor)
}


def train(
    rank: int, size: int, meeting: str, folder: Path, steps: int, pause: float, fault: str
) -> None:
    """Train to a step, as one of several ranks that meet at a file.

    Args:
        rank: this process.
        size: all processes.
        meeting: a file that is not there yet.
        folder: where the saves go.
        steps: the last step.
        pause: seconds between steps.
        fault: one of `FAULTS`, or nothing, after step 7.
    """
    torch.set_num_threads(1)
    if size > 1:
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
    training = Training(rank, size)
    with Saver(folder, every=5, keep=3) as saver:
        print("begins at", saver.load({"app": training}) or 0, flush=True)
        while training.step < steps and not saver.should_stop():
            training.train()
            time.sleep(pause)
            if fault and training.step == 7:
                saver.wait()
                FAULTS[fault](saver, training)
            if saver.due(training.step) or training.step == steps:
                saver.save(training.step, {"app": training})
    print("ends at", training.step, training.digest(), flush=True)
    if size > 1:
        dist.destroy_process_group()
