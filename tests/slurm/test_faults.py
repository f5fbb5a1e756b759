"""Random faults, several in one run: the scores are the same, each response counts once.

`make test` runs two schedules and `make test-long` many; `FAULT_SEEDS="1 2 3"` chooses them. A
fault comes whenever so much has happened in the directories of the runs, so a slow machine meets
the same ones.
"""

import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from coordinate_eval.coordinator.workers.on_node import node_memory
from tests.dev_cluster import DevCluster
from tests.judges import RATING_RUBRIC, Judge, Reply, rate
from tests.random_examples import LONG
from tests.runs import Workspace, processes, scores, times_answered, until
from tests.slurm.runs import FOUR_TASKS, SLOW, all_gone, picky_site, queue

QUICK = [3, 20]
"""Schedules without faults that are only noticed after a minute."""

FIRST_THAT_STOPS = 1001
"""From this schedule on jobs on CPUs may be stopped: those before it stay as they were."""

SEEDS = [int(seed) for seed in os.environ.get("FAULT_SEEDS", "").split()] or (
    [*range(1, 61), *range(FIRST_THAT_STOPS, FIRST_THAT_STOPS + 20)] if LONG else QUICK
)
pytestmark = pytest.mark.random
JOBS = ("_trial", "_trial", "_keep", "_metric", "_judge", "_score", "_supervise")
PULLERS = ("_build", "_metric", "_judge", "_score")
NODES = ("node1", "node2", "node3", "node4")
MOST = 4
"""Faults a schedule: a span on which five owners died is left alone."""

SILENT = {"COORDINATE_EVAL_TRIAL_HANG_MINUTES": "1"}
"""How soon trials count as hanging where some do; other jobs do after three minutes."""


class Faults:
    """The faults of one schedule, which its seed tells: they come to `runs`."""

    def __init__(self, cluster: DevCluster, user: Workspace, seed: int) -> None:
        self.cluster, self.dice = cluster, random.Random(seed)
        self.gpus = self.dice.choice([1, 2, 3, 6])
        self.count = self.dice.choice([1, 1, 2])
        kinds = ["kill", "kill", "cancel", "requeue", "warn", "preempt", "hang", "suspend", "node"]
        kinds += ["broken", "controller", "refuse"]
        kinds += ["stop"] * 2 if seed >= FIRST_THAT_STOPS else []
        self.kinds = [self.dice.choice(kinds) for _ in range(MOST)]
        self.full = user.folder / "full"
        self.runs: list[Path] = []
        self.done: list[str] = []

    def environment(self, user: Workspace) -> dict[str, str]:
        """Return the settings of the runs, and of a picky site if one of the faults is that."""
        found = dict(SILENT) if {"hang", "stop", "suspend"} & set(self.kinds) else {}
        return found | (picky_site(user.folder) if "refuse" in self.kinds else {})

    def next(self) -> None:
        """Cause the next fault."""
        kind = self.kinds[len(self.done)]
        self.done.append(f"{kind} {getattr(self, kind)()}")

    def happened(self) -> int:
        """Return the number of files of the runs."""
        return sum(len(files) for run in self.runs for _, _, files in os.walk(run))

    def over(self) -> bool:
        """Return whether all runs have results."""
        return all((run / "results.json").exists() for run in self.runs)

    def so_far(self, count: int) -> bool:
        """Return whether the runs have so many files, or are over."""
        return self.over() or self.happened() >= count

    def end(self) -> None:
        """Make the cluster as it was."""
        for name in NODES:
            call("scontrol", "update", f"nodename={name}", "state=resume")
        self.full.unlink(missing_ok=True)

    def kill(self) -> str:
        """Kill a process of one kind of job."""
        job = self.dice.choice(JOBS)
        return f"{job} of {self._signal(job, '-KILL')}"

    def hang(self) -> str:
        """Stop a trial's process, as where a GPU or a file system no longer answers."""
        return f"of {self._signal('_trial', '-STOP')}"

    def stop(self) -> str:
        """Stop the process of a job that works on CPUs, of any kind that is there."""
        run = str(self.dice.choice(self.runs))
        found = [(job, pid) for job in PULLERS for pid in processes(job, run)]
        if not found:
            return "nothing"
        job, pid = self.dice.choice(found)
        call("kill", "-STOP", str(pid))
        return job

    def _signal(self, job: str, signal: str) -> int:
        run = self.dice.choice(self.runs)
        pids = processes(job, str(run))
        if pids:
            call("kill", signal, str(self.dice.choice(pids)))
        return len(pids)

    def cancel(self) -> str:
        """Cancel a job, but not the supervisor's: that is a user's wish."""
        return self._scheduler("scancel", but="super")

    def requeue(self) -> str:
        """Requeue a supervisor, the only job that may be, as an administrator does."""
        return self._scheduler("scontrol", "requeue", only="super")

    def warn(self) -> str:
        """Warn a job, as Slurm does before its time limit."""
        return self._scheduler("scancel", "--signal=USR1", "--batch")

    def suspend(self) -> str:
        """Suspend a trial, and never resume it."""
        return self._scheduler("scontrol", "suspend", only="trial")

    def _scheduler(self, *argv: str, only: str = "", but: str = "\n") -> str:
        tasks = [line.split() for line in queue()]
        tasks = [task for task in tasks if only in task[1] and but not in task[1]]
        if not tasks:
            return "nothing"
        task = self.dice.choice(tasks)
        call(*argv, task[0])
        return " ".join(task)

    def preempt(self) -> str:
        """Have a job of a higher priority take all GPUs of a node, and give them back at once."""
        name = self.dice.choice(NODES)
        call("sbatch", "-p", "high", "-w", name, "--gres=gpu:h200:8", "--mem=100", "-o/dev/null",
             "--wrap", "true")  # fmt: skip
        return name

    def node(self) -> str:
        """Kill a node's daemon and start it again."""
        name = self.dice.choice(NODES)
        self.cluster.kill_node(name)
        self.cluster.start_node(name)
        return name

    def broken(self) -> str:
        """End all jobs of a node, or let no more begin there until the next such fault."""
        self.end()  # one that is down comes back by itself
        name, state = self.dice.choice(NODES), self.dice.choice(["down", "fail"])
        call("scontrol", "update", f"nodename={name}", f"state={state}", "reason=a test")
        return f"{name} {state}"

    def controller(self) -> str:
        """Stop the controller and start it again."""
        self.cluster.stop_controller()
        self.cluster.start_controller()
        return ""

    def refuse(self) -> str:
        """Take no job with GPUs until one was refused, or the runs have gone on without."""
        self.full.touch()
        due = self.happened() + 20
        noted = [run / "refused.json" for run in self.runs]
        until(lambda: self.so_far(due) or any(path.exists() for path in noted), "a refusal")
        self.full.unlink()
        return ""


