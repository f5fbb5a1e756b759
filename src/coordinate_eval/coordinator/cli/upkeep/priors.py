"""`coordinate-eval priors`: show what finished runs measured."""

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from coordinate_eval._format import duration, plural
from coordinate_eval.coordinator.cli.options import common, parsing
from coordinate_eval.coordinator.cli.options.parsing import option
from coordinate_eval.coordinator.cli.output import new_table, out, table_console, write_json
from coordinate_eval.coordinator.inputs.checkpoints import checkpoint as checkpoints
from coordinate_eval.coordinator.inputs.layers import load as load_settings
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.inputs.suites.suite import load as load_suite
from coordinate_eval.coordinator.planning.costs import LINK_GIGABITS, conditions
from coordinate_eval.errors import UserError
from coordinate_eval.priors import catalogue, shapes, this_machine
from coordinate_eval.priors import conditions as conditions_of
from coordinate_eval.priors.observations import DatasetSeen, Seen, StageSeen, subject
from coordinate_eval.priors.predict import Priors, errors_left_out
from coordinate_eval.priors.roofline import Conditions, Work
from coordinate_eval.priors.store import Store
from coordinate_eval.records import Dataset

app = typer.Typer(
    cls=parsing.Commands,
    help="Show what finished runs measured.",
    add_completion=False,
    rich_markup_mode="markdown",
)

MOST_LEFT_OUT = 5
"""Newest runs that are predicted from all others, to see how well that does."""

DEFAULT_GPU = "h200"
"""GPU type assumed if nothing was observed and none is named."""

SOME_NODES = 8
"""Nodes of the example that shows how a shared storage slows down."""


class _Source(NamedTuple):
    """The storage and format of a copy of weights."""

    storage: str
    converted: bool


@app.command()
def show(
    checkpoint: Annotated[
        Path | None,
        option("--checkpoint CKPT", "Predict for this checkpoint.", shown="newest seen"),
    ] = None,
    model: Annotated[
        str | None, option("--model SIZE", "Or for a model of this size, such as 7b or 350m.")
    ] = None,
    gpu: Annotated[str | None, option("--gpu NAME", "Type of GPU.", shown="newest seen")] = None,
    engine: Annotated[
        str | None, option("--engine NAME", "vllm or transformers.", shown="vllm")
    ] = None,
    suite: Annotated[
        str | None, option("--suite SUITE", "A shipped suite's name, or a file.")
    ] = None,
    as_json: common.Json = False,
    settings_file: common.SettingsFile = None,
) -> None:
    """Show the predicted time of each dataset of a suite, and the measurements behind it."""

    settings, _ = load_settings({"suite": suite, "engine.name": engine}, settings_file)
    if checkpoint is not None and model is not None:
        raise UserError("give --checkpoint or --model, not both")
    store = Store(Path(settings.priors_dir).expanduser())
    seen = _read(store)
    wanted = load_suite(settings.suite)
    on = _conditions(settings, seen, checkpoint, model, gpu)
    now = time.time()
    errors = errors_left_out(seen, now, MOST_LEFT_OUT)
    priors = Priors(seen, now)
    rows = [_row(priors, dataset, on, errors, seen) for dataset in wanted.datasets]
    answer = {
        "store": str(store.folder),
        "runs": len({one.run for one in seen}),
        "conditions": on.model_dump(),
        "engine_start_seconds": priors.start_seconds(on),
        "stage": _stage(seen, priors, on, _source(seen, checkpoint)),
        "datasets": rows,
    }
    if as_json:
        write_json(answer)
    else:
        _print_rows(answer)


def _read(store: Store) -> list[Seen]:
    try:
        return store.read()
    except OSError as error:
        raise UserError(f"priors in {store.folder} cannot be read: {error.strerror}") from error


def _conditions(
    settings: Settings,
    seen: Sequence[Seen],
    checkpoint: Path | None,
    size: str | None,
    gpu: str | None,
) -> Conditions:
    """Return the conditions asked for; the newest observation of the engine fills in the rest."""

    engine, degree = settings.engine, settings.trial.tensor_parallel or 1
    same = [s for s in seen if s.conditions.engine == engine.name]
    newest = max(same, key=lambda s: s.time).conditions if same else None
    gpu = gpu or (newest.gpu if newest else DEFAULT_GPU)
    if checkpoint is not None:
        return conditions(checkpoints.inspect(checkpoint), engine, gpu, degree)
    if newest and not size:
        model = newest.model
    else:
        parameters = shapes.parameter_count(size or shapes.DEFAULT_SIZE)
        model = conditions_of.model_of(shapes.llama_like(parameters), engine, degree, None)
    version = this_machine.engine_version(engine.name)
    return conditions_of.conditions(engine, version, gpu, model)


