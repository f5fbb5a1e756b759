"""A guard is killed, or frozen, at every step of its actions: a training never runs twice."""

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from tests.clocks import SetClock
from tests.random_examples import LONG

from coordinate_eval.clusters.protocol import End, State
from coordinate_eval.coordinator.history.alarms import Alarm
from coordinate_eval.coordinator.history.series import Row
from coordinate_eval.coordinator.incidents.bad_nodes import avoid
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.training.advice import Save
from coordinate_eval.coordinator.training.guarding.attempts import (
    Cancelled,
    Evaluated,
    GuardDir,
    Guarded,
    Logs,
    NodesTested,
    Over,
    What,
)
from coordinate_eval.coordinator.training.guarding.endings import FORGOTTEN_SECONDS
from coordinate_eval.coordinator.training.guarding.hands import Hands, Superseded
from coordinate_eval.coordinator.training.guarding.healthy import Choice
from coordinate_eval.coordinator.training.guarding.loop import Guard
from coordinate_eval.coordinator.training.guarding.policy import Policy
from coordinate_eval.coordinator.training.guarding.vitals import Vitals
from coordinate_eval.coordinator.training.scores import Scores
from coordinate_eval.coordinator.training.spikes import Spike
from coordinate_eval.errors import ClusterError, ClusterSilent, SubmitRefused
from coordinate_eval.records import Record
from coordinate_eval.slurm.batch import BatchJob, Described

LAST, EVERY = 12, 3

SOME = 1 if LONG else 6
"""Of so many steps one is tried; of the long tests, each."""


class Killed(BaseException):
    """The guard was killed."""


@dataclass
class _Job:
    shown: BatchJob
    begins: int = 0
    step: int = 0
    attempt: int = 0


