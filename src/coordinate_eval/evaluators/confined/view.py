"""A confined scoring process's view of this machine: files, folders and variables."""

import contextlib
import os
import pwd
import re
import site
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from coordinate_eval.errors import UserError

HOME = "/tmp/home"  # noqa: S108  # the process's own

MOST_FILES = 256
"""Data files of one folder that are shown one by one; of more, the folder is."""

_KEPT_VARIABLES = (
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "LD_LIBRARY_PATH",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "PYTHONHASHSEED",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONUNBUFFERED",
    "TQDM_DISABLE",
    "HF_DATASETS_DISABLE_PROGRESS_BARS",
)
_UNSEEN = re.compile(
    r"(?:No such file or directory|Permission denied): (?P<quote>['\"])(?P<path>.+?)(?P=quote)"
)
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_EVALUATE_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}


@dataclass(frozen=True)
class Caches:
    """The folders of the Hugging Face libraries. Only those with `written` take locks and files."""

    hub: Path
    written: dict[str, Path]
    """Folder by variable. A library adds to it even to read from it."""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> "Caches":
        """Return the folders that the libraries use in this environment, there or not."""
        cache = Path(environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
        home = Path(environ.get("HF_HOME") or cache / "huggingface").expanduser()

        def folder(name: str, *variables: str) -> Path:
            named = next((environ[v] for v in variables if environ.get(v)), None)
            return (Path(named) if named else home / name).expanduser().absolute()

        # The token lies in `home` itself, which is not shown.
        return cls(
            hub=folder("hub", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"),
            written={
                "HF_DATASETS_CACHE": folder("datasets", "HF_DATASETS_CACHE"),
                "HF_EVALUATE_CACHE": folder("evaluate", "HF_EVALUATE_CACHE"),
                "HF_METRICS_CACHE": folder("metrics", "HF_METRICS_CACHE"),
                "HF_MODULES_CACHE": folder("modules", "HF_MODULES_CACHE"),
            },
        )

    @property
    def mirrors(self) -> dict[str, str]:
        """Return the folder of a confined process's own copy of each cache, by the cache's path."""
        return {str(path): _mirror(variable) for variable, path in self.written.items()}


def environment(environ: Mapping[str, str], caches: Caches, *, confined: bool) -> dict[str, str]:
    """Return the variables of a scoring process: no token, key or other setting of the user.

    A confined one has no network, and its own copies of the caches.
    """
    kept = {name: environ[name] for name in _KEPT_VARIABLES if name in environ}
    folders = {
        variable: _mirror(variable) if confined else str(path)
        for variable, path in caches.written.items()
    }
    return {
        **kept,
        **folders,
        **(_OFFLINE if confined else {}),
        "HF_HUB_CACHE": str(caches.hub),
        "PATH": environ.get("PATH", os.defpath),
        "PYTHONPATH": os.pathsep.join(map(str, _import_paths())),
        "NLTK_DATA": os.pathsep.join(map(str, _nltk_folders(environ))),
        "HOME": HOME if confined else environ.get("HOME", "/"),
        "USER": "scorer",
        "TOKENIZERS_PARALLELISM": "false",
    }


def python_paths(environ: Mapping[str, str]) -> list[Path]:
    """Return the files and folders of this Python, its packages and this program's source."""
    prefix = Path(sys.prefix)
    own = [prefix / name for name in ("bin", "lib", "lib64", "share", "pyvenv.cfg")]
    libraries = [Path(p) for p in environ.get("LD_LIBRARY_PATH", "").split(":") if p]
    found = [*own, *_import_paths(), *libraries, *_nltk_folders(environ)]
    return [path for path in found if not _holds_home(path)]


def task_paths(
    include_path: Iterable[str], tasks: Iterable[str], data: Iterable[str]
) -> list[Path]:
    """Return the user's folders of tasks, with what links in them lead to, and data files.

    `tasks` are names of tasks, some of which are paths of task files.

    Raises:
        UserError: a folder of tasks is the home folder, or contains it.
    """
    files = [Path(name).expanduser() for name in tasks]
    folders = [Path(folder) for folder in include_path]
    folders += [file.parent.absolute() for file in files if file.suffix and file.is_file()]
    for folder in folders:
        if _holds_home(folder):
            raise UserError(
                f"the folder of tasks {folder} contains your home folder, which scoring must not "
                "see: move the tasks to a folder of their own"
            )
    linked = [target for folder in folders for target in _targets_of_links(folder)]
    return [*folders, *linked, *_data_paths(data)]


def hidden_file(error: str, folder: str) -> str:
    """Return a line about the file that an error of a confined process misses and that is there.

    It is empty if there is none. What is relative is looked for below `folder`.
    """
    for found in _UNSEEN.finditer(error):
        path = Path(folder, found["path"])
        if _is_there(path) and os.access(path, os.R_OK):
            return (
                f"\n{path} is there, and hidden: scoring is confined, and sees no file outside of "
                "the folders of tasks but the data files that tasks name in data_files. Put it "
                "into a folder of include_path"
            )
    return ""


def showable(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Return the paths that are there, so that each can be shown at its own place.

    One that a link inside another of them leads to is shown where the link leads.
    """
    there = sorted({path.absolute() for path in paths if _is_there(path)}, key=lambda p: p.parts)
    kept: list[Path] = []
    for path in [*there, *sorted({p.resolve() for p in there} - set(there))]:
        outer = next((p for p in path.parents if p in kept), None)
        moved = outer and path.resolve() != outer.resolve() / path.relative_to(outer)
        if not moved and ".." not in path.parts and path != Path("/"):
            kept.append(path)
    return tuple(kept)


def _mirror(variable: str) -> str:
    return f"{HOME}/{variable.lower()}"


def _import_paths() -> Iterator[Path]:
    """Yield the folders and archives that this process imports from."""
    for entry in [*sys.path, *site.getsitepackages()]:
        path = Path(entry)
        if path.is_absolute() and _is_there(path) and not _holds_home(path):
            yield path


def _nltk_folders(environ: Mapping[str, str]) -> list[Path]:
    """Return the folders in which NLTK looks for its data, of those that a user may have."""
    named = [Path(p) for p in environ.get("NLTK_DATA", "").split(os.pathsep) if p]
    return [*named, Path("~/nltk_data").expanduser()]


def _targets_of_links(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            path = Path(parent, name)
            if path.is_symlink() and _is_there(path) and not _holds_home(path.resolve()):
                yield path.resolve()


def _data_paths(files: Iterable[str]) -> Iterator[Path]:
    """Yield data files, or their folder where it has very many of them."""
    by_folder: dict[Path, list[Path]] = {}
    for file in map(Path, files):
        by_folder.setdefault(file.parent, []).append(file)
    for folder, mine in by_folder.items():
        if len(mine) > MOST_FILES and not _holds_home(folder):
            yield folder
        else:
            yield from mine


def _is_there(path: Path) -> bool:
    """Return whether a path exists, as far as this user can see."""
    try:
        path.stat()
    except (OSError, ValueError):  # no path has a NUL
        return False
    return True


def _holds_home(path: Path) -> bool:
    """Return whether a folder is, or contains, the home of the user or of the process."""
    homes = {Path.home(), Path(HOME)}
    with contextlib.suppress(KeyError):  # the user has no entry, as in some containers
        homes.add(Path(pwd.getpwuid(os.getuid()).pw_dir))
    resolved = path.resolve()
    return any(resolved in (h.resolve(), *h.resolve().parents) for h in homes)
