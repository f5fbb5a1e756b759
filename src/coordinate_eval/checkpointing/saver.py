"""`Saver`: a training job saves, goes on at once, and begins again where it was."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import threading
import time
import warnings
from collections import deque
from collections.abc import Mapping
from concurrent.futures import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from coordinate_eval.checkpointing import saves
from coordinate_eval.errors import SaveError

if TYPE_CHECKING:
    from types import TracebackType

    from coordinate_eval.checkpointing.staging import Buffer
    from coordinate_eval.checkpointing.writer import Job

_COPIES: Final = 2
"""Copies of the state in host memory: one is being written, the other waits for it."""

_SECONDS_AT_EXIT: Final = 10.0
"""Time that a process which ends without `close` waits for ranks to begin the same save."""

_SIGNALS: Final = (signal.SIGTERM, signal.SIGUSR1)
"""The signals that Slurm sends before a preemption or, with `--signal`, a time limit."""

_ONE_WORD_SECONDS: Final = 10.0
"""Time in which signals are one word: at a time limit, Slurm's daemon and srun send one each."""

_LEAST_SECONDS: Final = 60.0
"""Time that is left at least for the last save, and the end of the program."""


class Saver:
    """Saves of one training, in a folder of its own.

    Make it on every rank, after `init_process_group`, and call the same methods in the same order
    everywhere. `with Saver(...) as saver:` closes it.

        saver = Saver("ckpts", every=500, keep=3)
        start = saver.load(state) or 0
        for step in range(start + 1, steps + 1):
            train(...)
            if saver.due(step) or step == steps:
                saver.save(step, state)
            if saver.should_stop():
                break
        saver.close()
    """

    def __init__(
        self,
        dir: str | os.PathLike[str],
        *,
        every: int | None = None,
        keep: int | None = None,
        evaluate: bool | Mapping[str, Any] = False,
    ) -> None:
        """Take the folder over, and remove what a killed Saver left unfinished in it.

        Args:
            dir: the folder on storage that all nodes share. It is made if it is missing. A save
                appears in it as `step-N` when it is whole.
            every: steps from one save to the next, for `due`; None: only before the end.
            keep: newest saves that rotation leaves; None: all. Those that a run is evaluating, and
                the one to which a guard would go back, stay as well.
            evaluate: call `coordinate_eval.after_save` for each save when it is whole; a mapping
                has further arguments for it, such as `{"suite": "base"}`.

        Raises:
            SaveError: the folder cannot be made or written, on all ranks.
            ValueError: `every` or `keep` is less than 1.
        """
        from coordinate_eval.checkpointing.staging import Buffer, Stager
        from coordinate_eval.checkpointing.writer import Ranks, Writer

        for name, value in (("every", every), ("keep", keep)):
            if value is not None and (type(value) is not int or value < 1):
                raise ValueError(f"Saver({name}={value!r}): give a whole number from 1, or None")
        # Torch tells each time that one process saves alone, which is no mistake here.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable")
        self._dir, self._every = Path(dir), every
        self._ranks = Ranks()
        self._folder = self._taken_over()
        self._stager = Stager(is_coordinator=self._ranks.rank == 0)
        asked = dict(evaluate) if isinstance(evaluate, Mapping) else {} if evaluate else None
        self._writer = Writer(self._folder, self._ranks, self._stager, keep, asked)
        self._free: list[Buffer] = [Buffer() for _ in range(_COPIES)]
        self._jobs: deque[Job] = deque()
        self._last: Path | None = None
        self._stopping = self._closed = False
        self._ending = Ending()
        atexit.register(self._leave)

    def __enter__(self) -> Saver:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self._leave()

    def load(self, state: dict[str, Any]) -> int | None:
        """Load a save into a state, in place, and return its step; None if there is none.

        That is the checkpoint which COORDINATE_EVAL_RESUME_FROM names; none where the variable is
        empty; without the variable, the newest save that is whole. The state has the form that
        `save` is given: torch fills its tensors, and calls `load_state_dict` of the objects in it
        that have one. Values that are no tensors are replaced in the dicts of the state.

        Raises:
            SaveError: what the variable names is no finished checkpoint, on all ranks.
        """
        from torch.distributed.checkpoint import state_dict_loader

        self.wait()
        found: tuple[saves.Save | None, str] = None, ""
        if self._folder is not None:
            try:
                found = saves.chosen(self._dir), ""
                self._folder.went_to(found[0])
            except (SaveError, OSError) as error:
                found = None, str(error)
        save, words = self._ranks.gather(found)[0]
        if words:
            raise SaveError(words)
        if save is not None:
            state_dict_loader.load(
                state,
                checkpoint_id=save.path,
                process_group=self._ranks.group,
                no_dist=self._ranks.group is None,
            )
        self._stager.make_ready(state, self._free[-1])
        return save.step if save else None

    def due(self, step: int) -> bool:
        """Return whether to save now: at every so many steps, and before training has to end.

        Call it on every rank at each step. All ranks get the same answer. Training has to end
        after SIGTERM or SIGUSR1 on any rank, or when the time limit of the Slurm job is near:
        nearer than a minute, two saves and two steps.
        """
        if not self._stopping and self._ranks.agreed(
            self._ending.is_near(self._writer.longest_seconds)
        ):
            self._stopping = True
            return True
        return self._every is not None and step % self._every == 0

    def should_stop(self) -> bool:
        """Return whether training has to end, as `due` has found out at the last step."""
        return self._stopping

    def save(self, step: int, state: Mapping[str, Any]) -> None:
        """Copy a state to host memory, and return while it is written in the background.

        The state is what `torch.distributed.checkpoint.save` takes: nested dicts of tensors and
        plain values, or objects with `state_dict`. Training may change it as soon as this returns.
        If two copies are still being written, it waits until the first of them is. A step that was
        saved just before is not saved again; a save of the same step from before training went
        back is replaced.

        Raises:
            SaveError: an earlier save failed; its words are in the text. This one was begun all the
                same, so whoever can go on without the earlier one may catch it and go on.
        """
        from coordinate_eval.checkpointing.writer import Job

        if self._closed:
            raise SaveError("this Saver is closed: make another one")
        if type(step) is not int or step < 0:
            raise ValueError(f"save({step!r}): a step is a whole number from 0")
        errors = self._collect(len(self._jobs) - _COPIES + 1)
        buffer = self._free.pop()
        try:
            job = Job(step, buffer, *self._stager.stage(state, buffer))
        except Exception as error:
            # Other ranks wait for this one, and hear it from its writer.
            job = Job(step, buffer, None, None, f"{type(error).__name__}: {error}")
            errors.append(error)
        self._jobs.append(job)
        self._writer.add(job)
        self._raise(errors, f" Step {step} is being saved.")

    def wait(self) -> None:
        """Wait until all saves are written.

        Raises:
            SaveError: a save failed.
        """
        self._raise(self._collect(len(self._jobs)))

    def close(self) -> None:
        """Wait until all saves are written, and end. Call it before `destroy_process_group`.

        Raises:
            SaveError: a save failed.
        """
        try:
            self.wait()
        finally:
            self._end()

    def _taken_over(self) -> saves.Folder | None:
        folder, words = None, ""
        if self._ranks.rank == 0:
            try:
                folder = saves.Folder(self._dir)
            except OSError as error:
                words = f"no saves in {self._dir}: {error}"
        if words := self._ranks.gather(words)[0]:
            raise SaveError(words)
        return folder

    def _collect(self, least: int) -> list[Exception]:
        """Take saves that have ended from the front, waiting for the first `least` of them."""
        errors: list[Exception] = []
        while self._jobs and (least > 0 or self._jobs[0].done.done()):
            job = self._jobs[0]
            try:
                self._last = job.done.result() or self._last
            except Exception as error:
                if not job.error:  # training has heard it
                    failed = SaveError(f"step {job.step} was not saved in {self._dir}: {error}")
                    failed.__cause__ = error
                    errors.append(failed)
            self._jobs.popleft()
            self._free.append(job.buffer)
            least -= 1
        return errors

    def _raise(self, errors: list[Exception], then: str = "") -> None:
        if not errors:
            return
        last = (
            f"The last save is {self._last}." if self._last else "Earlier saves are as they were."
        )
        words = ". ".join(str(error).rstrip(".") for error in errors)
        raise SaveError(f"{words}. {last}{then}") from errors[0]

    def _leave(self) -> None:
        """End without `close`: write what all ranks have begun, and what they begin now."""
        if self._closed:
            return
        for job in self._jobs:
            if not job.begun.wait(_SECONDS_AT_EXIT):
                break
            wait([job.done])
        for error in self._collect(0):
            logging.getLogger("coordinate_eval").error("%s", error)
        self._end()

    def _end(self) -> None:
        if not self._closed:
            self._closed = True
            self._ending.close()
            atexit.unregister(self._leave)


