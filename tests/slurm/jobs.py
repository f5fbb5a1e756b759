"""Jobs on a real controller: what they run, and waiting for what becomes of them."""

from pathlib import Path

from coordinate_eval.clusters.protocol import State, TaskStatus
from coordinate_eval.slurm.cluster import SlurmCluster
from tests.runs import until

SLEEP = "import time; time.sleep(36000)"

WITNESS = """
import os, signal, sys, time
def say(*words):
    with open(sys.argv[1], "a") as file:
        print(os.getpid(), os.environ["COORDINATE_EVAL_TASK"].split(".")[1], *words, file=file)
def heard(number, frame):
    signal.signal(number, signal.SIG_IGN)  # Slurm and the job's script may both send it
    say(signal.Signals(number).name)
    sys.exit(0)
signal.signal(signal.SIGTERM, heard)
signal.signal(signal.SIGUSR1, heard)
say("started")
time.sleep(36000)
"""


def not_ended(cluster: SlurmCluster, prefix: str = "") -> list[TaskStatus]:
    return [task for task in cluster.poll(prefix) if task.state is not State.ENDED]


def await_end(cluster: SlurmCluster, name: str) -> None:
    until(lambda: cluster.poll(name) and not not_ended(cluster, name), f"the end of {name}")


def await_running(cluster: SlurmCluster, name: str) -> list[TaskStatus]:
    def all_run() -> list[TaskStatus]:
        tasks = cluster.poll(name)
        return tasks if {task.state for task in tasks} == {State.RUNNING} else []

    return until(all_run, f"{name} to run")


def witness(path: Path, lines: int) -> list[list[str]]:
    """Wait for that many lines of `WITNESS`, and return them: process, restart count, words."""

    def read() -> list[list[str]]:
        text = path.read_text() if path.exists() else ""
        words = [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return words if len(words) >= lines else []

    return until(read, f"{lines} lines in {path}")
