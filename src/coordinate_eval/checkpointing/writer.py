"""The thread that writes copies of states, one after the other, and makes them visible.

Training has its own groups. A collective of this thread never mixes with one of training, because
it goes through another group, over gloo, which needs no GPU.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import filesystem, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException

from coordinate_eval._after_save import after_save
from coordinate_eval.checkpointing.saves import Folder
from coordinate_eval.checkpointing.staging import Buffer, Share, Staged, Stager
from coordinate_eval.errors import SaveError

log = logging.getLogger("coordinate_eval")

T = TypeVar("T")

_PATIENCE = timedelta(minutes=30)
"""Time that ranks wait for one that says nothing. One that ends is noticed at once."""


class Ranks:
    """All processes of a training, and the messages between them. Make it on each of them."""

    def __init__(self) -> None:
        together = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        self.rank = dist.get_rank() if together else 0
        self.size = dist.get_world_size() if together else 1
        self.group = _gloo() if together else None
        self._votes = _gloo() if together else None
        self._vote: tuple[Any, torch.Tensor] | None = None

    def gather(self, value: T) -> list[T]:
        """Return what each rank has given, by rank."""
        if self.group is None:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=self.group)
        return found

    def agreed(self, wanted: bool) -> bool:
        """Return whether a rank wanted something at the call before this one.

        Each rank calls it once a step. The answer of the earlier call has arrived meanwhile, so
        nobody waits for it, and all ranks learn it at the same step.
        """
        if self._votes is None:
            return wanted
        earlier, mine = self._vote, torch.tensor([int(wanted)], dtype=torch.int32)
        self._vote = (
            dist.all_reduce(mine, dist.ReduceOp.MAX, group=self._votes, async_op=True),
            mine,
        )
        if earlier is None:
            return False
        earlier[0].wait()
        return bool(earlier[1].item())


def _gloo() -> Any:  # noqa: ANN401 - torch has several types for it
    return dist.new_group(backend="gloo", timeout=_PATIENCE)


@dataclass
class Job:
    """A state to be written."""

    step: int
    buffer: Buffer
    staged: Staged | None
    """None if the state could not be copied."""
    share: Share | None
    error: str = ""
    begun: threading.Event = field(default_factory=threading.Event)
    """All ranks take part: it ends without anything that training has to do."""
    done: Future[Path | None] = field(default_factory=Future)


@dataclass(frozen=True)
class _Word:
    """A rank's report on a step of a save: a path, or what went wrong."""

    step: int
    error: str
    path: Path | None = None
    partial: bool = False
    lost: bool = False


