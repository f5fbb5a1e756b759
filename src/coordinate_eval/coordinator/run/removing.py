"""Removing a run: the whole directory vanishes in one step, or stays."""

import contextlib
import os
import re
import shutil
import stat
import time
from pathlib import Path

from coordinate_eval import _files
from coordinate_eval.coordinator.run.claiming.claims import LEDGERS
from coordinate_eval.coordinator.run.own import is_own
from coordinate_eval.coordinator.run.paths import Place, RunDir
from coordinate_eval.coordinator.run.records import HOOKS
from coordinate_eval.errors import CoordinateError

_RUN = RunDir(Path("run"))

OWN_NAMES = frozenset(
    {
        *(
            getattr(_RUN, name).relative_to(_RUN.root).parts[0]
            for name, member in vars(RunDir).items()
            if isinstance(member, Place)
        ),
        *(_RUN.published_folder(ledger, "").name for ledger in LEDGERS),
        *(_RUN.hook(name).name for name in HOOKS),
        *("claims", "items", "observations", "ranks", "rounds", "stage"),
    }
)
"""Names that this program makes in a run directory."""

_TEMPORARY = re.compile(r"\..+\.tmp")
_DRAFT = re.compile(r"\.(?:.+\.)?[0-9a-f]{16}\.tmp", re.DOTALL)
_DRAFT_SECONDS = 86_400.0
REMOVED = ".removed-"
"""Beginning of a run directory's name while it is removed."""

_LEFT = re.compile(rf"{re.escape(REMOVED)}[0-9a-f]{{16}}")


def remove(run_dir: RunDir) -> None:
    """Remove a run directory with all that is in it. People see it disappear in one step.

    Raises:
        CoordinateError: something is in it that this program did not make, and nothing is removed.
    """
    root = run_dir.root
    before = root.lstat()
    _check_all_ours(root, root)
    gone = root.with_name(f"{REMOVED}{_files.token()}")
    root.rename(gone)
    try:
        _check_all_ours(gone, root)
        if not os.path.samestat(before, gone.lstat()):
            raise CoordinateError(f"{root} was exchanged meanwhile: nothing of it is removed")
    except (CoordinateError, OSError):
        gone.rename(root)
        raise
    shutil.rmtree(gone)


def remove_leftovers(home: Path) -> None:
    """Remove what interrupted removals of this user have left in a folder of runs."""
    for name in _files.names(home):
        root = home / name
        if not _LEFT.fullmatch(name) or not is_own(root) or root.is_symlink():
            continue
        if root.is_dir() and not _others(root):
            with contextlib.suppress(FileNotFoundError):  # another removal is at it
                shutil.rmtree(root)


def remove_drafts(folder: Path) -> None:
    """Remove what killed processes of this user had begun to write in a folder, a day ago."""
    if folder.is_symlink() or not folder.is_dir():
        return
    for name in _files.names(folder):
        if not _DRAFT.fullmatch(name):
            continue
        with contextlib.suppress(OSError):
            found = (folder / name).lstat()
            if found.st_uid == os.geteuid() and time.time() - found.st_mtime > _DRAFT_SECONDS:
                if stat.S_ISDIR(found.st_mode):
                    shutil.rmtree(folder / name)
                else:
                    (folder / name).unlink()


def _check_all_ours(folder: Path, root: Path) -> None:
    """Check that a folder, which people know as `root`, has nothing but what a run has."""
    if others := _others(folder):
        raise CoordinateError(
            f"{root} has {', '.join(others[:5])}, which this program did not make: nothing of it "
            "is removed"
        )


def _others(root: Path) -> list[str]:
    """Return the names in a run directory that this program does not give, in order."""
    found = _files.names(root)
    return sorted(n for n in found if n not in OWN_NAMES and not _TEMPORARY.fullmatch(n))
