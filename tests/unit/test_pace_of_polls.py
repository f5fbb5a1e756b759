"""All supervisors of a user together look no more often than ten of them would.

In between, each hears of its own jobs.
"""

import pytest
from tests.reviewer import FakeCluster

from coordinate_eval.clusters.protocol import State, TaskStatus
from coordinate_eval.coordinator.supervisor.pace import RUNS_AT_FULL_PACE, Pace, slow_down


def task(name: str, state: State = State.RUNNING) -> TaskStatus:
    return TaskStatus(name=name, job_id="1", state=state)


@pytest.mark.parametrize(("runs", "factor"), [(0, 1), (1, 1), (10, 1), (11, 1.1), (100, 10)])
def test_the_pace_falls_with_the_number_of_runs(runs: int, factor: float) -> None:
    tasks = [task(f"ce-step-{n}.abc-super1") for n in range(runs)]
    assert slow_down(tasks) == pytest.approx(factor)


def test_only_living_supervisors_count_and_each_run_once() -> None:
    many = range(10 * RUNS_AT_FULL_PACE)
    tasks = [
        *(task("ce-r.abc-super1", State.PENDING) for _ in many),
        *(task(f"ce-r.abc-super{n}") for n in many),
        *(task(f"ce-old-{n}.abc-super1", State.ENDED) for n in many),
        *(task(f"ce-other-{n}.abc-trial0-node{n}") for n in many),
        *(task(f"somebody's job {n}") for n in many),
    ]
    assert slow_down(tasks) == 1


class Asked(FakeCluster):
    """A scheduler that counts what it is asked for, and may be asked by somebody else now."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks: list[TaskStatus] = []
        self.looks: list[tuple[str, bool]] = []
        self.others_ask = False

    def look(self, prefix: str, *, patient: bool = False) -> list[TaskStatus] | None:
        self.looks.append((prefix, patient))
        if patient and self.others_ask:
            return None
        return [task for task in self.tasks if task.name.startswith(prefix)]


MINE = "ce-mine.abc-"


@pytest.fixture
def cluster() -> Asked:
    """A hundred runs at a time, each of which decides every tenth time."""
    made = Asked()
    made.tasks = [task(f"ce-step-{n}.abc-super1") for n in range(99)] + [task(f"{MINE}super1")]
    return made


def pace_of(cluster: Asked, now: list[float]) -> Pace:
    return Pace(cluster, MINE, 5.0, lambda: now[0])


def looked(pace: Pace, now: list[float], times: int) -> list[bool]:
    """Whether the run is looked at, at so many polls."""
    found = []
    for _ in range(times):
        now[0] += 5.0
        found.append(pace.tasks() is not None)
    return found


def test_one_of_many_runs_is_looked_at_in_turn(cluster: Asked) -> None:
    now = [0.0]
    pace = pace_of(cluster, now)
    assert looked(pace, now, 21) == [True, *[False] * 9] * 2 + [True]
    assert pace.slower == 10
    # It wants to know of all runs when it is its turn, and leaves it to others to ask otherwise.
    assert cluster.looks[:3] == [("ce-", False), (MINE, True), (MINE, True)]


def test_what_happens_to_its_jobs_is_looked_at_at_once(cluster: Asked) -> None:
    now = [0.0]
    pace = pace_of(cluster, now)
    assert looked(pace, now, 3) == [True, False, False]
    cluster.tasks.append(task(f"{MINE}trial0-n1"))
    assert looked(pace, now, 2) == [True, False]
    cluster.tasks[-1] = task(f"{MINE}trial0-n1", State.ENDED)
    assert looked(pace, now, 2) == [True, False]
    cluster.tasks[0] = task(cluster.tasks[0].name, State.ENDED)
    assert looked(pace, now, 1) == [False]


def test_changes_at_every_poll_do_not_put_off_its_turn(cluster: Asked) -> None:
    now = [0.0]
    pace = pace_of(cluster, now)
    for number in range(21):
        cluster.tasks.append(task(f"{MINE}trial{number}-n1"))
        assert looked(pace, now, 1) == [True]
    assert [prefix for prefix, _ in cluster.looks].count("ce-") == 3


def test_it_asks_for_itself_when_it_is_its_turn_even_if_another_does(cluster: Asked) -> None:
    now = [0.0]
    pace = pace_of(cluster, now)
    cluster.others_ask = True
    assert looked(pace, now, 11) == [True, *[False] * 9, True]


def test_what_was_done_is_followed_up_at_once(cluster: Asked) -> None:
    now = [0.0]
    pace = pace_of(cluster, now)
    assert looked(pace, now, 2) == [True, False]
    pace.at_once()
    assert looked(pace, now, 2) == [True, False]


def test_a_run_alone_is_looked_at_at_every_poll(cluster: Asked) -> None:
    now = [0.0]
    cluster.tasks = [task(f"{MINE}super1")]
    assert looked(pace_of(cluster, now), now, 10) == [True] * 10