class Ending:
    """The signals and the time limit that end this process."""

    def __init__(self) -> None:
        """Catch the signals, if this is the main thread: no other one can."""
        self._told = False
        self._told_at = 0.0
        self._process = os.getpid()
        self._before: dict[int, Any] = {}
        self._longest_step, self._last_look = 0.0, 0.0
        limit = os.environ.get("SLURM_JOB_END_TIME", "")
        self._limit = float(limit) if limit.isdecimal() else None
        if threading.current_thread() is threading.main_thread():
            self._before = {s: signal.signal(s, self._note) for s in _SIGNALS}

    def is_near(self, save_seconds: float) -> bool:
        """Return whether training has to end. Call it once a step.

        Args:
            save_seconds: the time that a save takes.
        """
        now = time.monotonic()
        if self._last_look:
            self._longest_step = max(self._longest_step, now - self._last_look)
        self._last_look = now
        needed = _LEAST_SECONDS + 2 * (save_seconds + self._longest_step)
        return self._told or (self._limit is not None and time.time() > self._limit - needed)

    def close(self) -> None:
        """Give the signals back."""
        while self._before:
            number, before = self._before.popitem()
            # Who has taken it over since has to give it back.
            if signal.getsignal(number) == self._note:
                signal.signal(number, before if before is not None else signal.SIG_DFL)

    def _note(self, number: int, frame: object) -> None:
        before = self._before.get(number)
        again = self._told and time.monotonic() - self._told_at > _ONE_WORD_SECONDS
        if os.getpid() != self._process or (again and number == signal.SIGTERM):
            # A forked child is not the training, and who asks again does not want to wait.
            signal.signal(number, before if before is not None else signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        if not self._told:
            self._told, self._told_at = True, time.monotonic()
        if callable(before):
            before(number, frame)
