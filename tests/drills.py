"""Faults that come to a guarded training at its steps, and what is true afterwards."""

import itertools
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.dev_cluster import DevCluster
from tests.guarded import STEPS, Read, Training, assert_one_at_a_time, tensors, undisturbed
from tests.runs import Workspace, command, processes, until

ENDING = ("rank", "node", "hang", "bad_node", "full_disk", "torn", "nan", "diverge", "preempt",
          "time_limit")  # fmt: skip
"""Faults that end an attempt."""

PASSING = ("controller", "guard")
"""Faults that the training does not notice."""

GOES_BACK = {"torn", "nan", "diverge"}
"""Faults after which a save is not begun from that was the newest."""

_MEMORY = "8m"
"""Size of the disk that becomes full: some sixty saves."""


@dataclass(frozen=True)
class Fault:
    kind: str
    step: int
    """The attempt that it comes to has read this step."""


def schedule(seed: int) -> list[Fault]:
    """Some faults that a seed tells. Each kind comes first in one of ten seeds in a row."""
    dice = random.Random(seed)
    kinds = [ENDING[seed % len(ENDING)]]
    if dice.random() < 0.4:
        kinds.append(dice.choice(ENDING))
    for _ in range(dice.choice([0, 1, 1, 2])):
        kinds.insert(dice.randint(0, len(kinds)), dice.choice(PASSING))
    steps = sorted(dice.randint(150, STEPS - 170) for _ in kinds)
    return [Fault(kind, step) for kind, step in zip(kinds, steps, strict=True)]


@dataclass
class Outcome:
    """What is known of a guarded training that has ended."""

    faults: list[str]
    seconds: float
    status: dict[str, Any]
    reads: list[Read]
    screen: str
    """What `guard status` says to people."""

    @property
    def causes(self) -> list[str]:
        """What became of each attempt with an incident; where it failed or hung, the cause."""
        incidents = [each for each in self.status["attempts"] if each["incident"]]
        return [_named(each) for each in incidents]

    def row(self) -> tuple[str, str, str, str]:
        """The faults, their causes by the guard, seconds to restart, and steps done again."""
        restarts = [each["restart_seconds"] for each in self.status["attempts"]]
        return (
            ", ".join(self.faults),
            ", ".join(self.causes),
            ", ".join(f"{seconds:.0f}" for seconds in restarts if seconds is not None),
            str(self.status["lost_steps"]),
        )


