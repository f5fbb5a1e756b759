"""The scores of a run, kept apart from its directory: they outlive it.

`runs_dir/.history-<uid>/<run>.<token>.json` has one run. A file is written once, when its run ends,
and never changed. A run that is resumed and ends again gets a file of another name, and the older
file is removed. So whoever has read a file has read it for good: `pack.columns` there has what
somebody has read before, and may be deleted at any time.
"""

import contextlib
import gc
import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, ValidationError, field_serializer

from coordinate_eval import __version__, _files
from coordinate_eval.coordinator.history import columns
from coordinate_eval.coordinator.history.columns import Plain, Score
from coordinate_eval.errors import CoordinateError
from coordinate_eval.records import (
    Aggregate,
    CheckpointFormat,
    Dataset,
    DatasetResults,
    Record,
    schema,
)

if TYPE_CHECKING:  # whoever reads what is kept needs nothing of runs
    from coordinate_eval.coordinator.run.paths import RunDir
    from coordinate_eval.coordinator.run.records import Run

NOT_ASKED = {"name", "group", "items", "prior", "splittable", "chance", "sample"}
"""Fields of a dataset that change nothing in what is asked."""

_OF_JUDGE = ("model", "revision", "rubric", "rubric_digest")
_PACK = "pack.columns"
_MOST_PACKED = 1 << 30  # bytes
_SHARED = {"groups", "aggregates", "missing"}  # large fields, the same in most runs
_WORTH_PACKING = 64  # files that are read one by one, each a round trip to the file server


class Measured(Record):
    """The scores of one run."""

    schema_: Literal["coordinate-eval/measured@1"] = schema("coordinate-eval/measured@1")

    run: str
    dir: str
    checkpoint: str = Field(description="path, as it was evaluated")
    training: str = Field(description="the folder that its training fills")
    average: bool = Field(default=False, description="the checkpoint is an average of others")
    identity: str = Field(description="of the checkpoint")
    step: int | None = None
    suite: str
    created: float
    ended: float = Field(default=0.0, description="when this was measured; 0: the run goes on")
    complete: bool = False
    decided: str = Field(default="", description="why it stopped before all items were asked")
    gpu_seconds: float | None = None
    seconds: float | None = Field(default=None, description="from the plan to the last score")
    planned_seconds: float | None = Field(default=None, description="what the plan said of them")
    version: str = Field(default=__version__, description="of this program")
    groups: dict[str, str] = Field(default={}, description="dataset → its group, if it has one")
    aggregates: dict[str, Aggregate] = Field(default={}, description="of its suite")
    scores: Mapping[str, Plain] = Field(
        default={}, description="dataset → value, stderr, items, metric, higher is better, asked"
    )
    missing: list[str] = Field(default=[], description="datasets without a score")
    warnings: dict[str, str] = Field(
        default={}, description="dataset → what is wrong with its answers"
    )

    @field_serializer("scores")
    def _plain(self, scores: Mapping[str, Plain]) -> dict[str, Plain]:
        return dict(scores)


