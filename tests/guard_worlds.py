"""A made cluster and training for a guard, which may be killed between any two of its actions."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coordinate_eval.clusters.protocol import End, State, TaskStatus
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.training.advice import Save, Scores
from coordinate_eval.coordinator.training.guarding.attempts import (
    Attempt,
    Evaluated,
    GuardDir,
    Guarded,
    Logs,
    NodesTested,
    OfAttempt,
    Over,
    What,
)
from coordinate_eval.coordinator.training.guarding.hands import Hands, Superseded
from coordinate_eval.coordinator.training.guarding.healthy import Choice
from coordinate_eval.coordinator.training.guarding.loop import Guard
from coordinate_eval.coordinator.training.guarding.policy import Policy
from coordinate_eval.coordinator.training.guarding.vitals import Vitals
from coordinate_eval.coordinator.training.spikes import Spike
from coordinate_eval.errors import ClusterSilent, SubmitRefused
from coordinate_eval.slurm.batch import Described
from tests.clocks import SetClock
from tests.plans import changed

LAST, EVERY = 12, 3
"""Steps of the training, and between two saves."""


class Killed(BaseException):
    """The guard was killed."""


@dataclass
class Job:
    shown: TaskStatus
    begins: int = 0
    step: int = 0
    attempt: int = 0


@dataclass
class World:
    """A cluster and the training on it. Each look of a guard is a step of the training."""

    faults: Mapping[int, End] = field(default_factory=dict)
    """By attempt: how its job ends after a while."""
    jobs_by_id: dict[str, Job] = field(default_factory=dict)
    late: list[Job] = field(default_factory=list)
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
    root: Path = Path()
    """The guard's folder."""

    def tick(self) -> None:
        for job in self.jobs_by_id.values():
            state = job.shown.state
            if state is State.PENDING and job.shown.reason != "JobHeldUser" and self.starts(job):
                job.shown = changed(job.shown, state=State.RUNNING, node="n[1-2]")
                self.ran.append(job.shown.job_id)
            elif state is State.RUNNING:
                self._run(job)
        running = [j for j in self.jobs_by_id.values() if j.shown.state is State.RUNNING]
        assert len(running) <= 1, "two copies of the training run"

    def starts(self, job: Job) -> bool:
        return True

    def _run(self, job: Job) -> None:
        job.step += 1
        if job.step % EVERY == 0:
            self.saved.append(job.step)
        if job.step >= LAST:
            job.shown = changed(job.shown, state=State.ENDED, end=End.COMPLETED)
        elif job.attempt in self.faults and job.step >= job.begins + EVERY + 1:
            job.shown = changed(job.shown, state=State.ENDED, end=self.faults[job.attempt])

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
        shown = TaskStatus(name=mark, job_id=job_id, state=State.PENDING, reason="JobHeldUser")
        attempt = int(variables["COORDINATE_EVAL_ATTEMPT"])
        made = Job(shown, begins, begins, attempt)
        if self.submissions in self.silences and self.submissions % 2:
            self.late.append(made)
            raise ClusterSilent("no answer")
        self.jobs_by_id[job_id] = made
        if self.submissions in self.silences:
            raise ClusterSilent("no answer")
        self.now("after submit")
        return job_id

    def jobs(self, mark: str) -> list[TaskStatus]:
        self.now("before jobs")
        self.tick()
        found = [job.shown for job in self.jobs_by_id.values() if mark in job.shown.name]
        for job in self.late:
            self.jobs_by_id[job.shown.job_id] = job
        self.late = []
        return found

    def release(self, job_id: str) -> None:
        self.now("before release")
        job = self.jobs_by_id[job_id]
        if job.shown.state is State.PENDING:
            job.shown = changed(job.shown, reason="Priority")
        self.now("after release")

    def cancel(self, job_id: str) -> None:
        self.now("before cancel")
        job = self.jobs_by_id[job_id]
        if job.shown.state is not State.ENDED:
            job.shown = changed(job.shown, state=State.ENDED, end=End.CANCELLED)
        self.now("after cancel")

    def describe(self, job_id: str) -> Described | None:
        shown = self.jobs_by_id[job_id].shown
        state = "RUNNING" if shown.state is State.RUNNING else str(shown.end)
        return Described(state, shown.end, nodes=shown.node)

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
        step = max((s for s in self.saved if all(s < first for first, _ in spoiled)), default=0)
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

    def create(self, number: int, record: OfAttempt) -> bool:
        self.scripts.now(f"before {record.FILE}")  # type: ignore[attr-defined]  # it is a `World`
        made = super().create(number, record)
        self.scripts.now(f"after {record.FILE}")  # type: ignore[attr-defined]
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
    world.root, guard_dir = root, GuardDir(root)
    settings = Settings(cache_dir=str(root / "cache"))
    guarded = Guarded(
        name="t", nonce="0", created=0, script="/t.sbatch", folder="/", checkpoints="/c",
        policy=policy or Policy(last_step=LAST), settings=settings, python="python", **more,
    )  # fmt: skip
    guard_dir.guarded.write_text(guarded.model_dump_json())
    (root / "told").mkdir(exist_ok=True)
    tools: Any = world  # it is all of them
    hands = Tried(
        guard_dir, guarded, tools, tools, tools, tools, tools, {},
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


def run(world: World, root: Path, clock: SetClock | None = None, **more: Any) -> Over:
    """Run a guard until the training is over."""
    clock = clock or SetClock()
    return go_on(guard_of(world, root, clock, **more), clock)


def go_on(guard: Guard, clock: SetClock) -> Over:
    for _ in range(500):
        if not guard.step():
            clock.sleep(30)
        if (found := over(guard._hands.dir.root)) is not None:
            return found
    raise AssertionError("the guard comes to no end")


def ends(root: Path) -> list[What]:
    """What became of each attempt."""
    return [each.what for each in GuardDir(root).history()]


def begun(root: Path, number: int = 2) -> tuple[int, str] | None:
    """The step from which an attempt began, and what it skipped; None if there is none."""
    found = GuardDir(root).read(number, Attempt)
    return (found.step, found.skipped) if found is not None else None