@dataclass
class Drill:
    """A training under a guard on a cluster of `NODES` nodes, and the faults that come to it."""

    cluster: DevCluster
    user: Workspace

    def __post_init__(self) -> None:
        self.done: list[str] = []
        self.bad = range(0)
        """Steps whose data is bad for good."""
        self.bad_nodes: set[str] = set()
        self._dealt_with = 0
        """The newest job that a fault has ended."""
        self.training = Training(self.user.folder / "training")
        self._after: list[Callable[[], None]] = []
        name = f"$(cat {self.training.folder}/interfaces/$SLURMD_NODENAME)"
        self.user.environ |= {
            "COORDINATE_EVAL_SUPERVISOR_POLL_SECONDS": "1",
            "COORDINATE_EVAL_SLURM_SETUP": json.dumps([f'export GLOO_SOCKET_IFNAME="{name}"']),
        }

    def run(self, faults: list[Fault]) -> Outcome:
        """Train under a guard, with these faults, until the guard says that it is over."""
        began = time.monotonic()
        steps = [*(fault.step for fault in faults), STEPS]
        with _disk(self.training.checkpoints):
            self.training.slow_after(steps[0])
            self._begin(test_nodes="bad_node" in {fault.kind for fault in faults})
            try:
                for fault, following in zip(faults, steps[1:], strict=True):
                    self._next(fault)
                    self.training.slow_after(following)
                until(lambda: (self._root / "over.json").exists(), self._words())
            finally:
                self._repair()
                self.user.call("guard", "stop", str(self._root), status=None)
            screen = self.user.call(
                "guard", "status", str(self._root), status=None, COLUMNS="300"
            ).stdout
            seconds = time.monotonic() - began
            outcome = Outcome(self.done, seconds, self.status(), self.training.reads(), screen)
            self._check(outcome, {fault.kind for fault in faults})
        return outcome

    def status(self) -> dict[str, Any]:
        """What `guard status --json` says."""
        done = self.user.call("guard", "status", str(self._root), "--json", status=None)
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def _begin(self, *, test_nodes: bool) -> None:
        policy = {
            "last_step": STEPS, "silent_seconds": 15.0, "silent_steps": 5.0,
            "first_step_seconds": 300.0, "pause_seconds": 1.0, "test_nodes": test_nodes,
        }  # fmt: skip
        lines = (f"{name} = {json.dumps(value)}\n" for name, value in policy.items())
        path = self.user.folder / "guard.toml"
        path.write_text("".join(lines))
        asked = ("--checkpoints", self.training.checkpoints, "--policy", path)
        done = subprocess.run(
            command("guard", self.training.script, *asked, "--obey", "rollback", "--json"),
            cwd=self.training.folder, env=self.user.environ, check=False, capture_output=True,
            text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        self._root = Path(json.loads(done.stdout)["folder"])

    def _next(self, fault: Fault) -> None:
        """Wait until the attempt that runs has read the step, and cause a fault."""
        if fault.kind in PASSING and self.done:
            before = self._happened()  # the guard may be about to answer the fault before
            self._until(lambda: self._happened() > before)
        else:
            self._until(lambda: self._has_read(fault.step))
        if self._over():
            return
        if fault.kind in ENDING:
            self._dealt_with = self.training.reads()[-1].job
        words = getattr(self, f"_{fault.kind}")(fault)
        self.done.append(f"{fault.kind}{words and ' '}{words}")

    def _has_read(self, step: int) -> bool:
        last = next(reversed(self.training.reads()), None)
        return last is not None and last.step >= step and last.job > self._dealt_with

    def _until(self, holds: Callable[[], object]) -> None:
        until(lambda: self._over() or holds(), self._words())

    def _over(self) -> bool:
        return (self._root / "over.json").exists()

    def _happened(self) -> int:
        return sum(len(files) for _, _, files in os.walk(self._root))

    def _words(self) -> str:
        return f"more, after {self.done} in {self._root}"

    def _repair(self) -> None:
        while self._after:
            self._after.pop()()

    def _ranks(self) -> list[Read]:
        """The newest reading of each rank of the attempt that runs, by rank."""
        reads = self.training.reads()
        found = {read.rank: read for read in reads if read.job == reads[-1].job}
        return [found[rank] for rank in sorted(found)]

    def _victim(self, fault: Fault) -> Read:
        ranks = self._ranks()
        return ranks[fault.step % len(ranks)]

    # The faults. Each returns words for people.

    def _rank(self, fault: Fault) -> str:
        victim = self._victim(fault)
        _kill(victim.pid)
        return str(victim.rank)

    def _node(self, fault: Fault) -> str:
        name = self._victim(fault).node
        self.cluster.lose_node(name)

        def back() -> None:
            self.cluster.start_node(name)
            resume = ["scontrol", "update", f"nodename={name}", "state=resume"]
            subprocess.run(resume, check=False, capture_output=True)  # it may be back by itself

        self._after.append(back)
        return name

    def _hang(self, fault: Fault) -> str:
        victim = self._victim(fault)
        os.kill(victim.pid, signal.SIGSTOP)
        return f"rank {victim.rank}"

    def _bad_node(self, fault: Fault) -> str:
        """Have a node lose the network: no all-gather with it works any more."""
        victim = self._victim(fault)
        self.training.interface(victim.node, "ib7")
        self.bad_nodes.add(victim.node)
        _kill(victim.pid)
        return victim.node

    def _full_disk(self, fault: Fault) -> str:
        """Leave no room for the next save, until the attempt has ended."""
        ballast = self.training.checkpoints / ".ballast"
        with suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        ended = self._ended_since()
        self.training.slow_after(STEPS)
        self._until(ended)
        ballast.unlink()
        return ""

    def _torn(self, fault: Fault) -> str:
        """Cut a file of the newest save, as where a node dies before its memory is on disk."""
        newest = self.training.checkpoints / f"step-{self.training.saves()[-1]}"
        largest = max(newest.glob("*.distcp"), key=lambda path: path.stat().st_size)
        os.truncate(largest, largest.stat().st_size // 2)
        _kill(self._victim(fault).pid)
        return newest.name

    def _nan(self, fault: Fault) -> str:
        """Have a step become NaN that is well when it is done again, as by a broken chip."""
        step, ended = self._soon(), self._ended_since()
        with self._data() as data:
            kept = data[step - 1].copy()
            data[step - 1] = np.nan
        self.training.slow_after(step + 2)
        self._until(ended)
        with self._data() as data:
            data[step - 1] = kept
        return f"at {step}"

    def _diverge(self, fault: Fault) -> str:
        """Have bad data in four steps, of which the optimizer's second moments do not recover."""
        step, ended = self._soon(), self._ended_since()
        with self._data() as data:
            data[step - 1 : step + 3, :, -1] *= 1e4
        self.training.slow_after(step + 50)  # when it may be clear first
        self._until(ended)
        self.bad = range(step, step + 4)
        return f"by the data of {step}-{step + 3}"

    def _soon(self) -> int:
        """A step whose data no rank has read: each takes a second now."""
        return self.training.reads()[-1].step + 3

    @contextmanager
    def _data(self) -> Iterator[Any]:
        data = np.load(self.training.folder / "data.npy", mmap_mode="r+")
        yield data
        data.flush()

    def _preempt(self, fault: Fault) -> str:
        """Have a job of a higher priority take a node, and give it back at once."""
        name = self._victim(fault).node
        _call("sbatch", "-p", "high", "-w", name, "--exclusive", "--mem=100", "-o/dev/null",
              "--wrap", "true")  # fmt: skip
        return name

    def _time_limit(self, fault: Fault) -> str:
        """Have the time of a job end now; Slurm looks at that every half a minute."""
        job, ended = self._victim(fault).job, self._ended_since()
        _call("scontrol", "update", f"jobid={job}", "endtime=now")
        self._until(ended)
        return ""

    def _controller(self, fault: Fault) -> str:
        self.cluster.stop_controller()
        self.cluster.start_controller()
        return ""

    def _guard(self, fault: Fault) -> str:
        """Kill the guard, whatever it does just now."""
        pids = processes("_guard_training", str(self._root))
        for pid in pids:
            _kill(pid)
        return "" if pids else "(between two)"

    def _ended_since(self) -> Callable[[], bool]:
        before = len(list(self._root.glob("attempts/*.end.json")))
        return lambda: len(list(self._root.glob("attempts/*.end.json"))) > before

    # What is true afterwards.

    def _check(self, outcome: Outcome, kinds: set[str]) -> None:
        over = json.loads((self._root / "over.json").read_text())
        assert over["complete"], f"the guard has stopped after {self.done}: {over['why']}"
        assert_one_at_a_time(outcome.reads)
        attempts = outcome.status["attempts"]
        ending = [words for words in self.done if words.split()[0] in ENDING]
        assert len(outcome.causes) >= len(ending), f"{outcome.causes} after {self.done}"
        for earlier, later in itertools.pairwise(attempts):
            mine = [read for read in outcome.reads if read.attempt == str(earlier["number"])]
            saved = max((read.saved for read in mine), default=0)
            begun = int(Path(later["checkpoint"]).name[5:]) if later["checkpoint"] else 0
            assert begun >= saved or kinds & GOES_BACK, (
                f"step {saved} was saved, and attempt {later['number']} began from {begun}"
            )
        skip = attempts[-1]["skip"]
        went_back = "rolled back" in [each["what"] for each in attempts]
        assert went_back == bool(skip), f"skipped {skip!r} after {self.done}"
        assert not went_back or kinds & {"nan", "diverge"}, f"went back after {self.done}"
        assert set(self.bad) <= _steps(skip), f"skipped {skip!r} after {self.done}"
        assert self.bad_nodes <= set(attempts[-1]["excluded"]), f"begun on {self.bad_nodes}"
        expected = undisturbed(self.user.folder.parent / "undisturbed", skip)
        last = self.training.checkpoints / f"step-{STEPS}"
        assert tensors(last) == tensors(expected), f"other weights after {self.done}"


def _named(attempt: dict[str, Any]) -> str:
    what, cause = attempt["what"], attempt["cause"]
    if what not in ("failed", "hung") or not cause:
        return str(what)
    # A step that fails with its node, or at its time limit, may end the script before Slurm does.
    sooner = {"Node Failure": "lost a node", "Time Limit": "time limit"}
    return sooner.get(cause["reason"], str(cause["reason"]))


@contextmanager
def _disk(folder: Path) -> Iterator[None]:
    """Have a small disk of its own under a folder."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_MEMORY}", "tmpfs", str(folder)]
    subprocess.run(mount, check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _steps(skip: str) -> set[int]:
    ranges = (part.split("-") for part in skip.split(",") if part)
    return {step for first, last in ranges for step in range(int(first), int(last) + 1)}


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _call(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True)