def _row(
    priors: Priors,
    dataset: Dataset,
    on: Conditions,
    errors: dict[str, list[float]],
    seen: Sequence[Seen],
) -> dict[str, Any]:
    work = _work(dataset, seen)
    row: dict[str, Any] = {"name": dataset.name}
    if work is None:
        return row | {"observations": 0}
    asked = subject(dataset)
    expected = priors.predict(asked, work, on, built=False)
    measured = _median(priors.seconds_seen(asked, on))
    return row | {
        "items": work.items,
        "gpu_seconds": expected.gpu_seconds,
        "spread": expected.spread,
        "floor_seconds": expected.floor_seconds,
        "metric_cpu_seconds": expected.metric_cpu_seconds,
        "observations": expected.observations,
        "measured_gpu_seconds": None if measured is None else measured * work.items,
        "error_left_out": _median([abs(e) for e in errors.get(dataset.name, [])]),
    }


def _copies(seen: Sequence[Seen]) -> list[StageSeen]:
    return [s for s in seen if isinstance(s, StageSeen)]


def _source_of(copy: StageSeen) -> _Source:
    return _Source(copy.storage, copy.converted)


def _source(seen: Sequence[Seen], checkpoint: Path | None) -> _Source:
    """Return the source of this checkpoint, or of the newest copy observed."""

    if checkpoint is not None:
        found = checkpoints.inspect(checkpoint)
        return _Source(this_machine.storage_of(found.path), found.converted)
    newest = max(_copies(seen), key=lambda s: s.time, default=None)
    return _source_of(newest) if newest else _Source("", converted=False)


def _stage(seen: Sequence[Seen], priors: Priors, on: Conditions, source: _Source) -> dict[str, Any]:
    """Return what is known of copying such a checkpoint into the memory of nodes."""

    link = priors.link(on, source.storage, converted=source.converted, gigabits=LINK_GIGABITS)
    return {
        **source._asdict(),
        **link._asdict(),
        "seconds": link.seconds(on.model.bytes, 1),
        "copies": sum(1 for copy in _copies(seen) if _source_of(copy) == source),
    }


def _work(dataset: Dataset, seen: Sequence[Seen]) -> Work | None:
    """Return a dataset's work from the catalogue, else from its last run, else None."""

    asked = subject(dataset)
    same = [s for s in seen if isinstance(s, DatasetSeen) and s.subject == asked]
    newest = max(same, key=lambda s: s.time, default=None)
    predicted = catalogue.predicted_work(dataset)
    if predicted is None and newest is not None:
        return newest.work()
    if predicted is None and dataset.items is not None:
        return catalogue.guessed_work(dataset, dataset.items)
    return predicted


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _print_rows(answer: dict[str, Any]) -> None:
    on, start = answer["conditions"], answer["engine_start_seconds"]
    parameters = on["model"]["parameters"]
    size = f"{parameters / 1e9:.3g}b" if parameters >= 1e9 else f"{parameters / 1e6:.3g}m"
    out(
        f"{size} parameters on {on['gpu']} with {on['engine']}, "
        f"from {plural(answer['runs'], 'run')} in {answer['store']}"
    )
    if start is not None:
        out(f"engine starts in {duration(start)}")
    if answer["stage"]["copies"]:
        _print_stage(answer["stage"])
    numbers = (">predicted", ">±", ">measured", ">seen", ">leave-one-out\nerror")
    table = new_table("dataset", *numbers)
    for row in answer["datasets"]:
        measured, error = row.get("measured_gpu_seconds"), row.get("error_left_out")
        table.add_row(
            row["name"],
            duration(row["gpu_seconds"]) if "gpu_seconds" in row else "not known",
            f"{row['spread']:.0%}" if "spread" in row else "",
            "" if measured is None else duration(measured),
            str(row["observations"]),
            "" if error is None else f"{error:.0%}",
        )
    table_console().print(table)


def _print_stage(stage: dict[str, Any]) -> None:
    what = "weights, converted from .pt," if stage["converted"] else "weights"
    words = f"{what} on {stage['storage']} reach a node's memory in {duration(stage['seconds'])}"
    words += f" ({stage['gigabits_per_node']:.3g} Gbit/s)"
    if stage["shared"]:
        many = stage["seconds"] * (1 + stage["shared"] * (SOME_NODES - 1))
        words += f", each of {SOME_NODES} at once in {duration(many)}"
    words += f"; seen {stage['copies']} ×"
    out(words)
