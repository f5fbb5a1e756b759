"""`coordinate-eval advise`: does a training go on, or back, and to which checkpoint?"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from coordinate_eval._format import quoted
from coordinate_eval.coordinator.cli.inquire.history import load
from coordinate_eval.coordinator.cli.options import common
from coordinate_eval.coordinator.cli.options.parsing import option
from coordinate_eval.coordinator.cli.output import errors_are_no_verdict, out, say, write_json
from coordinate_eval.coordinator.inputs.checkpoints import remote
from coordinate_eval.coordinator.inputs.checkpoints.saved import Pattern, look, step_of
from coordinate_eval.coordinator.inputs.layers import load as load_settings
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.training.advice import Advice, Save, advise, scores_of
from coordinate_eval.coordinator.training.guarding.healthy import examine
from coordinate_eval.coordinator.training.patterns import read_patterns
from coordinate_eval.coordinator.training.progress import all_points
from coordinate_eval.coordinator.training.spikes import Detector
from coordinate_eval.errors import UserError

_Experiment = Annotated[
    Path, typer.Argument(metavar="EXPERIMENT", help="The folder into which the training saves.")
]
_Logs = Annotated[
    list[Path] | None,
    option(
        "--log PATH",
        "What the training writes: a log, JSON lines, a TensorBoard folder or a "
        "trainer_state.json. Repeat it for each attempt, in their order.",
    ),
]
_Patterns = Annotated[
    Path | None,
    option("--patterns FILE", "YAML file that says how the training reports its steps."),
]
_MostBack = Annotated[
    int, option("--most-back STEPS", "Never go back further than so many steps.", min=1)
]


def advise_command(
    experiment: _Experiment,
    log: _Logs = None,
    patterns: _Patterns = None,
    most_back: _MostBack = 10_000,
    as_json: common.Json = False,
    settings_file: common.SettingsFile = None,
) -> None:
    """Say whether a training goes on, or back to which checkpoint, by its loss and its scores.

    A spike of the loss that passes by itself is no reason to go back. No GPU is used.

    Exit status: 0 go on; 1 go back, or a person has to decide; 2 it is not known.
    """
    with errors_are_no_verdict():
        settings, _ = load_settings({}, settings_file)
        status = _advise(settings, experiment, log or [], patterns, most_back, as_json=as_json)
    raise typer.Exit(status)


def _advise(
    settings: Settings,
    experiment: Path,
    logs: Sequence[Path],
    patterns: Path | None,
    most_back: int,
    *,
    as_json: bool,
) -> int:
    """Print whether a training goes on. Return the exit status: 0 it does, 1 it goes back."""
    experiment = remote.located(experiment)
    points, notes = all_points(logs, read_patterns(patterns))
    detector = Detector()
    detector.take(points)
    known, problems = load(settings)
    raised, scores = scores_of(known, experiment)
    notes += problems
    if not scores and not any(point.loss is not None for point in points):
        told = "".join(f"\n  {note}" for note in notes)
        raise UserError(
            f"nothing is known of {experiment}: none of its checkpoints has been evaluated, and "
            f"there is no loss in {', '.join(map(str, logs)) or 'a log: name it with --log'}{told}"
        )
    if not experiment.is_dir():
        notes.append(f"{experiment} is no folder, so nothing is known of what the training saved")
    saves = _saves(experiment, scores)
    found = advise(
        detector.open,
        saves,
        raised,
        most_back=most_back,
        unfit=lambda path: examine(path).why,
    )
    last = points[-1].step if points else max(scores)
    if as_json:
        passed = [spike.model_dump(mode="json") for spike in detector.found]
        write_json(_document(found, last) | {"passed": passed, "notes": notes})
        return int(found.onset is not None)
    out(_decision(found, last))
    for line in found.evidence:
        out(f"  {line}")
    for spike in detector.found[-5:] if found.onset is None else []:
        back = "" if spike.recovered is None else f", and was back at step {spike.recovered:,}"
        out(f"  at step {spike.onset:,} the loss rose to {spike.peak:.4g}{back}")
    if found.evaluate is not None:
        path = quoted(found.evaluate)
        out(f"surer with scores: coordinate-eval {path} --first-signal, then this again")
    for note in notes:
        say(note)
    return int(found.onset is not None)


def _saves(experiment: Path, scores: Mapping[int, Literal["healthy", "fallen"]]) -> list[Save]:
    """Return the finished checkpoints in a folder; none where there is no such folder."""
    if not experiment.is_dir():
        return []
    there = [each for each in look(experiment, Pattern(None)) if not each.lacks]
    steps = [
        (each.step if each.step is not None else step_of(str(each.path)), each.path)
        for each in there
    ]
    return [Save(step, path, scores.get(step)) for step, path in steps if step is not None]


def _decision(found: Advice, last: int) -> str:
    if found.onset is None:
        said = (
            "look again soon; the last report is of" if found.evidence else "nothing is wrong up to"
        )
        return f"go on: {said} step {last:,}"
    if found.checkpoint is None:
        return f"stop: it went wrong at step {found.onset:,}, and a person has to decide"
    skip = (
        f", and skip the data of steps {found.skip[0]:,} to {found.skip[1]:,}" if found.skip else ""
    )
    return f"go back to {found.checkpoint}{skip}: it went wrong at step {found.onset:,}"


def _document(found: Advice, last: int) -> dict[str, Any]:
    go = "on" if found.onset is None else "ask" if found.checkpoint is None else "back"
    return {
        "schema": "coordinate-eval/advice@1",
        "go": go,
        "last_step": last,
        "onset": found.onset,
        "checkpoint": None if found.checkpoint is None else str(found.checkpoint),
        "skip": None if found.skip is None else list(found.skip),
        "cause": found.cause or None,
        "evidence": list(found.evidence),
        "evaluate": None if found.evaluate is None else str(found.evaluate),
    }
