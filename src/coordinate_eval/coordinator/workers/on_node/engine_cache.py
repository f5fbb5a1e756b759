"""Code that engines compile: in a node's memory while they run, in the user's cache between runs.

An engine's libraries compile for a minute before the first request, and keep the outcome in files.
They name these files by what they depend on, and some files hold the paths of others. So they lie
in a folder whose path is the same on every node and in every run of a model with the same engine,
arguments and GPUs: `<root>/coordinate-eval-<uid>/engines/<key>/` (see `node_memory`). The engines
of a node share it.

Between runs they are one file, `<cache_dir>/engines-<uid>/<key>.tar`: it appears whole or not at
all, and shared storage is asked once. What is in it runs with the user's rights, so a file that
another user could have written is not used. The first trial that has answered everything writes it.
The libraries know more that matters than the key has, such as variables and a driver's version: the
file is replaced when an engine has compiled what it lacks.
"""

import contextlib
import hashlib
import json
import os
import platform
import shutil
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from coordinate_eval import _files
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.coordinator.workers.on_node import node_memory
from coordinate_eval.errors import EngineError, ForeignError
from coordinate_eval.evaluators import own_code
from coordinate_eval.evaluators.engines import base as engines
from coordinate_eval.priors import this_machine

MOST_BYTES = 1 << 30
"""Most bytes of the files of one key that are kept. A model's are some tens of MiB."""

MOST_KEPT = 16
"""Number of keys that are kept: those that were used last."""

COMPILED = "vllm/torch_compile_cache"
"""The folder of vLLM's compiled files, with a folder for each of its own keys."""

SETTLED_SECONDS = 10.0
"""Files are kept when none has changed for so long: an engine may be writing one."""

_UNTOLD = ("_name_or_path", "transformers_version")
"""Entries of `config.json` that differ between checkpoints of the same model."""


def key_of(
    settings: Settings,
    tensor_parallel: int,
    max_length: int,
    config: Path,
    part: tuple[int, int] = (0, 1),
) -> str:
    """Return the key of what an engine compiles on this machine.

    `config` is the checkpoint's `config.json`, and `part` the machine's place among the nodes that
    share an engine, and their number.
    """
    model = own_code.json_object(config)
    engine = settings.engine
    facts = [
        {name: value for name, value in model.items() if name not in _UNTOLD},
        [engine.name, engine.args, tensor_parallel, max_length, *(part if part[1] > 1 else ())],
        [this_machine.engine_version(name) for name in (engine.name, "torch", "flashinfer-python")],
        [platform.python_version(), this_machine.processor(), this_machine.gpus()],
        settings.stage.folder,
    ]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


@contextlib.contextmanager
def compiled_files(
    run: Run, config: Path, has_started: Callable[[], bool], part: tuple[int, int] = (0, 1)
) -> Iterator[None]:
    """Keep in the node's memory what the engine of a run compiles while the block runs."""
    settings = run.settings
    key = key_of(settings, run.tensor_parallel, run.engine_context, config, part)
    cache = EngineCache(settings.stage.folder, Path(settings.cache_dir).expanduser(), key)
    variables = engines.by_name(settings.engine.name).cache_variables(cache.folder)
    if not variables:
        yield
        return
    with cache.hold() as usable:
        if not usable:
            yield
            return
        for name, value in variables.items():
            os.environ.setdefault(name, value)
        try:
            yield
        except EngineError as error:
            # A GPU that is full of others' work says nothing about what was compiled.
            if not has_started() and "memory" not in str(error).lower():
                cache.forget()
            raise
        cache.save()


