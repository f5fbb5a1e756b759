"""What `--dry-run` shows and writes: the plan, and every submission word by word."""

import contextlib
import hashlib
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, Field
from rich.console import Console

from coordinate_eval import _files
from coordinate_eval.coordinator.cluster import Cluster, Job, ShownJob
from coordinate_eval.coordinator.dry_run import page, terminal
from coordinate_eval.coordinator.dry_run.risks import Site
from coordinate_eval.coordinator.dry_run.summary import Review, review
from coordinate_eval.coordinator.planning import prepare
from coordinate_eval.coordinator.planning.freeze import first_round, frozen, with_asks
from coordinate_eval.coordinator.planning.prepare import Prepared
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.jobs import keeper_gib
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Round, RoundNode, Run
from coordinate_eval.errors import RecordError, UserError
from coordinate_eval.records import Record

CONTENTS = "contents.json"
"""In a folder of scripts: what was written to it, which is how it is known again."""


class Contents(Record):
    """`contents.json`: the files of a folder of scripts, in the order of submission."""

    schema_: Literal["coordinate-eval/scripts@1"] = Field(
        default="coordinate-eval/scripts@1", alias="schema"
    )
    model_config = ConfigDict(populate_by_name=True)

    files: dict[str, str] = Field(description="sha256 of each by its name")


@dataclass(frozen=True)
class Outputs:
    """Where a dry run goes, beside the terminal."""

    as_json: bool
    html: Path | None
    scripts: Path | None


def show(
    prepared: Prepared,
    run_dir: RunDir,
    identity: str,
    cluster: Cluster,
    outputs: Outputs,
    console: Console,
    *,
    exclusive: bool,
) -> None:
    """The plan: one JSON document, or figures, pictures, and the submissions word by word.

    Raises:
        UserError: the page or the scripts cannot be written.
    """
    check(outputs)
    if outputs.html is not None or outputs.scripts is not None or not outputs.as_json:
        found = _review(prepared, run_dir, identity, cluster, exclusive=exclusive)
        if outputs.html is not None:
            write_page(outputs.html, found)
        if outputs.scripts is not None:
            write_scripts(outputs.scripts, found.submissions)
    if outputs.as_json:
        sys.stdout.write(prepared.plan.model_dump_json(by_alias=True, indent=1) + "\n")
        return
    console.print(terminal.render(found))
    for each in found.submissions:
        console.print()
        console.print(each.text, markup=False, highlight=False, soft_wrap=True)


def planned_jobs(prepared: Prepared, made: Run, run_dir: RunDir, cluster: Cluster) -> Iterator[Job]:
    """Yield every job of the plan in the order of submission."""
    round_ = first_round(prepared, made)
    if not cluster.local:
        yield jobs.supervisor_job(made, run_dir, 1)
    for node in round_.nodes:
        yield from _node_jobs(made, run_dir, round_, node)
    # Which metrics ask questions is known of what was built; of the rest, those that cost anything.
    costly = dict.fromkeys(job.dataset for job in prepared.plan.metric_jobs)
    asks = made.asks if prepared.built else list(costly)
    if asks:
        asking = with_asks(made, asks)
        yield jobs.metric_job(asking, run_dir, 0, jobs.pullers(asking))


def check(outputs: Outputs) -> None:
    """Whether the page and the scripts can go where they are to, before either is written.

    Raises:
        UserError: something else is there, or one is in the place of the other.
    """
    html = scripts = None
    if outputs.html is not None:
        with _placed("--html", outputs.html) as html:
            _check_page(html)
    if outputs.scripts is not None:
        with _placed("--scripts", outputs.scripts) as scripts:
            _check_replaceable(scripts)
    if html and scripts and (html.is_relative_to(scripts) or scripts.is_relative_to(html)):
        raise UserError(
            f"--html {outputs.html} and --scripts {outputs.scripts} are in each other's place: "
            "name two"
        )


def write_page(file: Path, found: Review) -> None:
    """One page of HTML, in place of an earlier one.

    Raises:
        UserError: something else is there, or it cannot be written.
    """
    with _placed("--html", file) as place:
        _check_page(place)
        _files.write(place, page.render(found))


