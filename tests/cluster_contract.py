"""What every `Cluster` promises, as functions that check one promise each on a real one.

A module that has a cluster calls all `PROMISES` with a `Trial` of it.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from coordinate_eval._files import token
from coordinate_eval.clusters.protocol import Cluster, End, Job, State, TaskStatus, Waits
from tests.runs import until

WAITS = "exec tail -f /dev/null"
"""A program of `sh` that ends only when it is told to."""


ENGINE = "tail -f /dev/null & echo $! > engine.part; mv engine.part engine; "
"""Starts a process that does not notice when the job ends, as engines have them."""


@dataclass
class Trial:
    """A cluster, and a folder that all of its nodes share."""

    cluster: Cluster
    folder: Path

    def __post_init__(self) -> None:
        self.prefix = f"contract-{token()}-"

    def submit(self, name: str, script: str, *args: str, **fields: object) -> str:
        """Submit a job that runs a program of `sh` with arguments, and return its id."""
        values = {"minutes": 60, "folder": str(self.folder), "memory_mib": 64, **fields}
        return self.cluster.submit(
            Job.model_validate(
                {
                    "name": self.prefix + name,
                    "argv": ("sh", "-c", script, "sh", *args),
                    "log": str(self.folder / name),
                    **values,
                }
            )
        )

    def tasks(self, name: str = "") -> list[TaskStatus]:
        """The tasks of the jobs whose name begins so, by index."""
        found = self.cluster.poll(self.prefix + name)
        return sorted(found, key=lambda task: (task.name, task.index))

    def alive(self, name: str = "") -> list[int]:
        """The indexes of those that have not ended."""
        return [task.index for task in self.tasks(name) if task.state is not State.ENDED]

    def running(self, name: str) -> list[TaskStatus]:
        return [task for task in self.tasks(name) if task.state is State.RUNNING]

    def ended(self, name: str) -> set[End]:
        """Wait until the tasks have ended, and return what is said of how. It may be nothing."""
        until(lambda: not self.alive(name), f"the end of {name}")
        return {task.end for task in self.tasks(name)}

    def said(self, name: str) -> str:
        """What is in a file of the folder, once it is there."""
        path = self.folder / name
        until(path.exists, str(path))
        return path.read_text()

    def close(self) -> None:
        """End what is left of its jobs."""
        self.cluster.cancel([task.job_id for task in self.tasks()])
        until(lambda: not self.alive(), "the end of all jobs")


def engine_runs(folder: Path) -> bool:
    """Whether the process that `ENGINE` has started still runs."""
    try:
        stat = Path(f"/proc/{int((folder / 'engine').read_text())}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def an_end_is_told_or_unknown_and_never_another(trial: Trial) -> None:
    trial.submit("good", "exit 0")
    trial.submit("bad", "exit 3")
    trial.submit("killed", "kill -9 $$")
    assert trial.ended("good") <= {End.COMPLETED, End.UNKNOWN}
    assert trial.ended("bad") <= {End.FAILED, End.UNKNOWN}
    assert trial.ended("killed") <= {End.FAILED, End.UNKNOWN}


def a_job_that_is_cancelled_ends(trial: Trial) -> None:
    job_id = trial.submit("long", f"touch begun; {WAITS}")
    trial.said("begun")
    (task,) = until(lambda: trial.running("long"), "a task that runs")
    assert (task.job_id, task.index, task.name) == (job_id, 0, f"{trial.prefix}long")
    trial.cluster.cancel([job_id])
    assert trial.ended("long") <= {End.CANCELLED, End.UNKNOWN}


def a_job_may_clean_up_when_it_is_cancelled(trial: Trial) -> None:
    script = "trap 'touch clean; exit 0' TERM; touch begun; while :; do sleep 0.1; done"
    job_id = trial.submit("tidy", script)
    trial.said("begun")
    until(lambda: trial.running("tidy"), "a task that runs")
    trial.cluster.cancel([job_id])
    trial.ended("tidy")
    assert (trial.folder / "clean").exists()


def a_poll_has_the_jobs_with_a_prefix_and_no_others(trial: Trial) -> None:
    ids = {name: trial.submit(name, WAITS) for name in ("one", "one more", "two")}
    assert {task.job_id for task in trial.tasks("one")} == {ids["one"], ids["one more"]}
    assert {task.job_id for task in trial.tasks()} == {*ids.values()}
    assert [task.job_id for task in trial.tasks("two")] == [ids["two"]]


def tasks_of_a_job_have_an_index_and_a_name_of_their_own(trial: Trial) -> None:
    script = 'echo "$COORDINATE_EVAL_TASK" > "$COORDINATE_EVAL_INDEX.part"; '
    script += 'mv "$COORDINATE_EVAL_INDEX.part" "$COORDINATE_EVAL_INDEX"'
    job_id = trial.submit("many", script, count=3)
    names = [trial.said(str(index)).strip() for index in range(3)]
    assert [name.rpartition(".")[0] for name in names] == [f"{job_id}_{i}" for i in range(3)]


def one_task_of_a_job_can_be_cancelled(trial: Trial) -> None:
    job_id = trial.submit("pair", WAITS, count=2)
    until(lambda: len(trial.running("pair")) == 2, "both to run")
    trial.cluster.cancel([f"{job_id}_1"])
    until(lambda: trial.alive("pair") == [0], "the end of one of them")


def ids_that_are_unknown_are_ignored(trial: Trial) -> None:
    over = trial.submit("over", "exit 0")
    trial.ended("over")
    job_id = trial.submit("long", WAITS)
    for ids in ([], [over, f"{job_id}_7", "999999", "nonsense", "--signal=USR1"]):
        trial.cluster.cancel(ids)
        assert trial.alive("long") == [0]


def a_job_has_a_log_for_each_task_and_works_in_its_folder(trial: Trial) -> None:
    trial.submit("written", "echo out; echo err >&2; pwd; mv begun.part begun", count=2)
    trial.ended("written")
    logs = [path.read_text() for path in trial.folder.glob("written*.log")]
    assert len(logs) == 2
    for log in logs:
        assert "out\nerr\n" in log
        assert f"{trial.folder}\n" in log


def words_of_a_command_arrive_unchanged(trial: Trial) -> None:
    words = ["a 'b' \"c\"", "", "$(touch x) `id` %j", "-n", "*", "\\", "\t\n\r\x01", "ü\u2028"]
    trial.submit("words", 'printf "%s\\0" "$@" > words.part; mv words.part words', *words)
    until((trial.folder / "words").exists, "its words")
    assert (trial.folder / "words").read_bytes().decode().split("\0") == [*words, ""]


def a_job_gets_what_it_needs_and_no_secret_of_others(trial: Trial) -> None:
    mine = {"CONTRACT_KEY": "k", "HF_CONTRACT": "h", "HF_CONTRACT_SECRET": "s"}
    with mock.patch.dict(os.environ, mine):
        trial.submit(
            "told",
            "env > told.part; mv told.part told",
            needs=("CONTRACT_KEY",),
            without=("HF_CONTRACT_SECRET",),
        )
    lines = trial.said("told").splitlines()
    assert {"CONTRACT_KEY=k", "HF_CONTRACT=h"} <= {*lines}
    assert not [line for line in lines if line.startswith("HF_CONTRACT_SECRET=")]


def a_job_waits_its_turn_for_a_gpu(trial: Trial) -> None:
    free, _ = trial.cluster.nodes()
    node = free[0]
    where = {"node": node.name, "gpu_type": node.gpu_type, "cpus": 1}
    all_of_them = trial.submit("first", WAITS, gpus=node.free_gpus, **where)
    until(lambda: trial.running("first"), "the first to run")
    trial.submit("second", WAITS, gpus=1, **where)
    left, busy = trial.cluster.nodes()
    assert node.name not in [each.name for each in left]
    assert "GPUs in use" in next(each.why for each in busy if each.name == node.name)
    until(lambda: [task.waits for task in trial.tasks("second")] == [Waits.TURN], "its turn")
    trial.cluster.cancel([all_of_them])
    (task,) = until(lambda: trial.running("second"), "the second to run")
    assert task.node == node.name


PROMISES: tuple[Callable[[Trial], None], ...] = (
    an_end_is_told_or_unknown_and_never_another,
    a_job_that_is_cancelled_ends,
    a_job_may_clean_up_when_it_is_cancelled,
    a_poll_has_the_jobs_with_a_prefix_and_no_others,
    tasks_of_a_job_have_an_index_and_a_name_of_their_own,
    one_task_of_a_job_can_be_cancelled,
    ids_that_are_unknown_are_ignored,
    a_job_has_a_log_for_each_task_and_works_in_its_folder,
    words_of_a_command_arrive_unchanged,
    a_job_gets_what_it_needs_and_no_secret_of_others,
    a_job_waits_its_turn_for_a_gpu,
)
