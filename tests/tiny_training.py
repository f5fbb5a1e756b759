"""A training of a tiny model: `python -m tests.tiny_training FOLDER STEPS`.

RANK, WORLD_SIZE and MEETING (a file) make it one of several ranks. The model is cut by FSDP2 then.
It begins at the newest save, takes its data in an order that is shuffled, draws dropout at random,
and prints the weights' digest at its end. `--fault NAME` does one of the things in `FAULTS`.
"""

import argparse
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

RANK, SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


class Training:
    """A model, its optimizer, its place in the data, and its random numbers."""

    def __init__(self) -> None:
        torch.manual_seed(7)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(16, 64), torch.nn.Dropout(0.1), torch.nn.Linear(64, 16)
        )
        if SIZE > 1:
            fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.order = torch.randperm(1000, generator=torch.Generator().manual_seed(3))
        self.step = 0
        torch.manual_seed(RANK)

    def train(self) -> None:
        generator = torch.Generator().manual_seed(int(self.order[self.step]) * SIZE + RANK)
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
            f"random-{RANK}": torch.get_rng_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        states.set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        self.step = state["step"]
        torch.set_rng_state(state[f"random-{RANK}"])

    def digest(self) -> str:
        found = hashlib.sha256()
        for value in self.model.state_dict().values():
            whole = value.full_tensor() if hasattr(value, "full_tensor") else value
            found.update(whole.numpy().tobytes())
        return found.hexdigest()


def full_disk(saver: Saver, training: Training) -> None:
    """No room on the disk of the last rank, for one save."""
    if RANK == SIZE - 1:
        was = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, was[1]))
    saver.save(training.step, {"app": training})
    try:
        saver.wait()
    except SaveError as error:
        print(f"heard: {error}", flush=True)
    if RANK == SIZE - 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, was)


def dying_rank(saver: Saver, training: Training) -> None:
    """The last rank ends while the others save."""
    if RANK == SIZE - 1:
        os._exit(9)
    saver.save(training.step, {"app": training})
    try:
        saver.wait()
    except SaveError as error:
        print(f"heard: {error}", flush=True)
    os._exit(8)


def other_step(saver: Saver, training: Training) -> None:
    """Ranks save different steps."""
    saver.save(training.step + RANK, {"app": training})
    try:
        saver.wait()
    except SaveError as error:
        print(f"heard: {error}", flush=True)


def lost_tensor(saver: Saver, training: Training) -> None:
    """One rank lacks a tensor that it has written for all."""
    state = {f"t{n}": torch.full((100,), float(n)) for n in range(8)}
    saver.save(1001, state)
    saver.wait()
    saver.save(1002, dict(list(state.items())[4:]) if RANK else state)
    try:
        saver.wait()
    except SaveError as error:
        print(f"heard: {error}", flush=True)
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("steps", type=int)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--fault", choices=[*FAULTS, ""], default="")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if SIZE > 1:
        meeting = f"file://{os.environ['MEETING']}"
        dist.init_process_group("gloo", init_method=meeting, rank=RANK, world_size=SIZE)
    training = Training()
    with Saver(given.folder, every=5, keep=3) as saver:
        print("begins at", saver.load({"app": training}) or 0, flush=True)
        while training.step < given.steps and not saver.should_stop():
            training.train()
            time.sleep(given.pause)
            if given.fault and training.step == 7:
                saver.wait()
                FAULTS[given.fault](saver, training)
            if saver.due(training.step) or training.step == given.steps:
                saver.save(training.step, {"app": training})
    print("ends at", training.step, training.digest(), flush=True)
    if SIZE > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
