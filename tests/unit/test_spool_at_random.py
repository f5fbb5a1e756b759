"""Savers, takers and kills at any line, in any order: each request becomes exactly one run."""

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from tests.random_examples import examples
from tests.tiny import tiny_model

from coordinate_eval import _files
from coordinate_eval.coordinator.cli.launch import spooled
from coordinate_eval.coordinator.inputs import clusters, layers
from coordinate_eval.coordinator.planning.new_run import Inputs, new_run, read_inputs
from coordinate_eval.coordinator.run.starting import spool
from coordinate_eval.coordinator.run.starting.create import create
from coordinate_eval.errors import RunExists
from coordinate_eval.records import Dataset, Suite

FILES = tuple(module.__file__ for module in (spool, spooled, _files))
LINES = 900
"""More lines of these files than a call runs, so that some calls are not killed."""


def killed_at(line: int, call: Any) -> int:
    """Call in a process of its own, which is killed at this line of `FILES`. Return its pid."""
    child = os.fork()
    if child:
        return child
    left = line

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in FILES:
            return None
        left -= event == "line"
        if left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    try:
        sys.settrace(trace)
        call()
    finally:
        os._exit(0)


def start(inputs: Inputs, root: Path) -> int:
    """Create a run and give it a supervisor, or give one to a run that has none."""
    found = root / "run.json"
    if not found.exists():
        try:
            create(root, new_run(inputs, "slurm", time.time(), exclusive=False))
        except RunExists:
            return 0
    _files.create(root / "supervisors", _files.token())
    return 0


class Spool(RuleBasedStateMachine):
    """Training jobs that ask, and whoever can submit. Two of them may do so at the same time."""

    @initialize()
    def begin(self) -> None:
        self.home = Path(tempfile.mkdtemp())
        self.runs = self.home / "runs"
        self.asked: set[str] = set()
        self.suite = Suite(name="s", digest="d", datasets=[Dataset(name="x", task="x")])
        self.patch = pytest.MonkeyPatch()
        for name in ("HOME", "XDG_CONFIG_HOME", "COORDINATE_EVAL_CACHE_DIR"):
            self.patch.setenv(name, str(self.home))
        self.patch.setenv("COORDINATE_EVAL_RUNS_DIR", str(self.runs))
        self.patch.setenv("COORDINATE_EVAL_ENGINE_NAME", "simulated")
        self.patch.setattr(spooled, "start_run", start)
        self.patch.setattr(clusters, "why_not_from_here", lambda _: "")
        for step in range(2):
            shutil.copytree(tiny_model(), self.home / f"step-{step}")
        self.settings, _ = layers.load({})

    def teardown(self) -> None:
        if hasattr(self, "home"):
            for _ in range(2):  # the second finds nothing
                spooled.submit_waiting(self.settings)
            left = list(spool.waiting(self.runs, time.time()))
            self.patch.undo()
            runs = [json.loads(path.read_text()) for path in self.runs.glob("*/run.json")]
            assert not left
            assert len({run["id"] for run in runs}) == len(runs)
            assert {run["checkpoint"]["path"] for run in runs} >= self.asked
            assert len(list(self.runs.glob("*/supervisors"))) == len(runs)
            left_over = [name for name in _files.names(self.runs) if name.startswith(".spool")]
            for name in left_over:
                assert not [p for p in _files.names(self.runs / name) if p.endswith(".json")]
            shutil.rmtree(self.home)

    def ask(self, step: int) -> None:
        inputs = read_inputs(self.settings, self.suite, self.home / f"step-{step}")
        none: Any = {
            "config": None,
            "tokenizer": None,
            "mapping": None,
            "base": None,
            "run_dir": None,
        }
        spooled.request(inputs, self.settings, "no sbatch", **none, as_json=True)

    @rule(step=st.integers(0, 1), line=st.integers(1, LINES))
    def save(self, step: int, line: int) -> None:
        _, status = os.waitpid(killed_at(line, lambda: self.ask(step)), 0)
        if status == 0:
            self.asked.add(str(self.home / f"step-{step}"))

    @rule(lines=st.lists(st.integers(1, LINES), min_size=1, max_size=3))
    def take(self, lines: list[int]) -> None:
        pids = [killed_at(line, lambda: spooled.submit_waiting(self.settings)) for line in lines]
        for pid in pids:
            os.waitpid(pid, 0)


TestSpool = Spool.TestCase
TestSpool.settings = examples(8, steps=8)
