"""A job that waits or runs: released once, watched, and ended where something is wrong."""

from dataclasses import replace

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import State, TaskStatus, Waits
from coordinate_eval.coordinator.inputs.checkpoints.saved import step_of
from coordinate_eval.coordinator.training.advice import advise, is_fall
from coordinate_eval.coordinator.training.guarding import why
from coordinate_eval.coordinator.training.guarding.attempts import (
    Attempt,
    Begun,
    Cancelled,
    Logs,
    Steps,
    What,
)
from coordinate_eval.coordinator.training.guarding.beginnings import has_smaller
from coordinate_eval.coordinator.training.guarding.hands import Hands
from coordinate_eval.coordinator.training.guarding.vitals import size_of, wrong

CANCEL_AGAIN_SECONDS = 30.0
"""Time after which a job that does not end is cancelled once more."""


def look_after(hands: Hands, attempt: Attempt, shown: TaskStatus) -> bool:
    """Do what is due for a job that is alive. Return whether more is due at once."""
    number = attempt.number
    if hands.dir.stop.exists() and hands.dir.read(number, Cancelled) is None:
        _cancel(hands, number, What.STOPPED, "")
    if cancelled := hands.dir.read(number, Cancelled):
        now = hands.clock.passed()
        if now - hands.cancelled_at.get(shown.job_id, -1e9) >= CANCEL_AGAIN_SECONDS:
            hands.cancelled_at[shown.job_id] = now
            hands.say(f"cancelling job {shown.job_id}: {cancelled.what}")
            hands.scripts.cancel(shown.job_id)
        return False
    if shown.state is State.PENDING:
        return _look_after_pending(hands, attempt, shown)
    if hands.dir.read(number, Begun) is None:
        _begin(hands, number, shown)
    if shown.suspended:
        return False
    vitals = hands.watch.look(number, hands.clock.now())
    if vitals.last_step is not None and goes_back(hands, number, vitals.last_step):
        return True
    if (problem := wrong(vitals, hands.policy)) is not None:
        if problem.what is What.SLOW and hands.policy.slow == "tell":
            said = f"attempt {number} is slow: {problem.why}"
            hands.notify(f"{number}-slow", said, what="slow")
        else:
            onset = vitals.onset if problem.what is What.NOT_FINITE else None
            _cancel(hands, number, problem.what, problem.why, onset=onset)
            return True
    if hands.watch.spike() is None:  # what is saved now may be what it goes back behind
        hands.checkpoints.go_on(hands.dir.spoiled())
    return False


def _look_after_pending(hands: Hands, attempt: Attempt, shown: TaskStatus) -> bool:
    number, released = attempt.number, hands.dir.of_attempt(attempt.number, "released")
    if not released.exists():
        _note_logs(hands, number, shown)
        hands.check_epoch()
        hands.scripts.release(shown.job_id)
        _files.write(released, "{}\n")
        return False
    if shown.reason == "JobHeldUser":
        hands.say(f"job {shown.job_id} is held: `scontrol release {shown.job_id}` starts it")
        return False
    _tell_why_it_waits(hands, number, shown)
    if has_smaller(attempt, hands.policy.nodes):
        since = hands.clock.now() - _files.modified(released)
        if since > hands.policy.start_seconds:
            _cancel(hands, number, What.NEVER_STARTED, f"{attempt.nodes} nodes: {shown.reason}")
            return True
    return False


def _tell_why_it_waits(hands: Hands, number: int, shown: TaskStatus) -> None:
    """Tell a person of a job that starts only when somebody does something."""
    if shown.waits in (Waits.NODE, Waits.PERSON):
        words = f"job {shown.job_id} waits: {shown.reason}: {shown.means}"
        hands.say(words)
        if shown.waits is Waits.PERSON:
            hands.notify(f"{number}-waits", words, what="waits")


def _note_logs(hands: Hands, number: int, shown: TaskStatus) -> None:
    """Note where a job writes, and what is there already, before it starts."""
    if hands.dir.read(number, Logs) is not None:
        return
    described = hands.scripts.describe(shown.job_id)
    own = Logs(own=described.logs if described is not None else ())
    sizes = {str(log): size_of([log]) for log in hands.watch.files(own)}
    hands.create(number, own.model_copy(update={"sizes": sizes}))


def _begin(hands: Hands, number: int, shown: TaskStatus) -> None:
    described = hands.scripts.describe(shown.job_id)
    partition = described.partition if described is not None else ""
    begun = Begun(time=hands.clock.now(), nodes=shown.node, partition=partition)
    hands.create(number, begun)
    hands.say(f"job {shown.job_id} runs on {shown.node}")


def goes_back(hands: Hands, number: int, step: int) -> bool:
    """Ask for advice where loss or scores went wrong. Return whether it is followed."""
    spike, scores = hands.watch.spike(), hands.watch.scores(hands.clock.now())
    by_loss = spike is not None and spike.decided is not None
    if not (by_loss or any(map(is_fall, scores.alarms))):
        return False
    before = (hands.dir.read(each, Cancelled) for each in range(1, number))
    already = {each.advice for each in before if each is not None and each.advice}
    saves = hands.checkpoints.saves(hands.dir.spoiled())
    advice = advise(
        spike,
        [replace(each, scores=scores.said.get(each.step)) for each in saves],
        scores.alarms,
        already=already,
        most_back=hands.policy.most_steps_back,
        unfit=hands.checkpoints.why_unfit,
    )
    if advice.onset is None or (advice.cause in already and not by_loss):
        return False  # the same scores as before it went back
    words = "; ".join(advice.evidence)
    back_to = step_of(str(advice.checkpoint)) or 0
    far = step - back_to > hands.policy.most_steps_back
    if not hands.guarded.rollback or advice.checkpoint is None or far:
        back = f"go back to {advice.checkpoint}" if advice.checkpoint else "a person decides"
        steps = "-".join(map(str, advice.skip or ()))
        skip = f", skip the data of steps {steps}" if steps else ""
        said = f"advice: {back}{skip}: {words}"
        hands.notify(f"advice-{advice.onset}", said, what="advice")
        hands.say(said)
        return False
    _cancel(
        hands,
        number,
        What.ROLLED_BACK,
        words,
        onset=back_to + 1,
        skip=(advice.skip,) if advice.skip is not None else (),
        advice=advice.cause,
    )
    return True


def _cancel(
    hands: Hands,
    number: int,
    what: What,
    words: str,
    *,
    onset: int | None = None,
    skip: tuple[Steps, ...] = (),
    advice: str = "",
) -> None:
    """Note that an attempt is to end. Its cause is looked for while its logs say no more."""
    cause = why.cause_of_attempt(hands, number, None) if what is What.HUNG else None
    cancelled = Cancelled(
        what=what,
        time=hands.clock.now(),
        why=words,
        cause=cause,
        onset=onset,
        skip=skip,
        advice=advice,
    )
    hands.check_epoch()
    hands.create(number, cancelled)
    hands.say(f"attempt {number}: {what}{': ' * bool(words)}{words}")