def measure(run_dir: "RunDir", run: "Run", results: Mapping[str, Any] | None) -> Measured:
    """Return what a run has measured so far.

    Args:
        results: the content of `results.json`; None while the run goes on.

    Raises:
        RecordError: the results of a dataset cannot be read.
    """
    from coordinate_eval.coordinator.inputs.checkpoints.saved import step_of, training_of
    from coordinate_eval.coordinator.report.main_metric import higher_is_better, main_score
    from coordinate_eval.coordinator.report.results import read_dataset
    from coordinate_eval.coordinator.report.warnings import warnings
    from coordinate_eval.coordinator.run.claiming.decided import why_stopped

    scores: dict[str, Plain] = {}
    told: dict[str, str] = {}
    for dataset in run.suite.datasets:
        found = read_dataset(run_dir, dataset.name)
        main = main_score(found) if found is not None else None
        if found is not None and (lines := warnings(found)):
            told[dataset.name] = "; ".join(lines)
        if found is None or main is None:
            continue
        scores[dataset.name] = Score(
            main.value,
            main.stderr,
            found.items,
            main.metric,
            higher_is_better(found, main.metric),
            _digest(asked(run, dataset, found)),
        )
    ledger = (results or {}).get("ledger") or {}
    seconds, planned_seconds = _times(run_dir, run, ledger)
    return Measured(
        run=run.id,
        dir=str(run_dir.root),
        checkpoint=run.checkpoint.path,
        training=training_of(run.checkpoint.path),
        average=run.checkpoint.format is CheckpointFormat.AVERAGE,
        identity=run.checkpoint.identity,
        step=step_of(run.checkpoint.path) if run.step is None else run.step,
        suite=run.suite.name,
        created=run.created,
        ended=0.0 if results is None else time.time(),
        complete=bool(results and results.get("complete")),
        decided=why_stopped(run_dir),
        gpu_seconds=ledger.get("total_gpu_seconds"),
        seconds=seconds,
        planned_seconds=planned_seconds,
        groups={each.name: each.group for each in run.suite.datasets if each.group},
        aggregates=run.suite.aggregates,
        scores=scores,
        missing=[each.name for each in run.suite.datasets if each.name not in scores],
        warnings=told,
    )


def _times(
    run_dir: "RunDir", run: "Run", ledger: Mapping[str, Any]
) -> tuple[float | None, float | None]:
    """Return the seconds from the plan to the last score as they were and as planned.

    They are None of a run that was resumed, since a plan is of a whole run, or is not over.
    """
    from coordinate_eval.coordinator.run.rounds import read_rounds

    with contextlib.suppress(CoordinateError, OSError, ValueError, LookupError, TypeError):
        rounds = list(read_rounds(run_dir))
        if not rounds or run_dir.resumed.exists():
            return None, None
        plan = json.loads(_files.read(run_dir.plan))
        planned = float(plan["estimate"]["makespan_seconds"])
        took = float(ledger["seconds"]) - (rounds[0].created - run.created)
        return max(0.0, took), planned
    return None, None


def options(dataset: Dataset, engine: str, max_length: int) -> dict[str, Any]:
    """Return the part of `asked` that is known before a run."""
    given = dataset.model_dump(mode="json", exclude=NOT_ASKED)
    named = {name.replace("_", " "): value for name, value in given.items()}
    return {**named, "max_length": max_length, "engine": engine}


def asked(run: "Run", dataset: Dataset, results: DatasetResults) -> dict[str, Any]:
    """Return what scores of a dataset depend on besides the checkpoint, by name."""
    return {
        **options(dataset, run.settings.engine.name, run.max_length),
        "version of the task": results.versions,
        "version of lm_eval": results.harness,
        "few-shot examples": results.n_shot,
        "own chat template": not results.plain_chat,
        "judge": {name: results.judge.get(name) for name in _OF_JUDGE if results.judge},
    }


