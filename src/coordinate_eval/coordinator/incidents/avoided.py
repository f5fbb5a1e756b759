"""Nodes that the user's runs avoid for a while: a small file each, in the folder of caches.

A node that failed one run is often the freest one, and would be taken again by the next. Delete its
file to have it back at once.
"""

import contextlib
import os
from pathlib import Path

from pydantic import Field

from coordinate_eval import _files
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.errors import ForeignError, RecordError
from coordinate_eval.records import Record

LONGEST_SECONDS = 86_400.0
"""Longest time for which a node is avoided. Failures that are as long past no longer count."""

MOST_EVIDENCE = 50
"""Failures on a node that are remembered, so that each counts once."""


class Avoided(Record):
    """A node that is avoided, until when, and why."""

    node: str
    until: float = Field(description="seconds since the epoch")
    why: str = Field(description="in words for a person")
    evidence: list[str] = Field(default=[], description="what was seen last; each counts once")
    times: int = Field(default=1, description="that it was avoided in a row")


def avoided_folder(settings: Settings) -> Path:
    """Return the folder of this user's files."""
    return Path(settings.cache_dir).expanduser() / f"avoided-nodes-{os.geteuid()}"


def read_avoided(settings: Settings, now: float) -> dict[str, Avoided]:
    """Return the nodes to avoid now, by name. Files that cannot be used are passed over."""
    return {name: found for name, found in _known(settings).items() if found.until > now}


def avoid(settings: Settings, node: str, why: str, evidence: str, now: float) -> Avoided | None:
    """Have all of the user's runs avoid a node, unless this evidence of it is known already.

    Return until when and why, or None if nothing has changed: also where settings avoid no node.

    The time is the setting `[trial] avoid_minutes`, doubled each time within a day.
    """
    known = _known(settings).get(node)
    seconds = settings.trial.avoid_minutes * 60
    if seconds <= 0 or (known is not None and evidence in known.evidence):
        return None
    times = 1 if known is None or now - known.until > LONGEST_SECONDS else known.times + 1
    until = now + min(LONGEST_SECONDS, seconds * 2 ** min(times - 1, 20))
    seen = [*(known.evidence if known is not None else []), evidence][-MOST_EVIDENCE:]
    new = Avoided(node=node, until=until, why=why, evidence=seen, times=times)
    folder = avoided_folder(settings)
    with contextlib.suppress(OSError, ForeignError):
        _files.write_record(_files.own_folder(folder) / f"{node}.json", new)
    return new


def _known(settings: Settings) -> dict[str, Avoided]:
    found: dict[str, Avoided] = {}
    with contextlib.suppress(OSError):
        for path in _files.records_in(avoided_folder(settings)):
            with contextlib.suppress(RecordError, ForeignError):
                record = _files.read_record_if_there(path, Avoided)
                if record is not None and record.node == path.stem:
                    found[record.node] = record
    return found