def write_scripts(folder: Path, planned: Sequence[ShownJob]) -> None:
    """A folder with the script of each submission and the command that takes it, whole.

    Raises:
        UserError: it holds what was not written by this, or cannot be written.
    """
    texts = dict(_texts(planned))
    digests = {name: _digest(text) for name, text in texts.items()}
    with _placed("--scripts", folder) as place:
        _check_replaceable(place)
        place.parent.mkdir(parents=True, exist_ok=True)
        draft = place.with_name(f".{place.name[:100]}.{_files.token()}.tmp")
        try:
            draft.mkdir()
            for name, text in texts.items():
                _files.write(draft / name, text)
            _files.write_record(draft / CONTENTS, Contents(files=digests))
            _put(draft, place)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def _review(
    prepared: Prepared, run_dir: RunDir, identity: str, cluster: Cluster, *, exclusive: bool
) -> Review:
    made = frozen(identity, prepared, cluster.name, exclusive=exclusive)
    site = Site(
        nodes=prepared.nodes,
        busy=prepared.busy,
        settings=prepared.settings,
        keeper_gib=keeper_gib(made),
        metric_cpus=prepared.metric_cpus,
        gigabits_per_node=prepared.gigabits_per_node,
        guessed=prepare.guessed(prepared.suite),
    )
    shown = [cluster.shown(job) for job in planned_jobs(prepared, made, run_dir, cluster)]
    return review(prepared.plan, prepared.choice, site, shown)


def _node_jobs(made: Run, run_dir: RunDir, round_: Round, node: RoundNode) -> list[Job]:
    if made.exclusive:
        return [jobs.node_job(made, run_dir, round_, node)]
    return [
        jobs.keeper_job(made, run_dir, round_, node),
        jobs.trials_job(made, run_dir, round_, node),
    ]


def _texts(planned: Sequence[ShownJob]) -> Iterator[tuple[str, str]]:
    """Names of files and what is in them; a node's name may be no name of a file."""
    seen: set[str] = set()
    for each in planned:
        name = stem = re.sub(r"[^A-Za-z0-9_.=+@,-]", "-", each.name)[:200]
        while name in seen:
            name = f"{stem}-{len(seen)}"
        seen.add(name)
        if each.script is None:
            yield f"{name}.argv", f"{each.command}\n"
        else:
            yield f"{name}.sh", each.script
            yield f"{name}.argv", f"{each.command} < {name}.sh\n"


@contextlib.contextmanager
def _placed(option: str, path: Path) -> Iterator[Path]:
    """The place that an option names, behind any links, which stay."""
    try:
        yield path.resolve()
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: a circle of links
        words = getattr(error, "strerror", None) or error
        raise UserError(f"{option} {path} cannot be written: {words}") from error


def _check_page(file: Path) -> None:
    if file.is_dir():
        raise UserError(f"--html {file} cannot be written: it is a folder")
    if not file.exists():
        return
    # A device may have no end, and a pipe keeps waiting whoever opens it.
    if file.is_file():
        with file.open(errors="replace") as text:
            if page.MARK in text.read(1000):
                return
    raise UserError(f"--html {file}: it is there and no page of a plan; choose another name")


def _check_replaceable(folder: Path) -> None:
    if Path.cwd().is_relative_to(folder):
        raise UserError(f"--scripts {folder}: it is the working directory; name a folder in it")
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not folder.is_dir():
        raise UserError(f"--scripts {folder}: it is a file; name a folder")
    try:
        known = _files.read_record_if_there(folder / CONTENTS, Contents)
    except RecordError:
        known = None
    if known is None:
        raise UserError(f"--scripts {folder}: it is not empty; name a new folder")
    for path in folder.iterdir():
        ours = path.is_file() and known.files.get(path.name) == _digest(path.read_text())
        if path.name != CONTENTS and not ours:
            raise UserError(
                f"--scripts {folder}: {path.name} was changed or put there since; name a new folder"
            )


def _put(draft: Path, folder: Path) -> None:
    """Let `draft` be `folder`; what was there stays until it is, and if it cannot be."""
    if not (folder / CONTENTS).exists():
        draft.rename(folder)  # over nothing, or an empty folder
        return
    before = draft.with_suffix(".old")
    folder.rename(before)
    try:
        draft.rename(folder)
    except OSError:
        before.rename(folder)
        raise
    shutil.rmtree(before, ignore_errors=True)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
