"""A guard is killed, or frozen, at every step of its actions: a training never runs twice."""

import random
from pathlib import Path

import pytest
from tests.clocks import SetClock
from tests.guard_worlds import EVERY, LAST, Job, Killed, World, guard_of, over, run, run_to_end
from tests.plans import changed
from tests.random_examples import LONG

from coordinate_eval.clusters.protocol import End, State, TaskStatus
from coordinate_eval.coordinator.training.guarding.attempts import (
    Cancelled,
    GuardDir,
    What,
)
from coordinate_eval.coordinator.training.guarding.endings import FORGOTTEN_SECONDS
from coordinate_eval.coordinator.training.guarding.hands import Superseded
from coordinate_eval.slurm.batch import Described

SOME = 1 if LONG else 6
"""Of so many steps one is tried; of the long tests, each."""

FAULTS = {1: End.NODE_FAILED, 2: End.FAILED, 3: End.PREEMPTED}


def points_of(tmp_path: Path) -> int:
    """Return how often a guard could be killed in a whole training."""
    seen: list[str] = []
    world = World(FAULTS, now=seen.append)
    assert run_to_end(world, tmp_path / "count", SetClock()).complete
    return len(seen)


def test_a_guard_killed_at_any_step_of_its_actions_never_has_two_copies_run(tmp_path: Path) -> None:
    points = points_of(tmp_path)
    assert points > 60
    for kill_at in range(0, points, SOME):
        count = 0

        def kill(what: str) -> None:
            nonlocal count
            count += 1
            if count - 1 == kill_at:  # noqa: B023 - called within this turn
                raise Killed(what)

        world, root = World(FAULTS, now=kill), tmp_path / f"{kill_at}"
        found = run_to_end(world, root, SetClock())
        assert found.complete, f"killed at {kill_at}: {found}"
        # Nothing is run for nothing: each attempt once, and from the save before.
        assert len(world.ran) == 4
        assert sorted(set(world.saved)) == world.saved == [3, 6, 9, 12]


@pytest.mark.parametrize("seed", range(200 if LONG else 4))
def test_lost_answers_and_kills_at_random_never_have_two_copies_run(
    tmp_path: Path, seed: int
) -> None:
    dice = random.Random(seed)

    def kill(what: str) -> None:
        if dice.random() < 0.05:
            raise Killed(what)

    silences = {number for number in range(1, 40) if dice.random() < 0.5}
    world = World(FAULTS, silences=silences, now=kill)
    assert run_to_end(world, tmp_path / "guard", SetClock()).complete
    assert len(world.ran) == 4


def test_a_guard_that_was_frozen_at_any_step_wakes_and_has_no_second_copy_run(
    tmp_path: Path,
) -> None:
    points = points_of(tmp_path)
    for freeze_at in range(0, points, 2 * SOME):  # before each thing that is done
        count, clock = 0, SetClock()
        root = tmp_path / f"{freeze_at}"
        world = World(FAULTS)

        def freeze(what: str) -> None:
            nonlocal count
            count += 1
            if count - 1 == freeze_at:  # noqa: B023 - called within this turn
                other = guard_of(world, root, clock)  # noqa: B023
                for _ in range(7):
                    other.step()
                    clock.sleep(30)  # noqa: B023

        world.now = freeze
        found = run_to_end(world, root, clock)
        assert found.complete
        assert len(world.ran) == 4


def test_a_wish_to_stop_ends_the_job_and_the_guard_at_any_moment(tmp_path: Path) -> None:
    for stop_at in range(0, 40, SOME):
        count, root = 0, tmp_path / f"{stop_at}"
        world = World(FAULTS)

        def stop(what: str) -> None:
            nonlocal count
            count += 1
            if count - 1 == stop_at:  # noqa: B023 - called within this turn
                GuardDir(root).stop.write_text("")  # noqa: B023

        world.now = stop
        found = run_to_end(world, root, SetClock())
        alive = [j for j in world.jobs_by_id.values() if j.shown.state is not State.ENDED]
        assert not alive
        assert not found.complete


def test_a_training_that_finishes_while_it_is_being_ended_is_complete(tmp_path: Path) -> None:
    world, clock = World(), SetClock()
    guard = guard_of(world, tmp_path / "guard", clock)
    while not world.saved:
        guard.step()
    (job,) = world.jobs_by_id.values()
    job.step = LAST - 1
    guard._hands.create(1, Cancelled(what=What.HUNG, time=clock.now(), why="silent"))
    world.tick()
    assert job.shown.end is End.COMPLETED
    while over(tmp_path / "guard") is None:
        guard.step()
    found = over(tmp_path / "guard")
    assert found is not None and found.complete


class Forgetting(World):
    """A cluster whose controller loses a job that its accounting calls running for ever."""

    lost = False
    after = EVERY + 1
    """The step after which that happens."""

    def _run(self, job: Job) -> None:
        super()._run(job)
        if job.attempt == 1 and job.step == self.after and not self.lost:
            self.lost = True
            job.shown = changed(job.shown, state=State.ENDED)

    def jobs(self, mark: str) -> list[TaskStatus]:
        found = super().jobs(mark)
        return [each for each in found if not (self.lost and each.job_id == "1")]

    def describe(self, job_id: str) -> Described | None:
        if self.lost and job_id == "1":
            return Described("RUNNING", End.UNKNOWN, nodes="n[1-2]", forgotten=True)
        return super().describe(job_id)


def test_a_job_that_only_the_accounting_calls_running_holds_nobody_for_ever(tmp_path: Path) -> None:
    world, clock = Forgetting(), SetClock()
    assert run(world, tmp_path / "guard", clock).complete
    first, second = GuardDir(tmp_path / "guard").history()
    assert (first.what, second.what) == (What.LOST, What.FINISHED)
    assert clock.slept >= FORGOTTEN_SECONDS


def test_a_job_that_slurm_forgot_after_its_last_save_is_complete(tmp_path: Path) -> None:
    class Late(Forgetting):
        after = LAST

    assert run(Late(), tmp_path / "guard", SetClock()).complete
    assert [each.what for each in GuardDir(tmp_path / "guard").history()] == [What.FINISHED]


def test_a_job_that_sbatch_names_after_the_guard_was_stopped_is_cancelled(tmp_path: Path) -> None:
    root, clock, world = tmp_path / "guard", SetClock(), World()

    def stop(what: str) -> None:
        if what == "before submit":
            world.now = lambda what: None
            GuardDir(root).stop.write_text("")
            assert not run(world, root, clock).complete

    world.now = stop
    with pytest.raises(Superseded):
        run(world, root, clock)
    assert [job.shown.state for job in world.jobs_by_id.values()] == [State.ENDED]
