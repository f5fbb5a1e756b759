"""Search paths of this process and its children: programs, modules, libraries.

An empty or relative entry of a search path means the working directory, which may be a checkpoint's
folder or one that others write to. Such entries are common: `PYTHONPATH=$PYTHONPATH:/x` has one
where the variable was empty. They are dropped.
"""

import contextlib
import os
import re
from collections.abc import MutableMapping, MutableSequence
from pathlib import Path

import platformdirs

from coordinate_eval import _owner

_LISTS = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")
"""Variables with folders, in which an empty entry is the working directory."""

_SINGLE = (
    "PYTHONHOME",
    "PYTHONUSERBASE",
    "PYTHONPYCACHEPREFIX",
    "PYTHONSTARTUP",
    "BASH_ENV",
    "ENV",
)
"""Variables with one file or folder from which code is read at a program's start."""


def make_absolute(environ: MutableMapping[str, str], modules: MutableSequence[str]) -> None:
    """Drop everything relative from an environment, and its modules' folders from `sys.path`.

    Child processes that run Python do not add the working directory, or that of a script, by
    themselves: PYTHONSAFEPATH is for that.
    """
    # Python has made these entries absolute when it started.
    dropped = {
        os.path.normpath(Path.cwd() / entry) for entry in _relative(environ.get("PYTHONPATH"))
    }
    modules[:] = [entry for entry in modules if entry.startswith("/") and entry not in dropped]
    for name in _LISTS:
        if _relative(environ.get(name)):
            kept = [entry for entry in _entries(environ[name]) if entry.startswith("/")]
            environ[name] = ":".join(kept)
            if not kept:
                del environ[name]
    for name in _SINGLE:
        if name in environ and not environ[name].startswith("/"):
            del environ[name]
    environ["PYTHONSAFEPATH"] = "1"


def keep_modules_private(environ: MutableMapping[str, str]) -> None:
    """Choose a folder for the modules that Hugging Face's libraries fetch and import.

    By default they are in HF_HOME, which a site may share. Where others can write to that folder,
    or could make it, it is one in the user's own cache.
    """
    home = environ.get("HF_HOME") or platformdirs.user_cache_dir("huggingface")
    given = environ.get("HF_MODULES_CACHE") or f"{home}/modules"
    place = Path(os.path.expanduser(given)).absolute()  # noqa: PTH111 - which fails without a home
    with contextlib.suppress(OSError):  # a closed folder: nothing is read from it
        there = next(folder for folder in (place, *place.parents) if folder.exists())
        if _owner.foreign(there.stat(), there, roots=True):
            own = Path(platformdirs.user_cache_dir("coordinate-eval"), "modules")
            environ["HF_MODULES_CACHE"] = str(own)


def _entries(value: str) -> list[str]:
    return re.split("[:;]", value)  # the dynamic linker takes both


def _relative(value: str | None) -> list[str]:
    return [entry for entry in _entries(value or "/") if not entry.startswith("/")]
