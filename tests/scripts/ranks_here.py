"""Runs a training script as four ranks of this machine: `ranks_here.py PORT SCRIPT ARGS…`.

The ranks are forks of a process that has loaded torch, which takes longer than a short training.
"""

import os
import runpy
import sys

import torch.distributed.checkpoint.state_dict  # noqa: F401 - for the forks

RANKS = 4


def main() -> int:
    port, script = sys.argv[1:3]
    sys.argv = sys.argv[2:]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(RANKS)}
    ranks = []
    for rank in range(RANKS):
        pid = os.fork()
        if pid == 0:
            os.environ["RANK"] = str(rank)
            runpy.run_path(script, run_name="__main__")
            sys.stdout.flush()
            os._exit(0)
        ranks.append(pid)
    return max(os.waitpid(pid, 0)[1] for pid in ranks)


if __name__ == "__main__":
    sys.exit(main() != 0)
