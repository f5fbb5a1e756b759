"""What a supervisor makes of a poll.

Tasks that stay in Slurm's COMPLETING, as after a hang, hold up no run. With more runs of a user
each asks less often.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.clocks import SetClock
from tests.decisions import TRIAL
from tests.random_examples import examples
from tests.reviewer import FakeCluster

from coordinate_eval.clusters.protocol import State, TaskStatus
from coordinate_eval.coordinator.incidents.remedies import claim_end
from coordinate_eval.coordinator.supervisor.polls import (
    FULL_PACE_SECONDS,
    GONE_SECONDS,
    Polls,
    slow_down,
)

STUCK = TaskStatus(name=TRIAL[0], job_id="7", index=0, state=State.RUNNING, completing=True)


class Says(FakeCluster):
    """A scheduler that knows these tasks, and others of the same user."""

    def __init__(self, *tasks: TaskStatus) -> None:
        super().__init__()
        self.listed = tasks

    def poll(self, prefix: str) -> list[TaskStatus]:
        return [task for task in self.listed if task.name.startswith(prefix)]


def polls(cluster: Says, clock: SetClock) -> Polls:
    return Polls(cluster, TRIAL[0], clock)


def test_a_task_that_does_not_end_is_gone_after_a_while() -> None:
    clock = SetClock(50)
    running = STUCK.model_copy(update={"index": 1, "completing": False})
    asked = polls(Says(STUCK, running), clock)
    assert asked.tasks() == [STUCK, running]
    clock.sleep(GONE_SECONDS - 1)
    assert asked.tasks() == [STUCK, running]
    clock.sleep(1)
    gone, other = asked.tasks()
    assert (gone.state, other) == (State.ENDED, running)
    # What it worked on is not blamed: work that ends its jobs is given up after a few of them.
    assert claim_end(gone.end) == "lost"


@given(st.lists(st.tuples(st.floats(0, GONE_SECONDS), st.booleans()), max_size=30))
@examples(50)
def test_only_who_completes_all_that_time_is_gone(seen: list[tuple[float, bool]]) -> None:
    clock, since = SetClock(0), None
    cluster = Says()
    asked = polls(cluster, clock)
    for pause, is_completing in seen:
        clock.sleep(pause)
        now = clock.now()
        since = (now if since is None else since) if is_completing else None
        cluster.listed = (STUCK.model_copy(update={"completing": is_completing}),)
        (found,) = asked.tasks()
        late = since is not None and now - since >= GONE_SECONDS
        assert found.state is (State.ENDED if late else State.RUNNING)


def task(name: str, state: State = State.RUNNING) -> TaskStatus:
    return TaskStatus(name=name, job_id="1", state=state)


@pytest.mark.parametrize(("runs", "factor"), [(0, 1), (1, 1), (4, 2), (100, 10)])
def test_the_pace_falls_with_the_number_of_runs(runs: int, factor: float) -> None:
    assert slow_down(task(f"ce-step-{n}.abc-super1") for n in range(runs)) == factor


def test_only_living_supervisors_count_and_each_run_once() -> None:
    many = range(100)
    tasks = [
        *(task("ce-r.abc-super1", State.PENDING) for _ in many),
        *(task(f"ce-r.abc-super{n}") for n in many),
        *(task(f"ce-old-{n}.abc-super1", State.ENDED) for n in many),
        *(task(f"ce-other-{n}.abc-trial0-node{n}") for n in many),
        *(task(f"somebody's job {n}") for n in many),
    ]
    assert slow_down(tasks) == 1


def test_a_run_hears_of_its_own_tasks_alone_and_slows_down_for_others() -> None:
    clock, mine = SetClock(0), task(TRIAL[0])
    asked = polls(Says(mine, *(task(f"ce-step-{n}.abc-super1") for n in range(9))), clock)
    assert asked.tasks() == [mine]
    assert asked.slower == 1  # it begins at the full pace
    clock.sleep(FULL_PACE_SECONDS)
    assert asked.tasks() == [mine]
    assert asked.slower == 3
