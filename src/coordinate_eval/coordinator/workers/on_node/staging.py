"""The weights in a node's memory: copied once, used by all trials, removed by the last of them.

They lie in `<root>/coordinate-eval-<uid>/<run>/<node>/`, with a manifest written last. Every
process that copies or uses them holds that folder (see `node_memory`). Where nodes share an engine,
the folder has the node's place among them in its name: at another place, other layers are needed.
Where vLLM serves an adapter, the name of the base is in the place of the run's: runs share it.

So a killed keeper leaves its weights to the trials, and the last trial removes them. If the last
trial is killed as well, the node is swept at the end of the run. After a crash of the node, the
user's next keeper there removes what was left. On a disk, files of an earlier boot may have their
sizes and lack what they held, so none of them is used.
"""

import contextlib
import json
import math
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field

from coordinate_eval import _files
from coordinate_eval._format import size
from coordinate_eval.coordinator.inputs.checkpoints import checkpoint as checkpoints
from coordinate_eval.coordinator.inputs.checkpoints import (
    clean_files,
    guard,
    pipeline,
    reading,
    remote,
)
from coordinate_eval.coordinator.inputs.checkpoints.formats import safetensors_file
from coordinate_eval.coordinator.inputs.checkpoints.mixed.adapter import CONFIG, WEIGHTS
from coordinate_eval.coordinator.inputs.checkpoints.mixed.served import Served
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.coordinator.workers.on_node import convert, fetching, node_memory
from coordinate_eval.coordinator.workers.on_node.copying import copy_files
from coordinate_eval.errors import CoordinateError, UserError, WeightsRefused
from coordinate_eval.records import Checkpoint, Record, schema

_MANIFEST = "manifest.json"
_BEGUN = ".converting"  # while a checkpoint is converted: its identity, and the node's boot
_WEIGHTS = re.compile(r"\.safetensors(?:\.(?:part|ranges))?$")  # whole, or fetched in part
_BOOT = Path("/proc/sys/kernel/random/boot_id")

SPARE_BYTES = 4 * 2**30
"""Room that large weights leave for what processes of engines share: vLLM's queues between eight
GPUs take 2 GiB (`distributed/device_communicators/shm_broadcast.py`), and NCCL has segments."""


class Manifest(Record):
    """`manifest.json`: the files of a whole copy, written after them.

    It has no checksums: nobody has a checksum of the checkpoint to compare with, and a checksum
    made while copying could only repeat what was read.
    """

    schema_: Literal["coordinate-eval/stage@1"] = schema("coordinate-eval/stage@1")

    identity: str = Field(description="of the checkpoint")
    sizes: dict[str, int] = Field(description="bytes by file name")
    boot: str = Field(default="", description="of the node, in which they were written")


def weights_name(run: Run) -> str:
    """Return the name of the folder of a run's weights.

    Runs whose adapters vLLM serves share those of their base, and hold them together.
    """
    base = run.settings.engine.loads(run.checkpoint)
    return run.id if base is run.checkpoint else f"base-{base.identity[:32]}"


@contextlib.contextmanager
def adapter_files(weights: "StagedWeights", adapter: Checkpoint) -> Iterator[Path]:
    """Write an adapter for vLLM beside the weights of its base while the block runs.

    Raises:
        UserError: It changed, or its numbers are not finite.
    """
    with tempfile.TemporaryDirectory(dir=weights.link().parent) as made:
        folder, opened = Path(made), Served(adapter)
        bad = convert.write(opened, folder, lambda _: None, shard_bytes=adapter.bytes + 2**30)
        guard.check_finite(adapter.path, bad)
        _check_unchanged(adapter)
        (folder / safetensors_file.SINGLE).rename(folder / WEIGHTS[0])
        (folder / CONFIG).write_text(json.dumps(opened.config))
        yield folder


