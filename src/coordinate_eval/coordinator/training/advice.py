"""Advice after a spike, a divergence or a fall of the scores."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from coordinate_eval._format import plural
from coordinate_eval.coordinator.history.alarms import Alarm, alarms
from coordinate_eval.coordinator.history.measured import Measured
from coordinate_eval.coordinator.history.series import series
from coordinate_eval.coordinator.training.spikes import Spike
from coordinate_eval.errors import UserError

MOST_BACK = 10_000
"""Steps that a training goes back at most, by default."""

_MOST_SKIPPED = 500
_MEAN = "mean"


@dataclass(frozen=True)
class Advice:
    """A decision: the training goes on, or goes back, and why.

    Args:
        onset: the first step that went wrong; None where training goes on.
        checkpoint: the checkpoint to start from; None where training goes on, or where no
            checkpoint before the onset is known to be healthy.
        skip: the first and the last step whose data is not read again, both included; None
            where the data is not to blame.
        cause: words that are equal for two onsets of one cause, such as "loss went wrong after the
            save of step 1,000". A training never goes back twice for one cause by itself.
        evidence: sentences for people, the strongest first.
        evaluate: a checkpoint whose scores would make the advice surer; None where no other does.
    """

    onset: int | None = None
    checkpoint: Path | None = None
    skip: tuple[int, int] | None = None
    cause: str = ""
    evidence: tuple[str, ...] = ()
    evaluate: Path | None = None


@dataclass(frozen=True)
class Save:
    """A checkpoint to which a training can go back.

    Args:
        scores: what its scores say; None where it has not been evaluated.
    """

    step: int
    path: Path
    scores: Literal["healthy", "fallen"] | None = None


def advise(
    spike: Spike | None,
    saves: Sequence[Save],
    alarms: Sequence[Alarm] = (),
    *,
    already: Collection[str] = (),
    most_back: int = MOST_BACK,
    unfit: Callable[[Path], str] = lambda path: "",
) -> Advice:
    """Return whether a training goes on, or to which checkpoint it goes back.

    Args:
        spike: that the loss is in now, `Detector.open`; None where it is as it was.
        saves: the training's checkpoints, in any order.
        alarms: of its scores, from the history.
        already: the causes for which the training went back before.
        most_back: steps that it goes back at most.
        unfit: says why a checkpoint is not begun from, such as a tensor that is not finite; it
            is asked of few, the newest first. The text is empty where nothing is wrong.
    """
    decided = spike if spike is not None and spike.decided is not None else None
    falls = [each for each in alarms if is_fall(each)]
    if decided is None and not falls:
        return Advice(evidence=_why_on(spike))
    if decided is not None:
        onset, before, now, evidence = decided.onset, decided.before, decided.last, _told(decided)
    else:
        onset, before, now, evidence = _of_scores(falls[0])
    evidence += [_fall_told(each) for each in falls[:3]] if decided is not None else []
    there = sorted((s for s in saves if s.step <= before), key=lambda each: each.step)
    newest = f" after the save of step {there[-1].step:,}" if there else ""
    cause = f"{'loss' if decided is not None else 'scores'} went wrong{newest}"
    gone = Advice(onset=onset, cause=cause, evidence=tuple(evidence))
    if cause in already:
        return _with(gone, "the training went back for this before: a person has to decide")
    near = [each for each in there if now - each.step <= most_back]
    chosen, evaluate, notes = _right_save(near, unfit)
    if chosen is None:
        why = "no checkpoint before it is healthy" if near else "there is no checkpoint before it"
        if len(near) < len(there):
            why += f" within {most_back:,} steps, and further back is for a person to decide"
        return _with(gone, *notes, why)
    skip = None
    if decided is not None:
        skip = (before + 1, max(onset, min(decided.last, onset + _MOST_SKIPPED - 1)))
    return Advice(onset, chosen.path, skip, cause, (*evidence, *notes), evaluate)


def is_fall(alarm: Alarm) -> bool:
    """Return whether an alarm is a reason to go back: a collapse, or a drop of the mean."""
    return alarm.kind == "collapse" or (alarm.kind == "drop" and alarm.what == _MEAN)


class Scores(NamedTuple):
    """A training's alarms and fallen checkpoints. Both are empty without scores."""

    alarms: Sequence[Alarm] = ()
    """Those that are true of the newest checkpoint with scores."""
    said: Mapping[int, Literal["healthy", "fallen"]] = {}
    """By step."""


