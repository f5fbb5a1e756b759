"""Every error this program raises on purpose.

CoordinateError
├── UserError            exit status 2: the input or the setting is wrong, nothing was started
├── ClusterError         the scheduler said no, in its own words
│   ├── ClusterSilent    it did not answer: nothing is known, ask again later
│   └── SubmitRefused    it refused this job; the same job will be refused again
├── EngineError          an engine could not start or gave up
└── RecordError          a file of a run directory is not what its name says
"""

from typing import ClassVar


class CoordinateError(Exception):
    """Base of all; its text is one message for a person: what, where, what to do next."""

    exit_status: ClassVar[int] = 1


class UserError(CoordinateError):
    """Bad input: a checkpoint, suite, setting or command that cannot work as given."""

    exit_status = 2


class ClusterError(CoordinateError):
    """The scheduler answered with an error."""


class ClusterSilent(ClusterError):
    """The scheduler did not answer. Nothing may be concluded about jobs or nodes."""

    exit_status = 3


class SubmitRefused(ClusterError):
    """The scheduler refused a job; the text holds its words."""

    exit_status = 2


class EngineError(CoordinateError):
    """An engine failed to start or to answer."""


class RecordError(CoordinateError):
    """A file of the run directory is missing, torn or of another version."""
