"""What a guard does about each end of a training, on a made cluster."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.clocks import SetClock
from tests.guard_worlds import LAST, Job, World, begun, ends, go_on, guard_of, run
from tests.plans import changed
from tests.trainings import row

from coordinate_eval.clusters.protocol import End, State, Waits
from coordinate_eval.coordinator.history.alarms import Alarm
from coordinate_eval.coordinator.incidents.bad_nodes import avoid
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.training.advice import Save, Scores
from coordinate_eval.coordinator.training.guarding.attempts import (
    Evaluated,
    GuardDir,
    NodesTested,
    What,
)
from coordinate_eval.coordinator.training.guarding.policy import Policy
from coordinate_eval.coordinator.training.guarding.vitals import Vitals
from coordinate_eval.coordinator.training.spikes import Spike
from coordinate_eval.errors import ClusterError
from coordinate_eval.slurm.batch import Described


class Diverging(World):
    """A training whose loss goes wrong for good in its first attempt."""

    def spike(self) -> Spike | None:
        if GuardDir(self.root).latest() > 1 or max(self.saved, default=0) < 9:
            return None
        return Spike(onset=8, before=7, last=9, level=1.0, peak=3.0, noise=0.1, decided=9)


@pytest.mark.parametrize("rollback", [True, False])
def test_a_training_goes_back_where_that_is_advised_and_obeyed(
    tmp_path: Path, rollback: bool
) -> None:
    told: list[str] = []
    run(Diverging(), tmp_path, told=told.append, rollback=rollback)
    assert ("advice-8" in told) is not rollback
    assert begun(tmp_path) == ((6, "8-9") if rollback else None)


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
    assert run(Compared(), tmp_path, rollback=True).complete
    assert seen == [[3, 6]] * 3
    assert begun(tmp_path) == (6 if fails else 3, "8-9")


class Broken(World):
    """A training whose losses are no numbers in its first attempt."""

    def look(self, number: int, now: float) -> Vitals:
        found = super().look(number, now)
        if number > 1:
            return found
        return found.model_copy(update={"not_finite": 3, "onset": 7, "loss": float("nan")})


@pytest.mark.parametrize(
    ("world", "what", "second"),
    [
        (Diverging(), What.ROLLED_BACK, (6, "8-9")),
        (Broken(), What.NOT_FINITE, (6, "")),
    ],
    ids=["diverged", "no numbers"],
)
def test_a_training_that_went_wrong_before_its_end_goes_back_after_it(
    tmp_path: Path, world: World, what: What, second: tuple[int, str]
) -> None:
    clock = SetClock()
    guard = guard_of(world, tmp_path, clock, rollback=True)
    while not world.jobs_by_id:
        guard.step()
    guard.step()
    for _ in range(LAST + 2):  # it runs to its end before the next look
        world.tick()
    go_on(guard, clock)
    assert ends(tmp_path) == [what, What.FINISHED]
    assert begun(tmp_path) == second


def test_a_training_goes_back_once_where_its_scores_fell(tmp_path: Path) -> None:
    class Falling(World):
        def scores(self, now: float) -> Scores:
            if 6 not in self.saved:
                return Scores()
            fall = Alarm("collapse", "mmlu", row(6), "0.1, and 0.5 was expected", row(3), row(6))
            return Scores([fall], {3: "healthy", 6: "fallen"})

    told: list[str] = []
    assert run(Falling(), tmp_path, told=told.append, rollback=True).complete
    assert ends(tmp_path) == [What.ROLLED_BACK, What.FINISHED]
    assert begun(tmp_path) == (3, "")
    assert not any(key.startswith("advice") for key in told)


def test_a_training_that_hangs_after_its_last_save_is_complete(tmp_path: Path) -> None:
    class Lingering(World):
        def _run(self, job: Job) -> None:
            super()._run(job)
            if job.shown.end is End.COMPLETED:
                job.shown = changed(job.shown, state=State.RUNNING, end=End.UNKNOWN)

        def look(self, number: int, now: float) -> Vitals:
            found = super().look(number, now)
            late = found.last_step is not None and found.last_step > LAST
            return found.model_copy(update={"silent": 1e6 if late else 0.0})

    assert run(Lingering(), tmp_path).complete


def test_no_training_goes_further_back_than_the_policy_allows(tmp_path: Path) -> None:
    told: list[str] = []
    policy = Policy(last_step=LAST, most_steps_back=2)
    assert run(Diverging(), tmp_path, told=told.append, policy=policy, rollback=True).complete
    assert begun(tmp_path) is None
    assert "advice-8" in told


def test_fewer_nodes_are_asked_for_when_the_first_number_does_not_start(tmp_path: Path) -> None:
    class Scarce(World):
        def starts(self, job: Job) -> bool:
            return self.asked[int(job.shown.job_id) - 1][0] != 4

    policy = Policy(last_step=LAST, nodes=(4, 3), start_seconds=600)
    assert run(Scarce({2: End.NODE_FAILED}), tmp_path, policy=policy).complete
    never = What.NEVER_STARTED
    assert ends(tmp_path) == [never, What.NODE_FAILED, never, What.FINISHED]


def test_bad_nodes_are_left_out_by_all_guards_of_a_user(tmp_path: Path) -> None:
    settings = Settings(cache_dir=str(tmp_path / "cache"))
    avoid(settings, "n2", "it failed an all-gather", "test", SetClock().now())
    avoid(settings, "gone", "it is none of this cluster", "test", SetClock().now())
    world = World()
    assert run(world, tmp_path).complete
    assert world.asked == [(None, ("n2",))]


def test_where_too_few_nodes_are_left_the_guard_waits_and_tells(tmp_path: Path) -> None:
    clock, told = SetClock(), list[str]()
    settings = Settings(cache_dir=str(tmp_path / "cache"))
    avoid(settings, "n2", "it failed an all-gather", "test", clock.now())
    found = run(World(takes_exclusions=False), tmp_path, clock, told=told.append)
    assert found.complete  # after an hour the node may be used again
    assert "1-no-nodes" in told
    assert clock.slept >= 3600


def test_a_script_that_ends_at_once_each_time_is_given_up(tmp_path: Path) -> None:
    class Useless(World):
        def _run(self, job: Job) -> None:
            job.shown = changed(job.shown, state=State.ENDED, end=End.COMPLETED)

        def look(self, number: int, now: float) -> Vitals:
            return Vitals()

    world = Useless()
    found = run(world, tmp_path)
    assert not found.complete
    assert found.why.startswith("ended before its last step: it has come to no step; 6 attempts")
    assert "no save in /c: if it trained, `logs` and `patterns` of the policy" in found.why
    assert len(world.ran) == 6


def test_a_job_that_starts_only_when_somebody_does_something_is_told_of(tmp_path: Path) -> None:
    class Full(World):
        def starts(self, job: Job) -> bool:
            job.shown = changed(job.shown, reason="BadConstraints", waits=Waits.PERSON)
            return len(told) > 0

    told: list[str] = []
    assert run(Full(), tmp_path, told=told.append).complete
    assert told == ["1-waits", "over"]


def test_nodes_that_may_not_be_drained_hold_no_training_up(tmp_path: Path) -> None:
    class Forbidding(World):
        def result(self, nodes: Sequence[str], partition: str) -> NodesTested | None:
            return NodesTested(words="tested in pairs", bad=("n2",))

        def drain(self, nodes: Sequence[str], reason: str) -> None:
            raise ClusterError("slurm_update error: Invalid user id")

    world, policy = Forbidding(faults={1: End.NODE_FAILED}), Policy(last_step=LAST, drain=True)
    assert run(world, tmp_path, policy=policy).complete
    tested = GuardDir(tmp_path).read(1, NodesTested)
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
        def _run(self, job: Job) -> None:
            super()._run(job)
            if early and job.attempt == 1 and job.step == LAST // 2:
                job.shown = changed(job.shown, state=State.ENDED, end=End.COMPLETED)

        def vitals(self, number: int) -> Vitals:
            return Vitals(total=counted)

        def look(self, number: int, now: float) -> Vitals:
            found = super().look(number, now)
            return found.model_copy(update={"total": counted, "apart": 1})

    found = run(Counting(), tmp_path, policy=Policy())
    assert found.complete
    assert words in found.why
    whys = [each.why for each in GuardDir(tmp_path).history()]
    assert whys == (["step 6 of 12, by its log", ""] if early else [""])


def test_exit_0_at_the_schedulers_word_is_no_end_where_nothing_names_the_last_step(
    tmp_path: Path,
) -> None:
    class Warned(World):
        def _run(self, job: Job) -> None:
            super()._run(job)
            if job.attempt == 1 and job.step == LAST // 2:
                job.shown = changed(job.shown, state=State.ENDED, end=End.COMPLETED)

        def describe(self, job_id: str) -> Described | None:
            found = super().describe(job_id)
            early = found is not None and job_id == "1" and found.end is End.COMPLETED
            return replace(found, told=End.PREEMPTED) if early and found is not None else found

    assert run(Warned(), tmp_path, policy=Policy()).complete
    assert ends(tmp_path) == [What.PREEMPTED, What.FINISHED]