@dataclass
class World:
    """A cluster and the training on it. Each look of a guard is a step of the training."""

    faults: Mapping[int, End] = field(default_factory=dict)
    """By attempt: how its job ends after a while."""
    jobs_by_id: dict[str, _Job] = field(default_factory=dict)
    late: list[_Job] = field(default_factory=list)
    saved: list[int] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)
    silences: set[int] = field(default_factory=set)
    """Submissions whose answer is lost; every other one takes effect only later."""
    submissions: int = 0
    asked: list[tuple[int | None, tuple[str, ...]]] = field(default_factory=list)
    """The number of nodes, and the excluded ones, of each submission."""
    takes_exclusions: bool = True
    now: Callable[[str], None] = lambda what: None
    """Called before and after each thing that a guard does."""

    def tick(self) -> None:
        for job in self.jobs_by_id.values():
            state = job.shown.state
            if state is State.PENDING and not job.shown.held and self.starts(job):
                job.shown = replace(job.shown, state=State.RUNNING, nodes="n[1-2]")
                self.ran.append(job.shown.job_id)
            elif state is State.RUNNING:
                self._run(job)
        running = [j for j in self.jobs_by_id.values() if j.shown.state is State.RUNNING]
        assert len(running) <= 1, "two copies of the training run"

    def starts(self, job: _Job) -> bool:
        return True

    def _run(self, job: _Job) -> None:
        job.step += 1
        if job.step % EVERY == 0:
            self.saved.append(job.step)
        if job.step >= LAST:
            job.shown = replace(job.shown, state=State.ENDED, end=End.COMPLETED)
        elif job.attempt in self.faults and job.step >= job.begins + EVERY + 1:
            job.shown = replace(job.shown, state=State.ENDED, end=self.faults[job.attempt])

    # The scheduler.

    def submit(
        self,
        script: Path,
        *,
        mark: str,
        folder: str,
        environment: Mapping[str, str],
        variables: Mapping[str, str],
        arguments: Sequence[str] = (),
        exclude: Collection[str] = (),
        nodes: int | None = None,
    ) -> str:
        self.now("before submit")
        if exclude and not self.takes_exclusions:
            raise SubmitRefused("Requested node configuration is not available")
        self.submissions += 1
        self.asked.append((nodes, tuple(exclude)))
        job_id = str(self.submissions)
        begins = int(variables["COORDINATE_EVAL_RESUME_FROM"] or 0)
        shown = BatchJob(job_id, State.PENDING, reason="JobHeldUser", comment=mark)
        attempt = int(variables["COORDINATE_EVAL_ATTEMPT"])
        made = _Job(shown, begins, begins, attempt)
        if self.submissions in self.silences and self.submissions % 2:
            self.late.append(made)
            raise ClusterSilent("no answer")
        self.jobs_by_id[job_id] = made
        if self.submissions in self.silences:
            raise ClusterSilent("no answer")
        self.now("after submit")
        return job_id

    def jobs(self, mark: str) -> list[BatchJob]:
        self.now("before jobs")
        self.tick()
        found = [job.shown for job in self.jobs_by_id.values() if mark in job.shown.comment]
        for job in self.late:
            self.jobs_by_id[job.shown.job_id] = job
        self.late = []
        return found

    def release(self, job_id: str) -> None:
        self.now("before release")
        job = self.jobs_by_id[job_id]
        if job.shown.state is State.PENDING:
            job.shown = replace(job.shown, reason="Priority")
        self.now("after release")

    def cancel(self, job_id: str) -> None:
        self.now("before cancel")
        job = self.jobs_by_id[job_id]
        if job.shown.state is not State.ENDED:
            job.shown = replace(job.shown, state=State.ENDED, end=End.CANCELLED)
        self.now("after cancel")

    def describe(self, job_id: str) -> Described | None:
        shown = self.jobs_by_id[job_id].shown
        state = "RUNNING" if shown.state is State.RUNNING else str(shown.end)
        return Described(state, shown.end, nodes=shown.nodes)

    def node_names(self) -> set[str]:
        return {"n1", "n2"}

    def drain(self, nodes: Sequence[str], reason: str) -> None: ...

    # The training.

    def newest_step(self, since: float = 0.0) -> int | None:
        return max(self.saved, default=None)

    def go_on(self, spoiled: Sequence[tuple[int, float]] = ()) -> None: ...

    def saves(self, spoiled: Sequence[tuple[int, float]] = ()) -> list[Save]:
        return [Save(step, Path(f"step-{step}")) for step in self.saved]

    def refuse(self, path: Path, why: str) -> None:
        self.saved.remove(int(path.name))

    def why_unfit(self, path: Path) -> str:
        return ""

    def spike(self) -> Spike | None:
        return None

    def scores(self, now: float) -> Scores:
        return Scores()

    def choose(self, spoiled: Sequence[tuple[int, float]] = ()) -> Choice | None:
        step = max(self.saved, default=0)
        return Choice(path=str(step) if step else "", step=step)

    def files(self, logs: Logs) -> list[Path]:
        return []

    def vitals(self, number: int) -> Vitals:
        return Vitals()

    def look(self, number: int, now: float) -> Vitals:
        job = next((j for j in self.jobs_by_id.values() if j.attempt == number), None)
        return Vitals(last_step=job.step if job is not None else None)

    def result(self, nodes: Sequence[str], partition: str) -> NodesTested | None:
        return NodesTested(words="tested in pairs: 2 good")

    def compare(self, number: int, saves: Sequence[Save], now: float) -> Evaluated | None:
        return Evaluated()


class Tried(Hands):
    """Hands that are killed between files, too."""

    def create(self, number: int, what: str, record: Record) -> bool:
        self.scripts.now(f"before {what}")  # type: ignore[attr-defined]  # it is a `World`
        made = super().create(number, what, record)
        self.scripts.now(f"after {what}")  # type: ignore[attr-defined]
        return made


def guard_of(
    world: World,
    root: Path,
    clock: SetClock,
    told: Callable[[str], None] | None = None,
    policy: Policy | None = None,
    **more: Any,
) -> Guard:
    root.mkdir(exist_ok=True)
    guard_dir = GuardDir(root)
    settings = Settings(cache_dir=str(root / "cache"))
    guarded = Guarded(
        name="t", nonce="0", created=0, script="/t.sbatch", folder="/", checkpoints="/c",
        policy=policy or Policy(last_step=LAST), settings=settings, python="python", **more,
    )  # fmt: skip
    guard_dir.guarded.write_text(guarded.model_dump_json())
    (root / "told").mkdir(exist_ok=True)
    hands = Tried(
        guard_dir, guarded, world, world, world, world, world, {},
        lambda key, message: told(key) if told else None, lambda words: None, clock,
    )  # fmt: skip
    return Guard(hands)


def over(root: Path) -> Over | None:
    found = GuardDir(root).over
    return Over.model_validate_json(found.read_text()) if found.exists() else None


