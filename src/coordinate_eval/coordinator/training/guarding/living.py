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


class Living:
    """The part of a guard that looks after a job while it waits or runs.

    Args:
        hands: of the guard.
    """

    def __init__(self, hands: Hands) -> None:
        self._hands = hands
        self._cancelled_at: dict[str, float] = {}

    def look_after(self, attempt: Attempt, shown: TaskStatus) -> bool:
        """Do what is due for a job that is alive. Return whether more is due at once."""
        number = attempt.number
        if self._hands.dir.stop.exists() and self._hands.dir.cancelled(number) is None:
            self._cancel(number, What.STOPPED, "")
        if cancelled := self._hands.dir.cancelled(number):
            now = self._hands.clock.passed()
            if now - self._cancelled_at.get(shown.job_id, -1e9) >= CANCEL_AGAIN_SECONDS:
                self._cancelled_at[shown.job_id] = now
                self._hands.say(f"cancelling job {shown.job_id}: {cancelled.what}")
                self._hands.scripts.cancel(shown.job_id)
            return False
        if shown.state is State.PENDING:
            return self._look_after_pending(attempt, shown)
        if self._hands.dir.begun(number) is None:
            self._begin(number, shown)
        if shown.suspended:
            return False
        vitals = self._hands.watch.look(number, self._hands.clock.now())
        if vitals.last_step is not None and self.goes_back(number, vitals.last_step):
            return True
        if (problem := wrong(vitals, self._hands.policy)) is not None:
            if problem.what is What.SLOW and self._hands.policy.slow == "tell":
                said = {"words": f"attempt {number} is slow: {problem.why}", "what": "slow"}
                self._hands.notify(f"{number}-slow", self._hands.message(said))
            else:
                onset = vitals.onset if problem.what is What.NOT_FINITE else None
                self._cancel(number, problem.what, problem.why, onset=onset)
                return True
        if self._hands.watch.spike() is None:  # what is saved now may be what it goes back behind
            self._hands.checkpoints.go_on(self._hands.dir.spoiled())
        return False

    def _look_after_pending(self, attempt: Attempt, shown: TaskStatus) -> bool:
        number, released = attempt.number, self._hands.dir.of_attempt(attempt.number, "released")
        if not released.exists():
            self._note_logs(number, shown)
            self._hands.check_epoch()
            self._hands.scripts.release(shown.job_id)
            _files.write(released, "{}\n")
            return False
        if shown.reason == "JobHeldUser":
            self._hands.say(
                f"job {shown.job_id} is held: `scontrol release {shown.job_id}` starts it"
            )
            return False
        self._tell_why_it_waits(number, shown)
        if has_smaller(attempt, self._hands.policy.nodes):
            since = self._hands.clock.now() - _files.modified(released)
            if since > self._hands.policy.start_seconds:
                self._cancel(number, What.NEVER_STARTED, f"{attempt.nodes} nodes: {shown.reason}")
                return True
        return False

    def _tell_why_it_waits(self, number: int, shown: TaskStatus) -> None:
        """Tell a person of a job that starts only when somebody does something."""
        if shown.waits in (Waits.NODE, Waits.PERSON):
            words = f"job {shown.job_id} waits: {shown.reason}: {shown.means}"
            self._hands.say(words)
            if shown.waits is Waits.PERSON:
                said = {"words": words, "what": "waits"}
                self._hands.notify(f"{number}-waits", self._hands.message(said))

    def _note_logs(self, number: int, shown: TaskStatus) -> None:
        """Note where a job writes, and what is there already, before it starts."""
        if self._hands.dir.of_attempt(number, "logs").exists():
            return
        described = self._hands.scripts.describe(shown.job_id)
        own = Logs(own=described.logs if described is not None else ())
        sizes = {str(log): size_of([log]) for log in self._hands.watch.files(own)}
        noted = own.model_copy(update={"sizes": sizes})
        _files.write_record(self._hands.dir.of_attempt(number, "logs"), noted)

    def _begin(self, number: int, shown: TaskStatus) -> None:
        described = self._hands.scripts.describe(shown.job_id)
        partition = described.partition if described is not None else ""
        begun = Begun(time=self._hands.clock.now(), nodes=shown.node, partition=partition)
        self._hands.create(number, "begun", begun)
        self._hands.say(f"job {shown.job_id} runs on {shown.node}")

    def goes_back(self, number: int, step: int) -> bool:
        """Ask for advice where loss or scores went wrong. Return whether it is followed."""
        spike, scores = self._hands.watch.spike(), self._hands.watch.scores(self._hands.clock.now())
        by_loss = spike is not None and spike.decided is not None
        if not (by_loss or any(map(is_fall, scores.alarms))):
            return False
        folder, checkpoints = self._hands.dir, self._hands.checkpoints
        before = (folder.cancelled(each) for each in range(1, number))
        already = {each.advice for each in before if each is not None and each.advice}
        advice = advise(
            spike,
            [
                replace(each, scores=scores.said.get(each.step))
                for each in checkpoints.saves(folder.spoiled())
            ],
            scores.alarms,
            already=already,
            most_back=self._hands.policy.most_steps_back,
            unfit=checkpoints.why_unfit,
        )
        if advice.onset is None or (advice.cause in already and not by_loss):
            return False  # the same scores as before it went back
        words = "; ".join(advice.evidence)
        back_to = step_of(str(advice.checkpoint)) or 0
        far = step - back_to > self._hands.policy.most_steps_back
        if not self._hands.guarded.rollback or advice.checkpoint is None or far:
            back = f"go back to {advice.checkpoint}" if advice.checkpoint else "a person decides"
            skip = f", skip the data of steps {'-'.join(map(str, advice.skip or ()))}"
            skip = skip if advice.skip is not None else ""
            said = {"words": f"advice: {back}{skip}: {words}", "what": "advice"}
            self._hands.notify(f"advice-{advice.onset}", self._hands.message(said))
            self._hands.say(said["words"])
            return False
        self._cancel(
            number,
            What.ROLLED_BACK,
            words,
            onset=back_to + 1,
            skip=(advice.skip,) if advice.skip is not None else (),
            advice=advice.cause,
        )
        return True

    def _cancel(
        self,
        number: int,
        what: What,
        words: str,
        *,
        onset: int | None = None,
        skip: tuple[Steps, ...] = (),
        advice: str = "",
    ) -> None:
        """Note that an attempt is to end. Its cause is looked for while its logs say no more."""
        cause = why.cause_of_attempt(self._hands, number, None) if what is What.HUNG else None
        cancelled = Cancelled(
            what=what,
            time=self._hands.clock.now(),
            why=words,
            cause=cause,
            onset=onset,
            skip=skip,
            advice=advice,
        )
        self._hands.check_epoch()
        self._hands.create(number, "cancel", cancelled)
        self._hands.say(f"attempt {number}: {what}{': ' * bool(words)}{words}")