class EngineCache:
    """The compiled files of one key on this node.

    Args:
        root: folder on the node's memory file system.
        cache: the cache of the user.
    """

    def __init__(self, root: str, cache: Path, key: str) -> None:
        self.folder = node_memory.user_folder(root) / "engines" / key
        self._archive = cache / f"engines-{os.geteuid()}" / f"{key}.tar"
        self._unpacked = 0
        """Inode of the archive with which this process has filled the folder; 0 for none."""
        self._keys = frozenset[tuple[str, ...]]()
        """The keys of vLLM in that archive."""

    @contextlib.contextmanager
    def hold(self) -> Iterator[bool]:
        """Keep the folder while the block runs, with what earlier runs compiled.

        Yield whether it can be used: libraries cannot be loaded from a file system that is mounted
        with `noexec`. The last process to leave removes the folder.
        """
        with node_memory.held(self.folder) as lock:
            usable = not os.fstatvfs(lock).f_flag & os.ST_NOEXEC
            if usable:
                self._fill()
            yield usable

    def save(self) -> None:
        """Keep the files for later runs, if none are kept, or not all that vLLM has compiled.

        Call this within `hold`. What another trial has kept meanwhile is left as it is.
        """
        with node_memory.copy_lock(self.folder) as alone:
            there = self._inode()
            if not alone or there not in (0, self._unpacked):
                return
            try:
                found = [path for path in self.folder.rglob("*") if not path.is_symlink()]
                files = sorted(path for path in found if path.is_file())
                states = [file.lstat() for file in files]
            except FileNotFoundError:  # an engine has removed one just now
                return
            if there and _keys(file.relative_to(self.folder) for file in files) <= self._keys:
                return
            if not files or max(s.st_mtime for s in states) > time.time() - SETTLED_SECONDS:
                return
            if (size := sum(state.st_size for state in states)) > MOST_BYTES:
                print(f"compiled files are not kept: {size >> 20} MiB, over {MOST_BYTES >> 20}")
                self.forget()  # most of it is of old drivers and settings
                return
            try:
                self._write(files)
            except (OSError, ForeignError) as error:
                print(f"compiled files are not kept: {error}")

    def forget(self) -> None:
        """Remove what is kept: an engine did not start with it, and the next shall compile."""
        with contextlib.suppress(OSError):
            self._archive.unlink()

    def _fill(self) -> None:
        """Make the folder, from what is kept. Another trial of this node may have done so."""
        with node_memory.copy_lock(self.folder, wait=True):
            if self.folder.exists():
                return
            part = node_memory.work_folder(self.folder)  # it goes with the folder
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(mode=0o700)
            try:
                self._read(part)
            except FileNotFoundError:
                pass
            except (OSError, ForeignError, tarfile.TarError) as error:
                print(f"compiled files of earlier runs are not used: {error}")
                if isinstance(error, tarfile.TarError):  # it is torn, and would be for ever
                    self.forget()
                shutil.rmtree(part)
                part.mkdir(mode=0o700)
            part.rename(self.folder)

    def _inode(self) -> int:
        """Return the archive's inode, 0 for none: each that is written has another one."""
        with contextlib.suppress(OSError):
            return self._archive.lstat().st_ino
        return 0

    def _read(self, folder: Path) -> None:
        with _files.open_to_read(self._archive) as file, tarfile.open(fileobj=file) as tar:
            tar.extraction_filter = getattr(tarfile, "data_filter", None)  # from Python 3.11.4 on
            tar.extractall(folder)  # noqa: S202 - the user's own file, and filtered besides
            self._keys = _keys(map(Path, tar.getnames()))
            self._unpacked = os.fstat(file.fileno()).st_ino
        os.utime(self._archive)

    def _write(self, files: list[Path]) -> None:
        _files.own_folder(self._archive.parent)
        part = self._archive.with_name(f".{self._archive.name}.{_files.token()}.tmp")
        try:
            with _files.open_to_write(part) as file, tarfile.open(fileobj=file, mode="w") as tar:
                for path in files:
                    tar.add(path, path.relative_to(self.folder), recursive=False)
            part.replace(self._archive)
            _files.sync_folder(self._archive.parent)
        finally:
            part.unlink(missing_ok=True)
        kept = sorted(self._archive.parent.glob("*.tar"), key=_files.modified, reverse=True)
        for old in kept[MOST_KEPT:]:
            old.unlink(missing_ok=True)


def _keys(names: Iterable[Path]) -> frozenset[tuple[str, ...]]:
    """Return vLLM's keys of these files, which are named relative to the folder.

    They are folders, some below others. In them a start makes files also where it compiles nothing.
    """
    compiled = (name.relative_to(COMPILED) for name in names if name.is_relative_to(COMPILED))
    return frozenset(name.parts[:2] for name in compiled)
