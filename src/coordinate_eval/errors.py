"""Every error this program raises on purpose.

CoordinateError
├── UserError            wrong input or setting; nothing was started
│   ├── DataMissing      data that would have to be downloaded, and cannot be from here
│   ├── ForeignError     a file or folder that another user owns or can write
│   ├── Unfinished       a checkpoint that may still be being written; try again later
│   ├── StoreSilent      an object store gave no usable answer; try again later
│   ├── PlaceGone        what jobs are to run in is not there for this user, and never will be
│   ├── RunExists        another process has made the run meanwhile
│   └── WeightsRefused   weights that no node can use, whoever converts them
├── ClusterError         the scheduler answered with an error
│   ├── ClusterSilent    the scheduler did not answer; try again later
│   └── SubmitRefused    the scheduler refused a job, and would refuse it again
│       ├── ArrayRefused     it takes no array of so many tasks
│       ├── SubmitLater      it takes no more jobs now, and may take the same one later
│       └── SettingsRefused  it takes no job of these settings
│           └── NotFromHere      it may take the job from another machine
├── EngineError          an engine failed to start or to answer
├── SaveError            a save of a training was not written, or none can be loaded
├── ServerRefuses        a server answers nothing of this run: its key, its model, its address
├── ServerSilent         a server gave no usable answer; it may later
└── RecordError          a file of a run directory is missing, torn or of another version

The command's exit status is 2 for UserError and SubmitRefused, 3 for ClusterSilent, SubmitLater,
Unfinished and StoreSilent, and 1 for all others.
"""

from collections.abc import Iterator
from typing import ClassVar


class CoordinateError(Exception):
    """Base of all errors. The text is a message for a person: what, where, what to do next."""

    exit_status: ClassVar[int] = 1


class UserError(CoordinateError):
    """A checkpoint, suite, setting or command that cannot work as given."""

    exit_status = 2


class Unfinished(UserError):
    """A checkpoint that cannot be used as it is, and has just been changed."""

    exit_status = 3


class StoreSilent(UserError):
    """An object store gave no usable answer. It may later, if its address is right."""

    exit_status = 3


class PlaceGone(UserError):
    """The place to run jobs in is not there for this user. Waiting does not help."""


class WeightsRefused(UserError):
    """Weights that no node can use: some are no numbers, or they are not the model's."""


class ForeignError(UserError):
    """A file or folder is not the user's alone, and is not used."""


class RunExists(UserError):
    """Another process has made the same run at the same time."""


class DataMissing(UserError):
    """The data of a task is in no cache, and no hub can be reached from this machine."""


class ClusterError(CoordinateError):
    """The scheduler answered with an error."""


class ClusterSilent(ClusterError):
    """The scheduler did not answer. Nothing is known about jobs and nodes."""

    exit_status = 3


class SubmitRefused(ClusterError):
    """The scheduler refused a job. The text has its words."""

    exit_status = 2


class ArrayRefused(SubmitRefused):
    """The scheduler takes no array of so many tasks. It may take a smaller one."""


class SubmitLater(SubmitRefused):
    """The scheduler takes no more jobs now. The same job may be taken later."""

    exit_status = 3


class SettingsRefused(SubmitRefused):
    """The scheduler takes no job of these settings. The text says which to change."""


class NotFromHere(SettingsRefused):
    """The scheduler takes no job from this machine."""


class EngineError(CoordinateError):
    """An engine failed to start or to answer."""


class SaveError(CoordinateError):
    """A save of a training was not written, or none can be loaded. Earlier ones stay."""


class ServerRefuses(CoordinateError):
    """A server would answer no question. The text says why, and what to do."""


class ServerSilent(CoordinateError):
    """A server gave no usable answer for a while. It may later. The text has its last words."""


class RecordError(CoordinateError):
    """A file of the run directory is missing, torn or of another version."""


def with_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and what led to it, each once. The members of a group are among them."""
    seen: set[int] = set()
    left = [error]
    while left:
        each = left.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            yield each
            left.append(each.__cause__ or each.__context__)
            if isinstance(each, BaseExceptionGroup):
                left += reversed(each.exceptions)
