"""Build, metric, judge's and scoring jobs that give no sign of life are ended."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.clocks import SetClock
from tests.decisions import (
    DIR,
    RUN,
    SPANS,
    claimed,
    facts,
    make_run,
    submitted,
    waiting_for,
)
from tests.reviewer import Cancelling
from tests.run_dirs import unplanned
from tests.runs import until

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import TASK_VARIABLE, End, State, TaskStatus
from coordinate_eval.coordinator.cli import job_commands
from coordinate_eval.coordinator.incidents.hangs import (
    LEAST_SIGNS,
    SIGN_SECONDS,
    quiet_seconds,
)
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run.claiming.claims import Ledger, whole
from coordinate_eval.coordinator.run.claiming.pullers import Pullers, pullers_name
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.supervisor.decide import decide
from coordinate_eval.coordinator.supervisor.loop import Supervisor
from coordinate_eval.coordinator.supervisor.polls import MOST_BETWEEN_SECONDS, Silence
from coordinate_eval.coordinator.supervisor.values import (
    EndHung,
    Facts,
    Quiet,
    Revoke,
)
from coordinate_eval.coordinator.workers.signals import signs_of_life

LEAST = RUN.settings.trial.hang_minutes * 60
METRIC = pullers_name(RUN, Pullers.METRIC, 0)


def as_job_7(name: str, count: int = 2) -> dict[str, Any]:
    """An array of pullers that was submitted."""
    return {name: submitted(name, count=count)[name].model_copy(update={"job_id": "7"})}


def task_of(index: int = 0, **fields: Any) -> TaskStatus:
    known = {"name": METRIC, "job_id": "7", "index": index, "state": State.RUNNING, "node": "n1"}
    return TaskStatus.model_validate(known | fields, extra="forbid")


def quiet(seconds: float = LEAST, *, begun: bool = True, **fields: Any) -> Facts:
    """Facts of two metric jobs, of which the second holds work and is quiet."""
    tasks = [task_of(), task_of(1, **fields)]
    return facts(
        submitted=as_job_7(METRIC),
        tasks=tasks,
        claimable=waiting_for(),
        open_claims=[("answers", claimed(SPANS[0], "7_1.0", "metric-1"))],
        quiet={"7_0": Quiet(tasks[0], 0.0, True), "7_1": Quiet(tasks[1], seconds, begun)},
    )


def ended(found: Facts) -> tuple[list[EndHung], list[Revoke]]:
    actions = decide(RUN, DIR, found)
    ends = [a for a in actions if isinstance(a, EndHung)]
    return ends, [a for a in actions if isinstance(a, Revoke)]


def test_one_without_a_sign_of_life_is_ended_and_others_take_what_it_held() -> None:
    assert ended(quiet(LEAST - 1)) == ([], [])
    [end], [revoked] = ended(quiet())
    assert end.job_ids == ("7_1",)
    assert (end.incident.who, end.incident.node, end.incident.how) == (
        "metric job metric0_1", "n1", "hung"
    )  # fmt: skip
    assert end.incident.message == "no sign of life for 15 min 00 s, and was ended"
    assert (revoked.ledger, revoked.claim.claim.owner) == ("answers", "metric-1")
    assert revoked.end is End.UNKNOWN


def test_a_run_without_a_plan_ends_build_jobs_that_hang() -> None:
    run, name = make_run(shards=[]), pullers_name(RUN, Pullers.BUILD, 0)
    task = task_of(name=name)
    found = facts(
        submitted=as_job_7(name, count=1),
        tasks=[task],
        rounds=[],
        unbuilt=1,
        quiet={"7": Quiet(task, LEAST, True)},
    )
    (end,) = [a for a in decide(run, DIR, found) if isinstance(a, EndHung)]
    assert end.job_ids == ("7",)


def test_one_that_its_scheduler_suspends_is_preempted() -> None:
    [_], [revoked] = ended(quiet(suspended=True))
    assert revoked.end is End.PREEMPTED


def test_one_that_starts_has_twice_the_time() -> None:
    idle = replace(quiet(2 * LEAST - 1, begun=False), open_claims=[])
    assert ended(idle) == ([], [])
    assert len(ended(replace(quiet(2 * LEAST, begun=False), open_claims=[]))[0]) == 1


def test_how_long_no_sign_may_be_seen() -> None:
    impatient = make_run(settings=Settings.model_validate({"trial": {"hang_minutes": 0.5}}))
    assert quiet_seconds(RUN, begun=True) == LEAST
    assert quiet_seconds(RUN, begun=False) == 2 * LEAST
    assert quiet_seconds(impatient, begun=True) == LEAST_SIGNS * SIGN_SECONDS


class Watch:
    """A supervisor's memory of signs of life, and its clock."""

    def __init__(self, folder: Path) -> None:
        self.dir, self.clock = RunDir(folder), SetClock(100)
        self.silence = Silence(self.dir, self.clock)

    def seen(self, after: float, *tasks: TaskStatus) -> dict[str, tuple[float, bool]]:
        self.clock.sleep(after)
        known = facts(submitted=as_job_7(METRIC), tasks=list(tasks))
        found = self.silence.of(RUN, known).quiet
        return {job_id: (each.seconds, each.begun) for job_id, each in found.items()}

    def sign(self, task: str, when: float) -> None:
        _files.make_folder(self.dir.alive_folder)
        self.dir.alive(task).touch()
        os.utime(self.dir.alive(task), (when, when))


