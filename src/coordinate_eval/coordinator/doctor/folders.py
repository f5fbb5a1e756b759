"""Folders of the settings, those of caches, and the place for weights on a node."""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from stat import S_IMODE

import platformdirs

from coordinate_eval import _owner
from coordinate_eval._format import size
from coordinate_eval.coordinator.doctor.findings import Finding, Role, failure, ok, warning
from coordinate_eval.coordinator.inputs.folders import USES, WHERE_IT_WORKS, Name, Tried, try_out
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.workers.on_node.node_memory import is_private, user_folder
from coordinate_eval.errors import ForeignError

MOST_AHEAD_SECONDS = 30.0
"""Seconds by which the file server's clock may be ahead before times in `status` mislead people."""

LEAST_FREE_BYTES = 1 << 30
"""Bytes that the responses of a large suite need, with some to spare."""

LEAST_STAGED_BYTES = 16 << 30
"""About the weights of a 7B model, at two bytes a parameter."""


def of_settings(settings: Settings, names: Iterable[Name] = tuple(USES)) -> Iterator[Finding]:
    """Try the folders that runs write."""
    for name in names:
        folder = Path(getattr(settings, name)).expanduser()
        try:
            tried = try_out(folder)
            if folder.exists():
                _owner.check_above(folder)
        except ForeignError as error:
            do = f"set {name} to a folder that only its users can move"
            yield failure(name, str(error), do)
        except OSError as error:
            yield failure(
                name,
                f"{folder} cannot be written ({error.strerror}), but {USES[name]}",
                f"set {name} to a folder of yours on storage that all nodes share",
            )
        else:
            yield finding_of(name, folder, tried)


def finding_of(name: str, folder: Path, tried: Tried) -> Finding:
    """Return the finding about a folder that was tried out."""
    if tried.broken:
        lacks = "; ".join(f"cannot {what} ({why})" for what, why in tried.broken.items())
        return failure(name, f"{folder}: its file system {lacks}", WHERE_IT_WORKS)
    if tried.free_bytes < LEAST_FREE_BYTES:
        return warning(
            name, f"{folder}: {size(tried.free_bytes)} are free", "make room, or use another folder"
        )
    if abs(tried.ahead_seconds) > MOST_AHEAD_SECONDS:
        way = "ahead of" if tried.ahead_seconds > 0 else "behind"
        return warning(
            name,
            f"{folder}: the file server's clock is {abs(tried.ahead_seconds):.0f} s {way} "
            "this machine's",
            "have both clocks set by NTP: times in logs and in status are wrong until then",
        )
    if tried.locks and name == "cache_dir":
        return warning(
            name,
            f"{folder}: files cannot be locked ({tried.locks})",
            "two jobs may build the same prompts: mount it with locks, or use another folder",
        )
    there = "" if tried.folder == folder else " (not there yet, and can be made)"
    return ok(
        name,
        f"{folder}{there}: links, renames, fsync and clock work; {size(tried.free_bytes)} free",
    )


def hub_cache(environ: Mapping[str, str]) -> Finding:
    """Look at the folder in which data sets and tokenizers of the hub are kept."""
    home = environ.get("HF_HOME") or platformdirs.user_cache_dir("huggingface")
    folder = Path(environ.get("HF_DATASETS_CACHE") or home).absolute()
    place = next((each for each in (folder, *folder.parents) if each.exists()), Path("/"))
    if os.access(place, os.R_OK | os.W_OK | os.X_OK):
        return ok("hub's cache", f"{folder} can be written")
    return warning(
        "hub's cache",
        f"{folder} cannot be written, and the library `datasets` writes locks beside what it reads",
        "set HF_HOME to a folder of yours on shared storage, or HF_DATASETS_CACHE if HF_HOME is "
        "shared and only read",
    )


def stage(settings: Settings, role: Role) -> Iterator[Finding]:
    """Look at the folder for weights on this machine."""
    root = Path(settings.stage.folder)
    try:
        found = os.statvfs(root)
    except OSError as error:
        why = f"{root} cannot be used ({error.strerror})"
        yield failure("[stage] where", why, "set [stage] where to a folder that each node has")
        return
    if not os.access(root, os.W_OK | os.X_OK):
        yield failure("[stage] where", f"{root} is not yours to write", "set [stage] where")
        return
    mine = user_folder(settings.stage.folder)
    if mine.is_symlink() or (mine.exists() and not is_private(mine.lstat())):
        mode = f"mode {S_IMODE(mine.lstat().st_mode):04o}"
        yield failure(
            "[stage] where",
            f"{mine} is not a private folder of this user ({mode}, "
            f"{_owner.name_of(mine.lstat().st_uid)})",
            "remove it, or set [stage] where to another folder",
        )
        return
    total, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    room = f"{root}: {size(free)} of {size(total)} free" if total else f"{root}: no limit"
    if total and total < LEAST_STAGED_BYTES and role is not Role.LOGIN:
        yield warning(
            "[stage] where",
            room,
            "weights that do not fit are read from storage by each engine: have it made larger "
            "(mount -o remount,size=…), or set [stage] where to `local DIR`, on the node's disk",
        )
    else:
        note = "; that of each node counts, which --submit shows" if role is Role.LOGIN else ""
        yield ok("[stage] where", room + note)
    if found.f_flag & os.ST_NOEXEC and role is not Role.LOGIN:
        yield warning(
            "[stage] where",
            f"{root} is mounted with noexec",
            "what engines compile is not kept there, and starts take longer: remount it with exec",
        )
