"""The weights in a node's memory: copied once, used by all trials, removed by the last of them.

They lie in `<root>/coordinate-eval-<uid>/<run>/<node>/`, with a manifest written last. Every
process that copies or uses them holds that folder (see `node_memory`).

So a killed keeper leaves its weights to the trials, the last of which removes them. What a killed
node leaves is removed by the user's next keeper there.
"""

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, Field

from coordinate_eval import _files
from coordinate_eval.coordinator.inputs import checkpoint as checkpoints
from coordinate_eval.coordinator.inputs import checkpoint_files, clean_files
from coordinate_eval.coordinator.workers import node_memory
from coordinate_eval.coordinator.workers.signals import ignore_signals
from coordinate_eval.errors import CoordinateError, UserError
from coordinate_eval.records import Checkpoint, CheckpointFormat, Record

CHUNK_BYTES = 16 << 20
"""Bytes read and written at once: large for a parallel file system, small for a core's memory."""

_MANIFEST = "manifest.json"


class Manifest(Record):
    """`manifest.json`: the files of a whole copy, written after them."""

    schema_: Literal["coordinate-eval/stage@1"] = Field(
        default="coordinate-eval/stage@1", alias="schema"
    )
    model_config = ConfigDict(populate_by_name=True)

    identity: str = Field(description="of the checkpoint")
    sizes: dict[str, int] = Field(description="bytes by file name")
    sha256: dict[str, str] = Field(description="by file name, made while copying; for people")


class StagedWeights:
    """The weights of one run in one node's memory."""

    def __init__(self, root: str, run_id: str, node: str) -> None:
        self.user_folder = node_memory.user_folder(root)
        self.folder = self.user_folder / run_id / node
        self._lock_path = self.user_folder / run_id / f"{node}.lock"
        self._lock: int | None = None
        self.copy_seconds: float | None = None
        """Seconds of the copy that this process made; None if it made none."""

    def ready(self, identity: str) -> bool:
        """Return whether all weights of the checkpoint with this identity are there."""
        with contextlib.suppress(CoordinateError):
            manifest = _files.read_record_if_there(self.folder / _MANIFEST, Manifest)
            return (
                manifest is not None
                and manifest.identity == identity
                and all(_files.size(self.folder / n) == s for n, s in manifest.sizes.items())
            )
        return False

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Keep the weights while the block runs. The last process to leave removes them."""
        self._lock = node_memory.open_lock(self._lock_path)
        try:
            yield
        finally:
            ignore_signals()
            lock, self._lock = self._lock, None
            node_memory.remove_if_last(self.folder, self._lock_path, lock)

    def copy(self, source: Checkpoint, report: Callable[[int], None]) -> bool:
        """Copy the weights unless they are there. Return False if another process is copying.

        Call this within `hold`. `report` is called with the bytes copied so far.

        Raises:
            UserError: the checkpoint changed, or there is no room.
        """
        assert self._lock is not None, "copy() outside hold()"
        with node_memory.copy_lock(self.folder) as alone:
            if self.ready(source.identity):
                return True
            if not alone:
                return False
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(mode=0o700)
            began = time.monotonic()
            try:
                _copy_all(source, self.folder, report)
            except OSError as error:
                shutil.rmtree(self.folder, ignore_errors=True)
                raise UserError(
                    f"cannot stage {source.path} into {self.folder}: {error.strerror}; "
                    f"it needs {source.bytes / 2**30:.1f} GiB of the node's memory"
                ) from error
            self.copy_seconds = time.monotonic() - began
        return True

    def link(self) -> Path:
        """Make a link to the weights, and return it. Call this within `hold`.

        It has the same name in every run and on every node, and is alone in its folder.
        """
        work = node_memory.work_folder(self.folder)
        work.mkdir(mode=0o700, exist_ok=True)
        link = work / "weights"
        with contextlib.suppress(FileExistsError):
            link.symlink_to(self.folder)
        return link

    def copied_bytes(self) -> int:
        """Return the bytes that are in the folder so far."""
        with contextlib.suppress(OSError):
            return sum(entry.stat().st_size for entry in self.folder.iterdir())
        return 0

    def remove_abandoned(self) -> list[Path]:
        """Remove weights of this user that no process holds. Return their folders."""
        removed: list[Path] = []
        with contextlib.suppress(FileNotFoundError):
            # In a folder that another user can write to, names may lead anywhere.
            if not node_memory.is_private(self.user_folder.lstat()):
                return removed
        for lock_path in self.user_folder.glob("*/*.lock"):
            if lock_path == self._lock_path:
                continue
            if lock_path.is_symlink() or lock_path.parent.is_symlink():
                continue
            folder = lock_path.with_suffix("")
            with contextlib.suppress(OSError):
                lock = os.open(lock_path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
                if node_memory.remove_if_last(folder, lock_path, lock):
                    removed.append(folder)
        return removed


def _copy_all(source: Checkpoint, folder: Path, report: Callable[[int], None]) -> None:
    sums: dict[str, str] = {}
    done = 0
    clean_files.copy(source.files, folder)
    for file in folder.iterdir():
        sums[file.name] = hashlib.sha256(file.read_bytes()).hexdigest()
    if source.format is CheckpointFormat.TORCH:
        from coordinate_eval.coordinator.workers.convert import torch_to_safetensors

        torch_to_safetensors(Path(source.weights[0]), folder, report)
    else:
        for name in source.weights:
            target = folder / Path(name).name
            sums[target.name] = _copy(Path(name), target, _after(done, report))
            done += target.stat().st_size
    if not checkpoints.unchanged(source):
        shutil.rmtree(folder)
        raise UserError(
            f"checkpoint {source.path} changed while it was copied; "
            "submit it again when it is completely saved"
        )
    sizes = {f.name: f.stat().st_size for f in folder.iterdir()}
    _files.write_record(
        folder / _MANIFEST, Manifest(identity=source.identity, sizes=sizes, sha256=sums)
    )


def _after(done: int, report: Callable[[int], None]) -> Callable[[int], None]:
    """Return a callback that adds the bytes of earlier files to those of one file."""
    return lambda count: report(done + count)


def _copy(source: Path, target: Path, report: Callable[[int], None]) -> str:
    """Copy one file. Return the sha256 of its content in hex."""
    digest = hashlib.sha256()
    done = 0
    buffer = memoryview(bytearray(CHUNK_BYTES))
    # The writer is buffered: it goes on after a short write, which a full memory causes.
    with checkpoint_files.opened(source, weights=True) as reader, target.open("wb") as writer:
        while count := reader.readinto(buffer):
            writer.write(buffer[:count])
            digest.update(buffer[:count])
            done += count
            report(done)
    return digest.hexdigest()


class Throttle:
    """Lets calls through at most once in `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last = 0.0

    def __call__(self) -> bool:
        """Return whether enough time has passed since the last call that was let through."""
        if time.monotonic() - self._last < self._seconds:
            return False
        self._last = time.monotonic()
        return True
