"""The beginning of an attempt: decided, submitted once, and released by another part."""

from collections.abc import Collection, Sequence
from pathlib import Path

from coordinate_eval import _files
from coordinate_eval._clock import growing
from coordinate_eval.clusters.protocol import OF_TRAINING, State, TaskStatus
from coordinate_eval.coordinator.incidents.bad_nodes import read_avoided
from coordinate_eval.coordinator.supervisor.submitting import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
)
from coordinate_eval.coordinator.training.guarding.attempts import Attempt, Ended, JobOf, What
from coordinate_eval.coordinator.training.guarding.hands import Hands, Superseded
from coordinate_eval.coordinator.training.guarding.healthy import Choice
from coordinate_eval.errors import SubmitLater, SubmitRefused, UserError


def start_first(hands: Hands) -> bool:
    """Decide the first attempt since a person began the guard."""
    if hands.dir.stop.exists():
        return hands.finish(complete=False, words=What.STOPPED.value)
    choice = hands.checkpoints.choose(hands.dir.spoiled())
    if choice is None:
        return False
    if choice.refused or (choice.passed_over and not choice.path):
        words = choice.refused or f"no checkpoint is healthy: {'; '.join(choice.passed_over)}"
        return hands.finish(complete=False, words=words)
    before = hands.dir.read(hands.guarded.first - 1, Attempt)
    skip = before.skip if before is not None else ()
    words = "the first start" if before is None else "started again by a person"
    return decide(hands, hands.guarded.first, choice, words, after=0.0, skip=skip)


def decide(
    hands: Hands,
    number: int,
    choice: Choice,
    words: str,
    *,
    after: float,
    skip: tuple[tuple[int, int], ...],
    smaller_than: int | None = None,
) -> bool:
    """Decide an attempt, unless that is done."""
    counts = hands.policy.nodes
    if smaller_than is not None:
        counts = tuple(count for count in counts if count < smaller_than) or counts
    attempt = Attempt(
        number=number,
        decided=hands.clock.now(),
        after=after,
        checkpoint=choice.path,
        step=choice.step,
        skip=skip,
        nodes=counts[0] if counts else None,
        why=words,
        token=_files.token(),
    )
    hands.create(number, attempt)
    begins = f"from {choice.path}" if choice.path else "from the beginning"
    passed = f"; passed over: {'; '.join(choice.passed_over)}" if choice.passed_over else ""
    hands.say(f"attempt {number} begins {begins}: {words}{passed}")
    return True


def submit(hands: Hands, attempt: Attempt, jobs: Sequence[TaskStatus]) -> bool:
    """Submit the job of an attempt, or find it, and write its id down."""
    mark = hands.mark(attempt.number)
    alive = [j for j in jobs if j.name.endswith(mark) and j.state is not State.ENDED]
    if hands.dir.stop.exists():
        for each in alive:
            hands.scripts.cancel(each.job_id)
        ended = Ended(number=attempt.number, what=What.STOPPED, time=hands.clock.now())
        return hands.create(attempt.number, ended)
    now = hands.clock.now()
    if alive:
        job_id, exclude = min((each.job_id for each in alive), key=int), frozenset[str]()
    elif now < max(attempt.after, hands.submits_at):
        return False
    else:
        avoided = read_avoided(hands.guarded.settings, now)
        known = hands.scripts.node_names() if avoided else set()
        exclude = frozenset(avoided.keys() & known)
        told = (attempt.checkpoint, attempt.skipped, str(attempt.number))
        hands.check_epoch()
        try:
            job_id = hands.scripts.submit(
                Path(hands.guarded.script),
                mark=mark,
                folder=hands.guarded.folder,
                environment=hands.environment,
                variables=dict(zip(OF_TRAINING, told, strict=True)),
                arguments=hands.policy.words(*told),
                exclude=exclude,
                nodes=attempt.nodes,
            )
        except (SubmitRefused, UserError) as error:
            return _refused(hands, attempt, error, exclude)
    hands.refusals = 0
    record = JobOf(job_id=job_id, time=now, exclude=tuple(sorted(exclude)), token=_files.token())
    try:
        hands.check_epoch()
    except Superseded:
        _withdraw(hands, attempt, job_id)
        raise
    if hands.create(attempt.number, record):
        less = f", without {', '.join(record.exclude)}" if record.exclude else ""
        hands.say(f"attempt {attempt.number} is job {job_id}{less}")
    else:
        hands.scripts.cancel(job_id)
    return True


def _withdraw(hands: Hands, attempt: Attempt, job_id: str) -> None:
    """Cancel a job that was submitted while another guard has ended the training.

    A guard that goes on finds the job by its mark, and may have written its id down.
    """
    taken = hands.dir.read(attempt.number, JobOf)
    if hands.over() is not None and (taken is None or taken.job_id != job_id):
        hands.scripts.cancel(job_id)


def _refused(hands: Hands, attempt: Attempt, error: Exception, exclude: Collection[str]) -> bool:
    """Say that the scheduler takes no such job: wait, ask for fewer nodes, or stop."""
    words = str(error).splitlines()[0]
    smaller = has_smaller(attempt, hands.policy.nodes)
    if not isinstance(error, SubmitLater) and (smaller or not exclude):
        what = What.NEVER_STARTED if smaller else What.REFUSED
        ended = Ended(number=attempt.number, what=what, time=hands.clock.now(), why=words)
        return hands.create(attempt.number, ended)
    pause = growing(FIRST_PAUSE_SECONDS, hands.refusals, LONGEST_PAUSE_SECONDS)
    hands.refusals += 1
    hands.submits_at = hands.clock.now() + pause
    less = f" without {', '.join(sorted(exclude))}" if exclude else ""
    hands.say(f"the scheduler takes no job{less} now: {words}; it is asked again")
    if exclude:
        said = f"no nodes for attempt {attempt.number}{less}: {words}"
        hands.notify(f"{attempt.number}-no-nodes", said)
    return False


def cancel_strays(
    hands: Hands, jobs: Sequence[TaskStatus], attempt: Attempt, job: JobOf | None
) -> None:
    """Cancel jobs that were submitted twice. They are held, and nobody releases them."""
    mark = hands.mark(attempt.number)
    for each in jobs:
        own = each.name.endswith(mark) and (job is None or each.job_id == job.job_id)
        if each.state is not State.ENDED and not own:
            hands.check_epoch()
            hands.scripts.cancel(each.job_id)


def has_smaller(attempt: Attempt, counts: Sequence[int]) -> bool:
    """Return whether the policy allows fewer nodes than an attempt asks for."""
    return attempt.nodes is not None and any(count < attempt.nodes for count in counts)