def run_to_end(world: World, root: Path, clock: SetClock) -> Over:
    """Run guards, each after the one before was killed, until the training is over."""
    for _ in range(400):
        try:
            guard = guard_of(world, root, clock)
            for _ in range(400):
                if not guard.step():
                    clock.sleep(30)
                if (found := over(root)) is not None:
                    return found
        except (Killed, Superseded):
            continue
    raise AssertionError("the guard comes to no end")


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
    hands = guard._hands
    hands.create(1, "cancel", Cancelled(what=What.HUNG, time=clock.now(), why="silent"))
    world.tick()
    assert job.shown.end is End.COMPLETED
    while over(tmp_path / "guard") is None:
        guard.step()
    found = over(tmp_path / "guard")
    assert found is not None and found.complete


class Forgetting(World):
    """A cluster whose controller loses a job that its accounting calls running for ever."""

    lost = False

    def _run(self, job: _Job) -> None:
        super()._run(job)
        if job.attempt == 1 and job.step == EVERY + 1 and not self.lost:
            self.lost = True
            job.shown = replace(job.shown, state=State.ENDED)

    def jobs(self, mark: str) -> list[BatchJob]:
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


class Diverging(World):
    """A training whose loss goes wrong for good in its first attempt."""

    def spike(self) -> Spike | None:
        if GuardDir(self.root).latest() > 1 or max(self.saved, default=0) < 9:
            return None
        return Spike(onset=8, before=7, last=9, level=1.0, peak=3.0, noise=0.1, decided=9)

    def choose(self, spoiled: Sequence[tuple[int, float]] = ()) -> Choice | None:
        step = max((s for s in self.saved if all(s < first for first, _ in spoiled)), default=0)
        return Choice(path=str(step) if step else "", step=step)

    root: Path


@pytest.mark.parametrize("rollback", [True, False])
def test_a_training_goes_back_where_that_is_advised_and_obeyed(
    tmp_path: Path, rollback: bool
) -> None:
    world, clock, told = Diverging(), SetClock(), list[str]()
    world.root = tmp_path / "guard"
    guard = guard_of(world, world.root, clock, told.append, rollback=rollback)
    while over(world.root) is None:
        guard.step()
        clock.sleep(5)
    second = GuardDir(world.root).attempt(2)
    assert ("advice-8" in told) is not rollback
    if rollback:
        assert second is not None
        assert (second.step, second.skipped) == (6, "8-9")
    else:
        assert second is None


@pytest.mark.parametrize("fails", [True, False])
def test_a_training_goes_further_back_where_first_signals_have_fallen_earlier(
    tmp_path: Path, fails: bool
) -> None:
    class Compared(Diverging):
        def compare(self, number: int, saves: Sequence[Save], now: float) -> Evaluated | None:
            seen.append([each.step for each in saves])
            if len(seen) < 3:
                return None
            if fails:
                raise ClusterError("no answer")
            return Evaluated(onset=5, words="step 6: fallen")

        def saves(self, spoiled: Sequence[tuple[int, float]] = ()) -> list[Save]:
            first = min((step for step, _ in spoiled), default=LAST)
            return [each for each in super().saves() if each.step < first]

    seen: list[list[int]] = []
    world = Compared()
    world.root = tmp_path / "guard"
    assert run(world, world.root, SetClock(), rollback=True).complete
    assert seen == [[3, 6]] * 3
    second = GuardDir(world.root).attempt(2)
    assert second is not None and second.step == (6 if fails else 3)


def test_a_training_that_went_wrong_before_its_end_goes_back_after_it(tmp_path: Path) -> None:
    world, clock = Diverging(), SetClock()
    world.root = tmp_path / "guard"
    guard = guard_of(world, world.root, clock, rollback=True)
    while not world.jobs_by_id:
        guard.step()
    guard.step()
    for _ in range(LAST + 2):  # it runs to its end before the next look
        world.tick()
    while over(world.root) is None:
        guard.step()
        clock.sleep(5)
    assert [each.what for each in GuardDir(world.root).history()] == [
        What.ROLLED_BACK,
        What.FINISHED,
    ]
    second = GuardDir(world.root).attempt(2)
    assert second is not None and (second.step, second.skipped) == (6, "8-9")


