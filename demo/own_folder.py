"""The folder that a demo writes into."""

import shutil
import sys
from pathlib import Path

_MARK = ".coordinate-eval-demo"


def begin(folder: Path) -> None:
    """Make a folder for a demo; an earlier demo's goes.

    Raises:
        SystemExit: the folder holds something that no demo wrote.
    """
    if (folder / _MARK).exists():
        shutil.rmtree(folder)
    elif folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        sys.exit(f"{folder} is there and not an earlier demo's: name another folder with --dir")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _MARK).touch()