class StagedWeights:
    """The weights of one run in one node's memory, or of several runs with one name.

    `part` is the node's place among the nodes that share an engine, and their number. Such a node
    has the files with its layers alone.
    """

    def __init__(self, root: str, of: str, node: str, part: tuple[int, int] = (0, 1)) -> None:
        self._part = place, count = part
        name = node if count == 1 else f"{node}-{place}of{count}"
        self.user_folder = node_memory.user_folder(root)
        self.folder = self.user_folder / of / name
        self.copy_seconds: float | None = None
        """Seconds of the copy that this process made; None if it made none."""

    def ready(self, identity: str) -> bool:
        """Return whether all weights of the checkpoint with this identity are there."""
        with contextlib.suppress(CoordinateError):
            manifest = _files.read_record_if_there(self.folder / _MANIFEST, Manifest)
            return (
                manifest is not None
                and manifest.identity == identity
                and manifest.boot in ("", _boot())
                and all(_files.size(self.folder / n) == s for n, s in manifest.sizes.items())
            )
        return False

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Keep the weights while the block runs. The last process to leave removes them."""
        with node_memory.held(self.folder):
            yield

    def copy(
        self,
        source: Checkpoint,
        report: Callable[[int], None] = lambda done_bytes: None,
        most_bytes: float = math.inf,
    ) -> bool:
        """Copy the weights unless they are there. Return False if another process is copying.

        Call this within `hold`.

        Args:
            report: called with the bytes copied so far.
            most_bytes: the memory that this process's job can spare for the copy, which counts as
                its own. Engines read larger weights from the checkpoint itself, through links; so
                they do where the node has no room for a copy.

        Raises:
            CoordinateError: weights would have to be converted in more memory than that.
            UserError: the checkpoint changed, or there is no room.
        """
        with node_memory.copy_lock(self.folder) as alone:
            if self.ready(source.identity):
                return True
            if not alone:
                return False
            _empty(self.folder, source)
            began = time.monotonic()
            try:
                linked = _copy_all(source, self._part, self.folder, report, most_bytes)
            except Exception as error:
                shutil.rmtree(self.folder, ignore_errors=True)
                if isinstance(error, WeightsRefused):
                    _check_unchanged(source)  # numbers of two saves may be no numbers
                if not isinstance(error, OSError):
                    raise
                _check_there(source)
                raise UserError(
                    f"cannot stage {source.path} into {self.folder}: {error.strerror}; "
                    f"it needs {size(source.bytes)} of the node's memory"
                ) from error
            self.copy_seconds = None if linked else time.monotonic() - began
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

    def begun(self) -> bool:
        """Return whether a copy has begun, whole or not."""
        return self.folder.exists()

    def remove_abandoned(self) -> list[Path]:
        """Remove what no process holds of this user's, but these weights. Return the folders."""
        return node_memory.remove_abandoned(self.user_folder, self.folder)


def _boot() -> str:
    """Return the name of this node's boot; empty where it has none."""
    with contextlib.suppress(OSError):
        return _BOOT.read_text().strip()
    return ""


def _empty(folder: Path, source: Checkpoint) -> None:
    """Make a folder, with nothing in it but converted files that a killed process left whole."""
    begun, whose = folder / _BEGUN, f"{source.identity} {_boot()}"
    goes_on = source.converted or source.remote
    kept: set[Path] = set()
    if goes_on and begun.is_file() and begun.read_text() == whose:
        kept = {each for each in folder.iterdir() if _WEIGHTS.search(each.name)}
    else:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    for path in set(folder.iterdir()) - kept:
        path.unlink()
    if goes_on:
        begun.write_text(whose)