def _digest(what: Mapping[str, Any]) -> str:
    text = json.dumps(what, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def folder(runs_dir: str) -> Path:
    """Return the folder of the user's history."""
    return Path(runs_dir).expanduser() / f".history-{os.geteuid()}"


def keep(runs_dir: str, measured: Measured) -> None:
    """Write what a run has measured, in place of what it had measured before.

    Raises:
        ForeignError: the folder is not the user's own.
        OSError: it cannot be written.
    """
    home = _files.own_folder(folder(runs_dir))
    before = [name for name in _files.names(home) if _run_of(name) == measured.run]
    _files.write(home / f"{measured.run}.{_files.token()}.json", measured.line())
    for name in before:
        (home / name).unlink(missing_ok=True)


def has(runs_dir: str, run: str) -> bool:
    """Return whether all scores of a run are kept, whether or not its directory is there."""
    home = folder(runs_dir)
    with contextlib.suppress(CoordinateError, OSError, ValidationError):
        return any(
            _parsed(_files.read(home / name)).complete
            for name in _files.names(home)
            if _run_of(name) == run
        )
    return False


def read(runs_dir: str) -> tuple[list[Measured], list[str]]:
    """Return what all kept runs of the user have measured, and what cannot be read.

    Raises:
        ForeignError: the folder is not the user's own.
    """
    home = folder(runs_dir)
    if not home.is_dir():
        return [], []
    _files.own_folder(home)
    names = {name for name in _files.names(home) if _run_of(name)}
    with _without_collections():
        packed = {name: each for name, each in _unpacked(home) if name in names}
        alone, problems = _read_alone(home, sorted(names - packed.keys()))
        together = _alike(alone)
        found = packed | dict(_records(together))
    if len(alone) >= _WORTH_PACKING:
        _pack(home, _alike(found) if packed else together)
    newest: dict[str, Measured] = {}
    for each in found.values():
        if each.run not in newest or newest[each.run].ended <= each.ended:
            newest[each.run] = each
    return sorted(newest.values(), key=lambda each: (each.created, each.run)), problems


def _run_of(name: str) -> str:
    """Return the run that a file is about, empty if it is none of these files."""
    stem, _, suffix = name.rpartition(".")
    run, _, token = stem.rpartition(".")
    return run if suffix == "json" and run and len(token) == 16 and name[0] != "." else ""


def _read_alone(home: Path, names: Iterable[str]) -> tuple[dict[str, Measured], list[str]]:
    """Return the content of files, and what cannot be read."""
    found: dict[str, Measured] = {}
    problems: list[str] = []
    for name in names:
        try:
            found[name] = _parsed(_files.read(home / name))
        except FileNotFoundError:  # its run has ended again meanwhile
            continue
        except (ValidationError, ValueError) as error:
            problems.append(
                f"{home / name} is torn, or of a newer version, and is left out "
                f"({type(error).__name__})"
            )
        except (CoordinateError, OSError) as error:
            problems.append(f"{home / name} is left out: {error}")
    return found, problems


def _parsed(content: bytes | str) -> Measured:
    return Measured.model_validate_json(content)


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Keep Python from looking for garbage among what is read: there is none, and it is much."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _alike(found: Mapping[str, Measured]) -> list[columns.Alike]:
    """Return records in columns: together those whose scores and large fields have one form."""
    together: dict[object, list[str]] = {}
    for name, each in found.items():
        shared = each.model_dump_json(include=_SHARED)
        together.setdefault((columns.form(each.scores), shared), []).append(name)
    own = [name for name in Measured.model_fields if name not in {"schema_", "scores", *_SHARED}]
    return [
        columns.Alike(
            files,
            found[files[0]].model_dump(mode="json", include=_SHARED),
            {field: [getattr(found[name], field) for name in files] for field in own},
            columns.columns_of([found[name].scores for name in files]),
        )
        for files in together.values()
    ]


def _records(together: Iterable[columns.Alike]) -> Iterator[tuple[str, Measured]]:
    """Yield records that are in columns, each with the name of its file."""
    for each in together:
        lines = [
            dict(zip(each.own, line, strict=True)) for line in zip(*each.own.values(), strict=True)
        ]
        first = Measured.model_validate({**each.shared, **lines[0]})
        for line, (name, fields) in enumerate(zip(each.files, lines, strict=True)):
            scores = columns.Scores(each.columns, line)
            yield name, first.model_copy(update={**fields, "scores": scores})


def _unpacked(home: Path) -> Iterator[tuple[str, Measured]]:
    """Yield the records in the pack, each with the name of its file."""
    broken = (CoordinateError, OSError, ValueError, LookupError, TypeError)
    with contextlib.suppress(*broken):  # it is a copy
        with _files.open_to_read(home / _PACK) as file:
            content = _files.read_bounded(file, home / _PACK, _MOST_PACKED)
        yield from _records(columns.load(content, _version()))


def _pack(home: Path, together: Sequence[columns.Alike]) -> None:
    with contextlib.suppress(CoordinateError, OSError):
        _files.write(home / _PACK, columns.packed(together, _version()))


def _version() -> str:
    """Return what a pack is of. One of another version may lack what records have."""
    return ",".join(Measured.model_fields)
