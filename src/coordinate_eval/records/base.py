"""Common parts of all records."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+=@,-]{0,199}$")]
"""A name that is a part of file names and of job names."""


class Record(BaseModel):
    """Base of everything that is written. Instances are immutable."""

    model_config = ConfigDict(
        defer_build=True, frozen=True, extra="ignore", ser_json_inf_nan="strings"
    )

    def line(self) -> str:
        """Return this record as one line of JSON, with its newline."""
        return self.model_dump_json(exclude_defaults=True) + "\n"
