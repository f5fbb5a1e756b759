"""Check that the tensors of a checkpoint are the model of its config, before a GPU is asked for.

To list the model's tensors takes torch and seconds the first time, so a child process does it while
prompts are built. If the child cannot tell, the run goes on.
"""

import json
import os
import subprocess
import time
from collections.abc import Callable

from coordinate_eval.clusters.protocol import ENDS_WITH_PARENT
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run

_MOST_SECONDS = 600.0
"""Time for a child that imports torch from a slow file system. Then the run goes on without it."""


class Guard:
    """The child process of one supervisor, which looks at the tensors of its checkpoint."""

    def __init__(self, run_dir: RunDir, run: Run, tell: Callable[[str], None]) -> None:
        self._argv = [*jobs.program(run.python), "_guard", str(run_dir.root)]
        self._tell = tell
        self._child: subprocess.Popen[str] | None = None
        self._end = 0.0
        self.why = ""
        """The reason why the checkpoint is refused; empty if it is not."""

    def start(self) -> None:
        """Start the child."""
        self._end = time.monotonic() + _MOST_SECONDS
        self._child = subprocess.Popen(
            self._argv,
            env=os.environ | ENDS_WITH_PARENT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def is_over(self) -> bool:
        """Return whether the child has answered, or no child is there."""
        if self._child is None:
            return True
        if self._child.poll() is None:
            if time.monotonic() < self._end:
                return False
            self._child.kill()
        said, _ = self._child.communicate()
        status, self._child = self._child.returncode, None
        try:
            found = json.loads(said)
            self.why = found if isinstance(found, str) else ""
        except ValueError:
            self._tell(
                "the tensors of the checkpoint are not compared with its architecture: the process "
                f"that does it ended with {status}"
            )
        return True