class Writer:
    """A thread that writes the jobs that it is given."""

    def __init__(
        self,
        folder: Folder | None,
        ranks: Ranks,
        stager: Stager,
        keep: int | None,
        evaluate: Mapping[str, Any] | None,
    ) -> None:
        """Start nothing yet.

        Args:
            folder: where the saves go; None on all ranks but 0.
            ranks: the processes that write together.
            keep: saves that rotation leaves; None: all.
            evaluate: arguments of `after_save` for each save; None: it is not called.
        """
        self._folder, self._ranks, self._stager = folder, ranks, stager
        self._keep, self._evaluate = keep, evaluate
        self._jobs: queue.Queue[Job] = queue.Queue()
        self._thread: threading.Thread | None = None
        self.longest_seconds = 0.0
        """Time from a job's begin to its end, for those who have little time left."""

    def add(self, job: Job) -> None:
        """Write a job after those before it."""
        self._jobs.put(job)
        if self._thread is None:
            # An interpreter that ends does not wait for it: see `Saver.close`.
            self._thread = threading.Thread(target=self._run, name="saves", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            began = time.monotonic()
            try:
                path = self._write(job)
            except BaseException as error:
                job.staged = None
                job.done.set_exception(error)
            else:
                self.longest_seconds = max(self.longest_seconds, time.monotonic() - began)
                job.staged = None
                job.done.set_result(path)

    def _write(self, job: Job) -> Path | None:
        """Write a job. Return the path of the save; None if it is there already.

        Raises:
            SaveError: it was not written, for all ranks.
        """
        draft = self._begin(job)
        if draft is None:
            return None
        assert job.staged is not None, "or a rank would have told an error"
        assert job.share is not None
        try:
            metadata = state_dict_saver.save(
                {},
                # Nothing is on a GPU any more: no copies ahead.
                storage_writer=filesystem.FileSystemWriter(draft, per_thread_copy_ahead=0),
                planner=job.staged,
                process_group=self._ranks.group,
                no_dist=self._ranks.group is None,
            )
        except CheckpointException as error:
            self._discard(job.step)
            raise SaveError(_words(error)) from error
        path = self._agree(
            job.step, lambda folder: folder.publish(draft, job.step, _sizes(metadata))
        )
        self._stager.learn(job.share, job.staged.written)
        if self._folder is not None:
            self._follow_up(self._folder, path, job.step)
        return path

    def _begin(self, job: Job) -> Path | None:
        """Agree on the step and its draft."""
        share, error = job.share, job.error
        if share is not None and share.partial and share.epoch != self._stager.epoch:
            error = "it was copied before ranks agreed anew on who writes what"
        draft = None
        if self._folder is not None and not error:
            draft, error = _tried(lambda folder: folder.begin(job.step), self._folder)
        partial, lost = (share.partial, share.lost) if share else (False, False)
        words = self._ranks.gather(_Word(job.step, error, draft, partial, lost))
        job.begun.set()
        if len(steps := {word.step for word in words}) > 1:
            raise SaveError(f"ranks save different steps: {', '.join(map(str, sorted(steps)))}")
        if any(word.lost for word in words) and any(word.partial for word in words):
            self._stager.forget()
            error = "a rank has lost tensors that others leave to it; the next save has everything"
            words = [_Word(job.step, error)]
        self._check(words)
        return words[0].path

    def _agree(self, step: int, act: Callable[[Folder], Path]) -> Path:
        """Do something on rank 0, and return what came of it on all ranks."""
        path, error = _tried(act, self._folder) if self._folder is not None else (None, "")
        words = self._ranks.gather(_Word(step, error, path))
        self._check(words)
        assert words[0].path is not None
        return words[0].path

    def _check(self, words: list[_Word]) -> None:
        errors = [f"rank {rank}: {word.error}" for rank, word in enumerate(words) if word.error]
        if errors:
            self._discard(words[0].step)
            raise SaveError("; ".join(errors[:3]) if len(words) > 1 else words[0].error)

    def _discard(self, step: int) -> None:
        if self._folder is not None:
            self._folder.discard(step)

    def _follow_up(self, folder: Folder, path: Path, step: int) -> None:
        """Have a save evaluated, and delete old ones."""
        if self._evaluate is not None:
            after_save(path, **{"step": step, "rank": 0, **self._evaluate})
        if self._keep is not None:
            try:
                folder.rotate(self._keep)
            except OSError as error:
                log.warning("old saves in %s stay: %s", folder.path, error)


def _tried(act: Callable[[Folder], Path | None], folder: Folder) -> tuple[Path | None, str]:
    """Return what an action returns and no words, or what went wrong in words."""
    try:
        return act(folder), ""
    except (OSError, SaveError) as error:
        return None, str(error)


def _sizes(metadata: Any) -> dict[str, int]:  # noqa: ANN401 - torch has it as Any
    """Return the least size of each file that ranks have written."""
    sizes: dict[str, int] = {}
    for part in (metadata.storage_data or {}).values():
        name = part.relative_path
        sizes[name] = max(sizes.get(name, 0), part.offset + part.length)
    return sizes


def _words(error: CheckpointException) -> str:
    """Return what each rank that failed says, without its stack."""
    found = sorted(error.failures.items())
    said = [f"rank {rank}: {_root(cause)}" for rank, (cause, _) in found[:3]]
    return "; ".join(said) + (f"; and {len(found) - 3} further ranks" if len(found) > 3 else "")


def _root(error: BaseException) -> str:
    """Return the words of the system if there are any, else those of torch."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError):
            return str(seen)
        seen = seen.__cause__ or seen.__context__
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no words'}"