def scores_of(known: Sequence[Measured], experiment: Path) -> Scores:
    """Return what the scores of a training say.

    Args:
        known: what runs have measured.
        experiment: the folder of its checkpoints.
    """
    try:
        found = series(known, [str(experiment)])
    except UserError:
        return Scores()
    raised = alarms(found)
    said: dict[int, Literal["healthy", "fallen"]] = {
        row.step: "healthy" for row in found.rows if row.step is not None and row.scores
    }
    for each in filter(is_fall, raised):
        first, last = each.row.step or 0, each.last.step or 0
        said |= {step: "fallen" for step in said if first <= step <= last}
    newest = max(said, default=None)
    return Scores([each for each in raised if each.last.step == newest], said)


def next_to_evaluate(saves: Sequence[Save]) -> Save | None:
    """Return the checkpoint to evaluate next, to find the newest healthy one; None if it is known.

    Scores fall once, so that half of the checkpoints are settled by one evaluation. While none is
    known to have fallen, the newest is the most likely answer.
    """
    unknown, fallen = _between(saves)
    if not unknown:
        return None
    return unknown[(len(unknown) - 1) // 2] if fallen else unknown[-1]


def _between(saves: Sequence[Save]) -> tuple[list[Save], bool]:
    """Return unknown checkpoints between the newest healthy one and the first that has fallen."""
    fallen = next((n for n, each in enumerate(saves) if each.scores == "fallen"), len(saves))
    healthy = max((n for n in range(fallen) if saves[n].scores == "healthy"), default=-1)
    return list(saves[healthy + 1 : fallen]), fallen < len(saves)


def _right_save(
    saves: Sequence[Save], unfit: Callable[[Path], str]
) -> tuple[Save | None, Path | None, list[str]]:
    """Return the newest checkpoint that nothing speaks against, one to evaluate, and words."""
    notes: list[str] = []
    unknown, fallen = _between(saves)
    end = next((n for n, each in enumerate(saves) if each.scores == "fallen"), len(saves))
    left = list(saves[:end])
    if fallen and unknown and len(unknown) < len(left):
        left = left[: len(left) - len(unknown)]  # the newest that is known to be healthy
    while left:
        chosen = left.pop()
        if why := unfit(chosen.path):
            notes.append(f"{chosen.path} is passed over: {why}")
            unknown = [each for each in unknown if each != chosen]
            continue
        if chosen.scores == "healthy":
            notes.append(f"the scores of {chosen.path} are healthy")
        else:
            notes.append(f"{chosen.path} has not been evaluated: its scores are not known")
        ask = next_to_evaluate([each for each in saves if each.step <= chosen.step or fallen])
        usable = [each.path for each in unknown]
        return chosen, ask.path if ask is not None and ask.path in usable else None, notes
    return None, None, notes


def _why_on(spike: Spike | None) -> tuple[str, ...]:
    if spike is None:
        return ()
    if spike.kind == "not a number":
        said = f"the loss is not a finite number at step {spike.last:,}"
    else:
        said = f"the loss is {spike.peak:.4g} at most since step {spike.onset:,}"
    return (f"{said}, and was {spike.level:.4g}: it is not clear yet whether it comes back",)


def _told(spike: Spike) -> list[str]:
    lasted = plural(spike.last - spike.onset + 1, "step")
    if spike.kind == "no gradient":
        said = (
            f"no norm of the gradients is a finite number since step {spike.onset:,}, for {lasted}"
        )
        return [f"{said}, so that nothing is learned: the loss is {spike.peak:.4g}"]
    words = {
        "divergence": "rises",
        "plateau": "stays up",
        "spike": "stays up",
        "not a number": "is not a finite number",
    }[spike.kind]
    peak = "" if spike.kind == "not a number" else f", {spike.peak:.4g} at most,"
    found = [
        f"the loss was {spike.level:.4g} until step {spike.before:,}, and {words}{peak} since "
        f"step {spike.onset:,}, for {lasted}"
    ]
    if spike.gradient:
        found.append(f"the norm of the gradients rose to {spike.gradient:.4g} with it")
    return found


def _of_scores(alarm: Alarm) -> tuple[int, int, int, list[str]]:
    good = alarm.good.step if alarm.good is not None else None
    before = good if good is not None else (alarm.row.step or 0) - 1
    return before + 1, before, alarm.last.step or before, [_fall_told(alarm)]


def _fall_told(alarm: Alarm) -> str:
    return f"{alarm.row.checkpoint}: {alarm.what}: {alarm.kind}: {alarm.words}"


def _with(advice: Advice, *words: str) -> Advice:
    return Advice(advice.onset, None, None, advice.cause, (*advice.evidence, *words))