def call(*argv: str) -> None:
    """Run a command, whether or not it succeeds."""
    subprocess.run(argv, check=False, capture_output=True)


@pytest.fixture(scope="module")
def user(slurm_cluster: DevCluster, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    made = Workspace(tmp_path_factory.mktemp("faults"))
    # Several of each kind, so that they meet.
    made.environ |= {"COORDINATE_EVAL_HARNESS_JOBS": "2"}
    return made


@pytest.fixture
def judge(user: Workspace) -> Iterator[Judge]:
    """A judge that has answered nothing yet. It closes some connections without a word."""

    def behave(body: dict[str, Any], number: int) -> Reply:
        return Reply(drops=True) if number % 5 == 1 else rate(body, number)

    for folder in (
        (user.folder / "cache").glob("*-nodes-*"),
        (user.folder / "cache").glob("judged-*"),
    ):
        for path in folder:
            shutil.rmtree(path)
    with Judge(behave, models=["judge"]) as server:
        yield server


@pytest.fixture(scope="module")
def suite(user: Workspace) -> Path:
    """The usual datasets, and one that a judge rates."""
    content = yaml.safe_load(user.suite(*FOUR_TASKS, "tiny_talk").read_text())
    content["datasets"][-1]["rubric"] = "rubric.yaml"
    (user.folder / "rubric.yaml").write_text(RATING_RUBRIC)
    path = user.folder / "judged.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def submit(
    user: Workspace, suite: Path, judge: Judge, name: str, *args: object, **environ: str
) -> Path:
    return user.submit(
        suite, "--judge-url", judge.url, "--judge-model", "judge", *args,
        "--run-dir", user.folder / name, COORDINATE_EVAL_JUDGE_CONCURRENCY="2", **environ,
    )  # fmt: skip


@pytest.fixture(scope="module")
def expected(user: Workspace, suite: Path) -> dict[str, Any]:
    """Scores of an undisturbed run."""
    with Judge(rate, models=["judge"]) as server:
        found = scores(submit(user, suite, server, "undisturbed", "--max-gpus", 4))
    all_gone(user)
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_faults_change_no_score(
    slurm_cluster: DevCluster, user: Workspace, suite: Path, expected: dict[str, Any], judge: Judge,
    seed: int,
) -> None:  # fmt: skip
    faults = Faults(slurm_cluster, user, seed)
    environ = faults.environment(user)
    for number in range(faults.count):
        args = (f"run {seed}.{number}", *SLOW, "--max-gpus", faults.gpus)
        faults.runs.append(submit(user, suite, judge, *args, **environ))
    try:
        due = faults.happened()
        while len(faults.done) < MOST:
            due += faults.dice.randint(2, 20)
            until(partial(faults.so_far, due), f"more, after {faults.done}")
            if faults.over():
                break
            faults.next()
        for run in faults.runs:
            assert scores(run) == expected, faults.done
            assert set(times_answered(run).values()) == {1}
    finally:
        print(faults.gpus, faults.done)
        faults.end()
    until(lambda: not queue(), "an empty queue")
    left = list(user.memory.iterdir())
    # Where a node goes down, nobody is left who could remove what lies in its memory. The user's
    # next keeper there does, as no process holds it.
    assert left == [] or "broken" in faults.kinds
    node_memory.remove_abandoned(node_memory.user_folder(str(user.memory)))
    assert list(user.memory.iterdir()) == []
