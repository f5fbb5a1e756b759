"""`troubles/<trial>.json`: how a trial ended that did not say so itself."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import End
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.records import Record

How = End | Literal["hung"]


class Trouble(Record):
    """The end of a trial, as the supervisor or the job of its node saw it."""

    trial: str
    node: str
    how: How = Field(description="what the scheduler says, or that the supervisor ended it")
    time: float
    message: str = Field(description="in words for a person")
    log: str = Field(default="", description="absolute path of the job's log, if it has one")


def write_trouble(run_dir: RunDir, trouble: Trouble) -> None:
    """Note a trouble. The first one of a trial stays."""
    _files.create(run_dir.trouble(trouble.trial), trouble.model_dump_json(indent=1))


def read_troubles(run_dir: RunDir) -> Iterator[Trouble]:
    """Yield all troubles since the run was last resumed, in the order of the trials' names."""
    since = _files.modified(run_dir.resumed)
    for path in _files.records_in(run_dir.troubles_folder):
        if _files.modified(path) >= since:
            yield _files.read_record(path, Trouble)
