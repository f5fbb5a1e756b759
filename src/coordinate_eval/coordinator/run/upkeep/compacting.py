"""Compacting a complete run: few files of responses, questions and answers in place of thousands.

Shards beside each other become one, and so do their files. Whoever reads the run finds fewer shards
in `planned.json`, and notices nothing else. The order makes it safe to die anywhere: first the
merged files, each read again; then `planned.json`, in one step; then what it no longer names goes.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from coordinate_eval import _files
from coordinate_eval.coordinator.run.claiming.decided import without_withdrawn
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Planned, Run
from coordinate_eval.errors import CoordinateError
from coordinate_eval.records import Shard, Span

MOST_BYTES = 32 << 20
"""Bytes of a merged file, roughly: a scoring job that asks for the questions of a shard again gets
at most 200,000 of them, of some hundred bytes each."""

LEDGERS = ("outputs", "questions", "answers")
"""The folders whose files are merged."""

_SPAN_FILE = re.compile(r"(\d+-\d+)(\.jsonl|\.\d+\.(part|json|revoked|running))")


class Compacted(NamedTuple):
    """The outcome of compacting a run."""

    before: int
    """Files with responses, questions, answers and their claims."""
    after: int


def compact(run_dir: RunDir, run: Run) -> Compacted:
    """Merge the files of a run that is complete and has no living job.

    Doing it again does no harm, and completes what was interrupted.

    Raises:
        CoordinateError: a file is missing, torn, or changed while it was read. Nothing is removed.
        OSError: storage fails. Nothing is removed that is not in a merged file.
    """
    before = sum(1 for _ in _span_files(run_dir, run))
    groups = list(_groups(run_dir, without_withdrawn(run_dir, run)))
    shards = [_merged(group) for group in groups]
    # Each shard with questions has one portion of them then.
    longest = max((shard.metric_cpu_seconds for shard in shards), default=0.0)
    update = {"shards": shards, "portion_seconds": max(run.portion_seconds, longest)}
    new = run.model_copy(update=update)
    there = {shard for group in groups for shard in group}
    withdrawn = [shard for shard in run.shards if shard not in there]
    for group, shard in zip(groups, shards, strict=True):
        for ledger in LEDGERS:
            parts = _parts(run, ledger, group)
            for whole in _parts(new, ledger, [shard]):
                if parts != [whole]:
                    paths = [_path(run_dir, ledger, part) for part in parts]
                    _merge(paths, _path(run_dir, ledger, whole))
    if new.shards != run.shards or new.portion_seconds != run.portion_seconds:
        kept = new.model_copy(update={"shards": [*shards, *withdrawn]})
        planned = kept.model_dump_json(include=set(Planned.model_fields), indent=1)
        _files.write(run_dir.planned, planned + "\n")
    _remove_others(run_dir, new)
    return Compacted(before, sum(1 for _ in _span_files(run_dir, new)))


def _groups(run_dir: RunDir, run: Run) -> Iterable[list[Shard]]:
    """Yield the shards of each dataset in groups that follow one another, up to `MOST_BYTES`."""
    for dataset in {shard.dataset: 0 for shard in run.shards}:
        mine = sorted((s for s in run.shards if s.dataset == dataset), key=lambda s: s.start)
        group: list[Shard] = []
        size = dict.fromkeys(LEDGERS, 0)
        for shard in mine:
            more = {
                ledger: sum(_size(_path(run_dir, ledger, p)) for p in _parts(run, ledger, [shard]))
                for ledger in LEDGERS
            }
            full = any(size[ledger] + more[ledger] > MOST_BYTES for ledger in LEDGERS)
            if group and (full or group[-1].stop != shard.start):
                yield group
                group, size = [], dict.fromkeys(LEDGERS, 0)
            group.append(shard)
            size = {ledger: size[ledger] + more[ledger] for ledger in LEDGERS}
        if group:
            yield group


def _merged(group: Sequence[Shard]) -> Shard:
    return Shard(
        dataset=group[0].dataset,
        start=group[0].start,
        stop=group[-1].stop,
        gpu_seconds=sum(shard.gpu_seconds for shard in group),
        metric_cpu_seconds=sum(shard.metric_cpu_seconds for shard in group),
        signal=all(shard.signal for shard in group),
    )


def _parts(run: Run, ledger: str, shards: Sequence[Shard]) -> list[Span]:
    """Return the spans that have a file in a ledger's folder, of these shards."""
    if ledger == "outputs":
        return [shard.span for shard in shards]
    return [span for shard in shards if shard.dataset in run.asks for span in run.portions(shard)]


def _path(run_dir: RunDir, ledger: str, span: Span) -> Path:
    return run_dir.published(ledger, span)


def _size(path: Path) -> int:
    size = _files.size(path)
    if size < 0:
        raise CoordinateError(f"{path} is missing, so the run is left as it is")
    return size


def _merge(parts: Sequence[Path], whole: Path) -> None:
    """Write the content of some files into one, and read it again before it gets its name."""
    wanted = hashlib.sha256()
    temporary = whole.with_name(f".{whole.name}.{_files.token()}.tmp")
    try:
        with _files.open_to_write(temporary) as out:
            for part in parts:
                last = b"\n"
                for line in _files.lines(part):
                    wanted.update(line)
                    out.write(line)
                    last = line
                if not last.endswith(b"\n"):
                    raise CoordinateError(f"{part} is torn, so the run is left as it is")
            out.flush()
            os.fsync(out.fileno())
        found = hashlib.sha256()
        for line in _files.lines(temporary):
            found.update(line)
        if found.digest() != wanted.digest():
            raise CoordinateError(f"{whole} was not written as it should be: nothing is removed")
        _files.replace(temporary, whole)
    finally:
        temporary.unlink(missing_ok=True)


def _remove_others(run_dir: RunDir, run: Run) -> None:
    """Remove the files of spans that the run no longer has, and claims of those that are done."""
    kept = {
        _path(run_dir, ledger, part)
        for ledger in LEDGERS
        for part in _parts(run, ledger, run.shards)
    }
    for path in kept:
        _size(path)
    for path in list(_span_files(run_dir, run)):
        if path not in kept:
            path.unlink(missing_ok=True)
    for folder in _claims_folders(run_dir, run):
        with contextlib.suppress(OSError):  # somebody else's file is in it, or it was never made
            folder.rmdir()


def _span_files(run_dir: RunDir, run: Run) -> Iterable[Path]:
    """Yield the files that are named after a span, by us, in the folders that are compacted."""
    published = [
        run_dir.published_folder(ledger, dataset.name)
        for ledger in LEDGERS
        for dataset in run.suite.datasets
    ]
    for folder in [*published, *_claims_folders(run_dir, run)]:
        for name in sorted(_files.names(folder)):
            if _SPAN_FILE.fullmatch(name):
                yield folder / name


def _claims_folders(run_dir: RunDir, run: Run) -> list[Path]:
    return [
        run_dir.claims_folder(ledger, dataset.name)
        for ledger in LEDGERS
        for dataset in run.suite.datasets
    ]