def test_a_training_that_ends_well_with_losses_that_are_no_numbers_is_not_complete(
    tmp_path: Path,
) -> None:
    class Broken(World):
        def look(self, number: int, now: float) -> Vitals:
            found = super().look(number, now)
            if number > 1:
                return found
            return found.model_copy(update={"not_finite": 3, "onset": 7, "loss": float("nan")})

        def choose(self, spoiled: Sequence[tuple[int, float]] = ()) -> Choice | None:
            step = max((s for s in self.saved if all(s < f for f, _ in spoiled)), default=0)
            return Choice(path=str(step) if step else "", step=step)

    world, clock = Broken(), SetClock()
    guard = guard_of(world, tmp_path / "guard", clock)
    while not world.jobs_by_id:
        guard.step()
    guard.step()
    for _ in range(LAST + 2):  # it runs to its end before the next look
        world.tick()
    while over(tmp_path / "guard") is None:
        guard.step()
        clock.sleep(100)
    first, second = GuardDir(tmp_path / "guard").history()
    assert (first.what, second.what) == (What.NOT_FINITE, What.FINISHED)
    again = GuardDir(tmp_path / "guard").attempt(2)
    assert again is not None and again.step == 6


def test_a_training_goes_back_once_where_its_scores_fell(tmp_path: Path) -> None:
    def row(step: int) -> Row:
        return Row("/t", step, f"/t/step-{step}", [f"run-{step}"], 0.0, {}, [], None)

    class Falling(Diverging):
        def spike(self) -> Spike | None:
            return None

        def scores(self, now: float) -> Scores:
            if 6 not in self.saved:
                return Scores()
            fall = Alarm("collapse", "mmlu", row(6), "0.1, and 0.5 was expected", row(3), row(6))
            return Scores([fall], {3: "healthy", 6: "fallen"})

    world, told = Falling(), list[str]()
    world.root = tmp_path / "guard"
    assert run(world, world.root, SetClock(), told=told.append, rollback=True).complete
    first, second = GuardDir(world.root).history()
    assert (first.what, second.what) == (What.ROLLED_BACK, What.FINISHED)
    again = GuardDir(world.root).attempt(2)
    assert again is not None and (again.step, again.skipped) == (3, "")
    assert not any(key.startswith("advice") for key in told)


def test_a_training_that_hangs_after_its_last_save_is_complete(tmp_path: Path) -> None:
    class Lingering(World):
        def _run(self, job: _Job) -> None:
            super()._run(job)
            if job.shown.end is End.COMPLETED:
                job.shown = replace(job.shown, state=State.RUNNING, end=End.UNKNOWN)

        def look(self, number: int, now: float) -> Vitals:
            found = super().look(number, now)
            late = found.last_step is not None and found.last_step > LAST
            return found.model_copy(update={"silent": 1e6 if late else 0.0})

    assert run(Lingering(), tmp_path / "guard", SetClock()).complete


def test_no_training_goes_further_back_than_the_policy_allows(tmp_path: Path) -> None:
    world, told = Diverging(), list[str]()
    world.root = tmp_path / "guard"
    policy = Policy(last_step=LAST, most_steps_back=2)
    found = run(world, world.root, SetClock(), told=told.append, policy=policy, rollback=True)
    assert found.complete
    assert GuardDir(world.root).latest() == 1
    assert "advice-8" in told


def run(world: World, root: Path, clock: SetClock, **more: Any) -> Over:
    guard = guard_of(world, root, clock, **more)
    for _ in range(500):
        if not guard.step():
            clock.sleep(30)
        if (found := over(root)) is not None:
            return found
    raise AssertionError("the guard comes to no end")


def test_fewer_nodes_are_asked_for_when_the_first_number_does_not_start(tmp_path: Path) -> None:
    class Scarce(World):
        def starts(self, job: _Job) -> bool:
            return self.asked[int(job.shown.job_id) - 1][0] != 4

    policy = Policy(last_step=LAST, nodes=(4, 3), start_seconds=600)
    found = run(Scarce({2: End.NODE_FAILED}), tmp_path / "guard", SetClock(), policy=policy)
    assert found.complete
    ends = [each.what for each in GuardDir(tmp_path / "guard").history()]
    assert ends == [What.NEVER_STARTED, What.NODE_FAILED, What.NEVER_STARTED, What.FINISHED]


