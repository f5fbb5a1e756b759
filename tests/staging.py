"""Weights to be staged, and other processes that hold them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from coordinate_eval.coordinator.inputs.checkpoints import checkpoint as checkpoints
from coordinate_eval.coordinator.workers.on_node.staging import StagedWeights
from coordinate_eval.records import Checkpoint, CheckpointFormat
from tests.runs import PATIENCE_SECONDS

RANGE = 1 << 20
WEIGHTS = 3 * RANGE + 17
"""Several ranges, so that a copy can be met half way."""

WORKER = '''
import sys
from coordinate_eval.coordinator.workers.on_node import copying
from coordinate_eval.coordinator.workers.on_node.staging import StagedWeights
from coordinate_eval.records import Checkpoint

root, run, node, what, checkpoint = sys.argv[1:6]
copying.RANGE_BYTES = int(sys.argv[6])
source = Checkpoint.model_validate_json(checkpoint)

def say(word):
    print(word, flush=True)

def pause(done):
    """Half way: say so, and wait until told to go on."""
    if what == "pause" and done < source.bytes:
        say("copying")
        sys.stdin.readline()

place = StagedWeights(root, run, node)
with place.hold():
    say("holding")
    if what != "hold":
        say("filled" if place.copy(source, pause) else "another copies")
    sys.stdin.readline()
say("left")
'''


class Worker:
    """Another process that holds a node's weights, and copies them unless it is to `hold` only.

    One that is to `pause` stops half way through the copy until it is told to `go`.
    """

    def __init__(self, root: Path, node: str, what: str, source: Checkpoint) -> None:
        argv = [sys.executable, "-c", WORKER, str(root), "run", node, what]
        self.process = subprocess.Popen(
            [*argv, source.model_dump_json(), str(RANGE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.says("holding")

    def says(self, word: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == word

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def leave(self) -> None:
        self.go()
        self.says("left")
        assert self.process.wait(PATIENCE_SECONDS) == 0

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE_SECONDS)


def checkpoint(folder: Path, size: int = WEIGHTS) -> Checkpoint:
    folder.mkdir()
    weights, config = folder / "model.safetensors", folder / "config.json"
    weights.write_bytes(os.urandom(size))
    config.write_text(json.dumps({"hidden_size": 8}))
    return Checkpoint(
        path=str(folder),
        identity=checkpoints._identity([weights], [config]),
        format=CheckpointFormat.SAFETENSORS,
        weights=[str(weights)],
        files=[str(config)],
        bytes=size,
        parameters=size // 2,
        dtype="bfloat16",
        max_length=128,
        attention_heads=1,
        kv_bytes_per_token=1,
    )


def staged(place: StagedWeights, source: Checkpoint) -> bool:
    """Check that the copy says that it is whole, and is."""
    same = all(
        (place.folder / Path(file).name).read_bytes() == Path(file).read_bytes()
        for file in (*source.weights, *source.files)
    )
    return place.ready(source.identity) and same
