"""One answer about the queue for all of a user's processes that look at it.

Each supervisor looks every few seconds. The first that finds no other answer than at its last look
asks Slurm, under a lock, and writes what it was told to a file; the others read it. Much may go
wrong with such a file, so nothing rests on it:

- It belongs to the user alone, names its cluster, and appears whole. Else it is not there.
- No clocks are compared. An answer is new to a process if it is another one than at its last look,
  and so not much older than that, unless that look was long ago, or whoever wrote the answer stood
  still meanwhile. So supervisors ask for themselves before they do what cannot be undone.
- It may be older than what a process has done or seen meanwhile. So it is believed only if it has
  every job that this process submitted, or saw living, last. Slurm lists a job for a while after
  its end; one that it no longer lists is looked for in an answer of one's own.
- The lock saves calls, and nothing else. It is free when its holder dies. Where it cannot be had,
  be it that its holder hangs or that the file system has no locks, a process asks all the same,
  only less often: see `patient`.
"""

import contextlib
import fcntl
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from coordinate_eval import _files, _owner
from coordinate_eval.clusters.protocol import State, TaskStatus
from coordinate_eval.errors import ClusterSilent, ForeignError
from coordinate_eval.slurm.answers.queue import read_tasks

MOST_BYTES = 2**26
"""Longest answer that is read: a million tasks."""

LONGEST_PAUSE_SECONDS = 120.0
"""Time since its last look after which a process believes no other's answer."""

LOCK_SECONDS = 2.0
"""Time that the lock may take: network file systems may wait for a server, whatever is asked."""

LEFT_SECONDS = 3600.0
"""Age at which a file that was never renamed is one of a process that was killed."""

_FORMAT = "coordinate-eval-queue@1"
_CLUSTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,100}")
_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class SharedQueue:
    """The queue as one process of several sees it.

    Args:
        folder: of the user's own, on storage that all of his processes share. It is made.
        cluster: Slurm's name of the cluster. Without one nothing is shared.
        ask: returns what squeue prints of this user's tasks.
        clock: seconds from any moment on.
    """

    def __init__(
        self,
        folder: Path,
        cluster: str,
        ask: Callable[[], str],
        clock: Callable[[], float] = lambda: time.monotonic(),
    ) -> None:
        self._ask, self._clock = ask, clock
        self._cluster = cluster if _CLUSTER.fullmatch(cluster) else ""
        self._file = folder / f"{cluster}.txt"
        self._lock = folder / f"{cluster}.lock"
        self._mark = ""
        """Of the last answer, as far as there is one in the file."""
        self._shares = False
        """True if the last answer of this process is in the file."""
        self._has_swept = False
        self._trusts = False
        self._looked = -math.inf
        """This process's clock at its last look, in seconds."""
        self._locks = True
        """True if the file system has answered whenever it was asked for the lock."""
        self._living: set[tuple[str, str]] = set()
        """Id and name of each job that the next answer must have."""

    def expect(self, job_id: str, name: str) -> None:
        """Believe no answer without this job, which was just submitted."""
        self._living.add((job_id, name))

    def distrust(self) -> None:
        """Ask next time, whatever others were told: a job may or may not have been submitted."""
        self._trusts = False

    def look(self, prefix: str, *, patient: bool) -> list[TaskStatus] | None:
        """Return this user's tasks whose job name has this prefix.

        With `patient` return None where nothing new is known and another process is asking, or
        cannot be told from one that is.

        Raises:
            ClusterSilent: no answer.
        """
        with self._turn() as mine:
            if self._clock() - self._looked > LONGEST_PAUSE_SECONDS:
                self._trusts = False
            news = self._news()
            tasks = self._believed(news, prefix) if self._trusts and news else None
            if tasks is None:
                if patient and self._trusts and (news or not mine):
                    self._looked = self._clock()
                    return None
                answer = self._ask()
                tasks = read_tasks(answer, prefix)
                self._tell(answer)
                self._trusts = True
        self._looked = self._clock()
        self._living = {(t.job_id, t.name) for t in tasks if t.state is not State.ENDED}
        return tasks

    def _believed(self, answer: str, prefix: str) -> list[TaskStatus] | None:
        """Return the tasks of an answer; None if it may be older than what is known here."""
        with contextlib.suppress(ClusterSilent):  # it is incomplete
            tasks = read_tasks(answer, prefix)
            listed = {(task.job_id, task.name) for task in tasks}
            if all(job in listed for job in self._living if job[1].startswith(prefix)):
                return tasks
        return None

    def _news(self) -> str:
        """Return the answer in the file if it is another one than last time, else nothing."""
        if not self._cluster:
            return ""
        with contextlib.suppress(OSError, ForeignError), _files.open_to_read(self._file) as file:
            head = file.readline(1000).decode(errors="replace").split()
            if head[:2] == [_FORMAT, self._cluster] and head[2:] != self._mark.split():
                self._mark = " ".join(head[2:])
                answer = file.read(MOST_BYTES + 1)
                whole = len(answer) <= MOST_BYTES and head[3:] == [str(len(answer))]
                return answer.decode(errors="replace") if whole else ""
        return ""

    def _tell(self, answer: str) -> None:
        """Write an answer for the others. If that fails, they ask for themselves."""
        self._shares = False
        if not self._cluster:
            return
        with contextlib.suppress(OSError, ForeignError, UnicodeError):
            folder = self._file.parent
            if os.path.lexists(folder):
                _owner.check_folder(folder)
            _files.make_closed(folder)
            _owner.check_folder(folder)
            mark = f"{_files.token()} {len(answer.encode())}"
            _files.write(self._file, f"{_FORMAT} {self._cluster} {mark}\n{answer}")
            self._mark, self._shares = mark, True
            if not self._has_swept:
                self._has_swept = True
                _files.remove_left(self._file, LEFT_SECONDS)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[bool]:
        """Hold the lock in the block if it is free, and yield whether it is held."""
        mine = False
        with contextlib.ExitStack() as held:
            if self._shares and self._locks:
                with contextlib.suppress(OSError):
                    lock = os.open(self._lock, _LOCK, 0o600)
                    taking = _Taking(lock)
                    taking.start()
                    taking.join(LOCK_SECONDS)
                    self._locks = not taking.is_alive()
                    if self._locks:
                        held.callback(os.close, lock)
                        mine = taking.taken
            yield mine


class _Taking(threading.Thread):
    """Takes a lock if it is free. One that takes too long is left behind, with the open file."""

    def __init__(self, lock: int) -> None:
        super().__init__(daemon=True)
        self._lock = lock
        self.taken = False

    def run(self) -> None:
        """Take the lock."""
        with contextlib.suppress(OSError):
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.taken = True
