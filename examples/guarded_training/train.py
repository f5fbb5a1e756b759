"""A training that can be ended at any moment and go on: what `coordinate-eval guard` keeps alive.

Four things make it so. They are marked:

1. It begins where the guard says.
2. The data of a step are a function of its number, so that a step is the same whenever it is done.
3. Steps whose data the guard found bad are left out.
4. It saves as a whole or not at all, and a save that failed shows: `Saver` does that.

The rest is a model so small that this file runs anywhere, on any number of processes:

    torchrun --nproc-per-node 4 train.py --checkpoints FOLDER
"""

import argparse
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from coordinate_eval.checkpointing import Saver

FEATURES, ROWS = 16, 128
"""Of the data: numbers in a row, and rows that all ranks together read in a step."""


def main() -> None:
    """Train from where the guard says, without a guard from the newest save, to the last step."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--data", type=Path, help="default: data.npy next to the checkpoints")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--save-every", type=int, default=50)
    parser.add_argument("--keep", type=int, default=5, help="the newest saves stay")
    parser.add_argument("--step-seconds", type=float, default=0.0, help="as of a larger model")
    given = parser.parse_args()

    rank, ranks = join()
    data = open_data(given.data or given.checkpoints.parent / "data.npy", given.steps, rank)
    torch.manual_seed(0)
    hidden = 64
    model = torch.nn.Sequential(
        torch.nn.Linear(FEATURES, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)

    skipped = skipped_steps(os.environ.get("COORDINATE_EVAL_SKIP", ""))
    state = {"training": State(model, optimizer)}
    with Saver(given.checkpoints, every=given.save_every, keep=given.keep) as saver:  # 4
        done = saver.load(state) or 0  # 1
        for step in range(done + 1, given.steps + 1):
            if step not in skipped:  # 3
                began = time.monotonic()
                loss, norm = update(data[step - 1, rank::ranks], model, optimizer)  # 2
                time.sleep(max(0.0, given.step_seconds - (time.monotonic() - began)))
                if rank == 0:
                    print(f"step {step} loss {loss:.6f} grad_norm {norm:.6f}", flush=True)
            if saver.due(step) or step == given.steps:
                saver.save(step, state)
            if saver.should_stop():
                break
    dist.destroy_process_group()


class State:
    """What training needs to go on bit for bit, in the form that torch's checkpoints have."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model, self._optimizer = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        """Return what is saved."""
        weights, moments = get_state_dict(self._model, self._optimizer)
        return {"model": weights, "optimizer": moments}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Take what was saved."""
        set_state_dict(
            self._model,
            self._optimizer,
            model_state_dict=saved["model"],
            optim_state_dict=saved["optimizer"],
        )


def update(
    rows: np.ndarray, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[float, float]:
    """Do a step on this rank's rows; return the loss and the gradients' norm of all ranks."""
    batch = torch.tensor(rows)
    loss = torch.nn.functional.mse_loss(model(batch[:, :-1]), batch[:, -1:])
    optimizer.zero_grad()
    loss.backward()
    parameters = list(model.parameters())
    # Not DDP, which may add in another order in its first step, and so after a restart.
    mean = torch.cat([loss.detach().view(1), *(p.grad.flatten() for p in parameters)])
    dist.all_reduce(mean)
    mean /= dist.get_world_size()
    parts = mean[1:].split([p.numel() for p in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad = part.view_as(parameter)
    optimizer.step()
    return mean[0].item(), mean[1:].norm().item()


def join() -> tuple[int, int]:
    """Meet the other ranks, which srun or torchrun has started; return the rank, and how many."""
    torch.set_num_threads(1)
    environ = os.environ
    if "RANK" not in environ:  # under srun
        environ["RANK"], environ["WORLD_SIZE"] = environ["SLURM_PROCID"], environ["SLURM_NTASKS"]
        environ["MASTER_ADDR"] = environ["SLURM_LAUNCH_NODE_IPADDR"]
        environ["MASTER_PORT"] = str(10_000 + int(environ["SLURM_JOB_ID"]) % 10_000)
    dist.init_process_group("gloo")
    return dist.get_rank(), dist.get_world_size()


def open_data(path: Path, steps: int, rank: int) -> np.ndarray:
    """Open the data, an array (steps, rows, features and target); rank 0 makes them up first."""
    if rank == 0 and not path.exists():
        write_data(path, steps)
    dist.barrier()
    return np.load(path, mmap_mode="r")


def write_data(path: Path, steps: int) -> None:
    """Write the data of so many steps: a function of the features, and some noise."""
    dice = np.random.default_rng(0)
    features = dice.standard_normal((steps, ROWS, FEATURES))
    way = dice.standard_normal((FEATURES, 8)) / FEATURES**0.5
    target = np.sin(features @ way).sum(axis=-1, keepdims=True)
    target += 0.1 * dice.standard_normal(target.shape)
    draft = path.with_name(f".{path.name}")
    with draft.open("wb") as file:
        np.save(file, np.concatenate([features, target], axis=-1).astype(np.float32))
    draft.rename(path)


def skipped_steps(text: str) -> set[int]:
    """Return the steps of such ranges as `1200-1260,1500-1510`, their ends included."""
    ranges = (part.split("-") for part in text.split(",") if part)
    return {step for first, last in ranges for step in range(int(first), int(last) + 1)}


if __name__ == "__main__":
    main()
