"""Check that the folders of the settings can be written, before anything is built or submitted."""

import contextlib
from pathlib import Path
from typing import Literal

from coordinate_eval import _files
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.errors import UserError

_USE = {
    "cache_dir": "requests are kept in it",
    "runs_dir": "run directories are made in it",
    "priors_dir": "measurements of finished runs are kept in it",
}


Name = Literal["cache_dir", "runs_dir", "priors_dir"]


def check_writable(settings: Settings, name: Name) -> None:
    """Check that a folder of the settings can be written. It is not created if it is missing.

    Raises:
        UserError: it cannot; names the setting, the folder and the reason.
    """
    folder = Path(getattr(settings, name)).expanduser()
    try:
        _probe(folder)
    except OSError as error:
        raise UserError(
            f"setting {name}: {folder} cannot be written ({error.strerror}), but {_USE[name]}: "
            "set it to a folder of yours on storage that all nodes share"
        ) from error


def check_new(root: Path) -> None:
    """Check that a run directory can be made where none is yet. It is not made.

    Raises:
        UserError: it cannot; names the directory and the reason.
    """
    try:
        if not root.exists():
            _probe(root.parent)
    except OSError as error:
        raise UserError(
            f"run directory {root} cannot be made ({error.strerror}): choose a --run-dir in a "
            "folder of yours on storage that all nodes share"
        ) from error


def _probe(folder: Path) -> None:
    """Make and remove a folder in this one, or in the nearest parent that exists."""
    place = folder.absolute()
    while place != place.parent:
        with contextlib.suppress(FileNotFoundError):
            place.stat()
            break
        place = place.parent
    probe = place / f".{_files.token()}.tmp"
    probe.mkdir()
    probe.rmdir()