def test_a_sign_is_any_change_of_the_file_that_a_job_touches(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    both = task_of(), task_of(1)
    assert watch.seen(0, *both) == {"7_0": (0, False), "7_1": (0, False)}
    watch.sign("7_1", 5000.0)
    assert watch.seen(10, *both) == {"7_0": (10, False), "7_1": (0, True)}
    assert watch.seen(10, *both) == {"7_0": (20, False), "7_1": (10, True)}
    watch.sign("7_1", 4000.0)  # the clock of its node was set back
    assert watch.seen(10, *both) == {"7_0": (30, False), "7_1": (0, True)}
    watch.silence.begins_again("7_0")
    assert watch.seen(10, *both) == {"7_0": (0, False), "7_1": (10, True)}


def test_no_job_is_watched_that_waits_or_ends(tmp_path: Path) -> None:
    others = (
        task_of(state=State.PENDING),
        task_of(1, state=State.ENDED),
        task_of(2, completing=True),
        task_of(3, name="another"),
        task_of(4, name=pullers_name(RUN, Pullers.SCORE, 0)),
    )
    assert Watch(tmp_path).seen(0, *others) == {}


def test_time_in_which_a_supervisor_did_not_look_counts_for_little(tmp_path: Path) -> None:
    """Its storage did not answer, or it was stopped: the others' signs may come as late."""
    watch = Watch(tmp_path)
    watch.sign("7_0", 5000.0)
    assert watch.seen(0, task_of()) == {"7_0": (0, True)}
    assert watch.seen(100 * LEAST, task_of()) == {"7_0": (MOST_BETWEEN_SECONDS, True)}
    assert watch.seen(10, task_of()) == {"7_0": (MOST_BETWEEN_SECONDS + 10, True)}


class Stuck(Cancelling):
    """A scheduler of a build job that hangs, and is long in ending it."""


def test_a_supervisor_ends_one_once_and_gives_its_dataset_to_another(tmp_path: Path) -> None:
    run_dir, _ = unplanned(tmp_path, cluster="slurm")
    cluster, clock, said = Stuck(), SetClock(), list[str]()
    supervisor = Supervisor(run_dir, cluster, tell=said.append, clock=clock)
    assert not supervisor.step()
    (job,) = cluster.submitted
    ledger, datasets = Ledger(run_dir, "requests"), [whole("a"), whole("b")]
    assert ledger.claim(datasets[0], "build-0", "1.0") == 1
    _files.make_folder(run_dir.alive_folder)
    run_dir.alive("1").touch()
    assert not supervisor.step()
    while not cluster.cancelled:
        assert ledger.claimable(datasets) == datasets[1:]
        clock.sleep(MOST_BETWEEN_SECONDS)
        assert not supervisor.step()
    assert clock.slept >= LEAST
    assert ledger.claimable(datasets) == datasets
    clock.sleep(MOST_BETWEEN_SECONDS)
    assert not supervisor.step()
    assert cluster.cancelled == ["1"]
    assert [event for event in said if event.startswith("build job build0_0: no sign of life for ")]
    assert job.name == pullers_name(RUN, Pullers.BUILD, 0)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that gives signs of life often, and does one thing that does not end."""
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from coordinate_eval.coordinator.run.paths import RunDir\n"
        "from coordinate_eval.coordinator.workers.signals import signs_of_life\n"
        "with signs_of_life(RunDir(Path(sys.argv[1])), 0.01):\n"
        "    sum(1 for _ in iter(int, 1))\n"
    )
    made = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], env={**os.environ, TASK_VARIABLE: "7_1.0"}
    )
    yield made
    made.kill()
    made.wait()


def test_a_job_gives_signs_whatever_it_does_until_it_is_stopped(
    tmp_path: Path, worker: "subprocess.Popen[bytes]"
) -> None:
    sign = RunDir(tmp_path).alive("7_1")

    def is_given_again() -> bool:
        return _files.modified(sign) > 0

    until(sign.exists, "a sign of life")
    for _ in range(3):
        os.utime(sign, (0, 0))
        until(is_given_again, "another one")
    worker.send_signal(signal.SIGSTOP)
    os.waitpid(worker.pid, os.WUNTRACED)
    os.utime(sign, (0, 0))
    assert not is_given_again()
    worker.send_signal(signal.SIGCONT)
    until(is_given_again, "one after it has gone on")


@pytest.mark.parametrize(
    ("command", "works"),
    [
        (job_commands.build, "builder.run_builder"),
        (job_commands.metric, "metric.run_metric"),
        (job_commands.judge, "judging.judge.run_judge"),
        (job_commands.score, "scorer.run_scorer"),
    ],
)
def test_every_such_job_gives_signs_while_it_works(
    command: Callable[[RunDir], int], works: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, _ = unplanned(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(TASK_VARIABLE, "7_1.0")
    monkeypatch.setattr("coordinate_eval.evaluators.sandbox.inside.show", lambda visible: None)

    def work(entered: RunDir) -> int:
        until(entered.alive("7_1").exists, "a sign of life")
        return 3

    monkeypatch.setattr(f"coordinate_eval.coordinator.workers.{works}", work)
    assert command(run_dir) == 3


def test_no_sign_makes_a_removed_run_again(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    run_dir.root.mkdir()
    _files.never_make(run_dir.root)
    run_dir.root.rmdir()
    with signs_of_life(run_dir):
        assert not run_dir.root.exists()
