"""Runs the program as its users do, for tests that need a whole run."""

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from coordinate_eval.coordinator.run.records import TrialProgress
from coordinate_eval.records import Response
from tests.tiny import architectures, shared_folder, tiny_model

T = TypeVar("T")

TASKS = Path(__file__).parent / "fixtures" / "tasks"
PATIENCE_SECONDS = 900.0
"""After this a test fails; nothing is expected to take that long, however busy the machine is."""


class Pause:
    """A file that keeps a run's simulated engines at their first response, until it is removed."""

    def __init__(self, file: Path) -> None:
        file.touch()
        self._file = file
        self.engine_args = {"pause": str(file)}
        self.args = ("--engine-args", json.dumps(self.engine_args))

    def end(self) -> None:
        """Let the engines go on."""
        self._file.unlink()


class Workspace:
    """A user's own settings, runs and cache under one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache = folder / "cache"
        self.environ = {k: v for k, v in os.environ.items() if not k.startswith("COORDINATE_EVAL_")}
        self.environ |= {
            "HOME": str(folder),
            # vLLM starts a process to look at each kind of model, and keeps what it saw.
            "VLLM_CACHE_ROOT": str(shared_folder() / "vllm"),
            "COORDINATE_EVAL_RUNS_DIR": str(folder / "runs"),
            "COORDINATE_EVAL_CACHE_DIR": str(self.cache),
            "COORDINATE_EVAL_SUPERVISOR_POLL_SECONDS": "0.5",
            # Nodes that are made up share the cores of this machine. Each of these jobs loads the
            # harness, which takes far longer than the work of a small suite.
            "COORDINATE_EVAL_HARNESS_JOBS": "1",
            "COORDINATE_EVAL_ENGINE_NAME": "simulated",
            "COORDINATE_EVAL_STAGE_ROOT": str(self.memory),
            # Runs of seconds are to be on several nodes all the same.
            "COORDINATE_EVAL_RESTRAINT": "0",
        }
        known = architectures()
        shutil.copytree(known, self.cache / known.name, dirs_exist_ok=True)

    @property
    def memory(self) -> Path:
        """The folder that stands for the memory file system of all nodes."""
        folder = self.folder / "memory of 'all' nodes"
        folder.mkdir(exist_ok=True)
        return folder

    def with_prompts(self, requests: Path) -> "Workspace":
        """Give this user the prompts that another one has built; return this user."""
        shutil.copytree(requests, self.cache / requests.name)
        return self

    def pause(self, name: str) -> Pause:
        """A pause with this name, for runs whose engines have its arguments."""
        return Pause(self.folder / f"pause of {name}")

    def suite(self, *tasks: str, **defaults: object) -> Path:
        """A suite of the fixture tasks of these names."""
        path = self.folder / f"suite-{'-'.join(tasks)}.yaml"
        datasets = [{"name": task, "task": task} for task in tasks]
        content = {"include_path": [str(TASKS)], "defaults": defaults, "datasets": datasets}
        path.write_text(yaml.safe_dump(content))
        return path

    def call(
        self, *args: object, status: int | None = 0, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """`coordinate-eval ARGS`; fails the test on another exit status."""
        done = subprocess.run(
            command(*args),
            env=self.environ | environ,
            cwd=TASKS,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        if status is not None:
            assert done.returncode == status, f"{args}:\n{done.stdout}\n{done.stderr}"
        return done

    def start(self, *args: object, **environ: str) -> subprocess.Popen[str]:
        """The same, not waited for."""
        return subprocess.Popen(
            command(*args),
            env=self.environ | environ,
            cwd=TASKS,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def submit(self, suite: Path, *args: object, **environ: str) -> Path:
        """`coordinate-eval run` on the tiny model; the run's directory."""
        done = self.call("run", tiny_model(), "--suite", suite, *args, status=0, **environ)
        return Path(done.stdout.rstrip("\n"))


def command(*args: object) -> list[str]:
    """The program's argv."""
    return [sys.executable, "-m", "coordinate_eval", *map(str, args)]


def until(holds: Callable[[], T], what: str, run: Path | None = None) -> T:
    """Wait until something is the case; its value. A failure has what `run`'s supervisors said."""
    end = time.monotonic() + PATIENCE_SECONDS
    while (asked := time.monotonic()) < end:
        value = holds()
        if value:
            return value
        # What is asked may be a scheduler, all processes, or a command that takes a second.
        time.sleep(max(0.2, 2 * (time.monotonic() - asked)))
    logs = sorted(run.glob("logs/*super*.log")) if run else []
    said = "\n".join(log.read_text(errors="replace") for log in logs)
    raise AssertionError(f"not in {PATIENCE_SECONDS:g} s: {what}\n{said}")


def lasting_port() -> int:
    """Return a free port of 127.0.0.1 that no client gets before a server is there to listen."""
    # Libraries give the random numbers of a process a seed, the same in all workers.
    for port in random.SystemRandom().sample(range(20_000, 30_000), 1000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


def begun(run: Path) -> Path:
    """Wait until an engine of a run works, and return the run."""
    until(lambda: list(run.glob("outputs/*/*.part")), f"responses of {run} on their way", run)
    return run


def results(run: Path) -> dict[str, Any]:
    """The results of a run, once they are there."""
    until((run / "results.json").exists, f"results of {run}", run)
    found: dict[str, Any] = json.loads((run / "results.json").read_text())
    return found


def scores(run: Path) -> dict[str, Any]:
    """The scores of a complete run."""
    found = results(run)
    assert found["complete"], (found["missing"], found["failures"])
    return dict(found["results"])


def published(run: Path, ledger: str = "outputs") -> list[Path]:
    """Published spans of a run."""
    return sorted((run / ledger).glob("*/*.jsonl"))


def trials(run: Path) -> list[TrialProgress]:
    """How far the trials of a run are that have begun."""
    return [TrialProgress.model_validate_json(p.read_bytes()) for p in run.glob("trials/*.json")]


def claimant(run: Path, trial: str) -> int:
    """The process of a trial that has claimed a shard."""
    claims = [json.loads(path.read_text()) for path in run.glob("claims/outputs/*/*.json")]
    return int(next(claim["pid"] for claim in claims if claim["owner"] == trial))


def times_answered(run: Path) -> Counter[tuple[object, ...]]:
    """How often each request has a published response."""
    return Counter(
        Response.model_validate_json(line).identity()
        for path in published(run)
        for line in path.read_text().splitlines()
    )


def processes(*words: str) -> list[int]:
    """Processes whose command line has all of these words."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                argv = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if all(word in argv for word in words):
                found.append(int(entry.name))
    return found


def kill(pids: Sequence[int]) -> None:
    """SIGKILL, at once. Helpers of a process that is killed may end before their turn comes."""
    assert pids, "no such process"
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
