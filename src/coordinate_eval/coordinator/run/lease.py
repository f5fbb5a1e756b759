"""The lease of a run: hard links to its checkpoint's files, which stay when training deletes it.

`.coordinate-eval-<uid>/<run>-<nonce>/`, in the folder that training fills, has each file under its
whole path in `files/`, leads to the run directory with its link `run`, and names in `host` the
machine that made it. It appears in one rename, copies nothing, and follows no link. Files of others
are not linked: `fs.protected_hardlinks` forbids that on most machines, and whoever owns a file may
want it deleted. Nor are files in a folder of others: `checkpoint_files` reads no file there that
has a second name.

Whoever ends a run removes its lease. What a killed process left is removed by whoever takes the
next lease beside it, and by `prune`.
"""

import contextlib
import os
import shutil
import stat
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from coordinate_eval import _files, _owner
from coordinate_eval.coordinator.inputs.checkpoints import checkpoint as checkpoints
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.coordinator.run.supervision import has_ended
from coordinate_eval.errors import ForeignError
from coordinate_eval.records import Checkpoint

_THREADS: Final = 16
"""Links that are made at once: on a network file system each waits for a server."""

_DRAFT_SECONDS: Final = 3600.0
"""Age of a lease that is still being made, after which whoever made it was killed."""

_UNSEEN_SECONDS: Final = 30 * 86400.0
"""Age of another machine's lease after which its run, which is not seen here, has ended."""


def take(run_dir: RunDir, run: Run) -> bool:
    """Link the checkpoint's files, unless that is done. Return whether the run has a lease.

    A run has no lease if its settings want none, or if the file system or the owner of the files
    does not allow links.
    """
    lease, wanted = run.lease, run.settings.stage.keep and not run.settings.engine.elsewhere
    there = lease.parent.parent.is_dir()  # not of an average that is in a store
    if not (wanted and there and any(map(_is_linkable, run.checkpoint.all_weights))):
        return False
    try:
        remove_abandoned(lease.parent)
        if lease.is_dir():
            return True
        _files.own_folder(lease.parent)
        draft = lease.with_name(f".{lease.name}.{_files.token()}.tmp")
        draft.mkdir()
        try:
            (draft / "run").symlink_to(run_dir.root)
            (draft / "host").write_text(os.uname().nodename)
            if _link_all(run.checkpoint, draft / "files"):
                draft.rename(lease)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except (OSError, ForeignError):  # a full disk, a folder that others own: the run does without
        pass
    _remove_if_empty(lease.parent)
    return lease.is_dir()


def leased(run: Run) -> Checkpoint:
    """Return the checkpoint with the paths at which its files stay while the run has its lease."""
    files = run.lease / "files"
    if not files.is_dir():
        return run.checkpoint

    def kept(name: str) -> str:
        return path if os.path.lexists(path := f"{files}{name}") else name

    def moved(was: Checkpoint) -> Checkpoint:
        changed = {"weights": [*map(kept, was.weights)], "files": [*map(kept, was.files)]}
        return was.model_copy(update={**changed, "parts": [*map(moved, was.parts)]})

    return moved(run.checkpoint)


def loaded(run: Run) -> Checkpoint:
    """Return the checkpoint whose weights nodes hold for engines, with the same paths."""
    return run.settings.engine.loads(leased(run))


def is_deleted(run: Run) -> bool:
    """Return whether a run needs the checkpoint, has no lease on it, and somebody has deleted it.

    Where even the folder around it is missing, this machine may lack the file system. Of one in a
    store, the keeper finds out.
    """
    weights = run.checkpoint.all_weights
    if run.settings.engine.elsewhere or run.checkpoint.remote or run.lease.is_dir():
        return False
    around = Path(run.checkpoint.path).parent
    return around.is_dir() and checkpoints.is_deleted([*weights[:1], *weights[-1:]])


def end(run: Run) -> None:
    """Remove the lease of a run, if it has one."""
    lease = run.lease
    if lease.is_dir() and not lease.is_symlink():
        shutil.rmtree(lease, ignore_errors=True)
        _remove_if_empty(lease.parent)


def remove_abandoned(folder: Path) -> None:
    """Remove the leases in a folder whose runs have ended or are gone.

    A run whose folder this machine does not see may be there on another one, also where both have
    the folder above it, such as `/local/runs`: a lease of another machine goes by its age then.
    """
    try:
        _owner.check_folder(folder)
    except (OSError, ForeignError):
        return
    for name in _files.names(folder):
        lease, run = folder / name, RunDir(folder / name / "run")
        with contextlib.suppress(OSError):
            target = run.root.readlink()  # every lease has one
            age = time.time() - lease.lstat().st_mtime
            if name.startswith("."):
                over = age > _DRAFT_SECONDS
            elif run.run.exists():
                over = has_ended(run)
            else:
                over = age > _UNSEEN_SECONDS or (_is_of_here(lease) and target.parent.is_dir())
            if over:
                shutil.rmtree(lease, ignore_errors=True)
    _remove_if_empty(folder)


def _is_of_here(lease: Path) -> bool:
    with contextlib.suppress(OSError):
        return (lease / "host").read_text() == os.uname().nodename
    return False


def _link_all(checkpoint: Checkpoint, files: Path) -> bool:
    """Link the files of each folder, all or none. Return whether there are weights among them."""
    folders: dict[Path, set[str]] = defaultdict(set)
    for path in map(Path, checkpoint.all_files):
        folders[path.parent].add(path.name)
    for folder, names in folders.items():
        if folder.stat().st_uid == os.geteuid():
            _link(folder, sorted(names), Path(f"{files}{folder}"))
    return any(os.path.lexists(f"{files}{name}") for name in checkpoint.all_weights)


def _link(folder: Path, names: Sequence[str], into: Path) -> None:
    """Link files of a folder, all or none."""

    def link(some: Sequence[str]) -> bool:
        for name in some:
            os.link(f"{folder}/{name}", f"{into}/{name}", follow_symlinks=False)
        # What lies there now counts, whatever was exchanged meanwhile.
        return all(_is_linkable(f"{into}/{name}") for name in some)

    into.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(OSError), ThreadPoolExecutor(_THREADS) as pool:
        if all(pool.map(link, [names[first::_THREADS] for first in range(_THREADS)])):
            return
    for name in names:
        (into / name).unlink(missing_ok=True)


def _is_linkable(path: str) -> bool:
    """Return whether a file is a regular one of the user's own."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()
