"""All supervisors of a user together ask the scheduler no more often than ten of them would."""

import pytest

from coordinate_eval.cluster import State, TaskStatus
from coordinate_eval.coordinator.supervisor.pace import RUNS_AT_FULL_PACE, slow_down


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