def test_bad_nodes_are_left_out_by_all_guards_of_a_user(tmp_path: Path) -> None:
    settings = Settings(cache_dir=str(tmp_path / "guard" / "cache"))
    (tmp_path / "guard").mkdir()
    avoid(settings, "n2", "it failed an all-gather", "test", SetClock().now())
    avoid(settings, "gone", "it is none of this cluster", "test", SetClock().now())
    world = World()
    assert run(world, tmp_path / "guard", SetClock()).complete
    assert world.asked == [(None, ("n2",))]


def test_where_too_few_nodes_are_left_the_guard_waits_and_tells(tmp_path: Path) -> None:
    root, clock, told = tmp_path / "guard", SetClock(), list[str]()
    settings = Settings(cache_dir=str(root / "cache"))
    root.mkdir()
    avoid(settings, "n2", "it failed an all-gather", "test", clock.now())
    found = run(World(takes_exclusions=False), root, clock, told=told.append)
    assert found.complete  # after an hour the node may be used again
    assert "1-no-nodes" in told
    assert clock.slept >= 3600


def test_a_script_that_ends_at_once_each_time_is_given_up(tmp_path: Path) -> None:
    class Useless(World):
        def _run(self, job: _Job) -> None:
            job.shown = replace(job.shown, state=State.ENDED, end=End.COMPLETED)

        def look(self, number: int, now: float) -> Vitals:
            return Vitals()

    world = Useless()
    found = run(world, tmp_path / "guard", SetClock())
    assert not found.complete
    assert found.why.startswith("ended before its last step: it has come to no step; 6 attempts")
    assert len(world.ran) == 6


def test_nodes_that_may_not_be_drained_hold_no_training_up(tmp_path: Path) -> None:
    class Forbidding(World):
        def result(self, nodes: Sequence[str], partition: str) -> NodesTested | None:
            return NodesTested(words="tested in pairs", bad=("n2",))

        def drain(self, nodes: Sequence[str], reason: str) -> None:
            raise ClusterError("slurm_update error: Invalid user id")

    world, clock, root = Forbidding(faults={1: End.NODE_FAILED}), SetClock(), tmp_path / "guard"
    guard = guard_of(world, root, clock, policy=Policy(last_step=LAST, drain=True))
    for _ in range(100):
        if not guard.step():
            clock.sleep(30)
    found, tested = over(root), GuardDir(root).tested(1)
    assert found is not None and found.complete
    assert tested is not None and "Invalid user id" in tested.words
    assert tested.bad == ("n2",)
    assert tested.drain.startswith("scontrol update nodename=n2 state=drain")


@pytest.mark.parametrize(
    ("counted", "early", "words"),
    [
        (LAST, True, "finished at step 12"),
        (LAST + 1, False, "finished at step 12"),  # counted from 0, or not all reported
        (0, False, "neither its log nor the policy names its last step"),
    ],
)
def test_exit_0_without_a_last_step_is_complete_where_the_log_counts_no_further(
    tmp_path: Path, counted: int, early: bool, words: str
) -> None:
    class Counting(World):
        def _run(self, job: _Job) -> None:
            super()._run(job)
            if early and job.attempt == 1 and job.step == LAST // 2:
                job.shown = replace(job.shown, state=State.ENDED, end=End.COMPLETED)

        def vitals(self, number: int) -> Vitals:
            return Vitals(total=counted)

        def look(self, number: int, now: float) -> Vitals:
            found = super().look(number, now)
            return found.model_copy(update={"total": counted, "apart": 1})

    found = run(Counting(), tmp_path / "guard", SetClock(), policy=Policy())
    assert found.complete
    assert words in found.why
    ends = [each.why for each in GuardDir(tmp_path / "guard").history()]
    assert ends == (["step 6 of 12, by its log", ""] if early else [""])


def test_exit_0_at_the_schedulers_word_is_no_end_where_nothing_names_the_last_step(
    tmp_path: Path,
) -> None:
    class Warned(World):
        def _run(self, job: _Job) -> None:
            super()._run(job)
            if job.attempt == 1 and job.step == LAST // 2:
                job.shown = replace(job.shown, state=State.ENDED, end=End.COMPLETED)

        def describe(self, job_id: str) -> Described | None:
            found = super().describe(job_id)
            early = found is not None and job_id == "1" and found.end is End.COMPLETED
            return replace(found, told=End.PREEMPTED) if early and found is not None else found

    assert run(Warned(), tmp_path / "guard", SetClock(), policy=Policy()).complete
    ends = [each.what for each in GuardDir(tmp_path / "guard").history()]
    assert ends == [What.PREEMPTED, What.FINISHED]
