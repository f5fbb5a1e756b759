"""`coordinate-eval runs`: find runs under `runs_dir`, and list them."""

import contextlib
import shlex
import time
from collections.abc import Callable, Iterator, Sequence, Set
from pathlib import Path
from typing import Annotated, Any

from rich.table import Table

from coordinate_eval import _files, _owner
from coordinate_eval._format import plural, whole_duration
from coordinate_eval.clusters.protocol import TaskStatus
from coordinate_eval.coordinator.cli.options import common
from coordinate_eval.coordinator.cli.options.parsing import option
from coordinate_eval.coordinator.cli.output import new_table, out, say, table_console, write_json
from coordinate_eval.coordinator.inputs import clusters
from coordinate_eval.coordinator.inputs.checkpoints import remote
from coordinate_eval.coordinator.inputs.layers import load as load_settings
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.report import state
from coordinate_eval.coordinator.report.main_metric import main_score
from coordinate_eval.coordinator.report.results import judged, judged_differently, read_dataset
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.claiming.decided import stopped
from coordinate_eval.coordinator.run.own import is_own, own, place
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import HOOKS, Run, hook_ends, read_run
from coordinate_eval.coordinator.run.starting import spool
from coordinate_eval.errors import ClusterError, ForeignError, RecordError, UserError

Found = tuple[RunDir, Run]


def find(name: str | None, settings: Settings) -> RunDir:
    """Return the user's run with this id or directory; without a name, the latest run."""
    home = Path(settings.runs_dir).expanduser()
    if name is not None:
        # An id is looked up first: a folder of that name may lie in a checkpoint. One's own run
        # comes before that of a colleague.
        ours = [place(home, name)] if Path(name).name == name else []
        for root in (*ours, home / name, Path(name)):
            # A name may be too long to be a path at all, and another user's folder closed.
            with contextlib.suppress(OSError):
                if (root / "run.json").exists():
                    return own(root)
        raise UserError(
            f"no run {name!r}: neither a run directory nor an id under {home}; "
            "`coordinate-eval runs` lists the runs"
        )
    roots = _roots(home)
    if not roots:
        raise UserError(f"no runs under {home} that are yours")
    return own(roots[0])


@contextlib.contextmanager
def open_to_show(name: str | None, settings: Settings) -> Iterator[tuple[RunDir, str]]:
    """Open the run of `find` during the block. Yield it and, if it is foreign, the reason.

    Another user's files are read meanwhile.
    """
    why = ""
    try:
        find(name, settings)
    except ForeignError as error:
        if name is None:
            raise
        why = str(error)
    with _owner.for_show() if why else contextlib.nullcontext():
        yield find(name, settings), why


def find_all(
    settings: Settings, folder: Path | None = None, suite: str | None = None
) -> tuple[list[Found], list[str]]:
    """Return the user's runs under `runs_dir`, newest first, and the errors of unreadable ones.

    Args:
        folder: if it is given, only runs of checkpoints in this folder or below it.
        suite: if it is given, only runs of the suite with this name.
    """
    problems: list[str] = []
    folder = None if folder is None else remote.located(folder)
    inside = () if folder is None else (folder.absolute(), folder.resolve())
    found = [
        (run_dir, run)
        for run_dir, run in readable_runs(settings, frozenset(), problems)
        if suite in (None, run.suite.name)
        and (folder is None or _is_in(run.checkpoint.path, inside))
    ]
    return sorted(found, key=lambda pair: -pair[1].created), problems


def _is_in(path: str, folders: Sequence[Path]) -> bool:
    return any(remote.located(path).is_relative_to(each) for each in folders)


def readable_runs(settings: Settings, known: Set[str], problems: list[str]) -> Iterator[Found]:
    """Yield the user's runs under `runs_dir` whose directories have none of the names in `known`.

    The errors of unreadable runs are added to `problems`.
    """
    roots = _roots(Path(settings.runs_dir).expanduser(), known)
    # A run with --run-dir is linked into `runs_dir`, where it may lie itself.
    for root in dict.fromkeys(root.resolve() for root in roots):
        try:
            run_dir = own(root)
            run = read_run(run_dir)
        except (RecordError, ForeignError, OSError) as error:
            problems.append(str(error))
            continue
        if run.id not in known:
            yield run_dir, run


def name_for_commands(run_dir: RunDir, run: Run, settings: Settings) -> str:
    """Return how a command line names this run: its id where that finds it, else its directory."""
    with contextlib.suppress(OSError):
        home = Path(settings.runs_dir).expanduser()
        if place(home, run.id).resolve() == run_dir.root:
            return run.id
    return shlex.quote(str(run_dir.root))


_Dataset = Annotated[str | None, option("--dataset NAME", "Show the main score of this dataset.")]
_Most = Annotated[int, option("--limit N", "Show the N newest runs.", min=1)]


def runs_command(
    dataset: _Dataset = None,
    limit: _Most = 20,
    checkpoints: common.InFolder = None,
    suite: common.OfSuite = None,
    as_json: common.Json = False,
    settings_file: common.SettingsFile = None,
) -> None:
    """List the runs in `runs_dir`, the newest first."""
    settings, _ = load_settings({}, settings_file)
    found, problems = find_all(settings, checkpoints, suite)
    if dataset is not None and not any(_has(run, dataset) for _, run in found):
        raise UserError(f"no run under {settings.runs_dir} has dataset {dataset!r}")
    tasks, note = poll(found[:limit], settings)
    rows = readable_rows(
        found[:limit], lambda run_dir, run: _row(run_dir, run, dataset, tasks), problems
    )
    why = judged_differently((row["run"], row["judge"]) for row in rows if row.get("judge"))
    if why:
        problems.append(f"scores of dataset {dataset} are not shown: {why}")
        rows = [row | {"score": None} for row in rows]
    if as_json:
        write_json(rows)
    else:
        console = table_console()
        if not rows:
            out(f"no runs under {settings.runs_dir}")
        else:
            console.print(_table(rows, dataset))
        if len(found) > limit:
            console.print(
                f"{plural(len(found) - limit, 'older run')}: --limit N shows more", highlight=False
            )
    requests = spool.about(Path(settings.runs_dir).expanduser(), time.time())
    for problem in [*problems, *([note] if note else []), *requests]:
        say(problem)