def _copy_all(
    source: Checkpoint,
    part: tuple[int, int],
    folder: Path,
    report: Callable[[int], None],
    most_bytes: float,
) -> bool:
    """Copy or convert a checkpoint into a folder, and write the manifest.

    Copy the weights that the node needs; `part` is its place and the number of nodes. Return
    whether the weights are only linked, since they are larger than `most_bytes`, or than the room
    that there is, which is said in the log.
    """
    _check_unchanged(source)
    clean_files.copy(source.files, folder)
    linked = False
    if source.converted:
        if source.bytes > most_bytes:
            raise CoordinateError(
                f"no keeper has converted {source.path}, and a trial's memory has no room for it: "
                "see the keeper's log, or raise [trial] memory_gib"
            )
        opened = reading.source(source)
        reading.write_config(opened, folder)
        needed = None if part[1] == 1 else pipeline.needed_of(source, opened.tensors, *part)
        guard.check_left_out(source, opened)
        guard.check_finite(source.path, convert.write(opened, folder, report, needed))
    else:
        linked = _copy_or_link(source, part, folder, report, most_bytes)
    (folder / _BEGUN).unlink(missing_ok=True)
    _check_unchanged(source)
    sizes = {f.name: f.stat().st_size for f in folder.iterdir()}
    manifest = Manifest(identity=source.identity, sizes=sizes, boot=_boot())
    _files.write_record(folder / _MANIFEST, manifest)
    return linked


def _copy_or_link(
    source: Checkpoint,
    part: tuple[int, int],
    folder: Path,
    report: Callable[[int], None],
    most_bytes: float,
) -> bool:
    files = pipeline.files_of_node(source, *part)
    if len(files) < len(source.weights):
        pipeline.shorten_index(folder, files)
    paths = [remote.located(name) for name in files]
    needed = sum(path.stat().st_size for path in paths)
    if source.remote:
        _check_fits(source.path, needed, folder, most_bytes)
        fetching.fetch_files(paths, folder, report)
        return False
    if needed > most_bytes or _lacks_room(source.path, needed, folder):
        for name in files:
            (folder / Path(name).name).symlink_to(name)
        return True
    copy_files(paths, folder, report)
    return False


def _check_unchanged(source: Checkpoint) -> None:
    if not checkpoints.unchanged(source):
        _check_there(source)
        raise UserError(
            f"checkpoint {source.path} changed after it was submitted; "
            "submit it again when it is completely saved"
        )


def _check_there(source: Checkpoint) -> None:
    """Check that a checkpoint which cannot be copied has not been deleted."""
    if source.remote and (
        gone := [name for name in source.files if checkpoints.is_deleted([name])]
    ):
        raise UserError(
            f"{gone[0]}, which {source.path} is evaluated with, was deleted before it was needed. "
            "Submit it again, and keep that file while runs wait, such as a copy in `cache_dir`"
        )
    if checkpoints.is_deleted(source.all_files):
        raise UserError(
            f"checkpoint {source.path} was deleted before it was copied. Evaluate a later one, or "
            "have training keep its checkpoints longer"
        )


def _check_fits(path: str, needed: int, folder: Path, most_bytes: float) -> None:
    """Check that there is room for weights that no engine can read where they are.

    Raises:
        CoordinateError: There is none.
    """
    kept = sum(each.stat().st_blocks * 512 for each in folder.iterdir())
    if needed > most_bytes or _lacks_room(path, needed - kept, folder):
        raise CoordinateError(
            f"{path} has to be copied to the node, and there is no room for {size(needed)}: see "
            "the keeper's log, have the node's memory file system made larger, or set [stage] "
            "where to `local DIR`"
        )


def _lacks_room(path: str, needed: int, folder: Path) -> bool:
    """Return whether there is no room for weights and engines now, and say so in the log if so.

    Writing still finds out what others take later.
    """
    found = os.statvfs(folder)
    room = found.f_bavail * found.f_frsize
    # A memory file system without a limit says that it has no blocks.
    spare = min(SPARE_BYTES, needed // 4)
    if not found.f_blocks or needed + spare <= room:
        return False
    print(
        f"{folder} has room for {size(room)} on this node, and the weights need "
        f"{size(needed)}, with {size(spare)} for what processes of engines share: they are "
        f"read from {path}, which takes longer. Have it made larger, or set [stage] where "
        "to `local DIR` or `none`",
        flush=True,
    )
    return True


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
