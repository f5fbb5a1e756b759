"""For runs of real engines: what their scores are measured against, and patience.

The measure is the harness's own command, `lm_eval --model hf`.
"""

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

RELATIVE_TOLERANCE = 1e-4
"""Of scores that are sums of log-probabilities: two engines in float32 differ by up to 1e-5 a
continuation.
"""

_OF_LOGPROBS = ("perplexity", "bits_per_byte", "brier_score")


class Compared(NamedTuple):
    """One number of a task, as scored by both; None where one of them has no such number."""

    task: str
    metric: str
    ours: Any
    theirs: Any

    @property
    def equal(self) -> bool:
        """Exactly; within the tolerance where it is made of log-probabilities."""
        if self.ours == self.theirs:
            return True
        close = any(part in self.metric for part in _OF_LOGPROBS)
        numbers = isinstance(self.ours, float) and isinstance(self.theirs, float)
        return (
            close and numbers and math.isclose(self.ours, self.theirs, rel_tol=RELATIVE_TOLERANCE)
        )


def lm_eval(
    checkpoint: Path, tasks: Sequence[str], *options: object, include: Path, folder: Path
) -> dict[str, Any]:
    """Run the harness's command on these tasks in `folder`, without a hub, and return its results.

    With `--log_samples` they have the lines that it logs of each task, as `samples`.

    Raises:
        subprocess.CalledProcessError: it failed; `stderr` says why.
    """
    with tempfile.TemporaryDirectory() as out:
        argv = [
            sys.executable, "-m", "lm_eval", "--model", "hf", "--device", "cpu",
            "--model_args", json.dumps({"pretrained": str(checkpoint), "dtype": "float32"}),
            "--tasks", ",".join(tasks), "--include_path", str(include),
            "--output_path", out, "--confirm_run_unsafe_code", *map(str, options),
        ]  # fmt: skip
        environ = {
            "HF_ALLOW_CODE_EVAL": "1",
            "HF_HUB_OFFLINE": "1",
            # Two at once would write modules of metrics, and what they keep, in the same place.
            "HF_HOME": f"{out}/hub",
            # An engine in this process has set a place where no code of a checkpoint can be kept.
            "HF_MODULES_CACHE": f"{out}/hub/modules",
        }
        try:
            subprocess.run(
                argv, cwd=folder, env=os.environ | environ, capture_output=True, text=True,
                check=True,
            )  # fmt: skip
        except subprocess.CalledProcessError as error:
            error.add_note(error.stderr)
            raise
        (path,) = Path(out).glob("**/results_*.json")
        found: dict[str, Any] = json.loads(path.read_text())
        found["samples"] = {
            file.stem.removeprefix("samples_").rpartition("_")[0]: [
                json.loads(line) for line in file.read_text().splitlines()
            ]
            for file in path.parent.glob("samples_*.jsonl")
        }
        return found


def compare(
    ours: Mapping[str, Mapping[str, Any]], theirs: Mapping[str, Mapping[str, Any]]
) -> list[Compared]:
    """Every number that either of two `results` has, by task and metric."""
    return [
        Compared(task, metric, ours.get(task, {}).get(metric), theirs.get(task, {}).get(metric))
        for task in sorted(ours.keys() | theirs.keys())
        for metric in sorted(ours.get(task, {}).keys() | theirs.get(task, {}).keys())
    ]


def ended(run: Path) -> dict[str, Any]:
    """Wait for `results.json` and return its content. Engines may take minutes to start here."""
    end = time.monotonic() + 1800
    while not (run / "results.json").exists():
        assert time.monotonic() < end, f"no results of {run}"
        time.sleep(0.2)
    found: dict[str, Any] = json.loads((run / "results.json").read_text())
    return found


def roomy(checkpoint: Path, folder: Path, tokens: int) -> Path:
    """A copy of the tiny model, in `folder`, that takes prompts of so many tokens.

    The harness's own classes for transformers and vLLM cut longer prompts differently, so their
    scores differ too. (Rotary positions have no weights: any context is as good as another.)
    """
    shutil.copytree(checkpoint, folder)
    config = folder / "config.json"
    made = json.loads(config.read_text()) | {"max_position_embeddings": tokens}
    config.write_text(json.dumps(made))
    return folder