def readable_rows(
    found: Sequence[Found], row: Callable[[RunDir, Run], dict[str, Any]], problems: list[str]
) -> list[dict[str, Any]]:
    """Return the row of each run. Of a run with a torn file, add the error to `problems`."""
    rows = []
    for run_dir, run in found:
        try:
            rows.append(row(run_dir, run))
        except (RecordError, ForeignError, OSError) as error:
            problems.append(str(error))
    return rows


def poll(
    found: Sequence[Found], settings: Settings
) -> tuple[dict[str, list[TaskStatus] | None], str]:
    """Return the jobs of each run by its nonce, and why some are not known; empty if all are.

    Asks each scheduler once, and only if some run has not ended.
    """
    tasks: dict[str, list[TaskStatus] | None] = {}
    note = ""
    open_runs = [run for run_dir, run in found if not _surely_ended(run_dir)]
    for name in sorted({run.cluster for run in open_runs}):
        cluster = clusters.by_name(name, settings)
        known: list[TaskStatus] | None = None
        if not cluster.local:
            try:
                with cluster:
                    known = cluster.poll(jobs.PREFIX)
            except (ClusterError, UserError) as error:
                note = f"states are as of the run directories: {error}"
        for run in (run for run in open_runs if run.cluster == name):
            mine = jobs.prefix(run)
            tasks[run.nonce] = (
                None if known is None else [t for t in known if t.name.startswith(mine)]
            )
    return tasks, note


def _roots(home: Path, known: Set[str] = frozenset()) -> list[Path]:
    """Return the user's own run directories under a folder, the newest first, but those `known`.

    What others put there is passed over, links to runs included, and what is being removed.
    """
    try:
        names = sorted(name for name in _files.names(home) - known if name[0] != ".")
        paths = [path for name in names if (path := home / name / "run.json").exists()]
        paths = [p for p in paths if is_own(p) and is_own(p.parent)]
        mine = [p for p in paths if is_own(p.parent.resolve())]
        return [p.parent for p in sorted(mine, key=lambda p: -_files.modified(p))]
    except OSError as error:
        raise UserError(f"runs_dir {home} cannot be read: {error.strerror}") from error


def _has(run: Run, dataset: str) -> bool:
    return any(each.name == dataset for each in run.suite.datasets)


def _surely_ended(run_dir: RunDir) -> bool:
    with contextlib.suppress(RecordError):  # it is reported with the run's row
        return state.is_done(run_dir) or run_dir.cancelled.exists()
    return True


def _row(
    run_dir: RunDir,
    run: Run,
    dataset: str | None,
    tasks: dict[str, list[TaskStatus] | None],
) -> dict[str, Any]:
    known = tasks.get(run.nonce)
    silent = run.nonce in tasks and known is None
    phase = state.phase_of(run_dir, run, known, silent=silent)
    scored = _files.names(run_dir.results_folder)
    used = stopped(run_dir) if run.stages else {}
    hooks = hook_ends(run_dir) if phase.ended else {}
    row: dict[str, Any] = {
        "run": run.id,
        "dir": str(run_dir.root),
        "checkpoint": run.checkpoint.path,
        "suite": run.suite.name,
        "state": phase.value,
        **{hook: hooks[hook].words if hook in hooks else "" for hook in HOOKS},
        "datasets": len(run.suite.datasets),
        "datasets_scored": sum(
            1
            for d in run.suite.datasets
            if f"{d.name}.json" in scored or (d.name in used and read_dataset(run_dir, d.name))
        ),
        "created": run.created,
        "age_seconds": max(0.0, time.time() - run.created),
    }
    if dataset is not None:
        results = read_dataset(run_dir, dataset) if _has(run, dataset) else None
        score = main_score(results) if results is not None else None
        row["score"] = None if score is None else score._asdict()
        row["judge"] = judged(results) if results is not None else {}
    return row


def _table(rows: list[dict[str, Any]], dataset: str | None) -> Table:
    metrics = {row["score"]["metric"] for row in rows if row.get("score")}
    heads = ["run", "suite", "state", ">scored", ">age"]
    if dataset is not None:
        # One metric is named once, above its values.
        heads.append(f">{dataset}\n{metrics.pop()}" if len(metrics) == 1 else f">{dataset}")
    table = new_table(*heads)
    for row in rows:
        cells = [
            row["run"],
            row["suite"],
            ", ".join([row["state"], *(f"{hook} failed" for hook in HOOKS if row[hook])]),
            f"{row['datasets_scored']} of {row['datasets']}",
            age(row["age_seconds"]),
        ]
        if dataset is not None:
            score = row["score"]
            name = f" {score['metric']}" if score and metrics else ""
            cells.append(f"{score['value']:.4f}{name}" if score else "")
        table.add_row(*cells)
    return table


def age(seconds: float) -> str:
    """Return an age in the unit that fits, days included."""
    return f"{seconds / 86400:.0f} days" if seconds >= 2 * 86400 else whole_duration(seconds)
